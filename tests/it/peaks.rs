//! Peaks: a step's peak that a pusher does not know is absent everywhere, and never live memory in its place.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::rig::command::{replayed as replay, stepmem};
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::json::has;
use crate::rig::summary::summary;
use crate::rig::units::{GIB, MIB, float};

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
    let (lines, status) = replay(&job.recording());
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
        has(
            rank,
            &json!({"headroom_bytes": float(80 * GIB - peak), "headroom_basis": "allocated",
                          "fragmentation_ratio": null}),
        );
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
        let free = 80 * GIB - peak(rank) - 2 * GIB;
        let expected = (run == "reserved").then_some(float(free));
        assert_eq!(headroom, expected, "{labels}");
    }
    assert_eq!(metrics.get(r#"stepmem_run_imbalance_ratio{run="reserved"}"#), None);
    let status = exporter.status();
    assert_eq!(status["findings"], json!([]), "nothing is found where nothing is known");
    for rank in status["ranks"].as_array().unwrap() {
        has(
            rank,
            &json!({"recent_peak_allocated_bytes": null, "interval_peak_allocated_bytes": null}),
        );
    }
}

#[test]
fn summary_has_no_peak_where_none_is_known() {
    let unknown = summary(&four_ranks(600, never).recording());
    assert_eq!(unknown["diagnosis"]["kind"], "BALANCED");
    for rank in unknown["ranks"].as_array().unwrap() {
        for figure in ["peak_allocated", "peak_reserved", "peak_imbalance_ratio"] {
            assert_eq!(rank[figure], Value::Null, "{figure}: {rank}");
        }
        assert_eq!(rank["phases"]["train"]["peak_bytes"], Value::Null);
    }
    assert_eq!(unknown["metrics"], json!({}));
    let known = summary(&four_ranks(600, only_when_it_rose).recording());
    assert_eq!(known["ranks"][2]["peak_allocated"]["max_bytes"], json!(65 * GIB));
    assert_eq!(known["ranks"][2]["peak_allocated"]["mean_bytes"], json!(float(65 * GIB)));
}

#[test]
fn traceml_policy_judges_only_steps_whose_peaks_are_known() {
    let recording = four_ranks(600, never).recording();
    let arguments = ["summary", "-", "--policy", "traceml", "--json"];
    let verdict = stepmem(&arguments, &[], recording.as_bytes()).json();
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
    has(&ranks[2], &json!({"recent_peak_allocated_bytes": null, "headroom_basis": "reserved"}));
}

#[test]
fn runs_without_peaks_are_compared_by_their_live_memory() {
    let folder = Folder::new("peaks-compare");
    let written = |name: &str, live: u64| {
        let job = Job::new(1, 600).live(move |_, _| live);
        let job = job.more(|_, _| json!({ "peak_allocated_bytes": null })).recording();
        folder.write(name, &summary(&job).to_string())
    };
    let (old, new) = (written("old.json", 30 * GIB), written("new.json", 20 * GIB));
    let out = stepmem(&["compare", &old, &new], &[], b"").done();
    assert!(out.starts_with("Verdict: IMPROVEMENT") && out.contains("live memory"), "{out}");
    assert!(!out.contains("TraceML"), "{out}");
}

/// The same ranks, of which the pusher sends the most since its process began: 30 GiB, and their peak from step 100 on.
fn four_ranks_by_marks(n_steps: u64) -> Job {
    let mark = |rank, step| if step < 100 { 30 * GIB } else { peak(rank) };
    let job = Job::new(4, n_steps).world(4).live(|_, _| 20 * GIB);
    job.reserved(move |rank, step| mark(rank, step) + 2 * GIB).more(move |rank, step| {
        json!({ "peak_allocated_bytes": null, "high_water_allocated_bytes": mark(rank, step) })
    })
}

/// The value of each rank's series.
fn of_ranks(exporter: &Exporter, name: &str, more: &str) -> Vec<Option<f64>> {
    let metrics = exporter.scrape();
    let series =
        |rank| format!("stepmem_{name}{{run=\"job\",rank=\"{rank}\",uuid=\"\"{more}}}");
    (0..4).map(|rank| metrics.get(&series(rank)).copied()).collect()
}

fn await_last_step(exporter: &Exporter, step: u32) {
    exporter.await_metrics("the last step", |metrics| {
        metrics.get(r#"stepmem_rank_step{run="job",rank="3",uuid=""}"#)
            == Some(&f64::from(step))
    });
}

#[test]
fn high_water_mark_is_the_peak_of_the_step_in_which_it_rises_and_of_no_other() {
    let exporter = Exporter::start(&[]);
    let records = four_ranks_by_marks(101).records();
    let (first, rest) = records.split_at(4);
    exporter.push(first);
    await_last_step(&exporter, 1);
    // Where the mark was before is unknown.
    assert_eq!(of_ranks(&exporter, "rank_memory_peak_allocated_bytes", ""), [None; 4]);
    let ranks = exporter.status()["ranks"].clone();
    assert!(
        ranks
            .as_array()
            .unwrap()
            .iter()
            .all(|rank| rank["high_water_allocated_bytes"] == 30 * GIB)
    );
    let (risen, last) = rest.split_at(396);
    exporter.push(risen);
    await_last_step(&exporter, 100);
    let peaks: Vec<Option<f64>> = PEAKS.iter().map(|peak| Some(float(peak * GIB))).collect();
    assert_eq!(of_ranks(&exporter, "rank_memory_peak_allocated_bytes", ""), peaks);
    assert_eq!(of_ranks(&exporter, "rank_interval_peak_allocated_bytes", ""), peaks);
    exporter.push(last);
    await_last_step(&exporter, 101);
    assert_eq!(of_ranks(&exporter, "rank_memory_peak_allocated_bytes", ""), [None; 4]);
    // It is still among the recent steps.
    let ratios: Vec<Option<f64>> = PEAKS.iter().map(|peak| Some(float(*peak) / 80.0)).collect();
    assert_eq!(of_ranks(&exporter, "pressure_ratio", ",basis=\"allocated\""), ratios);
    assert_eq!(of_ranks(&exporter, "pressure_ratio", ",basis=\"high_water\""), [None; 4]);
}

#[test]
fn high_water_mark_bounds_the_peaks_that_are_unknown() {
    let job = four_ranks_by_marks(800);
    let (status, raised) = replayed(&job);
    assert_eq!(raised.iter().filter(|(kind, _)| kind != "IMBALANCE").count(), 0, "{raised:?}");
    for rank in status["ranks"].as_array().unwrap() {
        let peak = peak(rank["rank"].as_u64().unwrap());
        let expected = json!({
            "recent_peak_allocated_bytes": null, "high_water_allocated_bytes": peak,
            "headroom_basis": "high_water", "headroom_bytes": float(80 * GIB - peak),
            "pressures": {"high_water": float(peak) / float(80 * GIB)},
        });
        has(rank, &expected);
        let unused = rank["fragmentation_ratio"].as_f64().unwrap();
        assert!((unused - 2.0 / float(peak / GIB + 2)).abs() < 1e-12, "{rank}");
    }
    let [finding] = &status["findings"].as_array().unwrap()[..] else {
        panic!("{}", status["findings"])
    };
    // A mark may be of a single moment.
    has(
        finding,
        &json!({"kind": "IMBALANCE", "rank": 2, "severity": "warning",
                         "evidence": {"peak_basis": "high_water"}}),
    );
    assert!(finding["sentence"].as_str().unwrap().starts_with("its high-water mark is 44%"));
}

#[test]
fn cache_that_grows_is_fragmentation_only_where_the_peaks_are_known_or_bounded() {
    let kinds = |fields: fn(u64) -> Value| {
        let reserved = |_, step: u64| 40 * GIB + step * 8 * MIB;
        let job = Job::new(1, 4000).live(|_, _| 20 * GIB).reserved(reserved);
        let (_, raised) = replayed(&job.more(move |_, step| fields(step)));
        raised.into_iter().map(|(kind, _)| kind).collect::<BTreeSet<_>>()
    };
    let is_fragmented = |kinds: BTreeSet<String>| kinds.contains("FRAGMENTATION");
    assert!(is_fragmented(kinds(|_| json!({ "peak_allocated_bytes": 25 * GIB }))));
    assert!(is_fragmented(kinds(
        |_| json!({ "peak_allocated_bytes": null, "high_water_allocated_bytes": 25 * GIB })
    )));
    assert!(!is_fragmented(kinds(|_| json!({ "peak_allocated_bytes": null }))));
    // The cache grows along with what steps need.
    let grows = |step: u64| json!({ "peak_allocated_bytes": 38 * GIB + step * 8 * MIB });
    assert!(!is_fragmented(kinds(grows)));
    let grows = |step: u64| {
        let mark = 38 * GIB + step * 8 * MIB;
        json!({ "peak_allocated_bytes": null, "high_water_allocated_bytes": mark })
    };
    assert!(!is_fragmented(kinds(grows)));
}

#[test]
fn summary_names_a_high_water_mark_that_was_near_the_capacity() {
    let job = Job::new(1, 600).live(|_, _| 20 * GIB).more(
        |_, _| json!({ "peak_allocated_bytes": null, "high_water_allocated_bytes": 79 * GIB }),
    );
    let out = stepmem(&["summary", "-"], &[], job.recording().as_bytes()).done();
    assert!(out.contains("Run job: 1 rank, steps 1 to 600"), "{out}");
    assert!(out.contains("high-water mark of allocated memory is at 99% of"), "{out}");
}
