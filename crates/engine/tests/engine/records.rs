//! Records: which count, and what they leave of each other.

use serde_json::{Value, json};

use stepmem_engine::DiagnosisKind;

use crate::rig::{GIB, Given, MIB, START, record};

/// The records by outcome: accepted, duplicate, late, restarted.
fn counts(given: &Given) -> [u64; 4] {
    let of = given.status().records;
    [of.accepted, of.duplicate, of.late, of.restarted]
}

/// Figures of the rank, by their keys.
fn figures<const N: usize>(given: &Given, keys: [&str; N]) -> [Value; N] {
    let rank = serde_json::to_value(given.rank()).unwrap();
    keys.map(|key| rank[key].clone())
}

fn live(step: u64, bytes: u64) -> Value {
    record(step, &json!({"allocated_bytes": bytes, "peak_allocated_bytes": bytes}))
}

/// Pushes records a second apart.
fn given(records: &[Value]) -> Given {
    let mut given = Given::new();
    for (at, record) in (1_u32..).zip(records) {
        given.push(at.into(), std::slice::from_ref(record));
    }
    given
}

#[test]
fn duplicate_and_late_steps_are_counted_and_change_nothing() {
    let given = given(&[live(100, 1000), live(100, 2000), live(99, 3000), live(68, 4000)]);
    assert_eq!(counts(&given), [1, 1, 2, 0]);
    let keys = ["allocated_bytes", "interval_peak_allocated_bytes", "steps_total", "step"];
    assert_eq!(figures(&given, keys), [1000, 1000, 1, 100]);
}

#[test]
fn missing_steps_are_not_a_restart() {
    let given = given(&[live(1, 1000), live(1_000_000, 2000)]);
    assert_eq!(counts(&given), [2, 0, 0, 0]);
    assert_eq!(figures(&given, ["step", "steps_total"]), [1_000_000, 2]);
}

#[test]
fn step_that_falls_beyond_the_tolerance_is_a_restart() {
    let given = given(&[live(100, 5000), live(67, 1000)]);
    assert_eq!(counts(&given), [2, 0, 0, 1]);
    let keys = ["step", "steps_total", "recent_peak_allocated_bytes"];
    assert_eq!(figures(&given, keys), [67, 2, 1000]);
}

#[test]
fn step_that_falls_at_a_later_time_of_its_own_is_a_restart() {
    let at = |step: u64, time: f64| record(step, &json!({"time": START + time}));
    let given = given(&[at(100, -50.0), at(90, -60.0), at(90, -40.0)]);
    assert_eq!(counts(&given), [2, 0, 1, 1]);
    assert_eq!(figures(&given, ["step"]), [90]);
}

#[test]
fn higher_attempt_restarts_and_a_lower_one_is_late() {
    let of = |attempt: u64, step: u64, bytes: u64| {
        let mut record = live(step, bytes);
        record["attempt"] = json!(attempt);
        record
    };
    let given = given(&[of(0, 100, 5000), of(1, 100, 1000), of(0, 101, 9000)]);
    assert_eq!(counts(&given), [2, 0, 1, 1]);
    let keys = ["attempt", "allocated_bytes", "recent_peak_allocated_bytes"];
    assert_eq!(figures(&given, keys), [1, 1000, 1000]);
}

#[test]
fn evaluation_and_checkpoints_leave_the_figures_of_the_last_train_step() {
    let other = |phase: &str, peak: u64| {
        let mut record = live(10, 1000);
        (record["phase"], record["peak_allocated_bytes"]) = (json!(phase), json!(peak));
        record
    };
    let mut given = given(&[live(10, 1000), other("eval", 7000), other("checkpoint", 3000)]);
    assert_eq!(counts(&given), [3, 0, 0, 0]);
    let keys = ["allocated_bytes", "steps_total", "step", "interval_peak_allocated_bytes"];
    assert_eq!(figures(&given, keys), [1000, 1, 10, 7000]);
    given.push(4.0, &[live(11, 2000)]);
    assert_eq!(figures(&given, ["allocated_bytes"]), [2000]);
}

/// Iterations of reinforcement learning, a minute each: four train steps, and then `sleep`, after
/// which `kept` bytes of the process stay. Returns the state, the severity and the iteration of
/// each transition of the phase.
fn iterations(n: u64, kept: impl Fn(u64) -> u64) -> Vec<(String, String, u64)> {
    let mut given = Given::new();
    let mut told = Vec::new();
    for iteration in 1..=n {
        let last = iteration * 4;
        let of = |step: u64, fields: Value| {
            let mut record = record(
                step,
                &json!({"allocated_bytes": 20 * GIB,
                "peak_allocated_bytes": 24 * GIB, "reserved_bytes": 25 * GIB}),
            );
            record.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            record
        };
        let asleep = json!({"phase": "sleep", "process_used_bytes": kept(iteration)});
        let mut records: Vec<Value> =
            (last - 3..=last).map(|step| of(step, json!({}))).collect();
        records.push(of(last, asleep));
        for (second, record) in (1_u32..).zip(records) {
            let began = f64::from(u32::try_from(60 * iteration).unwrap());
            let at = began + f64::from(second);
            let event = crate::rig::steps(&[record]);
            let handled = [given.at(at, &event).unwrap(), given.tick(at)];
            let of_phase = handled.iter().flat_map(|handled| &handled.transitions);
            for of in of_phase.filter(|of| of.kind == DiagnosisKind::PhaseRising) {
                let json = serde_json::to_value(of).unwrap();
                let text = |key: &str| json[key].as_str().unwrap().to_owned();
                told.push((text("state"), text("severity"), iteration));
            }
        }
    }
    told
}

fn transition(state: &str, severity: &str, iteration: u64) -> (String, String, u64) {
    (state.to_owned(), severity.to_owned(), iteration)
}

#[test]
fn floor_that_rises_is_named_with_the_third_rise_and_warned_of_with_the_fifth() {
    let told = iterations(8, |iteration| 4 * GIB + iteration * 100 * MIB);
    assert_eq!(told, [transition("raised", "info", 4), transition("raised", "warning", 6)]);
}

#[test]
fn growth_of_a_floor_that_ends_is_cleared() {
    let told = iterations(20, |iteration| 4 * GIB + iteration.min(8) * 500 * MIB);
    assert_eq!(told.last(), Some(&transition("cleared", "warning", 13)), "{told:?}");
    let freed =
        |iteration: u64| 4 * GIB + if iteration < 10 { iteration * 500 * MIB } else { 0 };
    let told = iterations(12, freed);
    assert_eq!(told.last(), Some(&transition("cleared", "warning", 10)), "{told:?}");
}
