//! Requested bytes that come and go from record to record: that is no growth, and hides none.

use serde_json::{Value, json};

use crate::rig::exporter::Exporter;
use crate::rig::job::Job;
use crate::rig::json::has;
use crate::rig::noise::noise;
use crate::rig::units::{GIB, MIB, float};

const STEPS: u64 = 1200;
const LEAK: u64 = 4 * MIB;
/// Bytes by which the blocks exceed the requests.
const ROUNDING: u64 = 256 * MIB;

/// Returns whether the record of a step has requested bytes.
type Known = fn(u64) -> bool;

const KNOWN: [(&str, Known); 5] = [
    ("every-second", |step| step % 2 == 0),
    ("one-in-seven", |step| step % 7 == 0),
    ("stretches", |step| step / 150 % 2 == 0),
    ("first-half", |step| step <= STEPS / 2),
    ("second-half", |step| step > STEPS / 2),
];

/// Two ranks, of which the second one leaks so many bytes a step, and lacks the requested bytes of some steps.
fn job(run: &str, leak: u64, is_known: Known) -> Job {
    let requested = move |rank: u64, step: u64| 8 * GIB + rank * leak * step;
    let live = move |rank, step| requested(rank, step) + ROUNDING + noise(rank, step, 16 * MIB);
    Job::new(2, STEPS).run(run).capacity(20 * GIB).live(live).more(move |rank, step| {
        let instance = format!("{:016x}", rank + 1);
        if rank == 0 || is_known(step) {
            json!({"instance": instance, "requested_bytes": requested(rank, step)})
        } else {
            json!({"instance": instance})
        }
    })
}

/// Pushes records as two processes do, each on its own, so many steps at a time.
fn push(exporter: &Exporter, records: &[Value]) {
    for steps in records.chunks(100) {
        for rank in 0..2 {
            let own = steps.iter().filter(|record| record["rank"] == rank);
            exporter.push(&own.cloned().collect::<Vec<Value>>());
        }
    }
}

/// The records with those of the second rank set back by an hour from the middle on.
fn set_back(mut records: Vec<Value>) -> Vec<Value> {
    for record in &mut records {
        if record["rank"] == 1 && record["step"].as_u64() > Some(STEPS / 2) {
            record["time"] = json!(record["time"].as_f64().unwrap() - 3600.0);
        }
    }
    records
}

fn findings(exporter: &Exporter) -> Vec<Value> {
    exporter.status()["findings"].as_array().unwrap().clone()
}

fn check_level(records: fn(Vec<Value>) -> Vec<Value>) {
    let exporter = Exporter::start(&[]);
    for (run, is_known) in KNOWN {
        push(&exporter, &records(job(run, 0, is_known).records()));
    }
    assert_eq!(findings(&exporter), [json!(null); 0]);
}

fn check_leak(records: fn(Vec<Value>) -> Vec<Value>) {
    let exporter = Exporter::start(&[]);
    for (run, is_known) in KNOWN {
        push(&exporter, &records(job(run, LEAK, is_known).records()));
    }
    let found = findings(&exporter);
    for (run, _) in KNOWN {
        let of_run: Vec<&Value> = found.iter().filter(|each| each["run"] == run).collect();
        let [finding] = of_run[..] else { panic!("{run}: {of_run:#?}") };
        has(finding, &json!({"kind": "CREEP_CONFIRMED", "rank": 1}));
        let slope = finding["evidence"]["slope_bytes_per_step"].as_f64().unwrap();
        assert!((slope / float(LEAK) - 1.0).abs() < 0.1, "{run}: {slope}");
    }
}

#[test]
fn rank_whose_requested_bytes_come_and_go_is_level() {
    check_level(|records| records);
}

#[test]
fn leak_is_found_though_requested_bytes_come_and_go() {
    check_leak(|records| records);
}

#[test]
fn clock_that_goes_back_with_them_changes_nothing() {
    check_level(set_back);
    check_leak(set_back);
}
