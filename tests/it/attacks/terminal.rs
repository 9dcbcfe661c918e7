//! Texts of others that would steer a terminal: no door lets them through to standard output, standard error, a page or
//! an answer, and none of them is printed at any length.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use stepmem::store::zstd::ZstdFrames;
use stepmem_types::format::clean::is_raw;

use crate::rig::answers::Answering;
use crate::rig::command::{Ended, stepmem};
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, root, text};
use crate::rig::job::Job;
use crate::rig::nvml::{FakeNvml, driver, gpu};
use crate::rig::snapshot::guide;
use crate::rig::units::MIB;

/// ESC and C1 sequences, texts that turn around, NUL, a carriage return, a bell, a backspace and a forged line.
const ATTACK: &str =
    "\u{1b}[2J\u{1b}]0;x\u{7}\u{9b}2J\u{202e}\u{2066}\u{200b}\u{e0041}\0\r\u{8}\nerror: forged";
/// The same without NUL, which no argument and no name of a file has.
const NAME: &str =
    "\u{1b}[2J\u{7}\u{9b}2J\u{202e}\u{2066}\u{200b}\u{e0041}\r\u{8}\nerror: forged";
/// The length of a long text, in bytes.
const LONG: usize = 5 * 1024 * 1024;
/// The most that a command prints about a text of others, in bytes.
const PRINTED_MAX: usize = 64 * 1024;

/// The attack, long enough that no command prints it as it is.
static LONG_IN_PLACE: LazyLock<String> =
    LazyLock::new(|| ATTACK.repeat(2 * PRINTED_MAX / ATTACK.len()));

/// Each place with the attack, short and long.
fn in_places(pointers: &[String]) -> impl Iterator<Item = (&String, &'static str)> {
    pointers.iter().flat_map(|pointer| [(pointer, ATTACK), (pointer, LONG_IN_PLACE.as_str())])
}

/// The attack, and the same in a long text.
static TEXTS: LazyLock<[String; 2]> = LazyLock::new(|| {
    let long = ATTACK.repeat(LONG / ATTACK.len());
    [ATTACK.to_owned(), long]
});

#[track_caller]
fn check_text(text: &str, what: &str) {
    let raw = text.chars().find(|c| *c != '\n' && is_raw(*c));
    let shown: String = text.chars().take(400).collect();
    assert_eq!(raw, None, "{what}: {shown:?}");
    assert!(!text.lines().any(|line| line.starts_with("error: forged")), "{what}: {shown:?}");
}

/// Checks what a command printed.
#[track_caller]
fn check(ended: &Ended, what: &str) {
    // A signal ends a process that panics as well as one that overflows its stack.
    assert!(ended.code.is_some_and(|code| code != 101), "{what}: {ended:?}");
    for text in [&ended.out, &ended.err] {
        check_text(text, what);
        assert!(text.len() <= PRINTED_MAX, "{what}: {} bytes", text.len());
    }
}

/// The strings of a value, one for each name, by their pointers.
fn strings(value: &Value) -> Vec<String> {
    fn find(value: &Value, (pointer, name): (&str, &str), found: &mut Vec<(String, String)>) {
        match value {
            Value::String(_) => found.push((pointer.to_owned(), name.to_owned())),
            Value::Array(values) => {
                for (idx, value) in values.iter().enumerate() {
                    find(value, (&format!("{pointer}/{idx}"), name), found);
                }
            }
            Value::Object(fields) => {
                for (key, value) in fields {
                    let escaped = key.replace('~', "~0").replace('/', "~1");
                    find(
                        value,
                        (&format!("{pointer}/{escaped}"), &format!("{name}/{key}")),
                        found,
                    );
                }
            }
            _ => {}
        }
    }
    let (mut found, mut names) = (Vec::new(), BTreeSet::new());
    find(value, ("", ""), &mut found);
    found.into_iter().filter(|(_, name)| names.insert(name.clone())).map(|(at, _)| at).collect()
}

/// A value with another text at a place.
fn with(value: &Value, pointer: &str, text: &str) -> Value {
    let mut value = value.clone();
    *value.pointer_mut(pointer).unwrap() = text.into();
    value
}

/// The commands that ask an exporter's page or Prometheus, at a URL.
fn asking(url: &str) -> Vec<Vec<&str>> {
    let ack = [
        "ack",
        "--kind",
        "CREEP_CONFIRMED",
        "--reason",
        "known",
        "--run",
        "leaky",
        "--rank",
        "2",
    ];
    vec![
        vec!["status", "--url", url],
        vec!["explain", "--run", "leaky", "--rank", "2", "--url", url],
        vec!["explain", "--url", url],
        vec!["summary", "--run", "leaky", "--url", url],
        vec!["check", "--url", url],
        vec!["end", "--run", "leaky", "--url", url],
        [&ack[..], &["--url", url]].concat(),
        vec!["release", "--for", "10s", "--url", url],
        vec!["snapshot", "take", "--run", "leaky", "--rank", "2", "--url", url],
        vec!["status", "--run", "leaky", "--prometheus", url],
        vec!["summary", "--run", "leaky", "--prometheus", url],
        vec!["compare", "--run", "leaky", "--prometheus", url],
    ]
}

#[test]
fn refusals_and_answers_of_others_are_clean_and_short() {
    let server = Answering::start();
    let url = server.url();
    let [short, longest] = &*TEXTS;
    // Every form in every status, and the longest text as a refusal and as it is.
    for (text, statuses, n_forms) in [
        (short, &[200, 403, 500][..], 6),
        (&*LONG_IN_PLACE, &[200, 403], 6),
        (longest, &[403], 2),
    ] {
        let bodies = [
            json!({ "title": text, "detail": text, "status": 400 }).to_string(),
            text.clone(),
            json!({ "status": "error", "errorType": text, "error": text }).to_string(),
            json!({ "status": "success", "data": { "resultType": text, "result": text } })
                .to_string(),
            json!({ "id": text, text: text }).to_string(),
            json!(text).to_string(),
        ];
        for (body, status) in bodies
            .iter()
            .take(n_forms)
            .flat_map(|body| statuses.iter().map(move |status| (body, *status)))
        {
            server.set(status, body);
            for arguments in asking(&url) {
                let ended = stepmem(&arguments, &[], b"");
                check(&ended, &format!("{arguments:?} {status} {body:.60?}"));
            }
        }
    }
}

/// An exporter with devices, findings, an end and a snapshot.
fn told(fake: &FakeNvml, arguments: &[&str]) -> Exporter {
    let exporter = fake.serve(arguments);
    exporter.push(&Job::leaking("leaky", 0..3000, 4 * MIB).records());
    exporter.push(&Job::leaking("over", 0..50, 0).records());
    exporter.end(
        "over",
        &json!({"rank": 0, "outcome": "oom", "error_type": "E", "error_message": "m"}),
    );
    exporter.take(
        "/v1/snapshots",
        &json!({"run": "leaky", "rank": 2, "outcome": "written", "path": "/s/x"}),
    );
    exporter.take(
        "/v1/snapshots",
        &json!({"run": "leaky", "rank": 1, "outcome": "failed", "error": "no"}),
    );
    exporter.await_metrics("devices", |metrics| metrics.contains_key("stepmem_nvml_up"));
    exporter
}

#[test]
fn every_text_of_a_status_and_a_summary_is_clean() {
    let fake = FakeNvml::new("terminal", &driver([gpu("GPU-1")]));
    let exporter = told(&fake, &[]);
    let documents = [
        (exporter.status(), vec![vec!["status"], vec!["status", "--json"], vec!["explain"]]),
        (exporter.summary("leaky"), vec![vec!["summary"], vec!["summary", "--json"]]),
    ];
    drop(exporter);
    let server = Answering::start();
    for (document, commands) in documents {
        let pointers = strings(&document);
        assert!(pointers.len() > 20, "{pointers:?}");
        for (pointer, attack) in in_places(&pointers) {
            server.set(200, &with(&document, pointer, attack).to_string());
            for command in &commands {
                let url = server.url();
                let of = if command[0] == "status" { &[][..] } else { &["--run", "leaky"][..] };
                let ended = stepmem(&[&command[..], of, &["--url", &url]].concat(), &[], b"");
                let what = format!("{command:?} {pointer} of {} bytes", attack.len());
                check_text(&ended.out, &what);
                check_text(&ended.err, &what);
                // Who asks for JSON gets what there is.
                if !command.contains(&"--json") {
                    let n_bytes = ended.out.len() + ended.err.len();
                    assert!(n_bytes <= PRINTED_MAX, "{what}: {n_bytes}");
                }
            }
        }
    }
}

#[test]
fn every_label_and_warning_of_prometheus_is_clean_and_short() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let series = |launch: &str, rank: &str, end: u64| {
        json!({
            "metric": {
                "run": "leaky", "launch": launch, "cluster": "c", "namespace": "n", "attempt": "1", "rank": rank, "pod": "p",
                "uuid": "GPU-1", "world_size": "3", "kind": "CREEP_CONFIRMED", "signal": "allocated", "file": "a/b/t.py",
                "line": "3", "function": "f", "holder": "x", "local_rank": "0",
            },
            "values": [[end - 600, "2"], [end, "3"]],
            "value": [end, "3"],
        })
    };
    // The first answer to a command names launches, the further ones have their figures: all are alike.
    let answer = json!({
        "status": "success",
        "data": {"resultType": "matrix", "result": [
            series("a", "0", now - 7200), series("a", "1", now - 7200), series("b", "0", now), series("b", "1", now),
        ]},
        "warnings": ["w"],
    });
    let server = Answering::start();
    let url = server.url();
    let job = ["--run", "leaky", "--prometheus", &url];
    let commands = [
        vec!["status"],
        vec!["status", "--json"],
        vec!["summary"],
        vec!["summary", "--json"],
        vec!["compare"],
        vec!["compare", "--json"],
    ];
    let ended_with = |answer: &Value, command: &[&str]| {
        server.set(200, &answer.to_string());
        stepmem(&[command, &job].concat(), &[], b"")
    };
    for command in &commands {
        let ended = ended_with(&answer, command);
        assert!(ended.code != Some(1), "{command:?}: {ended:?}");
    }
    let series = "/data/result";
    let in_place = strings(&answer);
    assert!(in_place.len() > 15, "{in_place:?}");
    for (pointer, attack) in in_places(&in_place) {
        let mut attacked = with(&answer, pointer, attack);
        // The same in every series, so that they stay of one launch.
        if let Some(label) = pointer.strip_prefix("/data/result/0/metric/") {
            for each in attacked.pointer_mut(series).unwrap().as_array_mut().unwrap() {
                each["metric"][label] = attack.into();
            }
        }
        for command in &commands {
            let what = format!("{command:?} {pointer} of {} bytes", attack.len());
            check(&ended_with(&attacked, command), &what);
        }
    }
}

fn unpacked(path: &Path) -> String {
    let mut text = String::new();
    let bytes = fs::read(path).unwrap();
    ZstdFrames::new(bytes.as_slice()).read_to_string(&mut text).unwrap();
    text
}

#[test]
fn every_text_of_a_recording_and_a_summary_file_is_clean() {
    let folder = Folder::new("terminal-files");
    let recorded = text(&folder.path("recorded"));
    let fake = FakeNvml::new("terminal-recorded", &driver([gpu("GPU-1")]));
    told(&fake, &["--record.directory", &recorded]).stop();
    let files: Vec<PathBuf> =
        fs::read_dir(&recorded).unwrap().map(|file| file.unwrap().path()).collect();
    let lines: Vec<Value> = files
        .iter()
        .flat_map(|file| unpacked(file).lines().map(str::to_owned).collect::<Vec<_>>())
        .map(|line| serde_json::from_str(&line).unwrap())
        .collect();
    let mut kinds = BTreeSet::new();
    let of_kind: Vec<&Value> = lines
        .iter()
        .filter(|line| {
            kinds.insert(line.as_object().unwrap().keys().cloned().collect::<Vec<_>>())
        })
        .collect();
    let head = lines[0].to_string();
    for line in of_kind {
        for (pointer, attack) in in_places(&strings(line)) {
            let file =
                folder.write("line", &format!("{head}\n{}\n", with(line, pointer, attack)));
            for command in ["replay", "summary", "explain"] {
                check(
                    &stepmem(&[command, &file], &[], b""),
                    &format!("{command} {pointer} of {line}"),
                );
            }
        }
    }
    let file = fs::read_to_string(root().join("fuzz/seeds/summaries/ours")).unwrap();
    let mut summaries = serde_json::Deserializer::from_str(&file).into_iter::<Value>();
    let summary = summaries.next().unwrap().unwrap();
    let plain = folder.write("old.json", &summary.to_string());
    for pointer in strings(&summary) {
        let file = folder.write("new.json", &with(&summary, &pointer, ATTACK).to_string());
        for arguments in
            [vec!["compare", &plain, &file], vec!["compare", "--json", &file, &plain]]
        {
            check(&stepmem(&arguments, &[], b""), &format!("{arguments:?} {pointer}"));
        }
    }
}

#[test]
fn names_of_files_arguments_and_variables_are_clean() {
    let folder = Folder::new("terminal-names");
    let missing = text(&folder.path(NAME));
    let garbage = folder.write(&format!("{NAME} there"), ATTACK);
    let snapshot = text(&folder.path(&format!("{NAME}.pickle.gz")));
    fs::copy(guide("accum"), &snapshot).unwrap();
    let long = format!("/{}", NAME.repeat(2000));
    for file in [&missing, &garbage, &snapshot, &long] {
        for arguments in [
            vec!["replay", file],
            vec!["summary", file],
            vec!["explain", file],
            vec!["compare", file, file],
            vec!["snapshot", "show", file],
            vec!["snapshot", "show", "--json", file],
            vec!["snapshot", "compare", file, file],
            vec!["snapshot", "compare-ranks", file, file],
            vec!["snapshot", "events", file],
            vec!["check", "--config.file", file],
            vec!["check", "--web.config.file", file],
            vec!["check", "--push.token-file", file],
            vec!["status", "--ca-file", file],
            vec!["end", "--run", "r", "--token-file", file],
            vec!["status", "--url", file],
            vec!["end", "--run", file],
            vec!["summary", "--run", file, "-"],
            vec!["check", "--nvml.interval", file],
            vec!["check", "--nvml.devices", file],
            vec!["check", "--otlp.endpoint", file],
            vec!["status", "--sort", file],
            vec!["snapshot", "show", "--at", file, &snapshot],
            vec!["status", "--unknown", file],
            vec![file],
            vec!["run", "--fail-on", file, "--", "true"],
            vec!["run", "--run", file, "--", "true"],
            vec!["status", "--run", "r", "--prometheus", file],
            vec!["snapshot", "show", "--html", file, file],
            vec!["run", "--", file],
        ] {
            check(&stepmem(&arguments, &[], b""), &format!("{arguments:.80?}"));
        }
        let unknown = format!("--{file}");
        check(&stepmem(&["status", &unknown], &[], b""), "an unknown argument");
        for variable in
            ["STEPMEM_NVML_INTERVAL", "STEPMEM_RUN", "STEPMEM_CONFIG_FILE", "STEPMEM_PUSH_URL"]
        {
            for command in [vec!["check"], vec!["end", "--run", "r"]] {
                check(&stepmem(&command, &[(variable, file)], b""), variable);
            }
        }
    }
    for (name, content) in [
        (
            "a.toml",
            format!("[nvml]\ninterval = {:?}\n{:?} = 1\n", ATTACK.replace('\0', ""), "k"),
        ),
        ("b.toml", format!("\"{}\" = 1\n", ATTACK.escape_default())),
        ("c.yaml", format!("{}: 1\n", json!(ATTACK))),
        ("d.yaml", format!("nvml: {{ interval: {} }}\n", json!(ATTACK))),
        ("e.yaml", ATTACK.to_owned()),
    ] {
        let file = folder.write(name, &content);
        check(&stepmem(&["check", "--config.file", &file], &[], b""), name);
        check(&stepmem(&["check", "--web.config.file", &file], &[], b""), name);
    }
}

/// The standard error of an exporter that is killed once it has started.
fn logged(arguments: &[&str]) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_stepmem"))
        .env_remove("KUBERNETES_SERVICE_HOST")
        .args([
            "serve",
            "--web.listen-address",
            "127.0.0.1:0",
            "--push.listen-address",
            "127.0.0.1:0",
        ])
        .args(arguments)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let mut text = String::new();
    // One that refuses its settings ends.
    while let Some(line) = lines.next().map(|line| line.expect("a log is UTF-8")) {
        text.extend([line.as_str(), "\n"]);
        if line.contains("started") {
            break;
        }
    }
    child.kill().ok();
    child.wait().unwrap();
    text
}

#[test]
fn log_of_an_exporter_is_clean_whatever_names_its_files_have() {
    let folder = Folder::new("terminal-log");
    let garbage = folder.write(NAME, ATTACK);
    let below = format!("{garbage}/below");
    // The library of a driver may have any name.
    let library = folder.write(&format!("{NAME}.so"), ATTACK);
    for format in ["text", "json"] {
        let log = |arguments: &[&str]| {
            let log = logged(&[&["--log.format", format], arguments].concat());
            check_text(&log, &format!("{format} {arguments:?}"));
            log
        };
        let aside = log(&["--no-nvml", "--state.file", &garbage]);
        assert!(aside.contains("state set aside"), "{aside}");
        fs::rename(format!("{garbage}.set-aside"), &garbage).unwrap();
        log(&["--no-nvml", "--state.file", &below, "--record.directory", &below]);
        log(&["--no-nvml", "--summary.dir", &below]);
        log(&["--nvml.library", &library]);
        log(&["--no-nvml", "--web.config.file", &garbage]);
        log(&["--no-nvml", "--push.token-file", &garbage]);
    }
}

#[test]
fn refusals_of_odd_requests_repeat_nothing_raw() {
    let exporter = Exporter::start(&[]);
    for path in
        ["%1b%5b2J", "%e2%80%ae", "%c2%9b", "%00", "%0d%0aerror: forged", "%f3%a0%81%81"]
    {
        let path = path.replace(' ', "%20");
        for of in ["/v1/runs/{}/end", "/v1/runs/{}/ack", "/v1/{}", "/{}", "/v1/devices/{}/ack"]
        {
            let answer = exporter.post_to(&of.replace("{}", &path), "{}");
            assert!(answer.status >= 400, "{of} {path}: {}", answer.status);
            check_text(&answer.body, &format!("{of} {path}"));
        }
        for of in [
            "/api/v1/runs/{}/summary",
            "/page/{}",
            "/snapshots/{}",
            "/{}",
            "/api/v1/status?{}={}",
        ] {
            let answer = exporter.get(&of.replace("{}", &path), &[]);
            check_text(&answer.body, &format!("{of} {path}"));
        }
    }
    for text in ["\u{9b}2J", "\u{202e}", "\u{e0041}"] {
        for header in [
            "Host",
            "Origin",
            "Content-Type",
            "Authorization",
            "Content-Encoding",
            "X-Forwarded-For",
        ] {
            for path in ["/metrics", "/api/v1/status", "/v1/steps"] {
                check_text(&exporter.get(path, &[(header, text)]).body, header);
            }
        }
    }
}

#[test]
fn pushed_texts_are_refused_or_clean_in_every_answer() {
    let exporter = Exporter::start(&[]);
    let step = json!({
        "run": "r", "rank": 0, "step": 1, "allocated_bytes": 1, "phase": "train", "device": "GPU-1", "marks": ["eval"],
        "device_memory": "unified", "instance": "00c0ffee00c0ffee", "launch": "l", "process_used_state": "no_answer",
        "container": "c", "container_limit_bytes": 9,
    });
    exporter.take("/v1/steps", &step);
    let line = json!({"file": "f", "line": 1, "function": "g"});
    let own = |mut body: Value| {
        (body["run"], body["rank"], body["instance"]) =
            ("r".into(), 0.into(), "00c0ffee00c0ffee".into());
        body
    };
    let mut end = own(json!({"outcome": "failed", "error_type": "E", "error_message": "m"}));
    end.as_object_mut().unwrap().remove("run");
    let bodies = [
        ("/v1/steps", step.clone()),
        (
            "/v1/snapshots",
            own(
                json!({"outcome": "written", "path": "p", "file": "f", "id": "1", "reason": "manual"}),
            ),
        ),
        ("/v1/snapshots", own(json!({"outcome": "failed", "error": "e"}))),
        ("/v1/holders", own(json!({"outcome": "gave_up", "error": "e", "id": "1"}))),
        (
            "/v1/holders",
            own(json!({"outcome": "named", "holders": [{
                "name": "`a`", "kind": "list", "at": line, "tensors": 1, "bytes": 1, "tensors_per_step": 1, "bytes_per_step": 1,
            }]})),
        ),
        (
            "/v1/runs/r/ack",
            json!({"rank": 0, "kind": "CREEP_CONFIRMED", "for_seconds": 9, "reason": "x"}),
        ),
        ("/v1/runs/r/end", end),
    ];
    // What is accepted may have invisible characters that no decoder refuses.
    for attack in [ATTACK, "a\u{202e}b", "a\u{9b}b", "a\u{200b}b\u{3164}", "\u{e0041}"] {
        for (path, body) in &bodies {
            for pointer in strings(body) {
                let answer = exporter.post_to(path, with(body, &pointer, attack).to_string());
                check_text(&answer.body, &format!("{path} {pointer}"));
                let mut keyed = body.clone();
                keyed[attack] = 1.into();
                check_text(&exporter.post_to(path, keyed.to_string()).body, path);
            }
        }
        let url = format!("http://{}", exporter.web);
        for arguments in asking(&url) {
            check(&stepmem(&arguments, &[], b""), &format!("{arguments:?}"));
        }
        for path in [
            "/api/v1/status",
            "/metrics",
            "/api/v1/runs/r/summary",
            "/api/v1/runs/r/ranks/0/windows",
        ] {
            check_text(&exporter.get(path, &[]).body, path);
        }
    }
    for text in TEXTS.iter() {
        let answer = exporter.post_to("/v1/steps", with(&step, "/run", text).to_string());
        assert!(answer.status >= 400 && answer.body.len() <= 2048, "{}", answer.status);
    }
}

#[test]
fn names_of_devices_and_drivers_are_clean() {
    let plain = ATTACK.replace('\0', "");
    let named = gpu("GPU-1").named(&plain);
    let fake = FakeNvml::new("terminal-driver", &driver([named]).version(&plain));
    let exporter = fake.serve(&[]);
    exporter.await_metrics("the device", |metrics| {
        metrics.keys().any(|series| series.starts_with("stepmem_device_info"))
    });
    check_text(&exporter.get("/metrics", &[]).body, "metrics");
    check_text(&exporter.get("/api/v1/status", &[]).body, "status");
    check(&exporter.asked(&["status"]), "status");
}
