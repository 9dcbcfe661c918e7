//! The numbers by which growth is severe, and by which the end of a run comes first, each from both
//! sides. What counts as growth is tested where it is judged, in `crates/detect`.

use serde_json::{Value, json};

use stepmem_engine::{DiagnosisKind, Severity};

use crate::rig::{GIB, Given, MIB, START, float, noise, record, steps};

/// The steps of the leak.
const STEPS: u64 = 400;

/// A leak of 20 MiB a step on a device of 80 GiB, of which steps take 20 GiB more, at this pace.
/// `fields` are those of a step in addition.
fn leak(seconds_per_step: f64, fields: impl Fn(u64) -> Value) -> Given {
    let mut given = Given::new();
    for step in 1..=STEPS {
        let live = 20 * GIB + 20 * MIB * step + noise(0, step, 16 * MIB);
        let mut own = json!({"allocated_bytes": live, "peak_allocated_bytes": live + 20 * GIB,
            "reserved_bytes": live + 21 * GIB});
        own.as_object_mut().unwrap().extend(fields(step).as_object().unwrap().clone());
        given.push(seconds_per_step * float(step), &[record(step, &own)]);
    }
    given
}

/// The severity and the evidence of MEMORY CREEP.
fn creep(given: &Given) -> (Severity, Value) {
    let finding = given.finding(DiagnosisKind::CreepConfirmed).unwrap();
    (finding.severity, serde_json::to_value(finding.evidence).unwrap())
}

#[test]
fn creep_is_critical_where_less_than_six_hours_are_left() {
    let (_, of_a_second) = creep(&leak(1.0, |_| json!({})));
    let seconds = of_a_second["oom_eta_seconds"].as_f64().unwrap();
    let severity = |hours: f64| creep(&leak(hours * 3600.0 / seconds, |_| json!({}))).0;
    assert_eq!(severity(5.98), Severity::Critical);
    assert_eq!(severity(6.02), Severity::Warning);
}

#[test]
fn run_ends_first_where_memory_lasts_a_fifth_longer_at_least() {
    let (_, evidence) = creep(&leak(60.0, |_| json!({})));
    let least = evidence["oom_eta_lower_steps"].as_f64().unwrap();
    let with_total = |ratio: f64| {
        let total =
            json!(format!("{:.0}", float(STEPS) + least / ratio).parse::<u64>().unwrap());
        let (severity, evidence) = creep(&leak(60.0, |_| json!({"total_steps": total})));
        (severity, evidence["run_end"]["first"].clone())
    };
    assert_eq!(with_total(1.22), (Severity::Info, json!("run")));
    assert_eq!(with_total(1.18).1, json!("open"));
    assert_eq!(with_total(0.5).1, json!("memory"));
}

#[test]
fn run_that_ended_first_does_so_until_memory_lasts_a_tenth_longer() {
    let (_, evidence) = creep(&leak(60.0, |_| json!({})));
    let least = evidence["oom_eta_lower_steps"].as_f64().unwrap();
    let total = json!(format!("{:.0}", float(STEPS) + least / 1.25).parse::<u64>().unwrap());
    let mut given = leak(60.0, |_| json!({"total_steps": total}));
    assert_eq!(creep(&given).1["run_end"]["first"], "run");
    // Steps take more and more.
    let mut ratio_before = None;
    for step in STEPS + 1..STEPS + 40 {
        let live = 20 * GIB + 20 * MIB * step + noise(0, step, 16 * MIB);
        let peak = live + 20 * GIB + 128 * MIB * (step - STEPS);
        let own = json!({"allocated_bytes": live, "peak_allocated_bytes": peak,
            "reserved_bytes": peak + GIB, "total_steps": total});
        given.push(60.0 * float(step), &[record(step, &own)]);
        let (_, evidence) = creep(&given);
        let figure = |of: &Value| of.as_f64().unwrap();
        let end = &evidence["run_end"];
        let ratio = figure(&evidence["oom_eta_lower_steps"]) / figure(&end["in_steps"]);
        if end["first"] != "run" {
            let before = ratio_before.unwrap();
            assert!(
                ratio < 1.1 && ratio > 1.07 && before > 1.1 && before < 1.13,
                "{before} {ratio}"
            );
            return;
        }
        ratio_before = Some(ratio);
    }
    panic!("the run ends first: {ratio_before:?}");
}

/// The run of which memory ends first, and that needs so many restarts.
fn with_restarts(restarts: f64) -> (Value, String) {
    let (_, evidence) = creep(&leak(60.0, |_| json!({})));
    let figure = |key: &str| evidence[key].as_f64().unwrap();
    let lasts =
        (figure("headroom_bytes") + figure("growth_bytes")) / figure("slope_bytes_per_step");
    let total = float(STEPS) + figure("oom_eta_steps") + (restarts - 0.5) * lasts;
    let total = format!("{total:.0}").parse::<u64>().unwrap();
    let given = leak(60.0, |_| json!({"total_steps": total}));
    let (_, evidence) = creep(&given);
    let finding = given.finding(DiagnosisKind::CreepConfirmed).unwrap();
    (evidence["run_end"]["restarts"].clone(), finding.sentence)
}

#[test]
fn run_is_worth_twenty_restarts_and_no_more() {
    let (restarts, sentence) = with_restarts(20.0);
    assert_eq!(restarts, 20.0);
    assert!(sentence.contains("it takes 20 restarts"), "{sentence}");
    let (restarts, sentence) = with_restarts(21.0);
    assert_eq!(restarts, 21.0);
    assert!(sentence.contains("stop it"), "{sentence}");
}

/// Growth of a container of 100 GiB by time, as a rank sees it that takes a step in ten seconds.
fn container(total_steps: Option<u64>) -> Value {
    let mut given = Given::new();
    for step in 1..=160_u64 {
        let seconds = 10.0 * float(step);
        let fields = json!({"container": "pod/a", "container_limit_bytes": 100 * GIB,
            "container_used_bytes": 10 * GIB + 200 * MIB * step, "time": START + seconds,
            "total_steps": total_steps.filter(|_| step == 160)});
        given.at(seconds, &steps(&[record(step, &fields)])).unwrap();
    }
    given.tick(1600.0);
    let finding = given.finding(DiagnosisKind::HostCreep).unwrap();
    serde_json::to_value(finding.evidence).unwrap()
}

#[test]
fn run_ends_before_memory_that_grows_by_time_if_its_steps_may_take_half_as_long_again() {
    let least = container(None)["oom_eta_lower_seconds"].as_f64().unwrap();
    let first = |ratio: f64| {
        let left = least / (10.0 * 1.2 * ratio);
        let total = format!("{:.0}", 160.0 + left).parse().unwrap();
        container(Some(total))["run_end"]["first"].clone()
    };
    assert_eq!((first(1.53), first(1.47)), (json!("run"), json!("open")));
}

#[test]
fn growth_that_went_on_is_no_more_than_a_warning_for_an_hour_on_memory_that_is_full() {
    let mut given = Given::new();
    let mut turns = Vec::new();
    for step in 1..=1_000_u64 {
        let kept = step.min(300) + step.saturating_sub(350);
        let live = 70 * GIB + 4 * MIB * kept;
        let own = json!({"allocated_bytes": live, "peak_allocated_bytes": live + 4 * GIB,
            "reserved_bytes": live + 4 * GIB});
        let seconds = 20.0 * float(step);
        given.push(seconds, &[record(step, &own)]);
        let severity = given.severity(DiagnosisKind::CreepConfirmed);
        if turns.last().is_none_or(|(_, before)| *before != severity) {
            turns.push((seconds, severity));
        }
    }
    let [.., (_, Some(Severity::Info)), (resumed, Some(Severity::Warning)), last] = turns[..]
    else {
        panic!("{turns:?}")
    };
    assert_eq!(last, (resumed + 3600.0, Some(Severity::Critical)));
}
