//! Programs that take no steps, whose calls count: they are judged as steps are, in words of their own.

use serde_json::{Value, json};

use crate::rig::command::replayed;
use crate::rig::exporter::Exporter;
use crate::rig::job::Job;
use crate::rig::noise::noise;
use crate::rig::summary::summary;
use crate::rig::units::{GIB, MIB, float};

/// Records of a server, one in a tenth of a second, each of so many calls.
const CALLS_PER_RECORD: u64 = 200;

fn calls(n: u64, live: impl Fn(u64) -> u64 + 'static) -> Job {
    let process = |number: u64| {
        json!({
            "unit": "calls", "step": number * CALLS_PER_RECORD, "steps": CALLS_PER_RECORD,
            "instance": "1111111111111111",
        })
    };
    Job::new(1, n)
        .seconds_per_step(0.1)
        .capacity(2 * GIB)
        .device("cpu")
        .live(move |_, number| live(number))
        .more(move |_, number| process(number))
}

fn leak(number: u64) -> u64 {
    GIB / 4 + 2 * MIB * number
}

fn text(of: &Value) -> &str {
    of.as_str().unwrap()
}

/// Fails on a word that is not about calls.
fn assert_of_calls(words: &str) {
    for other in ["step", "loss", "logit", "batch", "optimizer"] {
        assert!(!words.contains(other), "{other}: {words}");
    }
}

#[test]
fn leak_of_a_server_is_creep_told_in_calls_and_per_hour() {
    let exporter = Exporter::start(&[]);
    exporter.push(&calls(400, leak).records());
    let status = exporter.status();
    let finding = &status["findings"][0];
    assert_eq!(finding["kind"], "CREEP_CONFIRMED", "{status:#}");
    let slope = finding["evidence"]["slope_bytes_per_step"].as_f64().unwrap();
    assert!((slope * 200.0 / float(2 * MIB) - 1.0).abs() < 0.02, "{finding:#}");
    let sentence = text(&finding["sentence"]);
    assert!(sentence.contains("grows by 10.0 MiB per 1,000 calls (70.3 GiB/h)"), "{sentence}");
    assert!(sentence.contains("since call "), "{sentence}");
    assert!(sentence.ends_with(" calls)"), "{sentence}");
    let advice = text(&finding["advice"]);
    assert!(advice.starts_with("Look at what the program keeps from call to call"), "{advice}");
    for words in [sentence, advice] {
        assert_of_calls(words);
    }
    let rank = &status["ranks"][0];
    assert_eq!((&rank["unit"], rank.get("is_by_time")), (&json!("calls"), None));
    assert_eq!(rank["steps_total"], json!(400 * CALLS_PER_RECORD));
}

/// The memory of a process that ran each request in a thread of its own, every 0.65 seconds, in
/// MiB: glibc gave each an arena, where small results keep what was freed.
const ARENAS: [u64; 50] = [
    325, 353, 346, 340, 344, 353, 347, 354, 354, 366, 365, 380, 387, 388, 375, 389, 377, 379,
    380, 375, 376, 406, 383, 373, 370, 354, 352, 352, 359, 352, 351, 352, 349, 363, 364, 364,
    364, 367, 373, 371, 373, 364, 370, 376, 365, 364, 363, 360, 350, 347,
];

#[test]
fn arenas_that_fill_with_the_first_calls_are_healthy() {
    let held = |number: u64| {
        let at = usize::try_from(number * 2 / 13).unwrap().min(ARENAS.len() - 1);
        ARENAS[at] * MIB + noise(0, number, MIB)
    };
    let recording = calls(320, held).recording();
    let (transitions, _) = replayed(&recording);
    let told: Vec<_> = transitions.iter().filter(|it| it["severity"] != "info").collect();
    assert_eq!(told, Vec::<&Value>::new());
    let card = text(&summary(&recording)["text"]).to_owned();
    assert!(card.starts_with("BALANCED\n"), "{card}");
}

#[test]
fn card_of_a_server_is_about_calls() {
    let card = |job: Job| text(&summary(&job.recording())["text"]).to_owned();
    let leaking = card(calls(400, leak));
    assert!(leaking.starts_with("MEMORY CREEP (critical) on rank 0"), "{leaking}");
    assert!(leaking.contains("1 rank, calls 200 to 80,000 in 39 s."), "{leaking}");
    assert!(leaking.contains("70.3 GiB/h"), "{leaking}");
    let level = card(calls(400, |_| GIB));
    assert!(level.starts_with("BALANCED"), "{level}");
    let short = card(calls(5, |_| GIB));
    assert!(short.starts_with("TOO FEW CALLS"), "{short}");
    let sentences = |card: &str| card.split("RANK").next().unwrap_or_default().to_owned();
    for card in [leaking, level, short] {
        assert_of_calls(&sentences(&card));
    }
}

#[test]
fn first_step_of_the_same_process_begins_anew_and_is_no_restart() {
    let exporter = Exporter::start(&[]);
    exporter.push(&calls(400, leak).records());
    assert_eq!(exporter.status()["findings"][0]["kind"], "CREEP_CONFIRMED");
    let after = Job::new(1, 30)
        .seconds_per_step(0.1)
        .starting_at(60.0)
        .capacity(2 * GIB)
        .device("cpu")
        .live(|_, _| GIB)
        .more(|_, _| json!({"instance": "1111111111111111"}));
    exporter.push(&after.records());
    let status = exporter.status();
    assert_eq!(status["findings"], json!([]), "{status:#}");
    let rank = &status["ranks"][0];
    assert_eq!((&rank["unit"], &rank["step"]), (&json!("steps"), &json!(30)), "{rank:#}");
    assert_eq!(rank["steps_total"], json!(30), "{rank:#}");
}

/// Steps that leak, and a call after each, as of two pushers with one name that give no
/// `instance`.
fn mixed(n: u64) -> Vec<Value> {
    let part = |start: f64, more: Value| {
        Job::new(1, n)
            .seconds_per_step(0.1)
            .starting_at(start)
            .capacity(2 * GIB)
            .device("cpu")
            .live(|_, number| leak(number))
            .more(move |_, _| more.clone())
            .records()
    };
    let (steps, calls) = (part(0.0, json!({})), part(0.05, json!({"unit": "calls"})));
    steps.into_iter().zip(calls).flat_map(|(step, call)| [step, call]).collect()
}

#[test]
fn calls_between_steps_are_late_and_do_not_hide_a_leak() {
    let exporter = Exporter::start(&[]);
    exporter.push(&mixed(400));
    let status = exporter.status();
    assert_eq!(status["findings"][0]["kind"], "CREEP_CONFIRMED", "{status:#}");
    let rank = &status["ranks"][0];
    assert_eq!(
        (&rank["unit"], &rank["steps_total"]),
        (&json!("steps"), &json!(400)),
        "{rank:#}"
    );
    assert_eq!(rank["late_records_total"], json!(400), "{rank:#}");
}

#[test]
fn nothing_but_calls_after_steps_begins_anew() {
    let exporter = Exporter::start(&[]);
    exporter.push(&mixed(1));
    let serves = Job::new(1, 400)
        .seconds_per_step(0.1)
        .starting_at(60.0)
        .capacity(2 * GIB)
        .device("cpu")
        .live(|_, number| leak(number))
        .more(|_, _| json!({"unit": "calls"}));
    exporter.push(&serves.records());
    let status = exporter.status();
    assert_eq!(status["findings"][0]["kind"], "CREEP_CONFIRMED", "{status:#}");
    assert_eq!(status["ranks"][0]["unit"], "calls", "{status:#}");
}

#[test]
fn server_that_waits_for_requests_has_not_gone_on_without_calls() {
    let mut records = calls(400, |_| GIB).records();
    let idle = Job::new(1, 6)
        .seconds_per_step(10.0)
        .starting_at(60.0)
        .capacity(2 * GIB)
        .device("cpu")
        .live(|_, _| GIB)
        .more(|_, _| json!({"phase": "idle", "step": 80_000, "instance": "1111111111111111"}));
    records.extend(idle.records());
    let exporter = Exporter::start(&[]);
    exporter.push(&records);
    let status = exporter.status();
    assert_eq!(status["ranks"][0].get("without_steps_seconds"), None, "{status:#}");
}
