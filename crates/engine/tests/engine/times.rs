//! The times that decide, each from both sides.

use serde_json::{Value, json};

use stepmem_engine::{DiagnosisKind, Event, Severity};
use stepmem_types::device::GpuUnavailable;
use stepmem_types::ids::{GpuUuid, Run};
use stepmem_types::units::Seconds;

use crate::rig::{GIB, Given, MIB, START, record, steps, uptime};

fn oom() -> Value {
    json!({"rank": 0, "outcome": "oom"})
}

#[test]
fn error_that_was_survived_is_told_for_ten_minutes() {
    let told = |seconds: f64| {
        let mut given = Given::new();
        given.train(1..10, |step| record(step, &json!({"ooms": u64::from(step > 5)})));
        given.push(seconds, &[record(20, &json!({"ooms": 1}))]);
        given.finding(DiagnosisKind::OutOfMemory).is_some()
    };
    // The record of step 6 told of it at 6 s.
    assert_eq!((told(606.0), told(606.1)), (true, false));
}

#[test]
fn rank_that_ended_is_shown_for_ten_minutes_and_until_it_was_scraped_but_no_hour() {
    let shown = |scraped: bool, seconds: f64| {
        let mut given = Given::new();
        given.train(1..10, |step| record(step, &json!({})));
        given.end(10.0, &oom()).unwrap();
        if scraped {
            given.at(11.0, &Event::Scraped).unwrap();
        }
        given.tick(seconds);
        given.finding(DiagnosisKind::OutOfMemory).is_some()
    };
    assert_eq!((shown(true, 610.0), shown(true, 610.1)), (true, false));
    assert_eq!((shown(false, 3610.0), shown(false, 3610.1)), (true, false));
}

#[test]
fn device_that_answers_with_errors_is_lost_until_two_minutes_after_the_last() {
    let lost = |seconds: f64| {
        let mut given = Given::new();
        let device = Some(GpuUuid::new("GPU-0").unwrap());
        let message = "the device is lost".to_owned();
        let lost = GpuUnavailable { device, code: "gpu_is_lost", message };
        given.at(10.0, &Event::DeviceLost(lost)).unwrap();
        given.tick(seconds);
        given.finding(DiagnosisKind::GpuLost).is_some()
    };
    assert_eq!((lost(130.0), lost(130.1)), (true, false));
}

#[test]
fn allocator_that_gave_cache_up_is_short_for_15_minutes() {
    let severity = |seconds: f64| {
        let mut given = Given::new();
        let fields = |retries: u64| {
            json!({"alloc_retries": retries, "reserved_bytes": 79 * GIB,
                "peak_allocated_bytes": 60 * GIB})
        };
        given.push(1.0, &[record(1, &fields(0))]);
        given.push(2.0, &[record(2, &fields(1))]);
        given.push(seconds, &[record(3, &fields(1))]);
        given.severity(DiagnosisKind::HighPressure)
    };
    assert_eq!(severity(902.0), Some(Severity::Critical));
    assert_ne!(severity(902.1), Some(Severity::Critical));
}

#[test]
fn records_are_judged_every_five_seconds_without_a_tick() {
    let judged = |seconds: f64| {
        let mut given = Given::new();
        given.push(1.0, &[record(1, &json!({"peak_allocated_bytes": GIB}))]);
        let full = json!({"reserved_bytes": 40 * GIB, "peak_allocated_bytes": 2 * GIB});
        let handled = given.at(seconds, &steps(&[record(2, &full)])).unwrap();
        !handled.transitions.is_empty()
    };
    assert_eq!((judged(6.0), judged(5.9)), (true, false));
}

#[test]
fn rank_that_no_other_outlasted_by_more_than_a_minute_stopped_with_the_run() {
    let stopped_with_it = |last: f64| {
        let mut given = Given::new();
        let of = |rank: u64, step: u64| {
            record(step, &json!({"rank": rank, "device": format!("GPU-{rank}")}))
        };
        given.push(1.0, &[of(0, 1), of(1, 1)]);
        given.push(last, &[of(1, 2)]);
        given.tick(700.0);
        let run = given.engine().run(&Run::new("job").unwrap(), uptime(700.0)).unwrap();
        assert_eq!(run.silent.len(), 2);
        run.unannounced.len()
    };
    assert_eq!((stopped_with_it(61.0), stopped_with_it(61.1)), (2, 1));
}

#[test]
fn clock_is_set_from_half_a_second_on() {
    let given = Given::new();
    let is_set =
        |unix: f64| given.engine().is_clock_set(uptime(10.0), Seconds::new(unix).unwrap());
    assert_eq!((is_set(START + 10.5), is_set(START + 10.4)), (true, false));
    assert_eq!((is_set(START + 9.5), is_set(START + 9.6)), (true, false));
}

#[test]
fn time_counts_up_to_five_minutes_ahead_of_its_arrival() {
    let ahead = |seconds: f64| {
        let mut given = Given::new();
        given.push(10.0, &[record(1, &json!({"time": START + 10.0 + seconds}))]);
        given.status().records.clock_ahead
    };
    assert_eq!((ahead(300.0), ahead(300.5)), (0, 1));
}

#[test]
fn own_reading_of_a_process_counts_for_five_minutes() {
    let known = |seconds: f64| {
        let mut given = Given::new();
        given.push(10.0, &[record(1, &json!({"process_used_bytes": 3 * GIB}))]);
        given.push(seconds, &[record(2, &json!({}))]);
        given.rank().process_used_bytes.is_some()
    };
    assert_eq!((known(310.0), known(310.1)), (true, false));
}

/// A record that reads a container of 100 GiB, which holds so many MiB, at a time.
fn reading(step: u64, seconds: f64, used_mib: u64) -> Value {
    let fields = json!({"container": "pod/a", "container_limit_bytes": 100 * GIB,
        "container_used_bytes": used_mib * MIB, "time": START + seconds});
    record(step, &fields)
}

#[test]
fn reading_of_a_container_counts_for_growth_from_5_seconds_after_the_last_on() {
    let has_slope = |every: f64| {
        let mut given = Given::new();
        for step in 1..=60_u32 {
            let seconds = every * f64::from(step);
            given.push(seconds, &[reading(step.into(), seconds, 1000)]);
        }
        given.status().containers[0].slope_bytes_per_second.is_some()
    };
    // 23 warm it up, and 24 are a window.
    assert_eq!((has_slope(5.0), has_slope(4.9)), (true, false));
}

#[test]
fn older_reading_of_a_container_counts_a_minute_after_the_last() {
    let used = |seconds: f64| {
        let mut given = Given::new();
        given.push(100.0, &[reading(1, 100.0, 50)]);
        given.push(seconds, &[reading(2, 50.0, 60)]);
        given.status().containers[0].reading.used.unwrap().get() / MIB
    };
    assert_eq!((used(160.0), used(159.9)), (60, 50));
}
