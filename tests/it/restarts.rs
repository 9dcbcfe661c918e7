//! What ranks are asked, and what is known of the code behind their memory, across a restart of the exporter.

use std::fs;

use serde_json::{Value, json};

use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::json::{has, items, text_of};
use crate::rig::snapshot::data;
use crate::rig::units::MIB;
use crate::rig::wait::await_true;

const FILE: &str = "leak_python_stacks.pickle.gz";

fn start(folder: &Folder) -> Exporter {
    let (state, read) = (text(&folder.path("state")), text(&folder.path("read")));
    fs::create_dir_all(&read).unwrap();
    let paths = ["--state.file", &state, "--snapshot.read-directory", &read];
    Exporter::start(&[&paths[..], &["--snapshot.on-creep", "--holders.on-creep"]].concat())
}

/// Pushes steps of a job whose rank 2 leaks. Returns what it is asked, each request once.
fn asks(exporter: &Exporter, steps: std::ops::Range<u64>, more: &Value) -> Vec<Value> {
    let more = more.clone();
    let job = Job::leaking("leaky", steps, 4 * MIB).more(move |_, _| more.clone());
    let mut asked: Vec<Value> = Vec::new();
    for ask in exporter.actions(&job.records()) {
        if !asked.iter().any(|known| known["id"] == ask["id"]) {
            asked.push(ask);
        }
    }
    asked
}

fn report(exporter: &Exporter, ask: &Value, more: &Value) {
    let path = if ask["type"] == "snapshot" { "/v1/snapshots" } else { "/v1/holders" };
    let mut body = json!({ "run": "leaky", "rank": 2, "id": ask["id"] });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    exporter.take(path, &body);
}

fn of_type<'a>(asks: &'a [Value], kind: &str) -> &'a Value {
    asks.iter().find(|ask| ask["type"] == kind).unwrap_or_else(|| panic!("{asks:?}"))
}

fn creep(exporter: &Exporter) -> Value {
    let is_creep = |of: &Value| of["rank"] == 2 && text_of(of, "kind").contains("CREEP");
    exporter.findings().into_iter().find(is_creep).expect("a creep")
}

#[test]
fn line_and_holder_are_still_said_after_a_restart() {
    let folder = Folder::new("restart-site");
    let first = start(&folder);
    let asked = asks(&first, 1..1500, &json!({}));
    fs::copy(data(&format!("vectors/{FILE}")), folder.path("read").join(FILE)).unwrap();
    let written = json!({ "outcome": "written", "path": format!("/x/{FILE}"), "file": FILE });
    report(&first, of_type(&asked, "snapshot"), &written);
    let holder = json!({ "name": "`Trainer.history`", "kind": "list", "tensors": 12, "bytes": 12_000,
        "tensors_per_step": 1.0, "bytes_per_step": 1000.0 });
    let named = json!({ "outcome": "named", "holders": [holder] });
    report(&first, of_type(&asked, "holders"), &named);
    await_true("the analysis", || first.status()["snapshots"][0]["analysis"] == "analysed");
    asks(&first, 1500..1510, &json!({}));
    let before = creep(&first);
    assert!(before["evidence"]["site"]["at"]["line"].is_number(), "{before:#}");
    assert!(before["evidence"]["holder"]["name"].is_string(), "{before:#}");
    first.stop();

    let second = start(&folder);
    let after = creep(&second);
    for cause in ["site", "holder"] {
        assert_eq!(after["evidence"][cause], before["evidence"][cause], "{cause}");
    }
    let metrics = second.scrape();
    assert!(metrics.keys().any(|series| series.starts_with("stepmem_creep_site_info{")));
    assert_eq!(second.status()["snapshots"][0]["verdict"], "leak");
    // Neither the rank nor the one beside it is asked again.
    assert_eq!(asks(&second, 1510..1600, &json!({})), [Value::Null; 0]);
}

#[test]
fn request_that_waits_is_repeated_after_a_restart_and_one_that_is_begun_is_not() {
    let folder = Folder::new("restart-ask");
    let first = start(&folder);
    let asked = asks(&first, 1..1500, &json!({}));
    report(&first, of_type(&asked, "holders"), &json!({ "outcome": "began" }));
    first.stop();

    let second = start(&folder);
    let snapshot = of_type(&asked, "snapshot");
    assert_eq!(asks(&second, 1500..1510, &json!({})), std::slice::from_ref(snapshot));
    report(&second, snapshot, &json!({ "outcome": "began" }));
    second.stop();

    let third = start(&folder);
    assert_eq!(asks(&third, 1510..1520, &json!({})), [Value::Null; 0]);
    report(&third, snapshot, &json!({ "outcome": "failed", "error": "disk full" }));
    report(&third, of_type(&asked, "holders"), &json!({ "outcome": "none" }));
    let status = third.status();
    let [shown] = status["snapshots"].as_array().unwrap().as_slice() else {
        panic!("{status:#}")
    };
    has(shown, &json!({"outcome": "failed", "reason": "creep", "id": snapshot["id"]}));
}

#[test]
fn snapshot_that_waits_for_its_analysis_is_analyzed_after_a_restart() {
    let folder = Folder::new("restart-wait");
    let first = start(&folder);
    let asked = asks(&first, 1..1500, &json!({}));
    fs::copy(data(&format!("vectors/{FILE}")), folder.path("read").join(FILE)).unwrap();
    // The analysis of the second has not begun when the exporter stops, that of the first may have.
    for _ in 0..2 {
        let written =
            json!({ "outcome": "written", "path": format!("/x/{FILE}"), "file": FILE });
        report(&first, &json!({ "type": "snapshot" }), &written);
    }
    report(&first, of_type(&asked, "snapshot"), &json!({ "outcome": "failed", "error": "no" }));
    first.stop();

    let second = start(&folder);
    asks(&second, 1500..1510, &json!({}));
    let analyses = || {
        let status = second.status();
        let written = items(&status["snapshots"]).filter(|of| of["outcome"] == "written");
        written.map(|of| of["analysis"].clone()).collect::<Vec<_>>()
    };
    await_true("both analyses", || !analyses().contains(&json!("waiting")));
    assert_eq!(analyses(), ["analysed", "analysed"]);
}

#[test]
fn request_is_not_answered_to_a_later_process_under_the_same_name() {
    let folder = Folder::new("restart-stranger");
    let exporter = start(&folder);
    let instance = |digit: &str| json!({ "instance": digit.repeat(16) });
    let asked = asks(&exporter, 1..1500, &instance("a"));
    assert_eq!(asked.len(), 2, "{asked:?}");
    let end = json!({ "rank": 2, "outcome": "failed", "instance": "a".repeat(16) });
    exporter.end("leaky", &end);
    let stranger = json!({ "run": "leaky", "rank": 2, "step": 1, "allocated_bytes": 1,
        "instance": "b".repeat(16) });
    assert_eq!(exporter.actions(&[stranger]), [Value::Null; 0]);
    await_true("the request is given up", || {
        exporter.status()["snapshots"][0]["outcome"] == "unanswered"
    });
}
