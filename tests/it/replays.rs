//! Programs whose iterations replay CUDA graphs: replays are judged as steps are, and told in their own word.

use serde_json::{Value, json};

use crate::rig::exporter::Exporter;
use crate::rig::job::Job;
use crate::rig::summary::summary;
use crate::rig::units::{GIB, MIB, float};

/// Records of one process in a unit, the first of which ends after `from` seconds.
fn records(unit: &'static str, n: u64, from: f64, live: impl Fn(u64) -> u64 + 'static) -> Job {
    Job::new(1, n)
        .seconds_per_step(0.1)
        .starting_at(from)
        .capacity(80 * GIB)
        .live(move |_, number| live(number))
        .more(move |_, _| json!({"unit": unit, "instance": "1111111111111111"}))
}

fn leak(number: u64) -> u64 {
    4 * GIB + 4 * MIB * number
}

/// Three steps that warm up, then replays.
fn warmed(n: u64) -> Vec<Value> {
    let mut all = records("steps", 3, 0.0, |_| 4 * GIB).records();
    all.extend(records("replays", n, 10.0, leak).records());
    all
}

fn text(of: &Value) -> &str {
    of.as_str().unwrap()
}

#[test]
fn replays_after_steps_that_warm_up_are_judged_and_told_as_replays() {
    let exporter = Exporter::start(&[]);
    exporter.push(&warmed(600));
    let status = exporter.status();
    let finding = &status["findings"][0];
    let kind = text(&finding["kind"]);
    assert!(["CREEP_EARLY", "CREEP_CONFIRMED"].contains(&kind), "{kind}");
    let slope = finding["evidence"]["slope_bytes_per_step"].as_f64().unwrap();
    assert!((slope / float(4 * MIB) - 1.0).abs() < 0.02, "{finding:#}");
    let sentence = text(&finding["sentence"]);
    assert!(sentence.contains("grows by 4.00 MiB/replay"), "{sentence}");
    assert!(sentence.contains("since replay "), "{sentence}");
    let advice = text(&finding["advice"]);
    for words in [sentence, advice] {
        assert!(!words.contains("call"), "{words}");
    }
    assert!(!sentence.contains("step"), "{sentence}");
    let rank = &status["ranks"][0];
    assert_eq!((&rank["unit"], &rank["step"]), (&json!("replays"), &json!(600)), "{rank:#}");
    assert_eq!(rank["steps_total"], json!(600), "{rank:#}");
}

#[test]
fn card_of_replays_is_about_replays() {
    let card = |job: Job| text(&summary(&job.recording())["text"]).to_owned();
    let leaking = card(records("replays", 600, 0.0, leak));
    assert!(leaking.contains("1 rank, replays 1 to 600 in "), "{leaking}");
    assert!(leaking.contains("4.00 MiB/replay"), "{leaking}");
    let level = card(records("replays", 600, 0.0, |_| 4 * GIB));
    assert!(level.starts_with("BALANCED"), "{level}");
    let short = card(records("replays", 5, 0.0, |_| 4 * GIB));
    assert!(short.starts_with("TOO FEW REPLAYS"), "{short}");
    assert!(short.contains("too few replays to judge creep"), "{short}");
}

#[test]
fn unit_changes_twice_and_then_no_more() {
    let exporter = Exporter::start(&[]);
    let unit = || exporter.status()["ranks"][0]["unit"].clone();
    let units = ["calls", "replays", "steps", "replays", "calls"];
    let known = ["calls", "replays", "steps", "steps", "steps"];
    for ((n, of), now) in (0_u32..).zip(units).zip(known) {
        exporter.push(&records(of, 10, f64::from(2 * n), |_| GIB).records());
        assert_eq!(unit(), now, "{n}");
    }
    let rank = &exporter.status()["ranks"][0];
    let counts = (&rank["late_records_total"], &rank["steps_total"]);
    assert_eq!(counts, (&json!(20), &json!(10)), "{rank:#}");
}

#[test]
fn calls_do_not_follow_replays() {
    let exporter = Exporter::start(&[]);
    exporter.push(&records("replays", 10, 0.0, |_| GIB).records());
    exporter.push(&records("calls", 10, 5.0, |_| GIB).records());
    let rank = &exporter.status()["ranks"][0];
    assert_eq!((&rank["unit"], &rank["steps_total"]), (&json!("replays"), &json!(10)));
}
