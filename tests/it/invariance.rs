//! Changes that must not change the findings: the numbers of the ranks, records that come twice or late, a clock that goes
//! back, and how records are put into pushes.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};
use serde_json::{Value, json};
use stepmem_engine::wire::decode_recorded;
use stepmem_engine::{
    Engine, EngineConfig, Severity, Transition as FullTransition, TransitionState,
};
use stepmem_types::units::Uptime;

use crate::rig::exporter::Exporter;
use crate::rig::job::Job;
use crate::rig::noise::noise;
use crate::rig::units::{GIB, MIB};

const STEPS: u64 = 900;
const LEAKING: u64 = 1;

/// Three ranks of one step a second with 16 MiB of noise; one leaks 24 MiB a step, so that it creeps before the end.
fn job(seed: u64) -> Vec<Value> {
    job_until(seed, STEPS, STEPS)
}

/// The same job of so many steps, in which growth ends earlier.
fn job_until(seed: u64, grows_until: u64, n_steps: u64) -> Vec<Value> {
    let live = move |rank, step: u64| {
        let leaked = if rank == LEAKING { 24 * MIB * step.min(grows_until) } else { 0 };
        let of_rank = seed.wrapping_mul(3).wrapping_add(rank);
        20 * GIB + noise(of_rank, step, 16 * MIB) + leaked
    };
    let job = Job::new(3, 0).steps(0..n_steps).reserved(|_, _| 64 * GIB);
    job.live(live).peak(move |rank, step| live(rank, step) + 10 * GIB).records()
}

/// A transition: rank, kind, whether it was raised, and the step.
type Transition = (u32, &'static str, bool, Option<u64>);

/// The transitions of records that arrive in this order, and how many restarts the engine counted.
fn transitions(records: &[Value]) -> (Vec<Transition>, u64) {
    let (all, n_restarts) = engine_transitions(records);
    let short = |it: FullTransition| {
        let rank = it.subject.rank().unwrap().rank.get();
        (rank, it.kind.label(), it.state == TransitionState::Raised, it.step)
    };
    (all.into_iter().map(short).collect(), n_restarts)
}

fn engine_transitions(records: &[Value]) -> (Vec<FullTransition>, u64) {
    let began = records[0]["time"].as_f64().unwrap();
    let mut engine = Engine::new(EngineConfig::default(), began);
    let mut now = Uptime::default();
    let mut transitions = Vec::new();
    for record in records {
        let line = record.to_string();
        let (event, _) = decode_recorded(line.as_bytes()).unwrap();
        let since = record["time"].as_f64().unwrap() - began;
        now = now.max(Uptime(Duration::try_from_secs_f64(since).unwrap_or_default()));
        transitions.extend(engine.handle(&event, now).unwrap().transitions);
    }
    (transitions, engine.records().restarted)
}

/// The transitions of creep.
fn creep(all: &[Transition]) -> Vec<Transition> {
    all.iter().filter(|it| it.1.starts_with("CREEP")).copied().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn numbers_of_ranks_do_not_matter(noise in any::<u64>(), numbers in proptest::collection::btree_set(0_u32..=1_048_575, 3), turn in 0_usize..3) {
        let mut numbers: Vec<u32> = numbers.into_iter().collect();
        numbers.rotate_left(turn);
        let plain = job(noise);
        let renamed: Vec<Value> = plain.iter().cloned().map(|mut record| {
            record["rank"] = json!(numbers[usize::try_from(record["rank"].as_u64().unwrap()).unwrap()]);
            record
        }).collect();
        let expected: BTreeSet<Transition> = transitions(&plain).0.into_iter()
            .map(|(rank, kind, is_raised, step)| (numbers[usize::try_from(rank).unwrap()], kind, is_raised, step))
            .collect();
        let leaking = numbers[usize::try_from(LEAKING).unwrap()];
        prop_assert!(expected.iter().any(|it| it.0 == leaking && it.1 == "CREEP_CONFIRMED"));
        prop_assert!(expected.iter().all(|it| it.0 == leaking || it.1 == "FRAGMENTATION"));
        prop_assert_eq!(transitions(&renamed).0.into_iter().collect::<BTreeSet<_>>(), expected);
    }

    #[test]
    fn records_that_come_twice_or_late_do_not_matter(noise in any::<u64>(), every in 1_usize..20, by in 1_usize..60) {
        let plain = job(noise);
        let mut disturbed = Vec::new();
        for (idx, record) in plain.iter().enumerate() {
            disturbed.push(record.clone());
            if idx % every == 0 {
                disturbed.push(record.clone());
                disturbed.push(plain[idx.saturating_sub(3 * by)].clone());
            }
        }
        let (disturbed, n_restarts) = transitions(&disturbed);
        prop_assert_eq!(disturbed, transitions(&plain).0);
        prop_assert_eq!(n_restarts, 0);
    }

    #[test]
    fn clock_that_goes_back_does_not_begin_a_new_life(noise in any::<u64>(), at in 1_u64..STEPS, by in 1_u32..100_000) {
        let plain = job(noise);
        let turned: Vec<Value> = plain.iter().cloned().map(|mut record| {
            if record["step"].as_u64().unwrap() >= at {
                record["time"] = json!(record["time"].as_f64().unwrap() - f64::from(by));
            }
            record
        }).collect();
        let (turned, n_restarts) = transitions(&turned);
        prop_assert_eq!(n_restarts, 0);
        prop_assert_eq!(creep(&turned), creep(&transitions(&plain).0));
    }
}

/// Steps, severities and the step since which it is level, of the findings of growth.
fn levels(records: &[Value]) -> Vec<(Option<u64>, Severity, Value)> {
    let creeps = engine_transitions(records)
        .0
        .into_iter()
        .filter(|it| it.kind.label() == "CREEP_CONFIRMED");
    creeps
        .map(|it| {
            let evidence = serde_json::to_value(&it.evidence).unwrap();
            (it.step, it.severity, evidence["level_since_step"].clone())
        })
        .collect()
}

#[test]
fn growth_ends_where_it_did_wherever_the_clock_goes_back() {
    let plain = job_until(7, 700, 2000);
    let expected = levels(&plain);
    let is_level = |it: &&(Option<u64>, Severity, Value)| {
        it.2.as_u64().is_some_and(|since| since.abs_diff(700) < 40)
    };
    assert!(expected.iter().any(|it| is_level(&it)), "{expected:?}");
    // While it grows, as it ends, before that is known, and afterwards.
    for at in [300, 699, 720, 1500] {
        for by in [10.0, 50_000.0] {
            let mut turned = plain.clone();
            for record in turned.iter_mut().filter(|it| it["step"].as_u64() >= Some(at)) {
                record["time"] = json!(record["time"].as_f64().unwrap() - by);
            }
            assert_eq!(levels(&turned), expected, "{at} {by}");
        }
    }
}

#[test]
fn how_records_are_put_into_pushes_does_not_matter() {
    let records = job(7);
    let [one, many] = [1, 500].map(|n_records| {
        let exporter = Exporter::start(&[]);
        for batch in records.chunks(n_records) {
            let body =
                if n_records == 1 { batch[0].to_string() } else { json!(batch).to_string() };
            assert_eq!(exporter.post(body).status, 200);
        }
        exporter.await_metrics("the creep", |metrics| {
            metrics.contains_key(
                "stepmem_diagnosis_severity{run=\"job\",rank=\"1\",kind=\"CREEP_CONFIRMED\"}",
            )
        });
        let status = exporter.status();
        let kept = ["rank", "step", "steps_total", "creep", "headroom_bytes", "oom_eta_steps"];
        let ranks = status["ranks"].as_array().unwrap().iter();
        ranks.map(|rank| kept.map(|key| rank[key].clone())).collect::<Vec<_>>()
    });
    assert_eq!(one, many);
}
