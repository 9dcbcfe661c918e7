//! Which process a rank's records are believed to come from: lives, their ends, stragglers and wrong clocks.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::{Job, START};
use crate::rig::units::{GIB, float};

fn counted(exporter: &Exporter, result: &str) -> f64 {
    let series = format!("stepmem_push_records_total{{result=\"{result}\"}}");
    exporter.metric(&series).unwrap()
}

fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// A record of rank 0 at a time of its own, with these fields.
fn at(step: u64, time: f64, fields: &Value) -> Value {
    let mut record = json!({"rank": 0, "step": step, "time": time, "allocated_bytes": GIB});
    for (field, value) in fields.as_object().unwrap() {
        record[field] = value.clone();
    }
    record
}

/// The relaunch of a job that torchrun had restarted once: a lower attempt, another process, and a leak.
fn relaunched(more: fn(u64, u64) -> Value) -> Job {
    let live = |_, step: u64| GIB + step * GIB / 10;
    Job::new(1, 749).starting_at(3600.0 * 24.0).live(live).more(more)
}

#[test]
fn relaunch_at_a_lower_attempt_by_another_process_is_seen() {
    let exporter = Exporter::start(&[]);
    let first = Job::new(1, 100).attempt(1).more(|_, _| json!({"pid": 100}));
    exporter.push(&first.records());
    exporter.push(&relaunched(|_, _| json!({"pid": 200})).records());
    assert_eq!(counted(&exporter, "late"), 0.0);
    let status = exporter.status();
    let kinds: Vec<_> = status["findings"].as_array().unwrap().iter().collect();
    assert!(kinds.iter().any(|finding| finding["kind"] == "CREEP_CONFIRMED"), "{status:#}");
}

#[test]
fn relaunch_at_a_lower_attempt_after_an_announced_end_is_seen() {
    let exporter = Exporter::start(&[]);
    exporter.push(&Job::new(1, 100).attempt(1).records());
    assert_eq!(exporter.post_to("/v1/runs/job/end", r#"{"outcome":"failed"}"#).status, 200);
    exporter.push(&relaunched(|_, _| json!({})).records());
    assert_eq!(counted(&exporter, "late"), 0.0);
    assert_eq!(exporter.status()["ranks"][0]["attempt"], 0);
}

#[test]
fn lower_attempt_of_an_unknown_process_counts_after_twenty_lates() {
    let exporter = Exporter::start(&[]);
    exporter.push(&Job::new(1, 100).attempt(1).records());
    exporter.push(&relaunched(|_, _| json!({})).records());
    assert_eq!(counted(&exporter, "late"), 20.0);
    assert_eq!(exporter.status()["ranks"][0]["late_records_total"], 20);
    let series = r#"stepmem_rank_late_records_total{run="job",rank="0",uuid=""}"#;
    assert_eq!(exporter.metric(series), Some(20.0));
}

#[test]
fn one_absurd_record_does_not_silence_a_rank() {
    let (far, instance) = (1_u64 << 53, json!({"instance": "00000000000000aa"}));
    for fields in [json!({}), instance] {
        for absurd in [json!({"attempt": far}), json!({"step": far}), json!({"time": 253e9})] {
            let exporter = Exporter::start(&[]);
            let of = |step: u64| at(step, float(START) + float(step), &fields);
            let first: Vec<Value> = (1..100).map(of).collect();
            let second: Vec<Value> = (101..300).map(of).collect();
            let mut odd = of(100);
            for (field, value) in absurd.as_object().unwrap() {
                odd[field] = value.clone();
            }
            exporter.push(&first);
            exporter.push(&[odd]);
            exporter.push(&second);
            let rank = &exporter.status()["ranks"][0];
            assert_eq!(rank["step"], 299, "{absurd} {fields} {rank:#}");
        }
    }
}

#[test]
fn time_ahead_of_the_arrival_is_replaced_by_it_and_counted() {
    let exporter = Exporter::start(&[]);
    let now = unix_time();
    exporter.push(&[at(1, now + 365.0 * 86_400.0, &json!({}))]);
    exporter.push(&[at(1, now + 365.0 * 86_400.0, &json!({"rank": 1}))]);
    exporter.push(&[at(2, now + 60.0, &json!({"rank": 2}))]);
    assert_eq!(counted(&exporter, "clock_ahead"), 2.0);
    // The clock was set right, and the job began anew.
    exporter.push(&[at(0, unix_time() + 1.0, &json!({}))]);
    assert_eq!(counted(&exporter, "restarted"), 1.0);
    assert_eq!(counted(&exporter, "late"), 0.0);
}

#[test]
fn new_process_is_a_new_life_whatever_it_says_once_the_former_has_ended() {
    let exporter = Exporter::start(&[]);
    let first = json!({"instance": "00000000000000aa", "attempt": 3});
    exporter.push(&[at(100, float(START) + 100.0, &first)]);
    assert_eq!(exporter.post_to("/v1/runs/default/end", r#"{"outcome":"oom"}"#).status, 200);
    let second = json!({"instance": "00000000000000bb"});
    exporter.push(&[at(7, float(START) - 5000.0, &second)]);
    assert_eq!(counted(&exporter, "restarted"), 1.0);
    let rank = &exporter.status()["ranks"][0];
    assert_eq!((&rank["step"], &rank["attempt"]), (&json!(7), &json!(0)));
}

#[test]
fn process_that_steps_every_half_minute_is_live_for_five_of_its_pauses() {
    let record = |instance: &str, step: u64, second: f64| {
        at(step, float(START) + second, &json!({"run": "slow", "instance": instance}))
    };
    let (first, second) = ("00000000000000aa", "00000000000000bb");
    let holder = (0..10).map(|step| record(first, 100 + step, 30.0 * float(step)));
    // The last record of the first comes at 270 s.
    for (seconds_after, is_new_life) in [(60.0, false), (149.0, false), (151.0, true)] {
        let challenger = record(second, 1, 270.0 + seconds_after);
        let lines: Vec<String> =
            holder.clone().chain([challenger]).map(|record| record.to_string()).collect();
        let replayed = stepmem(&["replay", "-"], &[], lines.join("\n").as_bytes());
        let last: Value = serde_json::from_str(replayed.out.lines().last().unwrap()).unwrap();
        let step = last["status"]["ranks"][0]["step"].as_u64();
        assert_eq!(step == Some(1), is_new_life, "{seconds_after} s: {last:#}");
    }
}

#[test]
fn new_process_at_a_higher_attempt_supersedes_a_live_one() {
    let exporter = Exporter::start(&[]);
    let of = |instance: &str, attempt: u64| json!({"instance": instance, "attempt": attempt, "launch": "l1"});
    exporter.push(&[at(100, float(START) + 100.0, &of("00000000000000aa", 0))]);
    exporter.push(&[at(90, float(START), &of("00000000000000bb", 1))]);
    assert_eq!(counted(&exporter, "restarted"), 1.0);
    assert_eq!(exporter.status()["ranks"][0]["step"], 90);
    // What the former one had not yet pushed comes too late.
    exporter.push(&[at(101, float(START) + 101.0, &of("00000000000000aa", 0))]);
    assert_eq!(counted(&exporter, "late"), 1.0);
    assert_eq!(exporter.status()["ranks"][0]["step"], 90);
}

#[test]
fn same_process_that_goes_back_to_a_checkpoint_begins_a_new_life() {
    let exporter = Exporter::start(&[]);
    let own = json!({"instance": "00000000000000aa"});
    exporter.push(&[at(100, float(START) + 100.0, &own)]);
    exporter.push(&[at(99, float(START) + 101.0, &own)]);
    assert_eq!(counted(&exporter, "restarted"), 1.0);
    assert_eq!(counted(&exporter, "late"), 0.0);
}

#[test]
fn late_pushes_do_not_keep_a_rank_fresh() {
    let exporter = Exporter::start(&["--rank.ttl", "1s"]);
    let own = json!({"instance": "00000000000000aa"});
    exporter.push(&[at(100, float(START) + 100.0, &own)]);
    let pushed = exporter.status()["ranks"][0]["last_push_time"].clone();
    exporter.push(&[at(99, float(START) + 99.0, &own)]);
    assert_eq!(exporter.status()["ranks"][0]["last_push_time"], pushed);
    exporter.await_metrics("silence", |metrics| {
        exporter.push(&[at(99, float(START) + 99.0, &own)]);
        !metrics.keys().any(|series| series.starts_with("stepmem_rank_step{"))
    });
}

#[test]
fn instance_is_shown_nowhere() {
    let folder = Folder::new("lives-instance");
    let directory = text(&folder.path("summaries"));
    let exporter = Exporter::start(&["--summary.dir", &directory, "--log.level", "trace"]);
    let own = json!({"instance": "feedc0dedeadbeef", "launch": "l1"});
    exporter.push(&[at(1, float(START), &own)]);
    let mut broken = at(2, float(START), &own);
    broken["instance"] = json!("FEEDC0DEDEADBEEF");
    let answer = exporter.post(broken.to_string());
    assert_eq!(answer.status, 400);
    assert!(!answer.body.to_lowercase().contains("feedc0de"), "{}", answer.body);
    for path in ["/metrics", "/api/v1/status", "/api/v1/runs/default/summary"] {
        let body = exporter.get(path, &[]).body;
        assert!(!body.contains("feedc0de"), "{path}: {body}");
    }
    assert!(!format!("{:?}", exporter.stop()).to_lowercase().contains("feedc0de"));
}
