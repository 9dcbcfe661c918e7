//! The numbers of requests for snapshots: how often, of whom and for how long, each from both sides.

use std::time::Duration;

use serde_json::{Value, json};

use stepmem_engine::wire::decode_snapshot;
use stepmem_engine::{
    AnalysisOutcome, Effect, EngineConfig, Event, RankRequest, RequestKind, SnapshotAnalysis,
    SnapshotSettings,
};
use stepmem_types::ids::{Rank, RankId, Run};
use stepmem_types::site::{LeakSite, SiteVerdict};

use crate::rig::{GIB, Given, MIB, float, record, steps};

/// An engine that asks ranks that grow for a snapshot, and reads it.
fn asking() -> Given {
    let snapshots = SnapshotSettings {
        on_creep: true,
        read_directory: Some("/snapshots".into()),
        ..SnapshotSettings::default()
    };
    let rank_ttl = Duration::from_hours(2);
    Given::with(EngineConfig { snapshots, rank_ttl, ..EngineConfig::default() })
}

/// Pushes a step of ranks that leak 200 MiB a step, each from 60 steps after the one before it on.
/// Returns the snapshots that they are asked for.
fn leaks(given: &mut Given, n_ranks: u64, step: u64, seconds: f64) -> Vec<RankRequest> {
    let of = |rank: u64| {
        record(
            step,
            &json!({"rank": rank, "device": format!("GPU-{rank}"),
            "allocated_bytes": 4 * GIB + 200 * MIB * step.saturating_sub(60 * rank)}),
        )
    };
    let records: Vec<Value> = (0..n_ranks).map(of).collect();
    let mut requests = given.push(seconds, &records).receipt.requests;
    requests.retain(|request| matches!(request.kind, RequestKind::Snapshot { .. }));
    requests
}

/// Reports a snapshot that was asked for. Returns the number under which it is to be analyzed.
fn report(
    given: &mut Given,
    seconds: f64,
    request: &RankRequest,
    fields: &Value,
) -> Option<u64> {
    let mut report = json!({"run": "job", "rank": request.rank.rank.get(), "id": &request.id});
    report.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let report = decode_snapshot(report.to_string().as_bytes(), None).unwrap();
    let handled = given.at(seconds, &Event::SnapshotReport(report)).unwrap();
    handled.effects.iter().find_map(|effect| match effect {
        Effect::Analyze(request) => Some(request.number),
        _ => None,
    })
}

#[test]
fn snapshot_is_waited_for_ten_minutes_and_twice_the_time_of_its_steps() {
    let is_wanted = |seconds: f64| {
        let mut given = Given::new();
        given.push(1.0, &[record(1, &json!({}))]);
        let rank = RankId { run: Run::new("job").unwrap(), rank: Rank::new(0).unwrap() };
        given.at(2.0, &Event::SnapshotWanted(rank, Some(30))).unwrap();
        assert_eq!(given.push(400.0, &[record(2, &json!({}))]).receipt.requests.len(), 1);
        given.tick(seconds);
        let answer = given.at(seconds, &steps(&[record(3, &json!({}))])).unwrap();
        answer.receipt.requests.len() == 1
    };
    // A second a step where the pace is not known.
    assert_eq!((is_wanted(662.0), is_wanted(662.1)), (true, false));
}

#[test]
fn snapshot_of_steps_slower_than_ten_minutes_is_waited_for_as_if_they_took_as_long() {
    let is_wanted = |later: f64| {
        let mut given = asking();
        let at = |step: u64| 700.0 * float(step);
        let (mut step, mut until) = (1, f64::INFINITY);
        while at(step) < until {
            if let [request] = &leaks(&mut given, 1, step, at(step))[..] {
                let (millis, _) = request.id.split_once('-').unwrap();
                until = millis.parse::<f64>().unwrap() / 1000.0 + later;
                assert_eq!(request.steps, 20);
            }
            step += 1;
            assert!(step < 200);
        }
        given.tick(until);
        leaks(&mut given, 1, step, until).len() == 1
    };
    let allowed = 600.0 + 2.0 * 20.0 * 600.0;
    assert_eq!((is_wanted(allowed), is_wanted(allowed + 0.1)), (true, false));
}

#[test]
fn rank_whose_snapshot_is_too_short_is_asked_once_more_for_three_times_as_many_steps() {
    let mut given = asking();
    let mut asked = Vec::new();
    for step in 1..=120 {
        for request in leaks(&mut given, 1, step, float(step)) {
            asked.push(request.steps);
            let written =
                json!({"outcome": "written", "path": "/a/0.pickle", "file": "0.pickle"});
            let number = report(&mut given, float(step), &request, &written).unwrap();
            let analysis = SnapshotAnalysis {
                outcome: AnalysisOutcome::Analysed,
                reason: None,
                leak: Some(LeakSite::without_line(SiteVerdict::InsufficientHistory, 2)),
                oom: None,
                timeline: None,
            };
            let analyzed = Event::SnapshotAnalyzed(number, Box::new(analysis));
            given.at(float(step), &analyzed).unwrap();
        }
    }
    assert_eq!(asked, [20, 60]);
}

#[test]
fn two_ranks_of_a_run_are_asked_about_one_growth() {
    let mut given = asking();
    let mut asked = Vec::new();
    for step in 1..=240 {
        for request in leaks(&mut given, 3, step, float(step)) {
            asked.push(request.rank.rank.get());
            let failed = json!({"outcome": "failed", "error": "no space is left"});
            assert_eq!(report(&mut given, float(step), &request, &failed), None);
        }
    }
    assert_eq!(asked, [0, 1]);
}
