//! One outlook: what the status, the finding, the metrics, the tables and the summary say of one moment is the same, and true.

use serde_json::{Value, json};

use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::noise::noise;
use crate::rig::units::{GIB, MIB, float};

const LEAK: u64 = 8 * MIB;
const CAPACITY: u64 = 24 * GIB;
const BASE: u64 = 4 * GIB;
/// The last step whose memory fits.
const LAST: u64 = (CAPACITY - BASE) / LEAK;

/// A straight leak, from one step to another, of a rank that keeps no cache.
fn leak(from: u64, to: u64) -> Job {
    let live = |_, step: u64| BASE + step * LEAK;
    Job::new(1, 0)
        .steps(from..to)
        .capacity(CAPACITY)
        .seconds_per_step(1.0)
        .live(live)
        .peak(live)
        .reserved(live)
}

/// The steps that are left, as a number in a text before the word "step".
fn steps_in(text: &str) -> Option<f64> {
    let (before, _) = text.split_once(" step")?;
    let number = before.rsplit(|c: char| !(c.is_ascii_digit() || c == ',')).next()?;
    number.replace(',', "").parse().ok()
}

/// Reads every surface of one moment; returns the steps that are left by all of them.
#[track_caller]
fn steps_left(exporter: &Exporter, step: u64) -> Option<f64> {
    let status = exporter.status();
    let rank = &status["ranks"][0];
    let left = rank["oom_eta_steps"].as_f64();
    let metrics = exporter.scrape();
    let metric = |name: &str| {
        metrics.get(&format!("{name}{{run=\"job\",rank=\"0\",uuid=\"\"}}")).copied()
    };
    assert_eq!(metric("stepmem_oom_eta_steps"), left, "step {step}");
    assert_eq!(metric("stepmem_oom_eta_seconds").is_some(), left.is_some(), "step {step}");
    assert_eq!(rank["oom_eta_seconds"].is_number(), left.is_some(), "step {step}");
    let table = exporter.asked(&["status"]).quiet();
    let summary = exporter.summary("job");
    let trend = &summary["ranks"][0]["trend"];
    if !trend.is_null() {
        assert_eq!(trend["oom_eta_steps"].as_f64(), left, "step {step}: {trend}");
    }
    for finding in status["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|of| of["evidence"]["signal"] == "allocated")
    {
        let (evidence, sentence) =
            (&finding["evidence"], finding["sentence"].as_str().unwrap());
        assert_eq!(evidence["oom_eta_steps"].as_f64(), left, "step {step}: {sentence}");
        let told =
            sentence.split_once("out of memory in ").and_then(|(_, rest)| steps_in(rest));
        assert_eq!(told, left.map(f64::round), "step {step}: {sentence}");
        assert_eq!(sentence.contains(" left"), left.is_some(), "step {step}: {sentence}");
        let row = table
            .lines()
            .find(|line| line.contains("MEMORY CREEP") || line.contains("MEMORY RISING"));
        assert!(row.is_some(), "{table}");
    }
    left
}

#[test]
fn every_surface_tells_the_steps_that_are_left_now() {
    let exporter = Exporter::start(&[]);
    let moments =
        [200, 600, 1_000, 1_500, 1_900, 2_200, 2_400, LAST - 60, LAST - 30, LAST - 10];
    let mut from = 0;
    for step in moments {
        exporter.push(&leak(from, step + 1).records());
        from = step + 1;
        let left = steps_left(&exporter, step)
            .unwrap_or_else(|| panic!("none are left at step {step}"));
        let truth = f64::from(u32::try_from(LAST - step).unwrap());
        assert!(
            (left - truth).abs() <= 2.0 + 0.05 * truth,
            "{left} steps of {truth} at step {step}"
        );
    }
}

#[test]
fn time_left_of_two_growths_lies_near_the_middle_of_its_interval() {
    // Live memory grows straight, and what its cache cannot give back grows with it.
    const SLACK: u64 = 3 * MIB;
    let reserved = |step: u64| BASE + GIB + step * (LEAK + SLACK);
    let last = (CAPACITY - BASE - GIB) / (LEAK + SLACK);
    let exporter = Exporter::start(&[]);
    let mut from = 0;
    for step in [last / 4, last / 2, 3 * last / 4, last - 100] {
        let job = leak(from, step + 1).reserved(move |_, step| reserved(step));
        exporter.push(&job.records());
        from = step + 1;
        let status = exporter.status();
        let of = |key: &str| status["findings"][0]["evidence"][key].as_f64();
        let (lower, upper) =
            (of("oom_eta_lower_steps").unwrap(), of("oom_eta_upper_steps").unwrap());
        // Nothing is given back, or all of it when the device is full.
        let left = |rate: u64, held: u64| float((CAPACITY - held) / rate);
        let (none, all) = (left(LEAK + SLACK, reserved(step)), left(LEAK, BASE + step * LEAK));
        let interval = format!("{lower} to {upper} for {none} to {all} at step {step}");
        assert!(lower <= none + 3.0 && lower > 0.4 * none, "{interval}");
        assert!(upper >= all - 3.0 && upper < 1.5 * all, "{interval}");
        if let Some(told) = of("oom_eta_steps") {
            let middle = f64::midpoint(lower, upper);
            assert!((told - middle).abs() < 0.25 * middle, "{lower} {told} {upper}: {step}");
        }
    }
    // The rate of reserved memory is that of both.
    let rate = exporter.status()["ranks"][0]["reserved_slope_bytes_per_step"].as_f64();
    let of = float(LEAK + SLACK);
    assert!((rate.unwrap() - of).abs() < 0.01 * of, "{rate:?}");
}

#[test]
fn batches_of_varying_lengths_make_the_end_imminent_once() {
    // Each step takes as much for its batch as one of 80 to 120 % of the usual length needs.
    const BATCH: u64 = 2 * GIB;
    const HORIZON_SECONDS: f64 = 1_800.0;
    let peak = |step: u64| BASE + step * LEAK + BATCH * (80 + noise(0, step, 41)) / 100;
    let reserved = |step: u64| BASE + step * LEAK + BATCH * 12 / 10;
    let last = (CAPACITY - BASE - BATCH * 12 / 10) / LEAK;
    let exporter = Exporter::start(&[]);
    let mut imminent = Vec::new();
    for from in (0..last).step_by(6) {
        let job = leak(from, (from + 6).min(last))
            .seconds_per_step(10.0)
            .peak(move |_, step| peak(step))
            .reserved(move |_, step| reserved(step));
        exporter.push(&job.records());
        let rank = &exporter.status()["ranks"][0];
        let eta = rank["oom_eta_seconds"].as_f64().or(rank["oom_eta_lower_seconds"].as_f64());
        imminent.push(eta.is_some_and(|eta| eta < HORIZON_SECONDS));
    }
    // As the rule asks, at two minutes in a row.
    let asked: Vec<bool> = imminent.windows(2).map(|two| two[0] && two[1]).collect();
    let n_changes = asked.windows(2).filter(|two| two[0] != two[1]).count();
    assert_eq!((n_changes, asked.last()), (1, Some(&true)), "{asked:?}");
    // From the horizon on, give or take a fifth of it.
    let minutes = asked.iter().filter(|is_imminent| **is_imminent).count();
    assert!((24..=36).contains(&minutes), "for {minutes} minutes");
}

#[test]
fn nothing_is_left_after_the_end_and_a_restart_forgets_no_outlook() {
    let folder = Folder::new("outlook");
    let path = text(&folder.path("state"));
    let arguments = ["--state.file", path.as_str()];
    let first = Exporter::start(&arguments);
    first.push(&leak(0, 2_000).records());
    let before = steps_left(&first, 1_999);
    assert!(before.is_some());
    first.stop();

    let second = Exporter::start(&arguments);
    assert_eq!(steps_left(&second, 1_999), before);
    second.push(&leak(2_000, 2_300).records());
    assert!(steps_left(&second, 2_299).unwrap() < before.unwrap() - 250.0);
    second.end("job", &json!({"outcome": "completed"}));
    assert_eq!(steps_left(&second, 2_299), None);
    let status = second.status();
    let sentences = status["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| of["sentence"].as_str().unwrap());
    assert!(
        sentences
            .clone()
            .any(|sentence| sentence.starts_with("live memory grew by 8.00 MiB/step")),
        "{status:#}"
    );
    assert!(sentences.clone().all(|sentence| !sentence.contains(" left")), "{status:#}");
}

#[test]
fn after_an_out_of_memory_error_one_headroom_is_told() {
    let exporter = Exporter::start(&[]);
    exporter.push(&leak(0, LAST).records());
    let oom = json!({"rank": 0, "outcome": "oom", "step": LAST, "requested_bytes": GIB,
        "error_type": "torch.OutOfMemoryError", "error_message": "CUDA out of memory."});
    exporter.end("job", &oom);
    assert_eq!(steps_left(&exporter, LAST), None);
    let status = exporter.status();
    let found: Vec<&Value> = status["findings"].as_array().unwrap().iter().collect();
    let death = found.iter().find(|of| of["kind"] == "OUT_OF_MEMORY").unwrap();
    assert_eq!(
        death["evidence"]["headroom_bytes"], status["ranks"][0]["headroom_bytes"],
        "{status:#}"
    );
}

#[test]
fn pace_of_records_in_batches_without_times_is_unknown_until_a_second_batch() {
    let exporter = Exporter::start(&[]);
    exporter.push(&leak(0, 400).untimed().records());
    let status = exporter.status();
    assert!(status["ranks"][0]["oom_eta_steps"].is_number(), "{status:#}");
    assert!(status["ranks"][0]["oom_eta_seconds"].is_null(), "{status:#}");
    let finding = exporter.findings().remove(0);
    let sentence = finding["sentence"].as_str().unwrap();
    assert!(sentence.contains("; how long a step takes is not known yet"), "{sentence}");
}
