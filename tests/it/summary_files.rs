//! The summaries of a running exporter: written when a run ends, falls silent or the exporter stops, and answered live.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::units::GIB;
use crate::rig::wait::await_true;

/// Two ranks with this much live memory, for 20 steps.
fn push(exporter: &Exporter, run: &str, attempt: u64, allocated: u64) {
    let job = Job::new(2, 20).run(run).attempt(attempt).world(2).untimed();
    exporter.push(&job.live(move |_, _| allocated).records());
}

fn end(exporter: &Exporter, run: &str, body: &str) {
    let path = format!("/v1/runs/{run}/end");
    let answer = exporter.post_to(&path, body);
    assert_eq!(answer.status, 200, "{}", answer.body);
}

fn read(path: &Path) -> Option<Value> {
    Some(serde_json::from_slice(&fs::read(path).ok()?).expect("whole or not there"))
}

fn status(path: &Path) -> Option<String> {
    Some(read(path)?["diagnosis"]["status"].as_str().unwrap().to_owned())
}

fn is(path: &Path, expected: &str) -> bool {
    status(path).as_deref() == Some(expected)
}

#[test]
fn ended_run_has_its_files_and_the_next_attempt_replaces_them() {
    let folder = Folder::new("summary-end");
    let exporter = Exporter::start(&["--summary.dir", &text(&folder.path(""))]);
    let json = folder.path("my-run/final_summary.json");
    push(&exporter, "my-run", 0, 79 * GIB);
    end(&exporter, "my-run", r#"{"outcome":"oom"}"#);
    await_true("the first summary", || is(&json, "OUT OF MEMORY"));
    let card = fs::read_to_string(folder.path("my-run/final_summary.txt")).unwrap();
    assert!(card.contains("HIGH PRESSURE (critical) on ranks 0, 1"), "{card}");
    push(&exporter, "my-run", 1, 30 * GIB);
    end(&exporter, "my-run", r#"{"outcome":"completed"}"#);
    await_true("the second", || is(&json, "BALANCED"));
    let summary = read(&json).unwrap();
    assert_eq!(
        (&summary["attempt"], &summary["ranks"][1]["state"]),
        (&json!(1), &json!("ended"))
    );
    assert!(!folder.path("my-run/final_summary.json.new").exists());
}

#[test]
fn run_whose_ranks_end_or_fall_silent_has_its_files() {
    let folder = Folder::new("summary-silent");
    let arguments = ["--summary.dir", &text(&folder.path("")), "--rank.ttl", "1s"];
    let exporter = Exporter::start(&arguments);
    push(&exporter, "silent", 0, 30 * GIB);
    push(&exporter, "one by one", 0, 30 * GIB);
    end(&exporter, "one%20by%20one", r#"{"rank":0,"outcome":"completed"}"#);
    end(&exporter, "one%20by%20one", r#"{"rank":1,"outcome":"completed"}"#);
    for name in ["silent", "one%20by%20one"] {
        let json = folder.path(name).join("final_summary.json");
        await_true(name, || is(&json, "BALANCED"));
    }
}

#[test]
fn sigterm_leaves_the_summary_of_a_run_that_goes_on() {
    let folder = Folder::new("summary-term");
    let exporter = Exporter::start(&["--summary.dir", &text(&folder.path(""))]);
    push(&exporter, "../up", 0, 30 * GIB);
    exporter.signal("TERM");
    let (status, log) = exporter.wait();
    assert!(status.success(), "{log:#?}");
    assert!(is(&folder.path("%2E.%2Fup/final_summary.json"), "BALANCED"), "{log:#?}");
}

#[test]
fn live_summary_is_answered_as_json_and_as_text() {
    let exporter = Exporter::start(&[]);
    push(&exporter, "a b", 0, 79 * GIB);
    let answer = exporter.get("/api/v1/runs/a%20b/summary", &[]);
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    let summary = answer.json();
    assert_eq!(summary["ranks"][0]["state"], "pushing");
    assert_eq!(summary["coverage"]["ranks_expected"], 2);
    let answer = exporter.get("/api/v1/runs/a%20b/summary?format=text", &[]);
    assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(answer.body, summary["text"].as_str().unwrap());
    assert_eq!(exporter.get("/api/v1/runs/none/summary", &[]).status, 404);
    let answer = exporter.get("/api/v1/runs/a%20b/summary?format=xml", &[]);
    assert_eq!((answer.status, answer.body.contains("format=xml")), (400, true));
}

#[test]
fn snapshots_that_were_taken_are_listed() {
    let exporter = Exporter::start(&[]);
    push(&exporter, "run", 0, 30 * GIB);
    let report = r#"{"run":"run","rank":1,"reason":"oom","step":20,"outcome":"written","path":"/dumps/rank1.pickle","bytes":12}"#;
    let answer = exporter.post_to("/v1/snapshots", report);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let summary = exporter.get("/api/v1/runs/run/summary", &[]).json();
    assert_eq!(
        summary["snapshots"][0]["path"], "/dumps/rank1.pickle",
        "{}",
        summary["snapshots"]
    );
    let card = summary["text"].as_str().unwrap();
    assert!(card.contains("Snapshot of rank 1, step 20 (oom): /dumps/rank1.pickle"), "{card}");
}

#[test]
fn directory_that_cannot_be_written_is_logged_and_stops_nothing() {
    let folder = Folder::new("summary-refused");
    let file = folder.write("file", "");
    let exporter = Exporter::start(&["--summary.dir", &file]);
    push(&exporter, "run", 0, 30 * GIB);
    end(&exporter, "run", r#"{"outcome":"failed"}"#);
    await_true("the warning", || exporter.logged("WARN", "summary not written") == 1);
    push(&exporter, "run", 1, 30 * GIB);
}

#[test]
fn killed_exporters_run_is_summed_up_from_its_state() {
    let folder = Folder::new("summary-killed");
    let (state, directory) = (text(&folder.path("state")), text(&folder.path("out")));
    let arguments = ["--state.file", state.as_str(), "--summary.dir", directory.as_str()];
    let exporter = Exporter::start(&arguments);
    push(&exporter, "run", 0, 79 * GIB);
    await_true("the state", || folder.path("state").exists());
    exporter.signal("KILL");
    exporter.wait();
    assert!(!folder.path("out").exists());
    let exporter = Exporter::start(&arguments);
    let summary = exporter.get("/api/v1/runs/run/summary", &[]).json();
    assert_eq!(
        (&summary["diagnosis"]["kind"], &summary["ranks"][0]["steps"]),
        (&json!("HIGH_PRESSURE"), &json!(20))
    );
    exporter.signal("TERM");
    exporter.wait();
    assert!(is(&folder.path("out/run/final_summary.json"), "HIGH PRESSURE"));
}

#[test]
fn live_and_recorded_summaries_of_the_same_pushes_agree() {
    let exporter = Exporter::start(&[]);
    let records: Vec<String> = (1..=50)
        .map(|step| json!({ "run": "r", "rank": 0, "step": step, "time": 1000 + step, "allocated_bytes": GIB, "peak_allocated_bytes": GIB, "total_bytes": 2 * GIB }).to_string())
        .collect();
    let answer = exporter.post(format!("[{}]", records.join(",")));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let live = exporter.get("/api/v1/runs/r/summary", &[]).json();
    let ended = stepmem(&["summary", "--json", "-"], &[], records.join("\n").as_bytes());
    let recorded: Value = serde_json::from_str(&ended.out).unwrap();
    for key in ["diagnosis", "issues", "metrics", "coverage", "ranks", "step_memory", "text"] {
        assert_eq!(live[key], recorded[key], "{key}");
    }
}
