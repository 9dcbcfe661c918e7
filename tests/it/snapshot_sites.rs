//! From a reported snapshot to the line that leaks: files are analyzed by another process, and a file that cannot be is an
//! outcome that is counted, while the exporter stays as it is.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use serde_json::{Value, json};

use crate::rig::command::{ANY_PORTS, stepmem, words};
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::record;
use crate::rig::json::{has, items};
use crate::rig::snapshot::{answer, data};
use crate::rig::units::{GIB, MIB};
use crate::rig::victim::Victim;
use crate::rig::wait::{DEADLINE, await_true};

fn exporter(folder: &Folder, arguments: &[&str]) -> Exporter {
    let directory = text(&folder.path(""));
    let read = ["--snapshot.read-directory", directory.trim_end_matches('/')];
    Exporter::start(&[&read, arguments].concat())
}

/// Reports a snapshot of a rank, and returns what the status says of it once it is analyzed.
fn analyzed(exporter: &Exporter, rank: u64, file: &str) -> Value {
    exporter.push_step(&json!({ "run": "llm", "rank": rank }), 1, GIB);
    let before = items(&exporter.status()["snapshots"]).count();
    let report = json!({
        "run": "llm", "rank": rank, "outcome": "written", "file": file,
        "path": format!("/elsewhere/{file}"),
    });
    exporter.take("/v1/snapshots", &report);
    let shown = || exporter.status()["snapshots"][before].clone();
    await_true("an analysis", || shown()["analysis"] != "waiting");
    shown()
}

fn n_analyses(exporter: &Exporter, outcome: &str) -> f64 {
    let series = format!("stepmem_snapshot_analyses_total{{outcome=\"{outcome}\"}}");
    exporter.metric(&series).unwrap()
}

fn site(exporter: &Exporter, rank: u64) -> Value {
    let status = exporter.status();
    let of = |of: &&Value| of["rank"] == rank;
    items(&status["ranks"]).find(of).unwrap()["site"].clone()
}

#[test]
fn verdict_is_the_one_of_the_command_on_the_same_file() {
    let folder = Folder::new("sites");
    let exporter = exporter(&folder, &[]);
    let mut names: Vec<String> = fs::read_dir(data("vectors"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() > 30, "{names:?}");
    let mut n_leaks = 0;
    for (rank, name) in (0..).zip(&names) {
        let source = data(&format!("vectors/{name}"));
        fs::copy(&source, folder.path(name)).unwrap();
        let shown = analyzed(&exporter, rank, name);
        assert_eq!(shown["analysis"], "analysed", "{name}: {shown}");
        let said = answer(&["show", "--json", &source]);
        let leaks = || items(&said["devices"]).map(|device| &device["leak"]);
        let leak = leaks().find(|leak| leak["verdict"] == "leak").or(leaks().next()).unwrap();
        let site = site(&exporter, rank);
        assert_eq!(site["verdict"], leak["verdict"], "{name}");
        assert_eq!(shown["verdict"], leak["verdict"], "{name}");
        if leak["verdict"] != "leak" {
            continue;
        }
        n_leaks += 1;
        for key in ["file", "line", "function", "kind"] {
            assert_eq!(site["at"][key], leak["blame"][key], "{name}: {key}");
        }
        assert_eq!(site["stack"], leak["blame"]["stack"], "{name}");
        let part = leak["blame"]["bytes"].as_f64().unwrap()
            / items(&leak["sites"]).map(|of| of["bytes"].as_f64().unwrap()).sum::<f64>();
        let rate = part * leak["bytes_per_step"].as_f64().unwrap();
        let found = site["bytes_per_step"].as_f64().unwrap();
        assert!((found / rate - 1.0).abs() < 1e-9, "{name}: {found} of {rate}");
    }
    assert!(n_leaks > 5, "{n_leaks}");
    let count = u32::try_from(names.len()).unwrap();
    assert_eq!(n_analyses(&exporter, "analysed"), f64::from(count));
}

#[test]
fn file_that_is_no_snapshot_is_an_outcome_and_leaves_the_exporter_as_it_is() {
    let folder = Folder::new("hostile");
    let outside = Folder::new("hostile-outside");
    let good = data("vectors/leak_python_stacks.pickle.gz");
    fs::copy(&good, outside.path("good.pickle.gz")).unwrap();
    std::os::unix::fs::symlink(outside.path("good.pickle.gz"), folder.path("link")).unwrap();
    std::os::unix::fs::symlink(outside.path(""), folder.path("away")).unwrap();
    // A pickle that would run a command.
    fs::write(folder.path("evil"), b"\x80\x04cos\nsystem\n\x8c\x04true\x85R.").unwrap();
    let whole = fs::read(&good).unwrap();
    fs::write(folder.path("half"), &whole[..whole.len() / 2]).unwrap();
    File::create(folder.path("sparse")).unwrap().set_len(4 * GIB).unwrap();
    let made = Command::new("mkfifo").arg(folder.path("fifo")).status().unwrap();
    assert!(made.success());
    fs::create_dir(folder.path("folder")).unwrap();

    let exporter = exporter(&folder, &[]);
    analyzed(&exporter, 0, "missing");
    let before = exporter.resident_bytes_max();
    let absolute = text(&outside.path("good.pickle.gz"));
    for (file, outcome) in [
        ("evil", "malformed"),
        ("half", "malformed"),
        ("sparse", "too_large"),
        ("fifo", "not_a_file"),
        ("folder", "not_a_file"),
        ("link", "outside"),
        ("away/good.pickle.gz", "outside"),
        ("../hostile-outside/good.pickle.gz", "outside"),
        (absolute.as_str(), "outside"),
        ("missing", "missing"),
    ] {
        let so_far = n_analyses(&exporter, outcome);
        let shown = analyzed(&exporter, 1, file);
        assert_eq!(shown["analysis"], outcome, "{file}: {shown}");
        assert!(shown["analysis_error"].is_string(), "{file}: {shown}");
        assert_eq!(n_analyses(&exporter, outcome), so_far + 1.0, "{file}");
    }
    assert_eq!(site(&exporter, 1), Value::Null);
    let grown = exporter.resident_bytes_max().saturating_sub(before);
    assert!(grown < 4 * MIB, "the exporter grew by {grown} bytes");
    // And a good file is analyzed after all of these.
    fs::copy(&good, folder.path("good.pickle.gz")).unwrap();
    assert_eq!(analyzed(&exporter, 1, "good.pickle.gz")["verdict"], "leak");
}

#[test]
fn scrapes_and_memory_are_as_ever_while_hostile_files_are_analyzed() {
    let folder = Folder::new("besieged");
    fs::write(folder.path("evil"), b"\x80\x04cos\nsystem\n\x8c\x04true\x85R.").unwrap();
    File::create(folder.path("sparse")).unwrap().set_len(4 * GIB).unwrap();
    // Zeros by the gigabyte, within the limit on files: read to the limits of the process, or refused for its memory.
    let zeros = File::create(folder.path("zeros")).unwrap();
    zeros.write_all_at(b"\x80\x04]\x94(", 0).unwrap();
    zeros.set_len(64 * MIB).unwrap();
    let made = Command::new("mkfifo").arg(folder.path("fifo")).status().unwrap();
    assert!(made.success());
    let good = "leak_python_stacks.pickle.gz";
    fs::copy(data(&format!("vectors/{good}")), folder.path(good)).unwrap();

    let directory = text(&folder.path(""));
    let read = ["--snapshot.read-directory", directory.trim_end_matches('/')];
    let victim = Victim::start(&read);
    let files = ["evil", "sparse", "zeros", "fifo", "../outside", good];
    for (rank, file) in (0..).zip(files) {
        let report = json!({ "run": "good", "rank": rank, "outcome": "written", "file": file, "path": "/x" });
        assert_eq!(victim.exporter.post_to("/v1/snapshots", report.to_string()).status, 200);
    }
    let over = || {
        let status = victim.exporter.status();
        items(&status["snapshots"]).all(|of| of["analysis"] != "waiting")
    };
    victim.scrape(50);
    await_true("all analyses", over);
    let outcomes = ["malformed", "too_large", "not_a_file", "outside", "analysed"];
    for outcome in outcomes {
        assert!(n_analyses(&victim.exporter, outcome) >= 1.0, "{outcome}");
    }
    let status = victim.exporter.status();
    let shown = |file: usize| &status["snapshots"][file]["analysis_error"];
    assert!((0..5).all(|file| shown(file).is_string()), "{:#}", status["snapshots"]);
    victim.survives("snapshots that are hostile");
}

#[test]
fn out_of_memory_says_which_line_asked_for_how_much_and_who_held_the_memory() {
    let folder = Folder::new("oom");
    let exporter = exporter(&folder, &[]);
    let file = "oom_fragmentation.oom.pickle.gz";
    let source = data(&format!("vectors/{file}"));
    fs::copy(&source, folder.path(file)).unwrap();
    let push = |step: u64, ooms: u64| {
        let of = json!({ "run": "llm", "rank": 0, "ooms": ooms, "total_bytes": 80 * GIB });
        exporter.push_step(&of, step, GIB);
    };
    push(1, 0);
    push(2, 1);
    let report = json!({ "run": "llm", "rank": 0, "reason": "oom", "step": 2, "outcome": "written",
        "file": file, "path": format!("/x/{file}") });
    assert_eq!(exporter.post_to("/v1/snapshots", report.to_string()).status, 200);
    let end = json!({ "rank": 0, "outcome": "oom", "requested_bytes": 64 * MIB });
    assert_eq!(exporter.post_to("/v1/runs/llm/end", end.to_string()).status, 200);
    await_true("the analysis", || exporter.status()["snapshots"][0]["analysis"] == "analysed");

    let command = answer(&["show", "--json", &source]);
    let failure = items(&command["devices"][0]["oom"]).last().unwrap().clone();
    let finding = exporter.finding("OUT_OF_MEMORY").unwrap();
    let site = &finding["evidence"]["site"];
    assert_eq!(site["at"]["line"], failure["site"]["line"], "{finding:#}");
    assert_eq!(site["at"]["file"], failure["site"]["file"]);
    assert_eq!(site["requested_bytes"], failure["requested_bytes"]);
    assert_eq!(site["held"][0]["bytes"], failure["sites"][0]["bytes"]);
    assert_eq!(site["held"][0]["at"]["line"], failure["sites"][0]["line"]);
    let sentence = finding["sentence"].as_str().unwrap();
    assert!(sentence.contains("64.0 MiB"), "{sentence}");
    assert!(sentence.contains("buffers.py:52 in gather_all"), "{sentence}");
    assert!(sentence.contains("train.py:130 in train_step"), "{sentence}");
}

#[test]
fn file_of_another_user_is_read_only_if_that_user_reports_it() {
    let folder = Folder::new("owner");
    let file = folder.path("theirs.pickle.gz");
    fs::copy(data("vectors/leak_python_stacks.pickle.gz"), &file).unwrap();
    if std::os::unix::fs::chown(&file, Some(12_345), None).is_err() {
        // Only root may give a file away.
        return;
    }
    let exporter = exporter(&folder, &[]);
    let shown = analyzed(&exporter, 0, "theirs.pickle.gz");
    assert_eq!(shown["analysis"], "owner", "{shown}");
    let said = shown["analysis_error"].as_str().unwrap();
    assert!(said.contains("12345") && said.contains("Unix socket"), "{said}");
}

#[test]
fn timeline_of_a_snapshot_is_served_in_an_origin_of_its_own() {
    let (folder, own) = (Folder::new("drawn"), Folder::new("drawn-own"));
    let directory = own.path("timelines");
    let exporter = exporter(&folder, &["--snapshot.timeline-directory", &text(&directory)]);
    let name = "leak_python_stacks.pickle.gz";
    fs::copy(data(&format!("vectors/{name}")), folder.path(name)).unwrap();
    fs::write(folder.path("broken"), "x").unwrap();
    assert_eq!(analyzed(&exporter, 0, "broken").get("timeline"), None);
    let shown = analyzed(&exporter, 0, name);
    let id = shown["timeline"].as_str().unwrap_or_else(|| panic!("{shown}"));
    let answer = exporter.get(&format!("/snapshots/{id}"), &[]);
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, "text/html; charset=utf-8")
    );
    let policy = answer.header("content-security-policy");
    assert!(policy.starts_with("sandbox allow-scripts; default-src 'none'"), "{policy}");
    assert!(!policy.contains("same-origin"), "{policy}");

    // The document of the command on the same file.
    let out = own.path("command.html");
    let source = data(&format!("vectors/{name}"));
    let ended = stepmem(&["snapshot", "show", &source, "--html", &text(&out)], &[], b"");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(answer.body == fs::read_to_string(out).unwrap(), "the document differs");
    assert!(answer.body.contains("train_step"));

    for unknown in ["", "1", "..", "%2e%2e%2fcommand", &format!("{id}.html"), "a/b"] {
        assert_eq!(
            exporter.get(&format!("/snapshots/{unknown}"), &[]).status,
            404,
            "{unknown}"
        );
    }
    let written = "stepmem_snapshot_timelines_total{result=\"written\"}";
    assert_eq!(exporter.metric(written), Some(1.0));
    assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
}

#[test]
fn no_timeline_is_drawn_or_served_unless_a_directory_is_set_where_training_does_not_write() {
    let folder = Folder::new("undrawn");
    let plain = exporter(&folder, &[]);
    let name = "leak_python_stacks.pickle.gz";
    fs::copy(data(&format!("vectors/{name}")), folder.path(name)).unwrap();
    assert_eq!(analyzed(&plain, 0, name).get("timeline"), None);
    assert_eq!(plain.get("/snapshots/1-1", &[]).status, 404);
    assert_eq!(plain.metric("stepmem_snapshot_timelines_total{result=\"written\"}"), None);

    let directory = text(&folder.path(""));
    let own = text(&folder.path("own"));
    let read = ["--snapshot.read-directory", directory.trim_end_matches('/')];
    let arguments =
        [&["serve", "--no-nvml"][..], &read, &["--snapshot.timeline-directory", &own]].concat();
    let ended = stepmem(&arguments, &ANY_PORTS, b"");
    ended.fails(1, "where others write");
    assert!(ended.err.contains("snapshot.timeline-directory"), "{}", ended.err);
}

#[test]
fn more_snapshots_than_the_queue_holds_are_counted() {
    let folder = Folder::new("queue");
    let exporter = exporter(&folder, &[]);
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
    let report =
        json!({"rank": 0, "outcome": "written", "file": "a", "path": "/a"}).to_string();
    for _ in 0..40 {
        assert_eq!(exporter.post_to("/v1/snapshots", report.clone()).status, 200);
    }
    exporter.await_metrics("all outcomes", |metrics| {
        let outcomes =
            |of: &str| metrics[&format!("stepmem_snapshot_analyses_total{{outcome=\"{of}\"}}")];
        outcomes("queue") > 0.0 && outcomes("queue") + outcomes("missing") == 40.0
    });
}

#[test]
fn report_of_an_older_client_is_listed_and_the_note_says_what_it_lacks() {
    let folder = Folder::new("older-client");
    let exporter = exporter(&folder, &[]);
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
    // Neither `began`, nor `file`, nor `events_per_step`.
    let report = json!({ "rank": 0, "id": "1-1", "reason": "creep", "step": 9,
        "outcome": "written", "path": "/app/a.pickle", "bytes": 12 });
    assert_eq!(exporter.post_to("/v1/snapshots", report.to_string()).status, 200);
    let shown = exporter.status()["snapshots"][0].clone();
    assert_eq!((&shown["outcome"], shown.get("analysis")), (&json!("written"), None));
    assert_eq!(exporter.metric("stepmem_snapshots_total{result=\"written\"}"), Some(1.0));
    assert_eq!(n_analyses(&exporter, "missing"), 0.0);
}

#[test]
fn nothing_is_read_without_a_directory() {
    let exporter = Exporter::start(&[]);
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
    let report =
        json!({"rank": 0, "outcome": "written", "file": "a", "path": "/a"}).to_string();
    assert_eq!(exporter.post_to("/v1/snapshots", report).status, 200);
    assert_eq!(exporter.status()["snapshots"][0].get("analysis"), None);
    let series = "stepmem_snapshot_analyses_total{outcome=\"analysed\"}";
    assert_eq!(exporter.metric(series), None);
}

#[test]
fn demo_names_the_line_that_leaks_and_what_holds_the_memory() {
    let demo = Exporter::start_command("demo", &[], &[]);
    let is_named = |entry: &Value| entry["fields"]["message"] == "snapshot analyzed";
    let logged = demo.await_log("the line", DEADLINE, is_named);
    assert_eq!(logged["fields"]["site"], "train.py:151 in training_step", "{logged}");

    let info = "stepmem_creep_site_info{run=\"demo\",rank=\"3\",";
    demo.await_metrics("the line", |metrics| metrics.keys().any(|of| of.starts_with(info)));
    let metrics = demo.scrape();
    let series = metrics.keys().find(|of| of.starts_with(info)).unwrap();
    let line = "file=\"train.py\",line=\"151\",function=\"training_step\"}";
    assert!(series.ends_with(line), "{series}");
    let share =
        metrics.iter().find(|(of, _)| of.starts_with("stepmem_creep_site_share_ratio{"));
    assert!((0.9..=1.0).contains(share.unwrap().1), "{share:?}");
    demo.await_metrics("the holder", |metrics| {
        metrics.keys().any(|of| of.contains("holder=\"`Trainer.history`\",kind=\"list\""))
    });

    let status = demo.status();
    let finding = items(&status["findings"])
        .find(|finding| finding["evidence"]["site"].is_object())
        .unwrap_or_else(|| panic!("{status:#}"));
    has(finding, &json!({"rank": 3, "evidence": {"site": {"at": {"line": 151}}}}));
    let sentence = finding["sentence"].as_str().unwrap();
    assert!(sentence.contains("is allocated at train.py:151 in training_step"), "{sentence}");
    assert!(
        sentence.contains("held by `Trainer.history` (list, ")
            && sentence.contains(" MiB more/step, all of the growth; "),
        "{sentence}"
    );

    let snapshots = status["snapshots"].clone();
    let of_rank = items(&snapshots).find(|of| of["timeline"].is_string()).unwrap();
    let path = format!("/snapshots/{}", of_rank["timeline"].as_str().unwrap());
    assert!(demo.get(&path, &[]).body.contains("training_step"), "{path}");

    let summary = demo.get("/api/v1/runs/demo/summary?format=text", &[]).body;
    for text in [demo.asked(&["status"]).out, summary] {
        assert!(words(&text).contains("allocated at train.py:151 in training_step"), "{text}");
    }
}

#[test]
fn demo_leaves_no_folder_behind() {
    // Of its own: among all temporary files may be what a demo that was killed left under this process id.
    let temporary = Folder::new("demo-folder");
    let root = text(&temporary.path(""));
    let n_entries = || fs::read_dir(&root).unwrap().count();
    let demo = Exporter::start_command("demo", &[], &[("TMPDIR", &root)]);
    assert_eq!(n_entries(), 1);
    demo.await_log("the start", DEADLINE, |entry| entry["fields"]["message"] == "started");
    demo.stop();
    assert_eq!(n_entries(), 0);
}

#[test]
fn operator_gets_a_snapshot_of_a_live_rank_and_its_verdict() {
    let demo = Exporter::start_command("demo", &[], &[]);
    // The push address is the exporter's to tell.
    let to = ["snapshot", "take", "--run", "demo"];
    await_true("the rank", || items(&demo.status()["ranks"]).any(|rank| rank["rank"] == 1));
    // A rank that does not leak.
    let out = demo.asked(&[&to[..], &["--rank", "1", "--steps", "12"]].concat()).done();
    for part in ["written: ", "_rank1_", "verdict: nothing grew in its "] {
        assert!(out.contains(part), "{out}");
    }
    assert_eq!(demo.status()["snapshots"][0]["reason"], "manual");

    demo.asked(&[&to[..], &["--rank", "99"]].concat()).fails(2, "404");
}
