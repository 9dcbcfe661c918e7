//! The numbers that tell a late record from a new incarnation, and one process from another.

use serde_json::{Value, json};

use stepmem_engine::{NameConflict, Refusal};

use crate::rig::{GIB, Given, MIB, record, steps};

const OWN: &str = "00000000000000aa";
const OTHER: &str = "00000000000000bb";

/// The incarnations that began after the first.
fn restarts(given: &Given) -> u64 {
    given.status().records.restarted
}

#[test]
fn step_without_a_time_is_late_up_to_32_behind() {
    let restarted = |step: u64| {
        let mut given = Given::new();
        given.train(1..101, |step| record(step, &json!({})));
        given.push(101.0, &[record(step, &json!({}))]);
        restarts(&given)
    };
    assert_eq!((restarted(68), restarted(67)), (0, 1));
}

#[test]
fn twenty_late_records_in_a_row_show_that_the_newest_was_the_odd_one() {
    let restarted = |n_lates: u32| {
        let mut given = Given::new();
        given.push(1.0, &[record(1, &json!({"attempt": 5}))]);
        for step in 1..=n_lates + 1 {
            given.push((1 + step).into(), &[record(step.into(), &json!({"attempt": 4}))]);
        }
        restarts(&given)
    };
    assert_eq!((restarted(20), restarted(19)), (1, 0));
}

/// Returns whether the step after a pause begins an incarnation. Before it came steps of
/// `every` seconds with 100 MiB live.
fn resumed(every: f64, pause: f64, live: u64) -> bool {
    let mut given = Given::new();
    let mut at = 0.0;
    for step in 1..=40 {
        at += every;
        given.push(at, &[record(step, &json!({"allocated_bytes": 100 * MIB}))]);
    }
    given.push(at + pause, &[record(41, &json!({"allocated_bytes": live * MIB}))]);
    restarts(&given) > 0
}

#[test]
fn fall_to_three_quarters_after_a_long_pause_is_a_run_that_resumes() {
    assert_eq!((resumed(1.0, 40.0, 74), resumed(1.0, 40.0, 75)), (true, false));
    assert_eq!((resumed(1.0, 30.1, 50), resumed(1.0, 30.0, 50)), (true, false));
    assert_eq!((resumed(4.0, 60.1, 50), resumed(4.0, 60.0, 50)), (true, false));
}

/// The conflict if another process of a rank is refused after a silence of the first, which pushed
/// each `every` seconds.
fn refused(every: f64, silence: f64) -> Option<NameConflict> {
    let mut given = Given::new();
    let of = |step: u64, instance: &str| record(step, &json!({"instance": instance}));
    let mut at = 0.0;
    for step in 1..=10 {
        at += every;
        given.push(at, &[of(step, OWN)]);
    }
    let refusal = given.at(at + silence, &steps(&[of(1, OTHER)])).err()?;
    assert!(matches!(refusal, Refusal::Held(_)), "{refusal:?}");
    if let Refusal::Held(conflict) = refusal { Some(*conflict) } else { None }
}

#[test]
fn process_is_live_for_ten_seconds_and_for_five_of_its_pauses() {
    let is_refused = |every, silence| refused(every, silence).is_some();
    assert_eq!((is_refused(1.0, 10.0), is_refused(1.0, 10.1)), (true, false));
    assert_eq!((is_refused(4.0, 20.0), is_refused(4.0, 20.1)), (true, false));
}

#[test]
fn refused_process_is_told_when_to_ask_again_within_bounds() {
    for (every, expected) in [(0.25, 1.0), (1.0, 2.0), (4.0, 8.0), (6.0, 10.0)] {
        let retry_after = refused(every, 0.0).unwrap().retry_after.as_secs_f64();
        assert!((retry_after - expected).abs() < 1e-6, "{every}");
    }
}

#[test]
fn refused_process_is_forgotten_a_minute_after_it_asked() {
    let claimants = |seconds: f64| {
        let mut given = Given::new();
        let of = |step: u64, instance: &str| record(step, &json!({"instance": instance}));
        given.train(1..11, |step| of(step, OWN));
        given.at(11.0, &steps(&[of(1, OTHER)])).unwrap_err();
        given.push(seconds, &[of(20, OWN)]);
        given.status().runs[0].challengers
    };
    assert_eq!((claimants(70.9), claimants(71.0)), (1, 0));
}

#[test]
fn process_changes_the_unit_that_it_counts_twice() {
    let late = |units: &[&str]| {
        let mut given = Given::new();
        for (n, unit) in (1_u32..).zip(units) {
            let fields = json!({"unit": unit, "instance": OWN, "allocated_bytes": GIB});
            given.push(n.into(), &[record(n.into(), &fields)]);
        }
        given.status().records.late
    };
    assert_eq!(late(&["calls", "replays", "steps"]), 0);
    assert_eq!(late(&["steps", "replays", "steps"]), 0);
    assert_eq!(late(&["steps", "replays", "steps", "replays"]), 1);
}

#[test]
fn kinds_of_records_count_apart() {
    let mut given = Given::new();
    let of = |step: u64, time: f64| -> Value {
        record(step, &json!({"time": crate::rig::START + time}))
    };
    for (step, time) in [(1, 1.0), (2, 2.0), (2, 2.5), (1, 1.5), (3, 3.0)] {
        given.push(time, &[of(step, time)]);
    }
    let records = given.status().records;
    assert_eq!((records.accepted, records.duplicate, records.late), (3, 1, 1));
}
