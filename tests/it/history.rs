//! The history of a rank: its memory before anybody looked, and what happened meanwhile.

use serde_json::{Value, json};
use stepmem::store::state::part;
use stepmem_engine::history::{Figures, History, MarkerKind};
use stepmem_types::end::EndOutcome;
use stepmem_types::units::Bytes;

use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::{Job, START};
use crate::rig::units::{GIB, MIB, float};

const POINTS_MAX: usize = 256;
const ENDED_POINTS_MAX: usize = 128;

fn history(exporter: &Exporter, run: &str, rank: u64) -> Value {
    let answer = exporter.get(&format!("/api/v1/runs/{run}/ranks/{rank}/history"), &[]);
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    serde_json::from_str(&answer.body).unwrap()
}

fn column(history: &Value, name: &str) -> Vec<Option<f64>> {
    history[name].as_array().unwrap().iter().map(Value::as_f64).collect()
}

/// The kinds of markers, of a finding with its diagnosis.
fn kinds(history: &Value) -> Vec<String> {
    let markers = history["markers"].as_array().unwrap().iter();
    let kind = |marker: &Value| {
        let words = ["kind", "diagnosis", "severity", "outcome"];
        let words = words.iter().filter_map(|word| marker[word].as_str());
        words.collect::<Vec<_>>().join(" ")
    };
    markers.map(kind).collect()
}

#[test]
fn history_reaches_back_to_the_first_step_with_what_happened_and_its_gaps() {
    let exporter = Exporter::start(&[]);
    let live = |_, step: u64| GIB + step * MIB;
    let marked = |_, step: u64| match step {
        50 => json!({"marks": ["eval", "checkpoint"]}),
        _ => json!({}),
    };
    let job = || Job::new(1, 0).live(live).peak(move |_, step| live(0, step) + GIB);
    exporter.push(&job().steps(1..101).more(marked).records());
    let eval = json!({"run": "job", "rank": 0, "step": 100, "time": float(START) + 101.0,
        "phase": "eval", "allocated_bytes": 9 * GIB, "peak_allocated_bytes": 10 * GIB});
    exporter.push(&[eval]);
    exporter.push(&job().steps(101..201).starting_at(1000.0).attempt(1).records());
    let history = history(&exporter, "job", 0);

    let (time, step) = (column(&history, "time"), column(&history, "step"));
    let (live, peak) =
        (column(&history, "allocated_bytes"), column(&history, "peak_allocated_bytes"));
    assert!(time.len() > 50 && time.len() <= POINTS_MAX, "{}", time.len());
    assert!([&step, &live, &peak].iter().all(|column| column.len() == time.len()));
    assert!(time.is_sorted());
    assert!(time[0].unwrap() - float(START) < 3.0, "{history:#}");
    assert_eq!((step[0], live[0]), (Some(1.0), Some(float(GIB + MIB))));
    assert_eq!(live.last().unwrap().unwrap(), float(GIB + 200 * MIB));
    // The peak of an evaluation is one of the rank, its live memory is not.
    assert!(peak.contains(&Some(float(10 * GIB))) && !live.contains(&Some(float(9 * GIB))));
    let of_loop = kinds(&history).into_iter().filter(|kind| !kind.contains(" CREEP"));
    let of_loop: Vec<String> = of_loop.take(4).collect();
    assert_eq!(of_loop, ["eval", "checkpoint", "eval", "restart"]);
    let [gap] = history["gaps"].as_array().unwrap().as_slice() else { panic!("{history:#}") };
    let gap = usize::try_from(gap.as_u64().unwrap()).unwrap();
    assert!(time[gap].unwrap() - time[gap - 1].unwrap() > 800.0, "{history:#}");
}

#[test]
fn history_of_a_clock_set_back_by_days_keeps_its_order_and_its_newest_figures() {
    let exporter = Exporter::start(&[]);
    let live = |_, step: u64| GIB + step * MIB;
    exporter.push(&Job::new(1, 0).live(live).steps(1..101).records());
    let before = history(&exporter, "job", 0);
    let days = 3.0 * 86_400.0;
    exporter.push(&Job::new(1, 0).live(live).steps(101..201).starting_at(-days).records());
    let history = history(&exporter, "job", 0);
    let time = column(&history, "time");
    assert!(time.is_sorted() && time.len() <= column(&before, "time").len(), "{history:#}");
    assert_eq!(time.first(), column(&before, "time").first());
    assert!(time.last().unwrap().unwrap() - float(START) < 110.0, "{history:#}");
    let newest = column(&history, "allocated_bytes").last().copied().flatten();
    assert_eq!(newest, Some(float(GIB + 200 * MIB)));
    assert_eq!(column(&history, "step").last().copied().flatten(), Some(200.0));
}

#[test]
fn history_has_when_findings_began_and_outlasts_a_restart_of_the_exporter() {
    let folder = Folder::new("history");
    let start = || Exporter::start(&["--state.file", &text(&folder.path("state"))]);
    let first = start();
    first.push(&Job::leaking("leaky", 0..1500, 4 * MIB).records());
    let before = history(&first, "leaky", 2);
    assert!(
        kinds(&before).contains(&"raised CREEP_CONFIRMED warning".to_owned()),
        "{before:#}"
    );
    first.stop();
    let second = start();
    assert_eq!(history(&second, "leaky", 2), before);
}

#[test]
fn history_has_the_number_of_live_blocks_where_the_allocator_counts_them() {
    let folder = Folder::new("history-blocks");
    let start = || Exporter::start(&["--state.file", &text(&folder.path("state"))]);
    let exporter = start();
    // The allocator of the second attempt does not count them.
    let counted = |_, step: u64| match step {
        50..60 => json!({}),
        _ => json!({"live_blocks": 700 + step}),
    };
    exporter.push(&Job::new(1, 100).more(counted).records());
    let uncounted = Job::new(1, 0).steps(101..151).attempt(1);
    exporter.push(&uncounted.more(|_, _| json!({"live_blocks": 0})).records());
    let before = history(&exporter, "job", 0);
    let (step, blocks) = (column(&before, "step"), column(&before, "live_blocks"));
    for (step, blocks) in step.iter().zip(&blocks) {
        let known = step.filter(|step| *step <= 100.0 && !(50.0..60.0).contains(step));
        assert_eq!(*blocks, known.map(|step| 700.0 + step), "{before:#}");
    }
    assert_eq!(before["gaps"].as_array().unwrap().len(), 1, "{before:#}");
    exporter.stop();
    assert_eq!(history(&start(), "job", 0), before);
    let without = start_without_blocks();
    assert!(column(&history(&without, "job", 0), "live_blocks").iter().all(Option::is_none));
}

/// An exporter of a rank whose client does not read the number.
fn start_without_blocks() -> Exporter {
    let exporter = Exporter::start(&[]);
    exporter.push(&Job::new(1, 20).records());
    exporter
}

#[test]
fn history_of_an_ended_rank_stays_with_its_end() {
    let exporter = Exporter::start(&[]);
    exporter.push(&Job::new(2, 1000).records());
    let end = json!({"rank": 1, "outcome": "oom", "requested_bytes": GIB});
    assert_eq!(exporter.post_to("/v1/runs/job/end", end.to_string()).status, 200);
    let history = history(&exporter, "job", 1);
    assert_eq!(kinds(&history)[0], "end oom");
    let n_points = column(&history, "time").len();
    assert!((30..=ENDED_POINTS_MAX).contains(&n_points), "{n_points}");
}

#[test]
fn ranks_of_a_run_are_at_the_same_times() {
    let exporter = Exporter::start(&[]);
    let live = |rank: u64, step: u64| (rank + 1) * GIB + step * MIB;
    exporter.push(&Job::new(1, 400).live(live).records());
    let late = Job::new(1, 0).first_rank(1).steps(201..401);
    exporter.push(&late.live(live).records());
    let answer = exporter.get("/api/v1/runs/job/history", &[]);
    let run: Value = serde_json::from_str(&answer.body).unwrap();
    let time = column(&run, "time");
    let [all, late] = run["ranks"].as_array().unwrap().as_slice() else { panic!("{run:#}") };
    let (all, late) = (column(all, "allocated_bytes"), column(late, "allocated_bytes"));
    assert_eq!((time.len(), all.len(), late.len()), (POINTS_MAX, POINTS_MAX, POINTS_MAX));
    assert!(all.iter().all(Option::is_some));
    assert!(late.iter().take(120).all(Option::is_none) && late.last().unwrap().is_some());
    assert_eq!(all.last().unwrap().unwrap(), float(GIB + 400 * MIB));
}

#[test]
fn run_of_one_push_has_one_time() {
    let exporter = Exporter::start(&[]);
    exporter.push(&Job::new(2, 1).starting_at(0.04).records());
    let run: Value = exporter.get("/api/v1/runs/job/history", &[]).json();
    assert_eq!(column(&run, "time").len(), 1, "{run}");
    for rank in run["ranks"].as_array().unwrap() {
        assert_eq!(rank["allocated_bytes"], json!([GIB]), "{run}");
    }
}

#[test]
fn history_of_what_is_not_held_is_not_found() {
    let exporter = Exporter::start(&[]);
    exporter.push(&Job::new(1, 3).records());
    for (path, status) in [
        ("/api/v1/runs/job/ranks/7/history", 404),
        ("/api/v1/runs/other/ranks/0/history", 404),
        ("/api/v1/runs/other/history", 404),
        ("/api/v1/runs/job/ranks/x/history", 400),
        ("/api/v1/runs/job/ranks/0/history", 200),
    ] {
        assert_eq!(exporter.get(path, &[]).status, status, "{path}");
    }
}

#[test]
fn saved_history_takes_no_more_than_its_bound() {
    let mut history = History::default();
    let bytes = Bytes::new(1 << 43).ok();
    for step in 0..300_000_u32 {
        history.add(&Figures {
            time: 0.1 * f64::from(step),
            step: Some(u64::from(u32::MAX) - 2),
            allocated: bytes,
            peak_allocated: bytes,
            reserved: bytes,
            host: bytes,
            live_blocks: Some((1 << 31) - 2),
            follows_gap: true,
        });
        history.mark(MarkerKind::End(EndOutcome::Oom), None);
        if step % 1000 == 0 {
            let saved = part(&history).unwrap().len();
            assert!(saved <= History::BYTES_MAX, "{saved}");
        }
    }
    history.release();
    assert!(part(&history).unwrap().len() <= History::ENDED_BYTES_MAX);
}
