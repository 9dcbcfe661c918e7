//! The ask to checkpoint before memory runs out: who is asked, when, and how often.

use serde_json::{Value, json};

use crate::rig::exporter::Exporter;
use crate::rig::folder::Folder;
use crate::rig::job::Job;
use crate::rig::noise::noise;
use crate::rig::units::{GIB, MIB, float};

const LEAK: u64 = 8 * MIB;
const CAPACITY: u64 = 24 * GIB;
const BASE: u64 = 4 * GIB;
/// The last step whose memory fits.
const LAST: u64 = (CAPACITY - BASE) / LEAK;
/// `--checkpoint.before` by default, in steps of a second.
const BEFORE: u64 = 600;
/// A step at which the leak is found, and memory lasts for longer than that.
const FOUND: u64 = 1_500;
/// A step at which it does not.
const SOON: u64 = LAST - BEFORE / 2;

const NONE: [Value; 0] = [];
const NOBODY: [u64; 0] = [];

/// Ranks of which the first leaks in a straight line, a second a step.
fn job(n_ranks: u64, (from, to): (u64, u64)) -> Job {
    let live = |rank, step: u64| {
        BASE + noise(rank, step, MIB) + if rank == 0 { step * LEAK } else { 0 }
    };
    let job = Job::new(n_ranks, 0).steps(from..to).capacity(CAPACITY);
    job.live(live).peak(live).reserved(live)
}

/// The records of these ranks, whose programs would checkpoint.
fn able(n_ranks: u64, steps: (u64, u64)) -> Vec<Value> {
    job(n_ranks, steps).more(|_, _| json!({"on_deadline": "checkpoint"})).records()
}

/// The requests for checkpoints in the answers to these records. All is judged between two
/// pushes.
fn asks(exporter: &Exporter, records: &[Value]) -> Vec<Value> {
    let answers = records.chunks(100).flat_map(|batch| {
        exporter.status();
        exporter.actions(batch)
    });
    answers.filter(|action| action["type"] == "checkpoint").collect()
}

/// The ranks that the answers to these records ask.
fn asked_ranks(exporter: &Exporter, records: &[Value]) -> Vec<u64> {
    asks(exporter, records).iter().map(|ask| ask["rank"].as_u64().unwrap()).collect()
}

#[test]
fn every_rank_of_a_run_is_asked_once_when_one_of_them_may_soon_be_out_of_memory() {
    let exporter = Exporter::start(&[]);
    assert_eq!(asks(&exporter, &able(2, (0, FOUND))), NONE);
    assert_eq!(exporter.finding("CREEP_CONFIRMED").unwrap()["severity"], "critical");
    let mut asked = asks(&exporter, &able(2, (FOUND, SOON)));
    asked.sort_by_key(|ask| ask["rank"].as_u64());
    let [first, second] = asked.as_slice() else { panic!("{asked:#?}") };
    assert_eq!((&first["rank"], &second["rank"]), (&json!(0), &json!(1)));
    assert_eq!((&first["run"], &first["every_seconds"]), (&json!("job"), &json!(600.0)));
    let reason = first["reason"].as_str().unwrap();
    assert!(reason.starts_with("rank 0: live memory grows by 8"), "{reason}");
    assert_eq!(first["reason"], second["reason"]);
    for ask in [first, second] {
        let (seconds, steps) =
            (ask["seconds_left"].as_f64().unwrap(), ask["steps_left"].as_f64().unwrap());
        assert!(seconds < float(BEFORE) && seconds > float(BEFORE / 2), "{ask}");
        assert!((seconds - steps).abs() < 2.0, "{ask}");
    }
    assert_eq!(asks(&exporter, &able(2, (SOON, LAST))), NONE);
    for rank in exporter.status()["ranks"].as_array().unwrap() {
        assert!(rank["checkpoint_asked_time"].is_number(), "{rank}");
    }
    let log = exporter.log();
    let is_asked = |entry: &&Value| entry["fields"]["message"] == "asked to checkpoint";
    assert_eq!(log.iter().filter(is_asked).count(), 2, "{log:#?}");
}

#[test]
fn series_of_an_ask_is_there_only_while_its_process_is() {
    let exporter = Exporter::start(&[]);
    let series = |exporter: &Exporter| -> Vec<f64> {
        let of_ask = "stepmem_rank_checkpoint_asked_timestamp_seconds";
        let all = exporter.scrape().into_iter();
        all.filter(|(series, _)| series.starts_with(of_ask)).map(|(_, value)| value).collect()
    };
    exporter.push(&able(1, (0, FOUND)));
    assert_eq!(series(&exporter), Vec::<f64>::new());
    assert_eq!(asked_ranks(&exporter, &able(1, (FOUND, SOON))), [0]);
    let asked = exporter.status()["ranks"][0]["checkpoint_asked_time"].as_f64().unwrap();
    assert_eq!(series(&exporter), [asked]);
    exporter.end("job", &json!({"rank": 0, "outcome": "completed"}));
    assert_eq!(series(&exporter), Vec::<f64>::new());
}

#[test]
fn ask_is_one_with_a_second_pusher_a_clock_that_goes_back_and_a_restart() {
    let mut records = able(1, (0, LAST));
    for record in records.iter_mut().filter(|record| record["step"].as_u64() >= Some(FOUND / 2))
    {
        record["time"] = json!(record["time"].as_f64().unwrap() - 3600.0);
    }
    let plain = Exporter::start(&[]);
    let expected = asks(&plain, &able(1, (0, LAST)));
    let [expected] = expected.as_slice() else { panic!("{expected:#?}") };
    let folder = Folder::new("checkpoints-disturbed");
    let state = folder.path("state");
    let flags = ["--state.file", state.to_str().unwrap()];
    let mut exporter = Exporter::start(&flags);
    let mut asked = Vec::new();
    for (n, batch) in records.chunks(50).enumerate() {
        asked.extend(asks(&exporter, batch));
        // The second pusher of the rank is behind.
        let until = (50 * n).saturating_sub(10);
        asked.extend(asks(&exporter, &records[until.saturating_sub(50)..until]));
        if n % 8 == 7 {
            exporter.stop();
            exporter = Exporter::start(&flags);
        }
    }
    let [ask, others @ ..] = asked.as_slice() else { panic!("nothing was asked") };
    assert!(others.iter().all(|other| other["id"] == ask["id"]), "{asked:#?}");
    let left = |ask: &Value| ask["steps_left"].as_f64().unwrap();
    assert!((left(ask) - left(expected)).abs() < 100.0, "{ask} {expected}");
}

/// The requests to a process with these stairs. Findings of a trend are acknowledged, so that
/// only the stairs are left.
fn asked_after_stairs(at: &'static [u64], full: u64, more: fn() -> Value) -> Vec<Value> {
    let exporter = Exporter::start(&[]);
    let records = stairs(at, full, more);
    let (first, others) = records.split_at(100);
    push_known(&exporter, first);
    asks(&exporter, others)
}

/// Pushes the first records of rank 0, of which findings of a trend are known.
fn push_known(exporter: &Exporter, first: &[Value]) {
    exporter.push(first);
    for kind in ["CREEP_EARLY", "CREEP_CONFIRMED"] {
        let ack = json!({"rank": 0, "kind": kind, "for_seconds": 3600, "reason": "known"});
        exporter.take("/v1/runs/job/ack", &ack);
    }
}

/// A process whose memory is nearly full from a step on, and whose live memory rises by a GiB at each of these steps.
fn stairs(at: &'static [u64], full: u64, more: fn() -> Value) -> Vec<Value> {
    let live = |_, step: u64| {
        let n = at.iter().filter(|stair| **stair <= step).count();
        BASE + noise(0, step, MIB) + u64::try_from(n).unwrap() * GIB
    };
    let peak = move |rank, step| live(rank, step) + CAPACITY / 3;
    let job = Job::new(1, 4_000).capacity(CAPACITY).live(live).peak(peak);
    let held = move |_, step| CAPACITY / 100 * if step < full { 85 } else { 95 };
    let job = job.reserved(held).more(move |_, _| {
        let mut more = more();
        more["on_deadline"] = json!("checkpoint");
        more
    });
    job.records()
}

#[test]
fn memory_that_rises_in_uneven_stairs_is_asked_near_a_full_device() {
    let uneven = &[150, 900, 1_000, 1_700, 2_600, 2_750, 3_300, 3_650];
    let asked = asked_after_stairs(uneven, 0, || json!({}));
    let [ask, ..] = asked.as_slice() else { panic!("{asked:#?}") };
    let reason = ask["reason"].as_str().unwrap();
    assert!(reason.contains("live memory rose in ") && reason.contains("95%"), "{reason}");
    assert_eq!(asked_after_stairs(uneven, 0, || json!({"total_steps": 4_100})), NONE);
}

#[test]
fn exporter_that_restarts_amid_stairs_asks_when_one_that_went_on_does() {
    let folder = Folder::new("stairs");
    let records =
        stairs(&[150, 900, 1_000, 1_700, 2_600, 2_750, 3_300, 3_650], 0, || json!({}));
    let (known, others) = records.split_at(100);
    let asked_with = |restarts_after: Option<usize>| {
        let state = folder.path(&format!("state-{restarts_after:?}"));
        let flags = ["--state.file", state.to_str().unwrap()];
        let mut exporter = Exporter::start(&flags);
        push_known(&exporter, known);
        for (n, batch) in others.chunks(100).enumerate() {
            if restarts_after == Some(n) {
                exporter.stop();
                exporter = Exporter::start(&flags);
            }
            if let [ask, ..] = asks(&exporter, batch).as_slice() {
                return (n, ask["reason"].as_str().unwrap().to_owned());
            }
        }
        panic!("nothing was asked");
    };
    let (n, reason) = asked_with(None);
    assert!(reason.contains("live memory rose in "), "{reason}");
    assert!(n > 15, "{n}");
    for restarts_after in [n / 2, n] {
        assert_eq!(asked_with(Some(restarts_after)), (n, reason.clone()), "{restarts_after}");
    }
}

#[test]
fn memory_that_rose_at_first_or_once_is_not_asked() {
    let early = &[150, 300, 410, 480, 620, 800, 900, 1_000];
    assert_eq!(asked_after_stairs(early, 2_500, || json!({})), NONE);
    assert_eq!(asked_after_stairs(&[3_000], 0, || json!({})), NONE);
}

#[test]
fn finding_that_pages_nobody_asks_nobody() {
    let exporter = Exporter::start(&[]);
    exporter.push(&job(1, (0, SOON)).records());
    exporter.take(
        "/v1/runs/job/ack",
        &json!({"rank": 0, "kind": "CREEP_CONFIRMED", "for_seconds": 3600, "reason": "known"}),
    );
    assert_eq!(exporter.finding("CREEP_CONFIRMED").unwrap()["severity"], "info");
    assert_eq!(asked_ranks(&exporter, &able(1, (SOON, SOON + 10))), NOBODY);
}

#[test]
fn time_before_memory_runs_out_is_a_setting_and_0_asks_nobody() {
    let asked = |before: &str| {
        let exporter = Exporter::start(&["--checkpoint.before", before]);
        asked_ranks(&exporter, &able(1, (0, FOUND)))
    };
    assert_eq!(asked("0s"), NOBODY);
    assert_eq!(asked("1h"), [0]);
}

#[test]
fn restarted_exporter_asks_no_process_twice_and_its_next_process_again() {
    let folder = Folder::new("checkpoints");
    let state = folder.path("state");
    let flags = ["--state.file", state.to_str().unwrap()];
    let first = Exporter::start(&flags);
    assert_eq!(asked_ranks(&first, &able(1, (0, SOON))), [0]);
    first.stop();
    let second = Exporter::start(&flags);
    assert_eq!(asked_ranks(&second, &able(1, (SOON, SOON + 50))), NOBODY);
    let next = able(1, (0, SOON)).into_iter().map(|mut record| {
        record["attempt"] = json!(1);
        record["time"] = json!(record["time"].as_f64().unwrap() + 10_000.0);
        record
    });
    assert_eq!(asked_ranks(&second, &next.collect::<Vec<_>>()), [0]);
}
