//! The numbers by which a report on what holds the memory agrees with growth, each from both sides.

use serde_json::{Value, json};

use stepmem_engine::status::FindingStatus;
use stepmem_engine::wire::decode_holders;
use stepmem_engine::{DiagnosisKind, EngineConfig, Event, HoldersReport};

use crate::rig::{GIB, Given, MIB, float, noise, record};

const INSTANCE: &str = "00000000000000aa";
/// The steps of the leak, and what each of them keeps.
const STEPS: u64 = 240;
const LEAK: u64 = 100 * MIB;
/// The pace, by which a fifth of the leak would last for longer than creep does.
const SECONDS_PER_STEP: f64 = 400.0;
const END: f64 = SECONDS_PER_STEP * 240.0;
/// A number of steps after which the holder is full, and fits.
const LEFT: u64 = 100;

/// A leak on a device of 80 GiB, or on a host of as much.
fn leak(device: &str) -> Given {
    let mut given = Given::new();
    for step in 1..=STEPS {
        train(&mut given, device, step);
    }
    given.tick(END);
    given
}

fn train(given: &mut Given, device: &str, step: u64) {
    let live = 20 * GIB + LEAK * step + noise(0, step, MIB);
    let own = json!({"allocated_bytes": live, "instance": INSTANCE, "device": device});
    given
        .at(SECONDS_PER_STEP * float(step), &crate::rig::steps(&[record(step, &own)]))
        .unwrap();
}

/// The finding of the leak.
fn creep(given: &Given) -> FindingStatus {
    let kinds = [DiagnosisKind::CreepConfirmed, DiagnosisKind::HostCreep];
    kinds.into_iter().find_map(|kind| given.finding(kind)).unwrap()
}

fn evidence(given: &Given) -> Value {
    serde_json::to_value(creep(given).evidence).unwrap()
}

/// The holder that takes all of the growth of the leak: it gets an item with each step.
#[derive(Clone, Copy)]
struct Holder {
    /// The step at which it was measured.
    step: u64,
    bytes_per_step: f64,
    /// The bytes of its items on average, as a multiple of those of a new one.
    of_new: f64,
    /// Steps from then on until it is full.
    left: u64,
}

impl Holder {
    fn of_growth(given: &Given) -> Self {
        let evidence = evidence(given);
        let figure = |key: &str| evidence[key].as_f64().unwrap();
        let bytes_per_step = figure("growth_bytes") / (float(STEPS) - figure("onset_step"));
        Self { step: STEPS, bytes_per_step, of_new: 1.0, left: LEFT }
    }

    fn of_share(self, share: f64) -> Self {
        Self { bytes_per_step: share * self.bytes_per_step, ..self }
    }

    /// Has the process of the rank report it, and the rank judged.
    fn report(self, given: &mut Given) {
        let bytes = self.of_new * self.bytes_per_step * float(self.step);
        report(
            given,
            &json!({"bytes": format!("{bytes:.0}").parse::<u64>().unwrap(),
                "bytes_per_step": self.bytes_per_step, "items": self.step,
                "items_max": self.step + self.left, "items_per_step": 1}),
            &json!({"last_step": self.step}),
        );
    }
}

/// Reports a holder with these fields of its own and of the report, and has the rank judged.
fn report(given: &mut Given, holder: &Value, fields: &Value) {
    let mut named = json!({"name": "`buffer`", "kind": "deque", "tensors": 100, "bytes": GIB,
        "tensors_per_step": 1, "bytes_per_step": LEAK});
    named.as_object_mut().unwrap().extend(holder.as_object().unwrap().clone());
    let mut report = json!({"run": "job", "rank": 0, "instance": INSTANCE, "outcome": "named",
        "holders": [named]});
    report.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let report = decode_holders(report.to_string().as_bytes()).unwrap();
    let report = HoldersReport { is_known: true, ..report };
    given.at(END, &Event::HoldersReport(report)).unwrap();
    given.tick(END);
}

/// The reason that the end of a holder withholds no page: of one that is reported first, and of
/// one that takes the place of another that did.
fn doubts(device: &str, change: impl Fn(Holder) -> Holder) -> [Value; 2] {
    [false, true].map(|is_withheld| {
        let mut given = leak(device);
        let holder = Holder::of_growth(&given);
        let doubt = |given: &Given| evidence(given)["filling"].get("doubt").cloned();
        if is_withheld {
            holder.report(&mut given);
            assert_eq!(doubt(&given), None);
        }
        change(holder).report(&mut given);
        assert!(evidence(&given)["filling"].is_object());
        doubt(&given).unwrap_or_default()
    })
}

const NONE: Value = Value::Null;

fn doubt(name: &str) -> Value {
    json!(name)
}

#[test]
fn bound_of_nine_tenths_of_the_growth_withholds_its_page() {
    let of = |share| doubts("GPU-0", |holder| holder.of_share(share));
    let part = || doubt("part_of_growth");
    assert_eq!(of(0.91), [NONE, NONE]);
    assert_eq!(of(0.89), [part(), NONE]);
    assert_eq!(of(0.86), [part(), NONE]);
    assert_eq!(of(0.84), [part(), part()]);
}

#[test]
fn bound_of_a_quarter_more_than_the_growth_is_of_other_memory() {
    let of = |share| doubts("GPU-0", |holder| holder.of_share(share));
    let part = || doubt("part_of_growth");
    assert_eq!(of(1.24), [NONE, NONE]);
    assert_eq!(of(1.26), [part(), NONE]);
    assert_eq!(of(1.29), [part(), NONE]);
    assert_eq!(of(1.31), [part(), part()]);
}

#[test]
fn bound_of_items_that_differ_by_a_tenth_withholds_no_page() {
    // The share by which a new item is smaller than all are on average.
    let of =
        |share: f64| doubts("GPU-0", |holder| Holder { of_new: 1.0 / (1.0 - share), ..holder });
    let vary = || doubt("items_vary");
    assert_eq!(of(0.095), [NONE, NONE]);
    assert_eq!(of(0.105), [vary(), NONE]);
    assert_eq!(of(0.145), [vary(), NONE]);
    assert_eq!(of(0.155), [vary(), vary()]);
}

#[test]
fn host_memory_that_grows_three_tenths_faster_than_its_holder_is_still_that_holder_s() {
    let of = |growth: f64| doubts("cpu", |holder| holder.of_share(1.0 / growth));
    let part = || doubt("part_of_growth");
    assert_eq!(of(1.29), [NONE, NONE]);
    assert_eq!(of(1.31), [part(), NONE]);
    assert_eq!(of(1.34), [part(), NONE]);
    assert_eq!(of(1.36), [part(), part()]);
}

/// What is said of a holder that gains this share of the leak, and the first thing to check.
fn said(share: f64, holder: &Value, fields: &Value) -> String {
    said_of(leak("GPU-0"), share, holder, fields)
}

fn said_of(mut given: Given, share: f64, holder: &Value, fields: &Value) -> String {
    let slope = evidence(&given)["slope_bytes_per_step"].as_f64().unwrap();
    let mut own = json!({"bytes_per_step": share * slope});
    own.as_object_mut().unwrap().extend(holder.as_object().unwrap().clone());
    report(&mut given, &own, fields);
    let creep = creep(&given);
    format!("{} {}", creep.sentence, creep.advice)
}

#[test]
fn holder_has_all_of_the_growth_from_19_twentieths_on() {
    let has_all = |share| said(share, &json!({}), &json!({})).contains("all of the growth");
    assert_eq!((has_all(0.951), has_all(0.949)), (true, false));
}

#[test]
fn tensors_of_less_than_a_tenth_of_the_growth_keep_it_alive() {
    let keep_more = |share| said(share, &json!({}), &json!({})).contains("keep alive");
    assert_eq!((keep_more(0.099), keep_more(0.101)), (true, false));
}

#[test]
fn holder_of_less_than_three_items_in_four_steps_gets_them_not_at_every_step() {
    let is_rare = |rate: f64| {
        said(1.0, &json!({"added_per_step": rate}), &json!({})).contains("not at every step")
    };
    assert_eq!((is_rare(0.749), is_rare(0.751)), (true, false));
}

#[test]
fn holder_that_gets_an_item_with_each_evaluation_gets_it_there() {
    let is_there = |per_evaluation: f64| {
        let mut given = Given::new();
        for step in 1..=STEPS {
            let marks = if step % 20 == 0 { json!(["eval"]) } else { json!([]) };
            let live = 20 * GIB + LEAK * step + noise(0, step, MIB);
            let own = json!({"allocated_bytes": live, "instance": INSTANCE, "marks": marks});
            given.push(SECONDS_PER_STEP * float(step), &[record(step, &own)]);
        }
        let steps = evidence(&given)["steps_per_event"].as_f64().unwrap();
        let added = json!({"added_per_step": per_evaluation / steps});
        said_of(given, 1.0, &added, &json!({})).contains("at evaluations")
    };
    assert_eq!((is_there(0.401), is_there(0.399)), (true, false));
    assert_eq!((is_there(1.249), is_there(1.251)), (true, false));
}

#[test]
fn memory_that_was_freed_and_stays_with_glibc_is_told_from_64_kib_a_step_on() {
    let is_told = |free: u64| {
        let at = json!({"kind": "allocating line", "file": "train.py", "line": 9});
        let lines = json!({"outcome": "named", "malloc_free_bytes_per_step": free});
        said(1.0, &at, &json!({"lines": lines})).contains("freed and kept by glibc")
    };
    assert_eq!((is_told(65_536), is_told(65_535)), (true, false));
}

#[test]
fn bound_is_known_for_two_searches_of_ten_minutes() {
    let after = |seconds: f64| {
        let mut given = leak("GPU-0");
        Holder::of_growth(&given).report(&mut given);
        let live = 20 * GIB + LEAK * (STEPS + 1);
        let own = json!({"allocated_bytes": live, "instance": INSTANCE});
        given.push(END + seconds, &[record(STEPS + 1, &own)]);
        evidence(&given)["filling"].get("doubt").cloned().unwrap_or_default()
    };
    assert_eq!((after(1200.0), after(1200.1)), (NONE, doubt("outdated")));
}

#[test]
fn bound_may_be_reached_later_than_reported_by_a_fiftieth() {
    let after = |steps: u64| {
        let mut given = leak("GPU-0");
        Holder { left: 200, ..Holder::of_growth(&given) }.report(&mut given);
        for step in STEPS + 1..=STEPS + steps {
            let own = json!({"allocated_bytes": 20 * GIB + LEAK * step, "instance": INSTANCE});
            given.push(END + float(step - STEPS), &[record(step, &own)]);
        }
        evidence(&given)["filling"].get("doubt").cloned().unwrap_or_default()
    };
    // Growth is seen two steps after the 4 that it may be late.
    assert_eq!((after(206), after(207)), (NONE, doubt("past_its_end")));
}

#[test]
fn thirty_two_ranks_of_a_run_are_asked_within_ten_minutes_once_one_has_a_bound() {
    let config = EngineConfig { heap_scans_on_creep: true, ..EngineConfig::default() };
    let mut given = Given::with(config);
    let mut asked = Vec::new();
    for step in 1..=500 {
        let of = |rank: u64| {
            record(
                step,
                &json!({"rank": rank, "device": format!("GPU-{rank}"),
                "allocated_bytes": 4 * GIB + 100 * MIB * step}),
            )
        };
        let records: Vec<Value> = (0..34).map(of).collect();
        for request in given.push(float(step), &records).receipt.requests {
            let rank = request.rank.rank.get();
            asked.push(rank);
            let holder = json!({"name": "`buffer`", "kind": "deque", "tensors": 100, "bytes": GIB,
                "tensors_per_step": 1, "bytes_per_step": 100 * MIB, "items": step,
                "items_max": 2 * step, "items_per_step": 1});
            let report = json!({"run": "job", "rank": rank, "id": request.id,
                "outcome": "named", "holders": [holder]});
            let report = decode_holders(report.to_string().as_bytes()).unwrap();
            let report = HoldersReport { is_known: true, ..report };
            given.at(float(step), &Event::HoldersReport(report)).unwrap();
        }
    }
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked.len(), 32);
}
