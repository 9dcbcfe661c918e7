//! Host memory next to a device's, and the memory that a process reads of itself: when records come twice, late, from another
//! process, or by a clock that was set; and when the run is over.

use serde_json::{Value, json};
use stepmem_engine::Evidence;
use stepmem_report::summary::{IssueEvidence, Summary};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::{Job, START};
use crate::rig::noise::noise;
use crate::rig::summary::{issue, summary};
use crate::rig::units::{GIB, MIB, float};

/// A rank on a GPU with so many MiB more on the host per step, and 12 GiB that its process reads of itself.
fn job(leak: u64) -> Job {
    let job = Job::new(1, 800).device("GPU-1").seconds_per_step(10.0);
    job.reserved(|_, _| 2 * GIB).more(move |rank, step| {
        let held = 8 * GIB + noise(rank, step, 16 * MIB) + leak * step * MIB;
        json!({"host_allocated_bytes": held, "host_total_bytes": 64 * GIB,
            "process_used_bytes": 12 * GIB, "pid": 7, "instance": "00c0ffee00c0ffee"})
    })
}

/// The findings, and what the rank holds on the host and on its device.
fn seen(exporter: &Exporter) -> Value {
    let status = exporter.status();
    let findings = status["findings"].as_array().unwrap().iter();
    let findings = findings.map(|of| of["kind"].clone());
    let rank = &status["ranks"][0];
    let (host, used) = (rank["host"]["allocated_bytes"].clone(), &rank["process_used_bytes"]);
    json!([findings.collect::<Vec<_>>(), host, used, rank["headroom_bytes"]])
}

fn pushed(records: &[Value]) -> Value {
    let exporter = Exporter::start(&[]);
    exporter.push(records);
    seen(&exporter)
}

/// A record like the last one of a job, with other fields.
fn last(of: &Job, fields: &Value) -> Value {
    let mut record = of.records().pop().unwrap();
    record.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    record
}

#[test]
fn records_that_come_twice_or_late_change_nothing() {
    let once = job(40).records();
    let expected = pushed(&once);
    assert_eq!(expected[0][0], "HOST_CREEP_CONFIRMED", "{expected}");
    let twice: Vec<Value> = once.iter().flat_map(|of| [of.clone(), of.clone()]).collect();
    assert_eq!(pushed(&twice), expected);
    let exporter = Exporter::start(&[]);
    exporter.push(&once);
    let fields = json!({"step": 300, "time": START, "host_allocated_bytes": 60 * GIB,
        "process_used_bytes": 50 * GIB});
    exporter.push(&[last(&job(40), &fields)]);
    assert_eq!(seen(&exporter), expected);
    let late = r#"stepmem_push_records_total{result="late"}"#;
    assert_eq!(exporter.metric(late), Some(1.0));
}

#[test]
fn second_pusher_of_a_name_changes_nothing() {
    let exporter = Exporter::start(&[]);
    exporter.push(&job(0).untimed().records());
    let before = seen(&exporter);
    let fields = json!({"step": 801, "time": null, "pid": 8, "instance": "1111111111111111",
        "host_allocated_bytes": 60 * GIB, "process_used_bytes": 50 * GIB});
    let answer = exporter.post(last(&job(0), &fields).to_string());
    assert_eq!(answer.status, 409, "{}", answer.body);
    assert_eq!(seen(&exporter), before);
}

#[test]
fn growth_on_the_host_alone_leaves_the_headroom_of_the_device_as_it_is() {
    let exporter = Exporter::start(&[]);
    exporter.push(&job(40).records());
    let status = exporter.status();
    assert_eq!(status["findings"].as_array().unwrap().len(), 1, "{}", status["findings"]);
    assert_eq!(status["ranks"][0]["headroom_bytes"], float(79 * GIB));
    let url = format!("http://{}", exporter.web);
    let explained =
        stepmem(&["explain", "--url", &url, "--run", "job", "--rank", "0"], &[], b"").out;
    let lines: Vec<&str> =
        explained.lines().filter(|line| line.contains("  Headroom")).map(str::trim).collect();
    let [own, host] = lines[..] else { panic!("{explained}") };
    assert_eq!(own, "Headroom: 79.0 GiB, by its allocated memory");
    assert!(host.starts_with("Headroom on the host: "), "{host}");
    assert!(host.ends_with(", as its growth has it left"), "{host}");
    let summary: Summary = serde_json::from_value(summary(&job(40).recording())).unwrap();
    let evidence = &summary.issues[0].evidence;
    let is_of_host = matches!(evidence, IssueEvidence::Finding(Evidence::HostCreep(_)));
    assert!(is_of_host, "{evidence:?}");
}

#[test]
fn clock_that_goes_back_neither_hides_growth_on_the_host_nor_makes_any() {
    for (leak, expected) in [(0, json!([])), (40, json!("HOST_CREEP_CONFIRMED"))] {
        let mut records = job(leak).records();
        for (step, record) in records.iter_mut().enumerate() {
            let (set_back, free) =
                if step < 400 { (0.0, 70 * GIB) } else { (7200.0, 40 * GIB) };
            record["time"] = json!(record["time"].as_f64().unwrap() - set_back);
            record["free_bytes"] = json!(free);
        }
        let found = pushed(&records);
        if leak == 0 {
            assert_eq!(found[0], expected);
        } else {
            assert_eq!(found[0][0], expected, "{found}");
        }
        assert_eq!(found[1], records[799]["host_allocated_bytes"]);
        assert_eq!(found[3], json!(float(41 * GIB)), "what is free at the last reading");
    }
}

#[test]
fn next_launch_of_a_run_begins_with_nothing_of_the_last() {
    let exporter = Exporter::start(&[]);
    let mut records = job(40).records();
    for record in &mut records {
        record["launch"] = json!("morning");
    }
    exporter.push(&records);
    assert_eq!(seen(&exporter)[0][0], "HOST_CREEP_CONFIRMED");
    let end = exporter.post_to("/v1/runs/job/end", r#"{"rank": 0, "outcome": "completed"}"#);
    assert_eq!(end.status, 200, "{}", end.body);
    let fields = json!({"step": 1, "time": float(START) + 40_000.0, "pid": 9, "launch": "evening",
        "instance": "2222222222222222", "host_allocated_bytes": null, "host_total_bytes": null,
        "process_used_bytes": null});
    exporter.push(&[last(&job(0), &fields)]);
    assert_eq!(seen(&exporter), json!([[], null, null, float(79 * GIB)]));
}

#[test]
fn reading_of_a_process_outlasts_a_restart_of_the_exporter() {
    let folder = Folder::new("host-records-restart");
    let arguments = ["--state.file", &text(&folder.path("state"))];
    let first = Exporter::start(&arguments);
    first.push(&job(0).untimed().records());
    let before = seen(&first);
    assert_eq!(before[2], json!(12 * GIB));
    first.stop();
    let second = Exporter::start(&arguments);
    assert_eq!(seen(&second), before);
    let outside = r#"stepmem_memory_outside_allocator_bytes{run="job",rank="0",uuid="GPU-1"}"#;
    assert_eq!(second.metric(outside), Some(float(10 * GIB)));
}

#[test]
fn past_pressure_of_the_host_is_an_issue_of_the_summary() {
    let job = Job::new(1, 200).device("GPU-1").more(|_, step| {
        let held = if step == 100 { 62 * GIB } else { 8 * GIB };
        json!({"host_allocated_bytes": held, "host_total_bytes": 64 * GIB})
    });
    let found = issue(&summary(&job.recording()), "HOST_HIGH_PRESSURE").expect("an issue");
    assert_eq!(found["severity"], "info", "{found}");
    assert_eq!(found["summary"], "the peak of host memory was at 97% of 64.0 GiB at step 100");
    assert!(found["action"].as_str().unwrap().contains("host's memory load"), "{found}");
}

/// An exporter whose rank leaks on the host, where its client names what holds it.
fn with_holder(leak: u64, items_max: u64) -> Exporter {
    let exporter = Exporter::start(&["--holders.on-creep"]);
    let mut asked = Value::Null;
    for batch in job(leak).records().chunks(100) {
        let answer = exporter.post(json!(batch).to_string());
        let actions = answer.json()["actions"].clone();
        let mut actions = actions.as_array().unwrap().iter();
        asked = actions.rfind(|of| of["type"] == "holders").cloned().unwrap_or(asked);
    }
    let holder = json!({"name": "`replay`", "kind": "deque", "tensors": 0,
        "bytes": 800 * leak * MIB, "tensors_per_step": 0.0, "bytes_per_step": leak * MIB,
        "file": "train.py", "line": 42,
        "items": 800, "items_max": items_max, "items_per_step": 1.0});
    let body = json!({"run": "job", "rank": 0, "instance": "00c0ffee00c0ffee",
        "id": asked["id"], "outcome": "named", "last_step": 800, "holders": [holder]});
    assert_eq!(exporter.post_to("/v1/holders", body.to_string()).status, 200);
    exporter
}

#[test]
fn buffer_on_the_host_that_will_not_fit_is_pressure_ahead_of_time() {
    let exporter = with_holder(40, 4000);
    let is_it = |series: &String| series.contains(r#"kind="HOST_HIGH_PRESSURE""#);
    exporter.await_metrics("the finding", |metrics| metrics.keys().any(is_it));
    let status = exporter.status();
    let findings = status["findings"].as_array().unwrap();
    let found = findings.iter().find(|of| of["kind"] == "HOST_HIGH_PRESSURE").unwrap();
    assert_eq!(found["severity"], "warning", "{found}");
    let words = found["sentence"].as_str().unwrap();
    assert!(words.starts_with("`replay` (deque, 800 of 4,000)"), "{words}");
    assert!(words.ends_with("host memory is at 61% of 64.0 GiB"), "{words}");
    let advice = "Give it a lower bound or smaller items, or give the job more memory.";
    assert_eq!(found["advice"], advice);
}

#[test]
fn line_and_headroom_of_growth_on_the_host_are_explained_and_compared() {
    let leaky = with_holder(40, 1 << 50);
    let url = format!("http://{}", leaky.web);
    let explained =
        stepmem(&["explain", "--url", &url, "--run", "job", "--rank", "0"], &[], b"");
    for words in ["train.py:42", "Headroom on the host: ", "Out of host memory in about "] {
        assert!(explained.out.contains(words), "{words}: {}", explained.out);
    }
    let healthy = Exporter::start(&[]);
    healthy.push(&job(0).records());
    let folder = Folder::new("host-records-compare");
    let file = |name: &str, of: &Exporter| {
        let summary = of.get("/api/v1/runs/job/summary", &[]).json();
        folder.write(name, &summary.to_string())
    };
    let (leaky, healthy) = (file("leaky", &leaky), file("healthy", &healthy));
    let compared = stepmem(&["compare", &leaky, &healthy], &[], b"");
    // The line may still be there: what it fills no longer grows.
    let gone = "of train.py:42 holds no longer grows";
    assert!(compared.out.contains(gone), "{}", compared.out);
    let better = "better: least host headroom rose from 24.7 GiB to 56.0 GiB.";
    assert!(compared.out.contains(better), "{}", compared.out);
}
