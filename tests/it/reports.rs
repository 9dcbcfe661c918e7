//! `stepmem summary --html`: one document of a run that needs no exporter, from a live one or from recordings.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, root, text};
use crate::rig::job::{Job, recording};
use crate::rig::nvml::{FakeNvml, driver, gpu, process};
use crate::rig::units::{GIB, MIB};

/// The limit of the documentation, in bytes.
const BYTES_MAX: usize = 8 << 20;
/// A run's name that is markup, and ends the element of the data if that lets it.
const RUN: &str = "</script><img src=x onerror=\"pwned=true\">";
/// The name of what holds the memory, and the place that allocates it.
const HOLDER: &str = "<b>cache</b><!--<script>";
const FILE: &str = "<iframe src=//evil.example>.py";

/// Four ranks of which rank 2 leaks, and what holds its memory.
fn job() -> (Job, Value) {
    let job = Job::leaking(RUN, 1..600, 16 * MIB);
    let held = json!({ "run": RUN, "rank": 2, "outcome": "named", "last_step": 590,
        "holders": [{ "name": HOLDER, "kind": "list", "file": FILE, "line": 7, "function": "<i>",
            "tensors": 590, "bytes": 590 * 16 * MIB, "tensors_per_step": 1.0,
            "bytes_per_step": 16.0 * 1_048_576.0 }] });
    (job, held)
}

/// The JSON that the page of a document reads.
fn recorded(html: &str) -> Value {
    let (_, rest) = html.split_once("id=\"recorded\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// Reads a document in a browser; it says what does not hold.
fn holds(path: &str, words: &[&str]) {
    let output = Command::new("node")
        .arg(root().join("tests/ops/report.mjs"))
        .args([&[path, "2"], words].concat())
        .output()
        .expect("no node: run make tools");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "report.mjs (run make tools?): {said}");
}

#[test]
fn report_of_a_live_run_shows_its_story_offline_and_only_that_run() {
    let folder = Folder::new("report-live");
    let full = gpu("GPU-a").memory(80 * GIB, GIB, 78 * GIB).compute(&[process(4711, 3 * GIB)]);
    let fake = FakeNvml::new("report", &driver([full]));
    let exporter = fake.serve(&["--nvml.interval", "50ms"]);
    let (job, held) = job();
    exporter.push(&job.device("GPU-a").records());
    exporter.take("/v1/holders", &held);
    exporter.await_metrics("the device", |metrics| {
        metrics.keys().any(|series| series.starts_with("stepmem_device_info"))
    });
    exporter.push(&Job::leaking("other-run", 1..600, 16 * MIB).records());
    let out = text(&folder.path("report.html"));
    exporter.asked(&["summary", "--run", RUN, "--html", &out]).done();
    let html = fs::read_to_string(&out).unwrap();
    let device = &recorded(&html)["status"]["devices"][0];
    assert_eq!(device["other_processes_bytes"], 3 * GIB, "{device}");
    assert_eq!(device["processes"], json!([]));
    assert!(!html.contains("other-run") && !html.contains("<img") && !html.contains("<iframe"));
    let shown = recorded(&html);
    assert_eq!(shown["status"]["ranks"].as_array().unwrap().len(), 4);
    assert_eq!(shown["answers"].as_object().unwrap().len(), 9);
    let held = format!("{HOLDER} (list) of {}:7 in <i>", short(FILE));
    holds(&out, &["MEMORY CREEP", RUN, &held, "memory over time of all 4 ranks"]);
}

#[test]
fn report_of_a_recording_has_the_same_past_as_a_live_exporter() {
    let folder = Folder::new("report-replay");
    let (job, _) = job();
    let out = text(&folder.path("report.html"));
    let records = folder.write("steps.jsonl", &job.recording());
    stepmem(&["summary", &records, "--html", &out], &[], b"").done();
    let exporter = Exporter::start(&[]);
    exporter.push(&job.records());
    let live = text(&folder.path("live.html"));
    exporter.asked(&["summary", "--html", &live]).done();
    let of = |path: &str| recorded(&fs::read_to_string(path).unwrap());
    let (replayed, live) = (of(&out), of(&live));
    for part in ["history", "ranks/2/history"] {
        for column in ["time", "allocated_bytes", "peak_allocated_bytes", "ranks"] {
            assert_eq!(
                replayed["answers"][part][column], live["answers"][part][column],
                "{part}"
            );
        }
    }
    holds(&out, &["MEMORY CREEP", "no innocent cause fits steps"]);
}

#[test]
fn report_of_a_recorded_end_has_the_past_before_it() {
    let folder = Folder::new("report-end");
    let recordings = text(&folder.path("recordings"));
    let exporter = Exporter::start(&["--record.directory", &recordings]);
    exporter.push(&job().0.records());
    exporter.end(&percent_encoded(RUN), &json!({ "rank": 2, "outcome": "oom" }));
    exporter.stop();
    let out = text(&folder.path("report.html"));
    stepmem(&["summary", &recordings, "--html", &out], &[], b"").done();
    holds(&out, &["OUT OF MEMORY", "ended (oom)", "memory over time of all 4 ranks"]);
}

#[test]
fn report_of_a_run_that_ended_is_as_red_as_the_run_was() {
    let folder = Folder::new("report-ended");
    let recordings = text(&folder.path("recordings"));
    let exporter = Exporter::start(&["--record.directory", &recordings]);
    exporter.push(&job().0.records());
    exporter.end(&percent_encoded(RUN), &json!({ "rank": 2, "outcome": "completed" }));
    exporter.stop();
    let out = text(&folder.path("report.html"));
    stepmem(&["summary", &recordings, "--html", &out], &[], b"").done();
    let shown = recorded(&fs::read_to_string(&out).unwrap());
    let findings = shown["status"]["findings"].as_array().unwrap();
    assert!(findings.iter().all(|finding| finding["severity"] == "info"), "{findings:?}");
    holds(&out, &["MEMORY CREEP", "1 critical", "ended (completed)"]);
}

/// A path as sentences have it: the file and its folder.
fn short(path: &str) -> String {
    let parts: Vec<&str> = path.rsplit('/').take(2).collect();
    parts.into_iter().rev().collect::<Vec<_>>().join("/")
}

/// A name as a path has it.
fn percent_encoded(name: &str) -> String {
    name.bytes().map(|byte| format!("%{byte:02X}")).collect::<Vec<_>>().concat()
}

#[test]
fn report_of_many_ranks_is_bounded_and_has_the_past_of_the_worst() {
    let folder = Folder::new("report-many");
    // The last rank fills its device.
    let live = |rank: u64, step: u64| {
        let own = if rank == 1099 { 79 * GIB } else { 20 * GIB };
        own + (rank * 7919 + step * 104_729) % MIB
    };
    let job = Job::new(1100, 130).live(live).peak(live).reserved(|_, _| 79 * GIB);
    let records = folder.write("steps.jsonl", &recording(&job.records()));
    let out = text(&folder.path("report.html"));
    let arguments = ["summary", &records, "--rank.max", "2000", "--html", &out];
    stepmem(&arguments, &[], b"").done();
    let html = fs::read_to_string(&out).unwrap();
    assert!(html.len() <= BYTES_MAX && html.len() > BYTES_MAX / 2, "{}", html.len());
    let shown = recorded(&html);
    let ranks: BTreeSet<u64> = shown["status"]["ranks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rank| rank["rank"].as_u64().unwrap())
        .collect();
    assert_eq!(
        (ranks.len(), ranks.contains(&1099), ranks.contains(&1090)),
        (1024, true, false)
    );
    let answers = shown["answers"].as_object().unwrap();
    let n_past = answers.keys().filter(|key| key.ends_with("/history")).count();
    assert!(answers.contains_key("ranks/1099/history") && n_past < 1024, "{n_past}");
    let words = format!("memory over time of the worst {n_past} of 1,100 ranks");
    assert!(html.contains(&words), "{words}");
}

#[test]
fn report_needs_a_recording_or_an_exporter_and_no_other_form() {
    let folder = Folder::new("report-refused");
    let empty = folder.write("empty.jsonl", "");
    let out = text(&folder.path("report.html"));
    stepmem(&["summary", &empty, "--html", &out], &[], b"").fails(2, "has no step");
    for form in [&["--json"][..], &["--policy", "traceml"], &["--format", "traceml"]] {
        let ended = stepmem(&[&["summary", &empty, "--html", &out], form].concat(), &[], b"");
        ended.fails(2, "cannot be used with");
    }
    let steps = folder.write("steps.jsonl", &Job::new(1, 60).recording());
    let nowhere = text(&folder.path("none/report.html"));
    stepmem(&["summary", &steps, "--html", &nowhere], &[], b"").fails(2, "none/report.html");
    assert!(!folder.path("report.html").exists());
}
