//! The summaries of a running exporter: written when a run ends, falls silent or the exporter stops, and answered live.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::summary::summary;
use crate::rig::units::{GIB, float};
use crate::rig::wait::await_true;

/// An exporter that writes summaries into a folder.
fn start(folder: &Folder) -> Exporter {
    Exporter::start(&["--summary.dir", &text(&folder.path(""))])
}

/// Two ranks with this much live memory, for 20 steps.
fn push(exporter: &Exporter, run: &str, attempt: u64, allocated: u64) {
    let job = Job::new(2, 20).run(run).attempt(attempt).world(2).untimed();
    exporter.push(&job.live(move |_, _| allocated).records());
}

/// The same of one process a rank that names its launch, which began so many seconds after the job's start.
fn push_launch(exporter: &Exporter, run: &str, launch: &'static str, seconds: f64) {
    exporter.push(&launched(launch, seconds).run(run).records());
}

fn launched(launch: &'static str, seconds: f64) -> Job {
    let instance = |rank: u64| {
        let digits = launch.bytes().fold(rank, |sum, byte| 31 * sum + u64::from(byte));
        format!("{digits:016x}")
    };
    let job = Job::new(2, 20).world(2).starting_at(seconds);
    job.more(move |rank, _| json!({"launch": launch, "instance": instance(rank)}))
}

fn complete(exporter: &Exporter, run: &str) {
    exporter.end(run, &json!({"outcome": "completed"}));
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

/// The names in a directory without those that begin with a dot, sorted.
fn names(path: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

/// Waits until so many summaries were written, and returns the counts.
fn await_written(exporter: &Exporter, n_written: f64) {
    exporter.await_metrics("the summaries", |metrics| {
        metrics.get(r#"stepmem_summaries_total{result="written"}"#) == Some(&n_written)
    });
}

/// The directory of a launch that began with the jobs.
const AT_START: &str = "2025-11-24T16-00-01";

#[test]
fn ended_run_has_its_files_and_the_next_attempt_replaces_them() {
    let folder = Folder::new("summary-end");
    let exporter = start(&folder);
    let json = folder.path("my-run/latest/final_summary.json");
    push(&exporter, "my-run", 0, 79 * GIB);
    exporter.end("my-run", &json!({"outcome": "oom"}));
    await_true("the first summary", || is(&json, "OUT OF MEMORY"));
    let card = fs::read_to_string(folder.path("my-run/latest/final_summary.txt")).unwrap();
    assert!(card.contains("HIGH PRESSURE (critical) on ranks 0, 1"), "{card}");
    push(&exporter, "my-run", 1, 30 * GIB);
    complete(&exporter, "my-run");
    await_true("the second", || is(&json, "TOO FEW STEPS"));
    let summary = read(&json).unwrap();
    assert_eq!(
        (&summary["attempt"], &summary["ranks"][1]["state"]),
        (&json!(1), &"ended".into())
    );
    let names = names(&folder.path("my-run"));
    assert_eq!((names.len(), names[1].as_str()), (2, "latest"), "{names:?}");
    let files = names_of_latest(&folder, "my-run");
    assert_eq!(files, ["final_summary.json", "final_summary.txt", "launch.json"]);
}

fn names_of_latest(folder: &Folder, run: &str) -> Vec<String> {
    names(&folder.path(&format!("{run}/latest")))
}

#[test]
fn rerun_keeps_the_summary_of_the_run_before() {
    let folder = Folder::new("summary-rerun");
    let exporter = start(&folder);
    push_launch(&exporter, "run", "first", 0.0);
    complete(&exporter, "run");
    await_written(&exporter, 1.0);
    push_launch(&exporter, "run", "second", 60.0);
    complete(&exporter, "run");
    await_written(&exporter, 2.0);
    let expected = [AT_START, "2025-11-24T16-01-01", "latest"];
    assert_eq!(names(&folder.path("run")), expected);
    for (time, launch) in [(AT_START, "first"), (expected[1], "second"), ("latest", "second")] {
        let summary = read(&folder.path(&format!("run/{time}/final_summary.json"))).unwrap();
        assert_eq!(summary["launch"], launch, "{time}");
    }
    let to = fs::read_link(folder.path("run/latest")).unwrap();
    assert_eq!(to, Path::new("2025-11-24T16-01-01"));
}

#[test]
fn latest_leads_to_the_last_launch_of_any_run() {
    let folder = Folder::new("summary-latest");
    let exporter = start(&folder);
    for (n, run) in [(1.0, "first"), (2.0, "second"), (3.0, "latest")] {
        push_launch(&exporter, run, "launch", 0.0);
        complete(&exporter, run);
        await_written(&exporter, n);
        assert_eq!(read(&folder.path("latest/final_summary.json")).unwrap()["run"], run);
    }
    let to = fs::read_link(folder.path("latest")).unwrap();
    assert_eq!(to, Path::new("%6Catest").join(AT_START));
    // No half-made link stays.
    let hidden = fs::read_dir(folder.path("")).unwrap().filter(|entry| {
        entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".latest")
    });
    assert_eq!(hidden.count(), 0);
}

#[test]
fn summary_of_a_directory_of_runs_is_that_of_the_run_that_is_named() {
    let folder = Folder::new("summary-named");
    let exporter = start(&folder);
    for (n, run) in [(1.0, "first"), (2.0, "second")] {
        push_launch(&exporter, run, "launch", 0.0);
        complete(&exporter, run);
        await_written(&exporter, n);
    }
    let logs = text(&folder.path(""));
    let summary = |run| stepmem(&["summary", "--json", "--run", run, &logs], &[], b"");
    for run in ["first", "second"] {
        assert_eq!(summary(run).json()["run"], run);
    }
    summary("third").fails(2, "there is no run third; the summary is of second");
}

#[test]
fn latest_that_is_somebody_elses_stays_and_the_summary_is_written() {
    let folder = Folder::new("summary-own-latest");
    let path = folder.path("latest");
    let make: [fn(&Path); 3] = [
        |path| fs::write(path, "mine").unwrap(),
        |path| fs::create_dir(path).unwrap(),
        |path| std::os::unix::fs::symlink("/somewhere/else", path).unwrap(),
    ];
    let exporter = start(&folder);
    for (n, make) in [1.0, 2.0, 3.0].into_iter().zip(make) {
        make(&path);
        let before = fs::symlink_metadata(&path).unwrap().file_type();
        let run = format!("run-{n}");
        push_launch(&exporter, &run, "launch", 0.0);
        complete(&exporter, &run);
        await_written(&exporter, n);
        assert_eq!(fs::symlink_metadata(&path).unwrap().file_type(), before);
        assert!(read(&folder.path(&format!("{run}/latest/final_summary.json"))).is_some());
        if before.is_dir() { fs::remove_dir(&path) } else { fs::remove_file(&path) }.unwrap();
    }
    let failed = r#"stepmem_summaries_total{result="failed"}"#;
    assert_eq!(exporter.metric(failed), Some(0.0));
}

#[test]
fn rerun_of_a_client_that_names_no_launch_keeps_it_too() {
    let folder = Folder::new("summary-nameless");
    let exporter = start(&folder);
    for n in 1..=3 {
        exporter.push(&Job::new(1, 20).starting_at(60.0 * f64::from(n)).records());
        complete(&exporter, "job");
        await_written(&exporter, f64::from(n));
    }
    let times = ["2025-11-24T16-01-01", "2025-11-24T16-02-01", "2025-11-24T16-03-01"];
    assert_eq!(names(&folder.path("job"))[..3], times);
}

#[test]
fn run_that_is_killed_and_run_again_has_both_summaries() {
    let folder = Folder::new("summary-killed-rerun");
    let exporter = start(&folder);
    push_launch(&exporter, "run", "first", 0.0);
    // The second launch is refused until the first is no longer live.
    let records = Value::from(launched("second", 60.0).run("run").records()).to_string();
    await_true("the second launch", || exporter.post(records.clone()).status == 200);
    await_written(&exporter, 1.0);
    let json = folder.path(&format!("run/{AT_START}/final_summary.json"));
    let summary = read(&json).unwrap();
    assert_eq!(summary["launch"], "first");
    assert_eq!(summary["ranks"][1]["state"], "ended_unannounced");
    complete(&exporter, "run");
    await_written(&exporter, 2.0);
    let second = read(&folder.path("run/latest/final_summary.json")).unwrap();
    assert_eq!(second["launch"], "second");
    assert_eq!(read(&json).unwrap()["launch"], "first");
}

#[test]
fn run_that_is_cut_off_by_the_failure_of_a_rank_is_summed_up_without_the_long_wait() {
    let folder = Folder::new("summary-cut-off");
    let exporter = start(&folder);
    push_launch(&exporter, "run", "first", 0.0);
    exporter.end("run", &json!({"rank": 1, "outcome": "oom"}));
    let json = folder.path("run/latest/final_summary.json");
    // Long before --rank.ttl, which is ten minutes.
    await_true("the summary", || is(&json, "OUT OF MEMORY"));
    let summary = read(&json).unwrap();
    let states = [&summary["ranks"][0]["state"], &summary["ranks"][1]["state"]];
    assert_eq!(states, [&json!("ended_unannounced"), &json!("ended")]);
    assert_eq!(summary["coverage"]["ranks_lost"], json!([]));
    // One that hung, and reports its end later.
    exporter.end("run", &json!({"rank": 0, "outcome": "failed"}));
    await_true("its end", || read(&json).unwrap()["ranks"][0]["state"] == "ended");
}

#[test]
fn exporters_of_one_launch_share_its_directory_and_overwrite_nothing() {
    let folder = Folder::new("summary-shared");
    let arguments = ["--summary.dir", &text(&folder.path(""))];
    let exporters = [Exporter::start(&arguments), Exporter::start(&arguments)];
    for (exporter, first) in exporters.iter().zip([0_u32, 2]) {
        // Their first records differ by a minute.
        let job = launched("both", 60.0 * f64::from(first)).world(4);
        exporter.push(&job.first_rank(u64::from(first)).run("run").records());
    }
    for exporter in &exporters {
        complete(exporter, "run");
    }
    for exporter in &exporters {
        await_written(exporter, 1.0);
    }
    let times = names(&folder.path("run"));
    assert_eq!((times.len(), times[1].as_str()), (2, "latest"), "{times:?}");
    let ranks = |name: &str| {
        let summary = read(&folder.path(&format!("run/latest/{name}.json"))).unwrap();
        summary["ranks"].as_array().unwrap().iter().map(|rank| rank["rank"].clone()).collect()
    };
    let first: Vec<Value> = ranks("final_summary");
    let files = names_of_latest(&folder, "run");
    let end = if first[0] == json!(0) { ".rank2.txt" } else { ".rank0.txt" };
    let other = files.iter().find(|name| name.ends_with(end)).unwrap();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let plain = host.trim().replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', "-");
    let plain: String = plain.chars().take(64).collect();
    assert_eq!(*other, format!("final_summary.{plain}{end}"));
    let other = other.strip_suffix(".txt").unwrap();
    assert_eq!(first.len() + ranks(other).len(), 4);
    let run = text(&folder.path("run"));
    let whole = stepmem(&["summary", "--json", &run], &[], b"").json();
    assert_eq!(whole["coverage"]["ranks_seen"], 4);
    assert_eq!(whole["metrics"]["peak_allocated"]["ranks_used"], 4, "{}", whole["metrics"]);
    stepmem(&["summary", "--policy=traceml", &run], &[], b"").fails(2, "has no recording");
    // Each finds its own file again.
    for exporter in &exporters {
        complete(exporter, "run");
        await_written(exporter, 2.0);
    }
    assert_eq!(names_of_latest(&folder, "run"), files);
    assert_eq!(ranks("final_summary"), first);
}

#[test]
fn restarted_exporter_goes_on_in_the_directory_of_the_launch() {
    let folder = Folder::new("summary-restart");
    let arguments = ["--summary.dir", &text(&folder.path(""))];
    let exporter = Exporter::start(&arguments);
    push_launch(&exporter, "run", "first", 0.0);
    exporter.stop();
    let json = folder.path(&format!("run/{AT_START}/final_summary.json"));
    assert_eq!(read(&json).unwrap()["ranks"][0]["state"], "pushing");
    let exporter = Exporter::start(&arguments);
    exporter.push(&launched("first", 600.0).run("run").records());
    complete(&exporter, "run");
    await_written(&exporter, 1.0);
    assert_eq!(names(&folder.path("run")), [AT_START, "latest"]);
    assert_eq!(read(&json).unwrap()["ranks"][0]["state"], "ended");
}

#[test]
fn oldest_ended_launch_goes_and_none_that_is_live_or_unknown() {
    let folder = Folder::new("summary-thin");
    let root = text(&folder.path(""));
    let arguments = ["--summary.dir", &root, "--summary.launches-max", "2"];
    // The end of the first is unknown: its exporter stopped before.
    let exporter = Exporter::start(&arguments);
    push_launch(&exporter, "run", "unknown", 0.0);
    exporter.stop();
    let exporter = Exporter::start(&arguments);
    // Of the second only two of four ranks are known.
    exporter.push(&launched("half", 60.0).world(4).run("run").records());
    complete(&exporter, "run");
    await_written(&exporter, 1.0);
    let launches = ["c", "d", "e", "f"];
    for (n, launch) in (2..).zip(launches) {
        push_launch(&exporter, "run", launch, 60.0 * f64::from(n));
        complete(&exporter, "run");
        await_written(&exporter, f64::from(n));
        if launch == "c" {
            fs::write(folder.path("run/2025-11-24T16-02-01/notes.txt"), "mine").unwrap();
        }
    }
    let expected = [
        AT_START,
        "2025-11-24T16-01-01",
        "2025-11-24T16-02-01",
        "2025-11-24T16-05-01",
        "latest",
    ];
    assert_eq!(names(&folder.path("run")), expected, "the other ends are unknown");
    assert_eq!(names(&folder.path("run/2025-11-24T16-02-01")), ["notes.txt"]);
    let removed = r#"stepmem_summaries_total{result="removed"}"#;
    assert_eq!(exporter.metric(removed), Some(3.0));
}

#[test]
fn launch_that_goes_on_after_its_summary_is_not_removed() {
    let folder = Folder::new("summary-resumed");
    let root = text(&folder.path(""));
    let arguments = ["--summary.dir", &root, "--summary.launches-max", "1"];
    let (own, other) = (Exporter::start(&arguments), Exporter::start(&arguments));
    push_launch(&own, "run", "own", 0.0);
    own.end("run", &json!({"outcome": "failed"}));
    await_written(&own, 1.0);
    own.push(&launched("own", 300.0).attempt(1).run("run").records());
    let marked = format!("run/{AT_START}/going-on.rank0");
    await_true("the mark", || folder.path(&marked).exists());
    push_launch(&other, "run", "other", 60.0);
    complete(&other, "run");
    await_written(&other, 1.0);
    assert_eq!(names(&folder.path("run")), [AT_START, "2025-11-24T16-01-01", "latest"]);
    complete(&own, "run");
    await_true("the end", || !folder.path(&marked).exists());
}

#[test]
fn run_whose_ranks_end_or_fall_silent_has_its_files() {
    let folder = Folder::new("summary-silent");
    let arguments = ["--summary.dir", &text(&folder.path("")), "--rank.ttl", "1s"];
    let exporter = Exporter::start(&arguments);
    push(&exporter, "silent", 0, 30 * GIB);
    push(&exporter, "one by one", 0, 30 * GIB);
    exporter.end("one%20by%20one", &json!({"rank": 0, "outcome": "completed"}));
    exporter.end("one%20by%20one", &json!({"rank": 1, "outcome": "completed"}));
    for name in ["silent", "one%20by%20one"] {
        let json = folder.path(name).join("latest/final_summary.json");
        await_true(name, || is(&json, "TOO FEW STEPS"));
    }
}

#[test]
fn sigterm_leaves_the_summary_of_a_run_that_goes_on() {
    let folder = Folder::new("summary-term");
    let exporter = start(&folder);
    push(&exporter, "../up", 0, 30 * GIB);
    push(&exporter, "up~2", 0, 30 * GIB);
    exporter.signal("TERM");
    let (status, log) = exporter.wait();
    assert!(status.success(), "{log:#?}");
    for name in ["%2E.%2Fup", "up%7E2"] {
        let json = folder.path(&format!("{name}/latest/final_summary.json"));
        assert!(is(&json, "TOO FEW STEPS"), "{log:#?}");
    }
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
    let report = json!({"run": "run", "rank": 1, "reason": "oom", "step": 20, "outcome": "written",
        "path": "/dumps/rank1.pickle", "bytes": 12});
    exporter.take("/v1/snapshots", &report);
    let summary = exporter.summary("run");
    assert_eq!(summary["snapshots"][0]["path"], "/dumps/rank1.pickle");
    let card = summary["text"].as_str().unwrap();
    assert!(card.contains("Snapshot of rank 1, step 20 (oom): /dumps/rank1.pickle"), "{card}");
}

#[test]
fn directory_that_becomes_something_else_is_logged_and_stops_nothing() {
    let folder = Folder::new("summary-refused");
    let of_summaries = text(&folder.path("file"));
    let exporter = Exporter::start(&["--summary.dir", &of_summaries]);
    fs::remove_dir_all(&of_summaries).ok();
    folder.write("file", "");
    for attempt in 0..2 {
        push(&exporter, "run", attempt, 30 * GIB);
        exporter.end("run", &json!({"outcome": "failed"}));
        exporter.await_metrics("the count", |metrics| {
            let failed = metrics[r#"stepmem_summaries_total{result="failed"}"#];
            failed.total_cmp(&float(attempt + 1)).is_eq()
        });
    }
    assert_eq!(exporter.logged("WARN", "summary not written"), 1, "the first of several");
    push(&exporter, "run", 2, 30 * GIB);
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
    let summary = exporter.summary("run");
    assert_eq!(summary["diagnosis"]["kind"], "HIGH_PRESSURE");
    assert_eq!(summary["ranks"][0]["steps"], 20);
    exporter.signal("TERM");
    exporter.wait();
    assert!(is(&folder.path("out/run/latest/final_summary.json"), "HIGH PRESSURE"));
}

#[test]
fn live_and_recorded_summaries_of_the_same_pushes_agree() {
    let exporter = Exporter::start(&[]);
    let job = Job::new(1, 50).run("r").capacity(2 * GIB);
    exporter.push(&job.records());
    let (live, recorded) = (exporter.summary("r"), summary(&job.recording()));
    for key in ["diagnosis", "issues", "metrics", "coverage", "ranks", "text"] {
        assert_eq!(live[key], recorded[key], "{key}");
    }
}
