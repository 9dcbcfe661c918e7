//! Phases that a program names: what stays on its device after each of them is compared, and memory that stays more and more is named.

use serde_json::{Value, json};

use crate::rig::command::replayed as replay;
use crate::rig::exporter::Exporter;
use crate::rig::folder::Folder;
use crate::rig::job::recording;
use crate::rig::json::has;
use crate::rig::noise::noise;
use crate::rig::units::{GIB, MIB, float};

/// Train steps of an iteration.
const STEPS: u64 = 4;
const SECONDS_PER_ITERATION: u64 = 60;
const BEGAN: u64 = 1_764_897_000;

/// The records of iterations of reinforcement learning on a device of 80 GiB: train steps, and then `sleep`, after which `kept`
/// bytes of the process stay on it.
fn iterations(n: u64, kept: impl FnMut(u64) -> u64) -> Vec<Value> {
    let mut kept = kept;
    let mut records = Vec::new();
    for iteration in 1..=n {
        let began = BEGAN + iteration * SECONDS_PER_ITERATION;
        let record = |step: u64, seconds: u64| {
            json!({"run": "rl", "rank": 0, "device": "GPU-0", "step": step, "time": began + seconds, "allocated_bytes": 20 * GIB,
                   "peak_allocated_bytes": 24 * GIB, "reserved_bytes": 25 * GIB, "total_bytes": 80 * GIB})
        };
        let last = iteration * STEPS;
        records.extend((1..=STEPS).map(|step| record(last - STEPS + step, step)));
        let mut asleep = record(last, 10);
        asleep["phase"] = json!("sleep");
        asleep["process_used_bytes"] = json!(kept(iteration));
        records.push(asleep);
    }
    records
}

/// The transitions of the phases: the state, severity and iteration of each, and the last of
/// them.
fn said(records: &[Value]) -> (Vec<(String, String, u64)>, Value) {
    let (lines, _) = replay(&recording(records));
    let of_phases: Vec<&Value> =
        lines.iter().filter(|line| line["kind"] == "PHASE_RISING").collect();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let iteration = |line: &Value| {
        let seconds = line["time"].as_f64().unwrap() - float(BEGAN);
        (seconds / float(SECONDS_PER_ITERATION)).floor().to_string().parse::<u64>().unwrap()
    };
    let transitions = of_phases
        .iter()
        .map(|line| (text(&line["state"]), text(&line["severity"]), iteration(line)));
    (transitions.collect(), of_phases.last().map_or(Value::Null, |line| (*line).clone()))
}

fn transition(state: &str, severity: &str, iteration: u64) -> (String, String, u64) {
    (state.to_owned(), severity.to_owned(), iteration)
}

/// A number below `range`, the same for each iteration of a seed.
fn swing(seed: u64, iteration: u64, range: u64) -> u64 {
    noise(seed, iteration, range)
}

#[test]
fn floor_that_begins_to_rise_after_healthy_swings_is_named_within_three_iterations() {
    for seed in 0..10 {
        let kept = |iteration: u64| {
            4 * GIB + swing(seed, iteration, GIB) + iteration.saturating_sub(40) * 3 * GIB
        };
        let (transitions, last) = said(&iterations(46, kept));
        assert_eq!(
            transitions.first(),
            Some(&transition("raised", "info", 43)),
            "seed {seed}: {transitions:?}"
        );
        // At 3 GiB a minute the device is full soon.
        assert_eq!(transitions.last().unwrap().1, "critical", "seed {seed}: {last}");
    }
}

/// The memory that stays after an iteration, by a seed.
type Kept = fn(u64, u64) -> u64;

#[test]
fn healthy_swings_are_silent_for_a_thousand_iterations() {
    let families: [(&str, Kept); 5] = [
        ("level", |_, _| 4 * GIB),
        ("even swings", |seed, at| 4 * GIB + swing(seed, at, GIB)),
        ("rare spikes", |seed, at| {
            4 * GIB + if swing(seed, at, 20) == 0 { 2 * GIB } else { swing(seed, at, 64 * MIB) }
        }),
        ("a cache that fills", |seed, at| {
            4 * GIB + 3 * GIB - ((3 * GIB) >> at.min(30)) + swing(seed, at, 16 * MIB)
        }),
        (
            "a lower level after a time",
            |seed, at| if at < 400 { 6 * GIB } else { 5 * GIB } + swing(seed, at, GIB),
        ),
    ];
    for (name, kept) in families {
        for seed in 0..4 {
            let (transitions, last) =
                said(&iterations(1_000, |iteration| kept(seed, iteration)));
            assert_eq!(transitions, [], "{name}, seed {seed}: {last}");
        }
    }
}

#[test]
fn allocator_and_host_are_compared_where_the_process_is_not_known() {
    for (more, basis) in
        [(json!({"device": "GPU-0"}), "reserved"), (json!({"device": "cpu"}), "allocated")]
    {
        let mut records = iterations(6, |_| 0);
        for record in &mut records {
            let held = record["step"].as_u64().unwrap() / STEPS * GIB;
            record.as_object_mut().unwrap().remove("process_used_bytes");
            record["device"] = more["device"].clone();
            if record["phase"] == "sleep" {
                (record["reserved_bytes"], record["allocated_bytes"]) =
                    (json!(25 * GIB + held), json!(20 * GIB + held));
                record["peak_allocated_bytes"] = json!(30 * GIB);
            }
        }
        let (transitions, last) = said(&records);
        assert_eq!(
            transitions.first(),
            Some(&transition("raised", "info", 4)),
            "{basis}: {transitions:?}"
        );
        assert_eq!(last["evidence"]["floor_basis"], basis, "{last}");
    }
}

#[test]
fn record_that_comes_twice_is_one_end() {
    let kept = |iteration: u64| 4 * GIB + iteration * 100 * MIB;
    let once = iterations(8, kept);
    let twice: Vec<Value> =
        once.iter().flat_map(|record| [record.clone(), record.clone()]).collect();
    assert_eq!(said(&twice).0, said(&once).0);
}

#[test]
fn ends_before_a_restart_of_the_exporter_count() {
    let folder = Folder::new("phases");
    let state = folder.path("state");
    let flags = ["--state.file", state.to_str().unwrap()];
    let records = iterations(4, |iteration| 4 * GIB + iteration * 100 * MIB);
    let (before, after) = records.split_at(records.len() / 2);
    let first = Exporter::start(&flags);
    first.push(before);
    assert!(first.finding("PHASE_RISING").is_none());
    first.stop();
    let second = Exporter::start(&flags);
    second.push(after);
    second.await_metrics("the third rise is told", |metrics| {
        metrics.keys().any(|series| series.contains("PHASE_RISING"))
    });
    let finding = second.finding("PHASE_RISING").unwrap();
    has(&finding["evidence"], &json!({"phase": "sleep", "floor_ends": 3}));
}

#[test]
fn names_of_phases_are_bounded_and_their_records_are_no_steps() {
    let exporter = Exporter::start(&[]);
    let record = |step: u64, phase: &str| json!({"rank": 0, "step": step, "allocated_bytes": GIB, "phase": phase});
    for name in ["", "rollout phase", "x".repeat(33).as_str(), "schlaf\u{fc}"] {
        let answer = exporter.post(record(1, name).to_string());
        assert_eq!(answer.status, 400, "{name:?}: {}", answer.body);
        assert!(answer.body.contains("phase"), "{name:?}: {}", answer.body);
    }
    exporter.push(&[json!({"rank": 0, "step": 7, "allocated_bytes": GIB})]);
    for number in 0..20 {
        exporter.push(&[record(7, &format!("phase.{number}"))]);
    }
    exporter.push(&[json!({"rank": 0, "step": 8, "allocated_bytes": GIB})]);
    exporter.await_metrics("the last step is there", |metrics| {
        metrics
            .iter()
            .any(|(name, value)| name.starts_with("stepmem_rank_step{") && *value > 7.0)
    });
    let status = exporter.status();
    has(&status["ranks"][0], &json!({"phases_left_out_total": 4, "steps_total": 2}));
}
