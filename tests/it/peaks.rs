//! Peaks: a step's peak that a pusher does not know is absent everywhere, and never live memory in its place.

use serde_json::{Value, json};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::units::{GIB, float};

/// The true peaks of four ranks that each hold 20 GiB between steps.
const PEAKS: [u64; 4] = [45, 45, 65, 45];

fn peak(rank: u64) -> u64 {
    PEAKS[usize::try_from(rank).unwrap()] * GIB
}

/// Four ranks with those peaks, of which a pusher sends only what `peak_of` a rank and step says.
fn four_ranks(n_steps: u64, peak_of: impl Fn(u64, u64) -> Value + 'static) -> Job {
    let job = Job::new(4, n_steps).world(4).live(|_, _| 20 * GIB);
    job.reserved(|rank, _| peak(rank) + 2 * GIB)
        .more(move |rank, step| json!({ "peak_allocated_bytes": peak_of(rank, step) }))
}

/// The peaks of a pusher that sees them in the step in which the process's own maximum rises.
fn only_when_it_rose(rank: u64, step: u64) -> Value {
    if step == 2 { json!(peak(rank)) } else { Value::Null }
}

fn never(_: u64, _: u64) -> Value {
    Value::Null
}

/// The final status of a recording, and each diagnosis that was ever raised as (kind, rank).
fn replayed(job: &Job) -> (Value, Vec<(String, u64)>) {
    let ended = stepmem(&["replay", "-"], &[], job.recording().as_bytes());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let mut lines: Vec<Value> =
        ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let status = lines.pop().unwrap()["status"].take();
    let raised = lines.iter().filter(|line| line["state"] == "raised").map(|line| {
        (line["kind"].as_str().unwrap().to_owned(), line["rank"].as_u64().unwrap())
    });
    (status, raised.collect())
}

#[test]
fn peaks_that_are_sent_when_they_rise_show_the_fullest_rank_and_no_fragmentation() {
    let (status, raised) = replayed(&four_ranks(400, only_when_it_rose));
    assert_eq!(raised, [("IMBALANCE".to_owned(), 2)]);
    for rank in status["ranks"].as_array().unwrap() {
        let peak = peak(rank["rank"].as_u64().unwrap());
        assert_eq!(rank["recent_peak_allocated_bytes"], json!(peak), "{rank}");
        let left = rank["headroom_bytes"].as_f64().unwrap();
        assert_eq!(
            (left, &rank["headroom_basis"]),
            (float(80 * GIB - peak), &json!("allocated"))
        );
        assert_eq!(rank["fragmentation_ratio"], Value::Null, "{rank}");
    }
}

#[test]
fn unknown_peaks_are_absent_and_the_headroom_rests_on_what_is_known() {
    let exporter = Exporter::start(&[]);
    exporter.push(&four_ranks(600, never).run("reserved").records());
    exporter.push(
        &four_ranks(600, never)
            .run("bare")
            .more(|_, _| json!({"reserved_bytes": null, "peak_allocated_bytes": null}))
            .records(),
    );
    exporter.await_metrics("the pushes are judged", |metrics| {
        metrics.contains_key(r#"stepmem_rank_step{run="bare",rank="3",uuid=""}"#)
    });
    let metrics = exporter.scrape();
    for (run, rank) in [("reserved", 0), ("reserved", 2), ("bare", 0), ("bare", 2)] {
        let labels = format!("run=\"{run}\",rank=\"{rank}\",uuid=\"\"");
        for name in [
            "rank_memory_peak_allocated_bytes",
            "rank_interval_peak_allocated_bytes",
            "imbalance_ratio",
            "fragmentation_ratio",
        ] {
            let series = format!("stepmem_{name}{{{labels}}}");
            assert_eq!(metrics.get(&series), None, "{series}");
        }
        let pressure = format!("stepmem_pressure_ratio{{{labels},basis=\"allocated\"}}");
        assert_eq!(metrics.get(&pressure), None, "{pressure}");
        let headroom = metrics.get(&format!("stepmem_headroom_bytes{{{labels}}}")).copied();
        let basis = metrics
            .get(&format!("stepmem_headroom_basis{{{labels},basis=\"reserved\"}}"))
            .copied();
        let free = 80 * GIB - peak(rank) - 2 * GIB;
        let expected = (run == "reserved").then_some((float(free), 1.0));
        assert_eq!(headroom.zip(basis), expected, "{labels}");
    }
    assert_eq!(metrics.get(r#"stepmem_run_imbalance_ratio{run="reserved"}"#), None);
    let status = exporter.status();
    assert_eq!(status["findings"], json!([]), "nothing is found where nothing is known");
    for rank in status["ranks"].as_array().unwrap() {
        assert_eq!(rank["recent_peak_allocated_bytes"], Value::Null, "{rank}");
        assert_eq!(rank["interval_peak_allocated_bytes"], Value::Null, "{rank}");
    }
}

#[test]
fn summary_has_no_peak_where_none_is_known() {
    let summary = |job: &Job| -> Value {
        let ended = stepmem(&["summary", "-", "--json"], &[], job.recording().as_bytes());
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        serde_json::from_str(&ended.out).unwrap()
    };
    let unknown = summary(&four_ranks(600, never));
    assert_eq!(unknown["diagnosis"]["kind"], "BALANCED");
    for rank in unknown["ranks"].as_array().unwrap() {
        for figure in ["peak_allocated", "peak_reserved", "peak_imbalance_ratio"] {
            assert_eq!(rank[figure], Value::Null, "{figure}: {rank}");
        }
        assert_eq!(rank["phases"]["train"]["peak_bytes"], Value::Null);
    }
    assert_eq!(unknown["metrics"], json!({}));
    let known = summary(&four_ranks(600, only_when_it_rose));
    assert_eq!(known["ranks"][2]["peak_allocated"]["max_bytes"], json!(65 * GIB));
    assert_eq!(known["ranks"][2]["peak_allocated"]["mean_bytes"], json!(float(65 * GIB)));
}

#[test]
fn traceml_policy_judges_only_steps_whose_peaks_are_known() {
    let recording = four_ranks(600, never).recording();
    let ended =
        stepmem(&["summary", "-", "--policy", "traceml", "--json"], &[], recording.as_bytes());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let verdict: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(verdict["diagnosis"]["kind"], "NO_DATA", "{verdict}");
}

#[test]
fn unknown_peaks_stay_unknown_over_a_restart_of_the_exporter() {
    let folder = Folder::new("peaks-state");
    let file = text(&folder.path("state"));
    let first = Exporter::start(&["--state.file", &file]);
    first.push(&four_ranks(100, never).records());
    first.stop();
    let second = Exporter::start(&["--state.file", &file]);
    let ranks = &second.status()["ranks"];
    assert_eq!(ranks.as_array().unwrap().len(), 4);
    assert_eq!(ranks[2]["recent_peak_allocated_bytes"], Value::Null);
    assert_eq!(ranks[2]["headroom_basis"], "reserved");
}

#[test]
fn runs_without_peaks_are_compared_by_their_live_memory() {
    let folder = Folder::new("peaks-compare");
    let written = |name: &str, live: u64| {
        let job = Job::new(1, 600).live(move |_, _| live);
        let job = job.more(|_, _| json!({ "peak_allocated_bytes": null })).recording();
        let ended = stepmem(&["summary", "-", "--json"], &[], job.as_bytes());
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        folder.write(name, &ended.out)
    };
    let (old, new) = (written("old.json", 30 * GIB), written("new.json", 20 * GIB));
    let compared = stepmem(&["compare", &old, &new], &[], b"");
    assert!(compared.out.starts_with("Verdict: IMPROVEMENT"), "{}", compared.out);
    assert!(compared.out.contains("live memory"), "{}", compared.out);
    assert!(!compared.out.contains("TraceML"), "{}", compared.out);
    assert_eq!(compared.code, Some(0));
}
