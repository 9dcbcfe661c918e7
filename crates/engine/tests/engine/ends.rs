//! The ends of ranks: what stays of them, and who may announce them.

use serde_json::{Value, json};

use stepmem_engine::{DiagnosisKind, Handled, Refusal, Severity};
use stepmem_types::end::EndOutcome;

use crate::rig::{GIB, Given, MIB, record};

const OWN: &str = "00000000000000aa";
const OTHER: &str = "00000000000000bb";

/// A rank that leaks until it has no memory left, as its client reports it.
fn dying(instance: &str) -> impl Fn(u64) -> Value {
    move |step| {
        let live = 4 * GIB + step * 80 * MIB;
        record(
            step,
            &json!({"instance": instance, "total_bytes": 24 * GIB,
            "allocated_bytes": live, "peak_allocated_bytes": live}),
        )
    }
}

fn oom() -> Value {
    json!({
        "rank": 0, "outcome": "oom", "instance": OWN, "step": 251, "requested_bytes": 2 * GIB,
        "error_type": "torch.OutOfMemoryError", "error_message": "CUDA out of memory.",
    })
}

/// Twenty steps of a rank whose allocator has counted `n_ooms` errors since step 6.
fn caught(n_ooms: u64) -> impl Fn(u64) -> Value {
    move |step| record(step, &json!({"instance": OWN, "ooms": u64::from(step >= 6) * n_ooms}))
}

fn caught_end(outcome: &str, ooms: u64) -> Value {
    json!({"rank": 0, "outcome": outcome, "instance": OWN, "step": 20, "ooms": ooms})
}

/// The severity and the sentence of the finding that a rank is out of memory.
fn found(given: &Given) -> Option<(Severity, String)> {
    let finding = given.finding(DiagnosisKind::OutOfMemory)?;
    Some((finding.severity, finding.sentence))
}

#[test]
fn relaunch_clears_the_death_and_keeps_its_count() {
    let mut given = Given::new();
    given.train(1..251, dying(OWN));
    given.end(251.0, &oom()).unwrap();
    assert_eq!(found(&given).unwrap().0, Severity::Critical);
    for step in 1..5_u32 {
        given.push(260.0 + f64::from(step), &[dying(OTHER)(step.into())]);
    }
    assert_eq!(found(&given), None);
    let rank = serde_json::to_value(given.rank()).unwrap();
    assert_eq!((&rank["state"], &rank["oom_events_total"]), (&json!("pushing"), &json!(1)));
}

#[test]
fn record_that_the_end_overtook_is_of_the_incarnation_that_ended() {
    let mut given = Given::new();
    let at = |step: u64, time: f64| {
        let mut record = dying(OWN)(step);
        record["time"] = json!(crate::rig::START + time);
        record
    };
    for step in 1..251_u32 {
        given.push(step.into(), &[at(step.into(), step.into())]);
    }
    let mut death = oom();
    death["time"] = json!(crate::rig::START + 251.5);
    given.end(252.0, &death).unwrap();
    given.push(252.5, &[at(251, 251.0)]);
    let rank = serde_json::to_value(given.rank()).unwrap();
    assert_eq!((&rank["state"], &rank["step"]), (&json!("ended"), &json!(251)));
    assert_eq!(given.status().records.restarted, 0);
    // The same process trains once more: its steps are of later than the end, whatever their numbers.
    given.push(400.0, &[at(5, 400.0)]);
    let rank = serde_json::to_value(given.rank()).unwrap();
    assert_eq!((&rank["state"], &rank["step"]), (&json!("pushing"), &json!(5)));
}

#[test]
fn process_that_survives_an_oom_is_a_warning() {
    let mut given = Given::new();
    given.train(1..21, caught(2));
    let finding = given.finding(DiagnosisKind::OutOfMemory).unwrap();
    assert_eq!(finding.severity, Severity::Warning);
    let evidence = serde_json::to_value(finding.evidence).unwrap();
    assert_eq!((&evidence["ooms"], &evidence["oom_step"]), (&json!(2), &json!(6)));
}

#[test]
fn errors_of_before_the_first_record_are_not_news() {
    let mut given = Given::new();
    given.train(1..21, |step| record(step, &json!({"ooms": 5})));
    assert_eq!(found(&given), None);
}

#[test]
fn end_as_completed_after_a_last_error_is_corrected_by_whoever_knows_the_exit_code() {
    let corrected = |caught_before: u64, n_ooms: u64| {
        let mut given = Given::new();
        given.train(1..21, caught(caught_before));
        given.end(21.0, &caught_end("completed", n_ooms)).unwrap();
        let correction = json!({"rank": 0, "outcome": "oom", "step": 20});
        let failed = json!({"rank": 0, "outcome": "failed"});
        let outcome = |ended: Result<Handled, Refusal>| match ended {
            Ok(_) => None,
            Err(Refusal::HasEnded { outcome, .. }) => Some(outcome),
            Err(other) => panic!("{other}"),
        };
        // Both come from an operator: they name no process.
        let of_operator =
            |given: &mut Given, end: &Value| outcome(given.operator_end(22.0, end));
        let refused = [of_operator(&mut given, &correction), of_operator(&mut given, &failed)];
        (refused, found(&given), given.rank().end.unwrap().outcome)
    };
    let (refused, finding, outcome) = corrected(0, 1);
    assert_eq!(refused, [None, Some(EndOutcome::Oom)]);
    let (severity, sentence) = finding.unwrap();
    assert_eq!(severity, Severity::Critical);
    assert!(sentence.starts_with("ended out of memory at step 20"), "{sentence}");
    assert_eq!(outcome, EndOutcome::Oom);
    // It went on after its error, or had none: its own end counts.
    for (caught_before, n_ooms) in [(1, 1), (0, 0)] {
        let (refused, _, outcome) = corrected(caught_before, n_ooms);
        assert_eq!(refused, [Some(EndOutcome::Completed); 2]);
        assert_eq!(outcome, EndOutcome::Completed);
    }
}

#[test]
fn error_that_ends_the_process_counts_once() {
    for (before, counted, expected) in [(0, 1, 1), (2, 3, 3)] {
        let mut given = Given::new();
        given.train(1..21, caught(before));
        given.end(21.0, &caught_end("oom", counted)).unwrap();
        let rank = serde_json::to_value(given.rank()).unwrap();
        assert_eq!(rank["oom_events_total"], expected);
        assert_eq!(found(&given).unwrap().0, Severity::Critical);
    }
}

/// Figures of a device say nothing of the memory that the kernel had too little of.
#[test]
fn only_a_rank_on_the_host_is_killed_with_the_headroom_that_its_figures_show() {
    let mut kill = caught_end("oom", 0);
    kill["error_type"] = json!("oom_kill");
    for (device, is_known) in
        [(json!("cpu"), true), (json!("GPU-0"), false), (json!(null), false)]
    {
        let mut given = Given::new();
        given.train(1..21, |step| {
            record(
                step,
                &json!({"instance": OWN, "device": device, "total_bytes": 24 * GIB,
                "peak_allocated_bytes": GIB}),
            )
        });
        given.end(21.0, &kill).unwrap();
        let finding = given.finding(DiagnosisKind::OutOfMemory).unwrap();
        let evidence = serde_json::to_value(finding.evidence).unwrap();
        assert_eq!(evidence.get("headroom_bytes").is_some(), is_known, "{device} {evidence:#}");
    }
}

#[test]
fn rank_is_ended_by_the_process_that_holds_it_alone() {
    let mut given = Given::new();
    given.train(1..6, |step| record(step, &json!({"instance": OWN})));
    let of_other = json!({"rank": 0, "outcome": "completed", "instance": OTHER});
    assert!(matches!(given.end(6.0, &of_other), Err(Refusal::OfAnother(_))));
    let of_run = json!({"outcome": "completed", "instance": OTHER});
    given.end(7.0, &of_run).unwrap();
    assert!(given.rank().end.is_none());
    // An operator ends it, as a launcher's script does.
    given.operator_end(8.0, &json!({"outcome": "failed"})).unwrap();
    assert_eq!(given.rank().end.unwrap().outcome, EndOutcome::Failed);
}
