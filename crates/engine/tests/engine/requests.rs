//! Requests to ranks: who is asked, when, and how often.

use std::ops::Range;

use serde_json::{Value, json};

use stepmem_engine::acks::Ack;
use stepmem_engine::wire::{Layout, decode_steps};
use stepmem_engine::{
    DiagnosisKind, Event, Handled, RankRequest, Refusal, RequestKind, Severity,
};
use stepmem_types::ids::{Rank, RankId, Run, SubjectId};

use crate::rig::{GIB, Given, MIB, float, noise, record, steps};

const LEAK: u64 = 8 * MIB;
const CAPACITY: u64 = 24 * GIB;
const BASE: u64 = 4 * GIB;
/// The last step whose memory fits.
const LAST: u64 = (CAPACITY - BASE) / LEAK;
/// The time before the end of memory at which ranks are asked to checkpoint, by default, in steps
/// of a second.
const BEFORE: u64 = 600;
const NOBODY: [u64; 0] = [];
/// A step at which the leak is found, and so much time is not left any more.
const SOON: u64 = LAST - BEFORE / 2;

/// A job in which `live` bytes are live after a step of a rank, and `beyond` bytes more within it.
struct Job<L: Fn(u64, u64) -> u64> {
    n_ranks: u64,
    seconds_per_step: f64,
    live: L,
    beyond: u64,
}

/// Ranks of which the first leaks in a straight line, a second a step.
fn leaking(n_ranks: u64) -> Job<impl Fn(u64, u64) -> u64> {
    let live = |rank, step: u64| {
        BASE + noise(rank, step, MIB) + if rank == 0 { step * LEAK } else { 0 }
    };
    Job { n_ranks, seconds_per_step: 1.0, live, beyond: 0 }
}

impl<L: Fn(u64, u64) -> u64> Job<L> {
    fn record(&self, rank: u64, step: u64, fields: &Value) -> Value {
        let live = (self.live)(rank, step);
        let mut record = record(
            step,
            &json!({"rank": rank, "total_bytes": CAPACITY, "device": null,
            "allocated_bytes": live, "peak_allocated_bytes": live + self.beyond,
            "reserved_bytes": live + self.beyond}),
        );
        record.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        record
    }

    /// Pushes steps, and returns the asks to checkpoint in the answers: the step, the rank and
    /// the id of each.
    fn asks(
        &self,
        given: &mut Given,
        steps: Range<u64>,
        fields: &Value,
    ) -> Vec<(u64, u64, String)> {
        let mut asks = Vec::new();
        for step in steps {
            let at = self.seconds_per_step * float(step);
            let records = (0..self.n_ranks).map(|rank| self.record(rank, step, fields));
            let handled = given.push(at, &records.collect::<Vec<_>>());
            for request in handled.receipt.requests {
                if matches!(request.kind, RequestKind::Checkpoint(_)) {
                    asks.push((step, request.rank.rank.get().into(), request.id.into()));
                }
            }
        }
        asks
    }

    fn asked_ranks(&self, given: &mut Given, steps: Range<u64>, fields: &Value) -> Vec<u64> {
        self.asks(given, steps, fields).into_iter().map(|(_, rank, _)| rank).collect()
    }
}

fn able() -> Value {
    json!({"on_deadline": "checkpoint"})
}

/// The severity and the evidence of MEMORY CREEP.
fn creep(given: &Given) -> (Severity, Value) {
    let finding = given.finding(DiagnosisKind::CreepConfirmed).unwrap();
    (finding.severity, serde_json::to_value(finding.evidence).unwrap())
}

#[test]
fn every_rank_of_a_run_is_asked_every_ten_minutes_once_memory_of_one_may_end_within_them() {
    let (mut given, job) = (Given::new(), leaking(2));
    let asks = job.asks(&mut given, 1..LAST, &able());
    let [(first, 0, _), (_, 1, _), (again, 0, _), (_, 1, _)] = asks[..] else {
        panic!("{asks:?}")
    };
    // The lower bound of the time left is what counts.
    assert!(first <= LAST - BEFORE && first > LAST - 2 * BEFORE, "{first}");
    assert_eq!(again - first, BEFORE);
}

#[test]
fn answer_that_was_lost_is_repeated_with_the_same_ask() {
    let (mut given, job) = (Given::new(), leaking(1));
    assert_eq!(job.asks(&mut given, 1..SOON, &json!({})), []);
    let first = job.asks(&mut given, SOON..SOON + 1, &able());
    let repeated = job.asks(&mut given, SOON..SOON + 1, &able());
    assert_eq!((first.len(), &first), (1, &repeated));
    assert_eq!(job.asks(&mut given, SOON + 1..SOON + 2, &able()), []);
}

#[test]
fn rank_whose_program_would_not_checkpoint_is_not_asked() {
    let (mut given, job) = (Given::new(), leaking(1));
    assert_eq!(job.asked_ranks(&mut given, 1..SOON + 10, &json!({})), NOBODY);
    assert_eq!(job.asked_ranks(&mut given, SOON + 10..SOON + 20, &able()), [0]);
    let other = br#"{"rank":0,"step":1,"allocated_bytes":1,"on_deadline":"stop"}"#;
    assert!(decode_steps(other, Layout::Json).is_err());
}

#[test]
fn run_that_ends_before_its_memory_is_not_asked() {
    let asked = |total: u64| {
        let fields = json!({"on_deadline": "checkpoint", "total_steps": total});
        leaking(1).asked_ranks(&mut Given::new(), 1..SOON, &fields)
    };
    assert_eq!(asked(SOON + BEFORE / 8), NOBODY);
    assert_eq!(asked(2 * LAST), [0]);
}

/// The bytes left for each byte of MEMORY CREEP, before and when it made an ask.
fn left_ratios<L: Fn(u64, u64) -> u64>(job: &Job<L>, steps: Range<u64>) -> [f64; 2] {
    let mut ratios = left_ratios_of(DiagnosisKind::CreepConfirmed, steps, |given, step| {
        !job.asks(given, step..step + 1, &able()).is_empty()
    });
    // The ask is in the answer to the step after the one that was judged.
    ratios.pop();
    *ratios.last_chunk().unwrap()
}

/// The bytes left for each byte of growth of a kind after each step, until the answer to one has
/// an ask.
fn left_ratios_of(
    kind: DiagnosisKind,
    steps: Range<u64>,
    mut is_asked: impl FnMut(&mut Given, u64) -> bool,
) -> Vec<f64> {
    let mut given = Given::new();
    let mut ratios = Vec::new();
    for step in steps {
        let is_last = is_asked(&mut given, step);
        ratios.extend(given.finding(kind).and_then(|finding| {
            let evidence = serde_json::to_value(finding.evidence).unwrap();
            Some(evidence["headroom_bytes"].as_f64()? / evidence["growth_bytes"].as_f64()?)
        }));
        if is_last {
            break;
        }
    }
    ratios
}

#[test]
fn fast_growth_is_asked_once_a_third_of_what_was_left_is_used() {
    let live = |_, step: u64| BASE + step * 3 * LEAK;
    let job = Job { n_ranks: 1, seconds_per_step: 1.0, live, beyond: 0 };
    let [before, judged] = left_ratios(&job, 1..400);
    assert!(before > 2.0 && judged <= 2.0, "{before} {judged}");
}

#[test]
fn critical_growth_of_memory_that_is_nearly_full_is_asked_once_a_ninth_of_what_was_left_is_used()
 {
    let live = |_, step: u64| BASE + step * LEAK / 64;
    let job = Job { n_ranks: 1, seconds_per_step: 0.1, live, beyond: CAPACITY / 1000 * 762 };
    let [before, judged] = left_ratios(&job, 1..3_000);
    assert!(before > 8.0 && before < 8.1 && judged <= 8.0, "{before} {judged}");
}

#[test]
fn growth_of_memory_that_is_nearly_full_is_asked_however_long_it_may_last() {
    let asked_with = |beyond: u64| {
        let live = |_, step: u64| BASE + step * LEAK / 8;
        let job = Job { n_ranks: 1, seconds_per_step: 1.0, live, beyond };
        let mut given = Given::new();
        let asks = job.asks(&mut given, 1..2_001, &able());
        assert!(asks.windows(2).all(|pair| pair[1].0 - pair[0].0 >= BEFORE), "{asks:?}");
        let left = creep(&given).1["oom_eta_lower_seconds"].as_f64().unwrap();
        assert!(left > float(BEFORE), "{left}");
        !asks.is_empty()
    };
    assert!(!asked_with(CAPACITY / 2));
    assert!(asked_with(CAPACITY / 10 * 7));
}

fn asks_to_checkpoint(handled: &Handled) -> usize {
    let is_ask = |of: &&RankRequest| matches!(of.kind, RequestKind::Checkpoint(_));
    handled.receipt.requests.iter().filter(is_ask).count()
}

/// Whether growth by 512 MiB at each of three evaluations is asked on a device of so many MiB, and
/// the bytes left for each byte of it.
fn asked_of_rising(capacity_mib: u64) -> (bool, f64) {
    let mut given = Given::new();
    let mut is_asked = false;
    for step in 1..=116_u64 {
        let live = 20 * GIB + 512 * MIB * (step / 20).saturating_sub(2) + noise(0, step, MIB);
        let marks = if step % 20 == 0 { json!(["eval"]) } else { json!([]) };
        let of = record(
            step,
            &json!({"total_bytes": capacity_mib * MIB, "device": null, "allocated_bytes": live,
                "peak_allocated_bytes": live + GIB, "reserved_bytes": live + GIB,
                "marks": marks, "on_deadline": "checkpoint"}),
        );
        is_asked |= asks_to_checkpoint(&given.push(60.0 * float(step), &[of])) > 0;
    }
    let evidence = given.finding(DiagnosisKind::CreepEarly).unwrap().evidence;
    let evidence = serde_json::to_value(evidence).unwrap();
    let figure = |key: &str| evidence[key].as_f64().unwrap();
    (is_asked, figure("headroom_bytes") / figure("growth_bytes"))
}

#[test]
fn growth_that_may_be_no_leak_is_asked_once_two_thirds_of_what_was_left_are_used() {
    let (is_asked, left_ratio) = asked_of_rising(23_825);
    assert!(is_asked && left_ratio > 0.49 && left_ratio < 0.5, "{is_asked} {left_ratio}");
    let (is_asked, left_ratio) = asked_of_rising(23_840);
    assert!(!is_asked && left_ratio > 0.5 && left_ratio < 0.51, "{is_asked} {left_ratio}");
}

#[test]
fn growth_of_cache_where_memory_is_nearly_full_is_asked_once_half_of_what_was_left_is_used() {
    let ratios = left_ratios_of(DiagnosisKind::Fragmentation, 1..400, |given, step| {
        let live = if step < 30 { GIB } else { 22 * GIB } + noise(0, step, MIB);
        let of = record(
            step,
            &json!({"total_bytes": 23_700 * MIB, "device": null, "allocated_bytes": live,
                    "peak_allocated_bytes": live, "on_deadline": "checkpoint",
                    "reserved_bytes": 22 * GIB + 64 * MIB + 2 * MIB * step}),
        );
        asks_to_checkpoint(&given.push(60.0 * float(step), &[of])) > 0
    });
    let [before, judged] = *ratios.last_chunk().unwrap();
    assert!(before > 1.0 && before < 1.05 && judged <= 1.0, "{before} {judged}");
}

/// The ranks that uneven stairs of so many pages ask on a device of which next to nothing is left.
fn asked_of_stairs(pages: u64) -> Vec<u64> {
    const STAIRS: [u64; 7] = [40, 52, 55, 70, 88, 97, 110];
    let mut given = Given::new();
    let mut asked = Vec::new();
    for step in 1..=130 {
        let n = STAIRS.iter().map(|stair| u64::from(*stair <= step)).sum::<u64>();
        let of = record(
            step,
            &json!({"total_bytes": CAPACITY, "device": null,
            "allocated_bytes": BASE + n * pages * 4096,
            "peak_allocated_bytes": CAPACITY / 1000 * 999, "on_deadline": "checkpoint"}),
        );
        let requests = given.push(float(step), &[of]).receipt.requests;
        asked.extend(requests.iter().map(|request| u64::from(request.rank.rank.get())));
        if step == 1 {
            for kind in [DiagnosisKind::CreepEarly, DiagnosisKind::CreepConfirmed] {
                let (run, rank) = (Run::new("job").unwrap(), Rank::new(0).unwrap());
                let subject = SubjectId::Rank(RankId { run, rank });
                given
                    .at(1.0, &Event::Ack(Ack::new(subject, kind, 3600, "known").unwrap()))
                    .unwrap();
            }
        }
    }
    asked
}

#[test]
fn stairs_are_asked_as_if_a_hundredth_of_the_device_were_left_at_least() {
    // The stairs are asked from half of what is left on: 0.5 % of the device, or 31,457 pages.
    assert_eq!(asked_of_stairs(31_457 * 102 / 700), [0]);
    assert_eq!(asked_of_stairs(31_457 * 98 / 700), NOBODY);
}

/// The ranks that critical creep on memory that is nearly full asks at its newest steps, and the
/// lower bound of its time left.
fn asked_of_critical(seconds_per_step: f64) -> (Vec<u64>, f64) {
    let live = |_, step: u64| BASE + step * LEAK / 16;
    let job = Job { n_ranks: 1, seconds_per_step, live, beyond: CAPACITY / 100 * 75 };
    let mut given = Given::new();
    assert_eq!(job.asked_ranks(&mut given, 1..1_000, &json!({})), NOBODY);
    let asked = job.asked_ranks(&mut given, 1_000..1_005, &able());
    let (severity, evidence) = creep(&given);
    let figure = |key: &str| evidence[key].as_f64().unwrap();
    let left_ratio = figure("headroom_bytes") / figure("growth_bytes");
    assert!(
        severity == Severity::Critical && left_ratio > 2.0 && left_ratio < 8.0,
        "{evidence}"
    );
    (asked, figure("oom_eta_lower_seconds"))
}

#[test]
fn critical_creep_on_memory_that_is_nearly_full_is_asked_early_only_within_half_an_hour() {
    let (_, of_a_second) = asked_of_critical(1.0);
    let within = |seconds: f64| asked_of_critical(seconds / of_a_second);
    let (asked, left) = within(1_790.0);
    assert!((left - 1_790.0).abs() < 5.0, "{left}");
    assert_eq!(asked, [0]);
    let (asked, left) = within(1_810.0);
    assert!((left - 1_810.0).abs() < 5.0, "{left}");
    assert_eq!(asked, NOBODY);
}

fn snapshot_of(rank: u64) -> Event {
    let (run, rank) = (Run::new("job").unwrap(), Rank::new(rank).unwrap());
    Event::SnapshotWanted(RankId { run, rank }, Some(30))
}

#[test]
fn snapshot_that_an_operator_wants_is_in_the_next_answer_to_its_rank_alone() {
    let mut given = Given::new();
    let of = |rank: u64, step: u64| record(step, &json!({"rank": rank}));
    given.push(1.0, &[of(0, 1), of(1, 1)]);
    let id = given.at(2.0, &snapshot_of(1)).unwrap().receipt.id.unwrap();
    assert_eq!(given.push(3.0, &[of(0, 2)]).receipt.requests, []);
    let requests = given.at(4.0, &steps(&[of(1, 2)])).unwrap().receipt.requests;
    assert_eq!(requests.len(), 1);
    assert_eq!((&requests[0].id, requests[0].steps), (&id, 30));
    assert!(matches!(requests[0].kind, RequestKind::Snapshot { .. }));
}

#[test]
fn snapshot_of_a_rank_that_does_not_push_is_refused() {
    let mut given = Given::new();
    given.push(1.0, &[record(1, &json!({}))]);
    assert!(matches!(given.at(2.0, &snapshot_of(5)), Err(Refusal::UnknownSubject(_))));
}
