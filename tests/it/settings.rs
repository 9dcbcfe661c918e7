//! Settings from every source, what is wrong with them, and the commands that end.

use std::path::Path;

use serde_json::json;
use stepmem::config::table::SETTINGS;

use crate::rig::command::{ANY_PORTS, stepmem};
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::record;
use crate::rig::nvml::{FakeNvml, driver, gpu};

/// The output of `check`, without NVML.
fn check(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let ended = stepmem(&[&["check", "--no-nvml"], arguments].concat(), variables, b"");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(ended.err, "");
    // Another may run on the usual ports of this machine.
    ended.out.replace("; in use by a stepmem that runs: stop that before you start another", "")
}

/// The mistakes that `check` finds, line by line.
fn mistakes(arguments: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
    let variables = [&ANY_PORTS[..], variables].concat();
    let ended = stepmem(&[&["check"], arguments].concat(), &variables, b"");
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""));
    let mistakes = ended.err.strip_prefix("error: ").unwrap();
    // Every line after the first is indented: none looks like another error.
    mistakes.split_terminator('\n').map(|line| line.trim_start().to_owned()).collect()
}

#[test]
fn flag_is_stronger_than_variable_than_file_than_default() {
    let folder = Folder::new("precedence");
    let toml = folder.write("a.toml", "[web]\ntelemetry-path = \"/file\"\n");
    let yaml = folder.write("b.yaml", "web:\n  telemetry-path: /yaml\n");
    let path = |arguments: &[&str], variables: &[(&str, &str)]| {
        let out = check(arguments, variables);
        let page = out.lines().next().unwrap().rsplit_once("9477").unwrap().1.to_owned();
        page.split(' ').next().unwrap().to_owned()
    };
    let variable = ("STEPMEM_WEB_TELEMETRY_PATH", "/variable");
    let (file, flag) = (["--config.file", &toml], ["--web.telemetry-path", "/flag"]);
    assert_eq!(path(&[], &[]), "/metrics");
    assert_eq!(path(&file, &[]), "/file");
    assert_eq!(path(&[], &[("STEPMEM_CONFIG_FILE", &yaml)]), "/yaml");
    assert_eq!(path(&file, &[("STEPMEM_CONFIG_FILE", &yaml)]), "/file");
    assert_eq!(path(&file, &[variable]), "/variable");
    assert_eq!(path(&[&file[..], &flag].concat(), &[variable]), "/flag");
}

#[test]
fn toml_and_yaml_nested_or_dotted_mean_the_same() {
    let folder = Folder::new("files");
    let toml = folder.write(
        "nested.toml",
        "no-nvml = true\n[web]\nlisten-address = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n\
         [push]\ninsecure = true\nlisten-address = \":3\"\nunix-socket = \"/run/s.sock:600\"\n[rank]\nmax = 12\n",
    );
    let dotted = folder.write(
        "dotted.toml",
        "no-nvml = \"true\"\n\"push.insecure\" = true\n\"web.listen-address\" = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n\
         \"push.listen-address\" = [\":3\"]\n\"push.unix-socket\" = \"/run/s.sock:600\"\n",
    );
    let yaml = folder.write(
        "nested.yml",
        "no-nvml: true\nweb:\n  listen-address:\n    - 127.0.0.1:1\n    - 127.0.0.1:2\n\
         push:\n  insecure: true\n  listen-address: :3\n  unix-socket: /run/s.sock:600\n",
    );
    let expected = "page and metrics: http://127.0.0.1:1/metrics\n\
                    page and metrics: http://127.0.0.1:2/metrics\n\
                    pushes:           http://127.0.0.1:3/v1/steps (and every address of this host)\n\
                    pushes:           /run/s.sock (mode 600)\n\
                    push token:       none\n\
                    admin token:      none: root and loopback are admins\n\
                    OTLP:             off\n\
                    NVML:             off\n";
    for file in [&toml, &dotted, &yaml] {
        assert_eq!(check(&["--config.file", file], &[]), expected, "{file}");
    }
    let variables = [
        ("STEPMEM_WEB_LISTEN_ADDRESS", "127.0.0.1:1, 127.0.0.1:2"),
        ("STEPMEM_PUSH_LISTEN_ADDRESS", ":3"),
        ("STEPMEM_PUSH_INSECURE", "true"),
        ("STEPMEM_PUSH_UNIX_SOCKET", "/run/s.sock:600"),
    ];
    assert_eq!(check(&[], &variables), expected);
}

#[test]
fn all_mistakes_are_reported_at_once_with_source_value_and_limit() {
    let folder = Folder::new("mistakes");
    let file = folder.write(
        "bad.toml",
        "rank.max = 0\nrun.max = true\nworkflow = 1\n[push]\nbody-max = \"1 MB\"\nbuddy-max = 5\n",
    );
    let arguments = [
        "--config.file",
        &file,
        "--rank.ttl",
        "soon",
        "--pressure.warning",
        "0.99",
        "--web.telemetry-path",
        "metrics",
        "--log.level",
        "loud",
        "--log.level",
        "info",
        "--stop.linger=-1s",
        "--nvml.interval",
        "0s",
        "--state.file",
        "/nowhere/state",
    ];
    let variables =
        [("STEPMEM_WEB_LISTEN_ADDRESS", "nowhere"), ("STEPMEM_PUSH_UNIX_SOCKET", "s.sock:9")];
    let mut found = mistakes(&arguments, &variables);
    found.sort();
    let of_file = |mistake: &str| format!("{file}: {mistake}");
    let in_file = [
        "push.buddy-max: no such setting; did you mean push.body-max?",
        "workflow: no such setting",
        "push.body-max: \"1 MB\" is not an integer of 1024 to 8388608",
        "rank.max: \"0\" is not an integer of 1 to 65536",
        "run.max: \"true\" is not an integer of 1 to 65536",
    ]
    .map(of_file);
    let mut expected = [
        "state.file: /nowhere/state: No such file or directory (os error 2)",
        "STEPMEM_WEB_LISTEN_ADDRESS: \"nowhere\" is not HOST:PORT or :PORT",
        "--web.telemetry-path: \"metrics\" is not a free path of letters, digits and / - _ .",
        "STEPMEM_PUSH_UNIX_SOCKET: mode \"9\" is not octal, of 0 to 777",
        "--rank.ttl: \"soon\" is not a duration such as 90s, 10m or 6h, up to a year",
        "--nvml.interval: a duration of 0 makes no sense here",
        "--stop.linger: \"-1s\" is not a duration such as 90s, 10m or 6h, up to a year",
        "--log.level: given 2 times, but may be given only once",
        "pressure.warning: 0.99 exceeds pressure.critical, which is 0.97",
    ]
    .map(str::to_owned)
    .to_vec();
    expected.extend(in_file);
    expected.sort_unstable();
    assert_eq!(found, expected);
    let wrong = ["serve", "--no-nvml", "--rank.max", "0", "--run.max", "0"];
    let unusable = ["--state.file", "/nowhere/state"];
    let served = stepmem(&[&wrong[..], &unusable].concat(), &ANY_PORTS, b"");
    served.fails(1, "state.file: /nowhere/state: ");
    assert_eq!(served.err.lines().count(), 3, "{}", served.err);
}

#[test]
fn file_that_cannot_be_read_is_named() {
    let folder = Folder::new("unreadable");
    let broken = folder.write("broken.toml", "rank.max = = 3\n");
    let yaml = folder.write("broken.yaml", "rank: [1\n");
    let twice = folder.write("twice.yaml", "otlp.headers: secret\nrank.max: 3\nrank.max: 4\n");
    let documents = folder.write("documents.yml", "rank.max: 3\n---\nrank.max: 4\n");
    let deep = folder.write("deep.yaml", &"{a: ".repeat(1000));
    let aliases: String = (1..40)
        .fold(String::new(), |text, n| format!("{text}a{n}: &a{n} [*a{0}, *a{0}]\n", n - 1));
    let aliases = folder.write("aliases.yaml", &format!("a0: &a0 [1]\n{aliases}"));
    let ini = folder.write("settings.ini", "rank.max = 3\n");
    for (file, problem) in [
        ("/nowhere/settings.toml", "No such file"),
        (&broken, "TOML parse error"),
        (&yaml, "rank: unclosed bracket '[' at line 1, column 7"),
        (&twice, "duplicate mapping key `rank.max` is not allowed here at line 3"),
        (&documents, "only single YAML document expected but multiple found"),
        (&deep, "line 1"),
        (&aliases, "too large or too complex"),
        (&ini, "the name ends in none of .toml, .yaml, .yml"),
    ] {
        let found = mistakes(&["--config.file", file], &[]).join("\n");
        assert!(found.starts_with(&format!("--config.file: {file}: ")), "{found}");
        assert!(found.contains(problem) && !found.contains("secret"), "{found}");
    }
}

#[test]
fn yaml_is_that_of_version_1_2() {
    let folder = Folder::new("yaml-core");
    let file = folder.write("a.yaml", "no-nvml: yes\nrank.max: 0x10\nrun.max: 1_000\n");
    let expected = [
        "no-nvml: \"yes\" is neither true nor false",
        "run.max: \"1_000\" is not an integer of 1 to 65536",
    ]
    .map(|mistake| format!("{file}: {mistake}"));
    let mut found = mistakes(&["--config.file", &file], &[]);
    found.sort_unstable();
    assert_eq!(found, expected);
    let empty = folder.write("empty.yaml", "# nothing\n");
    check(&["--config.file", &empty], &[]);
}

#[test]
fn check_lists_addresses_token_export_and_devices() {
    let folder = Folder::new("check");
    let token = folder.write("token", "secret\n");
    let out = check(
        &[
            "--push.token-file",
            &token,
            "--otlp.endpoint",
            "http://collector:4318",
            "--otlp.interval",
            "90s",
        ],
        &[],
    );
    for line in [
        "page and metrics: http://127.0.0.1:9477/metrics (and every address of this host)",
        "pushes:           http://127.0.0.1:9478/v1/steps",
        "push token:       required",
        "OTLP:             http://collector:4318/v1/metrics every 1 min 30 s",
    ] {
        assert!(out.lines().any(|each| each == line), "{out}");
    }
    assert!(!out.contains("secret"));
    let unusable = folder.write("lib.so", "");
    let absent = stepmem(&["check", "--nvml.library", &unusable], &[], b"");
    assert_eq!(absent.code, Some(0), "{}", absent.err);
    assert!(
        absent.out.contains("NVML:             no NVIDIA driver here (library_missing): "),
        "{}",
        absent.out
    );
    let empty = folder.write("empty", "\n");
    let found = mistakes(&["--push.token-file", &empty], &[]);
    assert_eq!(
        found,
        [format!("--push.token-file: {empty}: a token of 0 bytes is not one of 1 to 4096")]
    );
}

#[test]
fn status_is_a_table_for_people_and_json_for_programs() {
    let exporter = Exporter::start(&[]);
    let url = format!("http://{}", exporter.web);
    let status = |more: &[&str]| {
        let ended = stepmem(&[&["status", "--url", &url], more].concat(), &[], b"");
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended.out
    };
    assert_eq!(status(&[]), "No rank pushes.\n");
    let gib = 1_u64 << 30;
    let pressed = json!({ "run": "llm", "rank": 12, "step": 7, "allocated_bytes": 70 * gib, "peak_allocated_bytes": 79 * gib, "total_bytes": 80 * gib });
    let batch = format!("[{},{pressed}]", record(0, 1, gib));
    assert_eq!(exporter.post(batch).status, 200);
    exporter.await_metrics("pressure", |metrics| {
        metrics.contains_key(
            r#"stepmem_diagnosis_severity{run="llm",rank="12",kind="HIGH_PRESSURE"}"#,
        )
    });
    let table = status(&[]);
    let lines: Vec<&str> = table.lines().collect();
    let of = |text: &str| {
        let line =
            lines.iter().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{table}"));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        of("RUN"),
        "RUN RANK ATTEMPT STEP PUSHED ALLOCATED PEAK RESERVED CAPACITY PRESSURE SLOPE/STEP OOM IN DIAGNOSIS"
    );
    // The age of a push is a matter of seconds.
    let ends = |line: String, start: &str, end: &str| {
        assert!(line.starts_with(start) && line.ends_with(end), "{line}");
    };
    ends(of("llm "), "llm 12 0 7 ", "70.0 GiB 79.0 GiB – 80.0 GiB 99% – – HIGH PRESSURE");
    let judged = "1.00 GiB 1.00 GiB – – – – – no finding; growth judged from step 47";
    ends(of("default "), "default 0 0 1 ", judged);
    let column = |line: &str, text: &str| {
        line.chars()
            .collect::<String>()
            .find(text)
            .map(|at| line[..at].chars().count() + text.chars().count())
    };
    let ends: Vec<_> = [("RUN", "ALLOCATED"), ("llm ", "70.0 GiB"), ("default ", "1.00 GiB")]
        .map(|(start, text)| {
            column(lines.iter().find(|line| line.contains(start)).unwrap(), text)
        })
        .into();
    assert!(ends[0].is_some() && ends.iter().all(|end| *end == ends[0]), "{table}");
    let sentence =
        "HIGH PRESSURE (critical), rank 12 of llm: the allocated peak is at 99% of 80.0 GiB";
    assert!(table.contains(sentence), "{table}");
    assert!(!table.contains('\u{1b}'), "colors in a pipe");
    let json: serde_json::Value = serde_json::from_str(&status(&["--json"])).unwrap();
    assert_eq!(json["ranks"][1]["allocated_bytes"], 70 * gib);
    drop(exporter);
    let silent = stepmem(&["status", "--url", &url], &[], b"");
    silent.fails(1, &format!("no exporter answers at {url}/api/v1/status"));
}

#[test]
fn every_help_renders_and_names_every_setting() {
    for command in ["serve", "demo", "check"] {
        let ended = stepmem(&[command, "--help"], &[], b"");
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{command}");
        for setting in SETTINGS {
            assert!(
                ended.out.contains(&format!("--{}", setting.key)),
                "{command} {}",
                setting.key
            );
            assert!(ended.out.contains(&setting.variable()), "{command} {}", setting.key);
        }
    }
    for (arguments, part) in [
        (&["--help"][..], "serve"),
        (&["replay", "--help"], "JSON lines"),
        (&["status", "--help"], "--json"),
        (&["help", "serve"], "curl"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
    ] {
        let ended = stepmem(arguments, &[], b"");
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(ended.out.contains(part), "{arguments:?}: {}", ended.out);
    }
}

#[test]
fn wrong_arguments_are_reported_on_stderr() {
    for (arguments, part) in [
        (&[][..], "Usage"),
        (&["surf"], "surf"),
        (&["serve", "--rank.tttl", "1s"], "--rank.ttl"),
        (&["replay"], "FILE"),
    ] {
        let ended = stepmem(arguments, &[], b"");
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(ended.err.contains(part), "{arguments:?}: {}", ended.err);
    }
}

#[test]
fn live_table_of_run_is_refused_with_the_command_that_shows_it() {
    let ended = stepmem(&["run", "--live", "--", "true"], &[], b"");
    ended.fails(2, "unexpected argument '--live'");
    assert!(ended.err.contains("stepmem status --watch"), "{}", ended.err);
}

#[test]
fn settings_of_the_file_reach_the_exporter() {
    let folder = Folder::new("reach");
    let file =
        folder.write("stepmem.yaml", "run.max: 1\npressure: {warning: 0.5, critical: 0.6}\n");
    assert!(Path::new(&file).exists());
    let exporter = Exporter::start(&["--config.file", &file]);
    let push = |run: &str| {
        let record = json!({ "run": run, "rank": 0, "step": 1, "allocated_bytes": 5, "peak_allocated_bytes": 55, "total_bytes": 100 });
        exporter.post(record.to_string()).status
    };
    assert_eq!((push("a"), push("b")), (200, 429));
    let severity = r#"stepmem_diagnosis_severity{run="a",rank="0",kind="HIGH_PRESSURE"}"#;
    exporter.await_metrics("pressure", |metrics| metrics.get(severity) == Some(&2.0));
}

#[test]
fn devices_are_those_that_the_setting_chooses() {
    let fake = FakeNvml::new("choice", &driver([gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c")]));
    let library = text(&fake.library());
    let check = |arguments: &[&str], variables: &[(&str, &str)], expected: &[&str]| {
        let arguments = [&["check", "--nvml.library", &library], arguments].concat();
        let ended = stepmem(&arguments, variables, b"");
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        let said: Vec<&str> = ended
            .out
            .lines()
            .filter_map(|line| line.strip_prefix("NVML:")?.split_whitespace().next())
            .collect();
        assert_eq!(said, expected, "{arguments:?} {variables:?}");
    };
    let all = ["GPU-a", "GPU-b", "GPU-c"];
    let nothing = ["not"];
    check(&[], &[], &all);
    check(&["--nvml.devices", ""], &[], &all);
    check(&["--nvml.devices", "all"], &[], &all);
    check(&["--nvml.devices", "pushed"], &[], &nothing);
    check(&["--nvml.devices", "GPU-c, GPU-a"], &[], &["GPU-c", "GPU-a"]);
    check(&["--nvml.devices", "GPU-c", "--nvml.devices", "GPU-b"], &[], &["GPU-c", "GPU-b"]);
    check(&[], &[("STEPMEM_NVML_DEVICES", "GPU-b,GPU-a")], &["GPU-b", "GPU-a"]);
    // Beside a job, only what ranks push from, unless it is said otherwise.
    let in_pod = ("KUBERNETES_SERVICE_HOST", "10.0.0.1");
    check(&[], &[in_pod], &nothing);
    check(&["--kubelet.socket", "/nowhere/kubelet.sock"], &[in_pod], &all);
    check(&["--nvml.devices", "all"], &[in_pod], &all);
    let visible = |variables: &[(&str, &str)], expected: &[&str]| {
        check(&["--nvml.devices", "visible"], variables, expected);
    };
    visible(&[], &all);
    visible(&[("CUDA_VISIBLE_DEVICES", "2,0")], &["GPU-c", "GPU-a"]);
    visible(&[("CUDA_VISIBLE_DEVICES", "GPU-b")], &["GPU-b"]);
    visible(&[("CUDA_VISIBLE_DEVICES", "1,-1,2")], &["GPU-b"]);
    visible(&[("CUDA_VISIBLE_DEVICES", "")], &nothing);
    visible(&[("NVIDIA_VISIBLE_DEVICES", "GPU-c,GPU-a")], &["GPU-c", "GPU-a"]);
    visible(&[("NVIDIA_VISIBLE_DEVICES", "none")], &nothing);
    for value in ["all", "void", "", "0,1"] {
        visible(&[("NVIDIA_VISIBLE_DEVICES", value)], &all);
    }
    let both = [("CUDA_VISIBLE_DEVICES", "1"), ("NVIDIA_VISIBLE_DEVICES", "GPU-a")];
    visible(&both, &["GPU-b"]);
}

#[test]
fn choice_of_devices_that_names_none_is_refused() {
    let found = |words: &str| mistakes(&["--nvml.devices", words], &[]).join("\n");
    for words in ["gpu-1", "GPU-a,1", "all,GPU-a", "GPU-a,pushed"] {
        assert!(
            found(words).contains("is not all, visible, pushed or a UUID (GPU-…, MIG-…)"),
            "{words}: {}",
            found(words)
        );
    }
    let variables = [("CUDA_VISIBLE_DEVICES", "card7")];
    assert_eq!(
        mistakes(&["--nvml.devices", "visible"], &variables),
        [
            "--nvml.devices: CUDA_VISIBLE_DEVICES: \"card7\" is neither an index nor a UUID (GPU-…, MIG-…)"
        ]
    );
    assert_eq!(
        mistakes(&["--kubelet.socket", "kubelet.sock"], &[]),
        ["--kubelet.socket: \"kubelet.sock\" is not an absolute path"]
    );
}
