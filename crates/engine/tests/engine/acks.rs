//! Acknowledgments: an operator lowers a finding for a time.

use serde_json::json;

use stepmem_engine::acks::Ack;
use stepmem_engine::{DiagnosisKind, Event, Refusal, Severity};
use stepmem_types::ids::{Rank, RankId, Run, SubjectId};

use crate::rig::{GIB, Given, record};

fn ack(rank: u64, kind: DiagnosisKind, for_seconds: u32) -> Event {
    let (run, rank) = (Run::new("job").unwrap(), Rank::new(rank).unwrap());
    let subject = SubjectId::Rank(RankId { run, rank });
    Event::Ack(Ack::new(subject, kind, for_seconds, "the cache is meant to be large").unwrap())
}

/// A rank whose memory rose to nearly all of its device.
fn full() -> Given {
    let mut given = Given::new();
    given.push(1.0, &[record(1, &json!({"peak_allocated_bytes": GIB}))]);
    let full = json!({"allocated_bytes": 40 * GIB, "peak_allocated_bytes": 79 * GIB});
    given.push(2.0, &[record(2, &full)]);
    assert_eq!(given.severity(DiagnosisKind::HighPressure), Some(Severity::Critical));
    given
}

#[test]
fn acknowledged_finding_is_a_note_until_that_expires() {
    let mut given = full();
    let handled = given.at(10.0, &ack(0, DiagnosisKind::HighPressure, 60)).unwrap();
    assert_eq!(handled.receipt.is_found, Some(true));
    assert_eq!(given.severity(DiagnosisKind::HighPressure), Some(Severity::Info));
    given.tick(69.9);
    assert_eq!(given.severity(DiagnosisKind::HighPressure), Some(Severity::Info));
    given.tick(70.0);
    assert_eq!(given.severity(DiagnosisKind::HighPressure), Some(Severity::Critical));
}

#[test]
fn acknowledgment_of_another_diagnosis_lowers_nothing() {
    let mut given = full();
    let handled = given.at(10.0, &ack(0, DiagnosisKind::Imbalance, 60)).unwrap();
    assert_eq!(handled.receipt.is_found, Some(false));
    assert_eq!(given.severity(DiagnosisKind::HighPressure), Some(Severity::Critical));
}

#[test]
fn rank_that_never_pushed_is_not_acknowledged() {
    let mut given = full();
    let refused = given.at(10.0, &ack(7, DiagnosisKind::HighPressure, 60));
    assert!(matches!(refused, Err(Refusal::UnknownSubject(_))), "{refused:?}");
}
