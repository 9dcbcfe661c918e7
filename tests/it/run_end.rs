//! The run's own end: growth that it comes before pages nobody, and an end that cannot be believed lowers nothing.

use serde_json::{Value, json};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::{Job, START};
use crate::rig::units::{GIB, MIB, float};

const KIB: u64 = 1 << 10;
const LEAK: u64 = 8 * MIB;
const CAPACITY: u64 = 24 * GIB;
const BASE: u64 = 4 * GIB;
/// The last step whose memory fits.
const LAST: u64 = (CAPACITY - BASE) / LEAK;
/// A step at which the leak is found, long before memory runs out.
const FOUND: u64 = 1_000;

/// Ranks that leak in a straight line, from one step to another; `more` are further fields.
fn leak(
    n_ranks: u64,
    (from, to): (u64, u64),
    more: impl Fn(u64, u64) -> Value + 'static,
) -> Vec<Value> {
    let live = |_, step: u64| BASE + step * LEAK;
    let job = Job::new(n_ranks, 0).steps(from..to).capacity(CAPACITY).seconds_per_step(1.0);
    job.live(live).peak(live).reserved(live).more(more).records()
}

fn total(n: u64) -> impl Fn(u64, u64) -> Value {
    move |_, _| json!({"total_steps": n})
}

/// The severity and the sentence of MEMORY CREEP on a rank.
#[track_caller]
fn creep(exporter: &Exporter, rank: u64) -> (String, String) {
    let findings = exporter.findings();
    let is_it = |of: &&Value| of["kind"] == "CREEP_CONFIRMED" && of["rank"] == rank;
    let creep = findings.iter().find(is_it).unwrap_or_else(|| panic!("{findings:#?}"));
    let text = |key: &str| creep[key].as_str().unwrap().to_owned();
    (text("severity"), text("sentence"))
}

fn severity(exporter: &Exporter, rank: u64) -> String {
    creep(exporter, rank).0
}

/// The severity of a leak that was pushed up to [`FOUND`], of records with these fields.
fn severity_with(more: impl Fn(u64, u64) -> Value + 'static) -> String {
    let exporter = Exporter::start(&[]);
    exporter.push(&leak(1, (0, FOUND), more));
    severity(&exporter, 0)
}

#[test]
fn run_that_ends_before_its_memory_is_told_so_on_every_surface_and_pages_nobody() {
    let exporter = Exporter::start(&[]);
    exporter.push(&leak(1, (0, FOUND + 1), total(1_600)));
    let (severity, sentence) = creep(&exporter, 0);
    assert_eq!(severity, "info");
    let spare = LAST - 1_600;
    let (before, after) =
        sentence.split_once("; the run ends at step 1,600 in 10 min 0 s, ").unwrap();
    assert!(before.contains("out of memory in about "), "{sentence}");
    let (told, rest) = after.split_once(" steps ").unwrap();
    assert_eq!(rest, "before memory does: let it run");
    let told: f64 = told.replace(',', "").parse().unwrap();
    assert!((told - float(spare)).abs() < 0.1 * float(spare), "{told} of {spare}");

    let finding = exporter.finding("CREEP_CONFIRMED").unwrap();
    let end = &finding["evidence"]["run_end"];
    assert_eq!(
        (&end["first"], &end["step"], &end["in_steps"]),
        (&json!("run"), &json!(1_600), &json!(600.0))
    );
    assert!(finding["advice"].as_str().unwrap().starts_with("Let it run"), "{finding}");

    let run = &exporter.status()["runs"][0];
    let time = float(START + 1_600);
    assert_eq!(run["end_step"], 1_600);
    assert!((run["end_time"].as_f64().unwrap() - time).abs() < 2.0, "{run}");
    let metrics = exporter.scrape();
    assert_eq!(metrics[r#"stepmem_run_end_step{run="job"}"#], 1_600.0);
    assert!((metrics[r#"stepmem_run_end_timestamp_seconds{run="job"}"#] - time).abs() < 2.0);
    let level = r#"stepmem_diagnosis_severity{run="job",rank="0",kind="CREEP_CONFIRMED"}"#;
    assert_eq!(metrics[level], 1.0);

    for words in [["status"].as_slice(), &["explain", "--run", "job", "--rank", "0"]] {
        let shown = exporter.asked(words).quiet().replace('\n', " ");
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains("ends at step 1,600"), "{shown}");
        assert!(shown.contains("steps before memory does"), "{shown}");
    }
    let card = exporter.asked(&["summary", "--run", "job"]).quiet();
    let card = card.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(card.contains("steps before memory does"), "{card}");
    let log = exporter.log();
    let is_warned = |entry: &Value| {
        entry["level"] == "WARN" && entry["fields"]["kind"] == "CREEP_CONFIRMED"
    };
    assert!(!log.iter().any(is_warned), "{log:#?}");
}

#[test]
fn severity_follows_from_which_end_comes_first() {
    // At step 1,000, some 1,560 steps are left.
    assert_eq!(severity_with(|_, _| json!({})), "critical");
    assert_eq!(severity_with(total(2_000)), "info", "1.5 times");
    assert_eq!(severity_with(total(2_450)), "warning", "likely, and not clearly");
    assert_eq!(severity_with(total(2_700)), "critical", "memory is out before");
    let deadline = |seconds: u64| move |_: u64, _: u64| json!({"deadline": START + seconds});
    assert_eq!(severity_with(deadline(2_000)), "info");
    assert_eq!(severity_with(deadline(2_700)), "critical");
    let both = |_: u64, _: u64| json!({"deadline": START + 2_000, "total_steps": 10_000});
    assert_eq!(severity_with(both), "info", "the first end counts");
}

#[test]
fn verdict_of_a_plan_is_how_many_restarts_it_takes() {
    let plan = |n: u64| {
        let exporter = Exporter::start(&[]);
        exporter.push(&leak(1, (0, FOUND), total(n)));
        let words =
            creep(&exporter, 0).1.split_once(" after memory does").unwrap().1.to_owned();
        let finding = exporter.finding("CREEP_CONFIRMED").unwrap();
        let is_buys = |of: &&Value| of["claim"] == "restart_buys";
        let said = finding["statements"].as_array().unwrap();
        (words, said.iter().find(is_buys).map(|of| of["value"].as_f64().unwrap()))
    };
    // A start lasts for 2,560 steps of a second.
    let lasts = float(LAST);
    for (n, told) in [
        (4_000, ": one restart from a checkpoint is enough, it buys 42 min "),
        (10_000, ": it takes 3 restarts from a checkpoint, each buys 42 min "),
    ] {
        let (words, buys) = plan(n);
        assert!(words.starts_with(told), "{words}");
        assert!((buys.unwrap() - lasts).abs() < 0.1 * lasts, "{buys:?} of {lasts}");
    }
    assert_eq!(plan(100_000), (": stop it, no restart gets it there".to_owned(), None));
}

/// The part of HIGH PRESSURE's sentence on rank 0 behind its figures, after these records.
#[track_caller]
fn pressed(records: &[Value]) -> String {
    let exporter = Exporter::start(&[]);
    exporter.push(records);
    let finding = exporter.finding("HIGH_PRESSURE").unwrap();
    let sentence = finding["sentence"].as_str().unwrap();
    let said = finding["statements"].as_array().unwrap();
    let is_said = said.iter().any(|of| of["claim"] == "change_run");
    assert_eq!(is_said, finding["evidence"]["is_level"] == true, "{finding}");
    sentence.split_once("GiB").unwrap().1.to_owned()
}

/// A rank whose peaks are at 95 % of its memory, less than that by `below` until a step.
fn full(n_steps: u64, below: impl Fn(u64) -> u64 + Copy + 'static) -> Job {
    let peak = move |_, step: u64| CAPACITY / 100 * 95 - below(step);
    let job = Job::new(1, 0).steps(0..n_steps).capacity(CAPACITY).seconds_per_step(1.0);
    job.live(move |_, step| BASE - below(step)).peak(peak).reserved(peak)
}

#[test]
fn verdict_on_memory_that_is_nearly_full_and_level_is_to_change_the_run() {
    let change = "; its peaks are level: change the run, a restart gains nothing";
    assert_eq!(pressed(&full(1_000, |_| 0).records()), change);
    let total = |n: u64| full(1_000, |_| 0).more(total(n)).records();
    assert_eq!(pressed(&total(100_000)), change, "far from its end");
    assert_eq!(pressed(&total(1_400)), "", "sooner over than it was level");
    assert_eq!(pressed(&full(60, |_| 0).records()), "", "too early to tell");
}

#[test]
fn no_verdict_to_change_the_run_stands_beside_growth_or_peaks_that_rose() {
    let leak = full(1_000, |step| (1_000 - step) * MIB);
    assert_eq!(pressed(&leak.records()), "", "a leak");
    let rose = full(1_000, |step| if step < 800 { GIB } else { 0 }).live(|_, _| BASE);
    assert_eq!(pressed(&rose.records()), "", "peaks of late");
    let slow = full(1_000, |step| (1_000 - step) * 8 * KIB);
    assert_eq!(pressed(&slow.records()), "", "too slow for a trend");
    let beside = |rank: u64, step: u64| if rank == 1 { step * MIB } else { 0 };
    let of_two = Job::new(2, 0).steps(0..1_000).capacity(CAPACITY).seconds_per_step(1.0);
    let peak = |_: u64, _: u64| CAPACITY / 100 * 95;
    let of_two = of_two.live(move |rank, step| BASE + beside(rank, step));
    assert_eq!(pressed(&of_two.peak(peak).reserved(peak).records()), "", "a leak of rank 1");
}

/// Pushes records as two pushers of each rank do, the second one so many records later, and stops the exporter amid them.
fn disturbed(records: &[Value], behind: usize, folder: &Folder) -> Exporter {
    let state = folder.path("state");
    let flags = ["--state.file", state.to_str().unwrap()];
    let mut exporter = Exporter::start(&flags);
    let n_batches = records.chunks(100).count();
    for (n, batch) in records.chunks(100).enumerate() {
        exporter.push(batch);
        let until = (100 * (n + 1)).saturating_sub(behind);
        exporter.push(&records[until.saturating_sub(100)..until]);
        if n == n_batches / 2 {
            exporter.stop();
            exporter = Exporter::start(&flags);
        }
    }
    exporter
}

/// The records with those from a step on an hour earlier.
fn set_back(mut records: Vec<Value>, from: u64) -> Vec<Value> {
    for record in records.iter_mut().filter(|record| record["step"].as_u64() >= Some(from)) {
        record["time"] = json!(record["time"].as_f64().unwrap() - 3600.0);
    }
    records
}

#[test]
fn verdicts_are_the_same_with_a_second_pusher_a_clock_that_goes_back_and_a_restart() {
    // The verdict of a finding, and how many restarts it takes.
    let verdict = |exporter: &Exporter, kind: &str| {
        let finding = exporter.finding(kind).unwrap();
        let said = finding["statements"].as_array().unwrap().clone();
        let verdicts = ["let_run", "restarts", "stop_run", "change_run"];
        let is_verdict = |of: &Value| verdicts.iter().any(|name| of["claim"] == *name);
        let of: Vec<(Value, Value)> = said
            .iter()
            .filter(|of| is_verdict(of))
            .map(|of| (of["claim"].clone(), of["value"].clone()))
            .collect();
        assert_eq!(of.len(), 1, "{finding}");
        of[0].clone()
    };
    let plans = [(1_600, "let_run"), (9_000, "restarts"), (100_000, "stop_run")];
    for (n, claim) in plans {
        let records = leak(1, (0, FOUND), total(n));
        let plain = Exporter::start(&[]);
        plain.push(&records);
        let expected = verdict(&plain, "CREEP_CONFIRMED");
        assert_eq!(expected.0, claim);
        for records in [records.clone(), set_back(records, FOUND / 3)] {
            let exporter = disturbed(&records, 30, &Folder::new("plan"));
            assert_eq!(verdict(&exporter, "CREEP_CONFIRMED"), expected, "{n}");
        }
    }
    let records = full(1_000, |_| 0).records();
    for records in [records.clone(), set_back(records, FOUND / 3)] {
        let exporter = disturbed(&records, 30, &Folder::new("plan"));
        assert_eq!(verdict(&exporter, "HIGH_PRESSURE").0, "change_run");
    }
}

#[test]
fn verdict_is_in_series_while_it_holds_and_a_healthy_rank_has_none() {
    let plan = |exporter: &Exporter| -> Vec<(String, f64)> {
        exporter
            .scrape()
            .into_iter()
            .filter(|(name, _)| name.starts_with("stepmem_plan_"))
            .collect()
    };
    let exporter = Exporter::start(&[]);
    exporter.push(&leak(1, (0, 30), total(10_000)));
    assert_eq!(plan(&exporter), []);
    exporter.push(&leak(1, (30, FOUND), total(10_000)));
    let series = |name: &str| {
        format!(r#"stepmem_plan_{name}{{run="job",rank="0",kind="CREEP_CONFIRMED"}}"#)
    };
    let told = plan(&exporter);
    let value =
        |name: &str| told.iter().find(|(series, _)| series == name).map(|(_, value)| *value);
    assert_eq!(value(&series("restarts")), Some(3.0), "{told:?}");
    let buys = value(&series("restart_buys_seconds")).unwrap();
    assert!((buys - float(LAST)).abs() < 0.1 * float(LAST), "{buys}");
    let info = r#"stepmem_plan_info{run="job",rank="0",kind="CREEP_CONFIRMED",plan="restart"}"#;
    assert_eq!(value(info), Some(1.0), "{told:?}");
    assert_eq!(told.len(), 3, "{told:?}");
    exporter.end("job", &json!({"rank": 0, "outcome": "completed"}));
    assert_eq!(plan(&exporter), []);
}

#[test]
fn total_that_is_exceeded_pages_at_once_and_none_is_believed_after_it() {
    let exporter = Exporter::start(&[]);
    exporter.push(&leak(1, (0, 1_201), total(1_200)));
    assert_eq!(severity(&exporter, 0), "info");
    exporter.push(&leak(1, (1_201, 1_202), total(1_200)));
    assert_eq!(severity(&exporter, 0), "critical");
    let run = &exporter.status()["runs"][0];
    assert_eq!((&run["end_step"], &run["end_time"]), (&Value::Null, &Value::Null));
    assert!(!exporter.scrape().keys().any(|series| series.starts_with("stepmem_run_end")));
    exporter.push(&leak(1, (1_202, 1_300), total(1_400)));
    assert_eq!(severity(&exporter, 0), "critical", "a second total");
}

#[test]
fn total_that_moves_or_is_left_out_is_as_good_as_none() {
    let moving = |_: u64, step: u64| json!({"total_steps": 1_600 - step.min(1)});
    assert_eq!(severity_with(moving), "critical", "once");
    let remaining = |_: u64, step: u64| json!({"total_steps": 2_000 - step});
    assert_eq!(severity_with(remaining), "critical", "the steps that remain");
    let gone = |_: u64, step: u64| {
        if step < FOUND - 1 { json!({"total_steps": 1_600}) } else { json!({}) }
    };
    assert_eq!(severity_with(gone), "critical", "the last record has none");
    let again = |_: u64, step: u64| {
        if step == 500 { json!({}) } else { json!({"total_steps": 1_600}) }
    };
    assert_eq!(severity_with(again), "info", "the same again");
    assert_eq!(severity_with(total(0)), "critical", "0 is none");
    assert_eq!(severity_with(total(10)), "critical", "ten epochs");
    assert_eq!(severity_with(total(1 << 53)), "critical", "far away");
}

#[test]
fn resumed_run_and_second_launch_begin_with_totals_of_their_own() {
    // It resumes at step 5,000; the memory of its process begins anew.
    let resumed = |total: u64| {
        let exporter = Exporter::start(&[]);
        let live = |_, step: u64| BASE + (step - 5_000) * LEAK;
        let job = Job::new(1, 0).steps(5_000..6_000).capacity(CAPACITY);
        let job = job.live(live).peak(live).reserved(live);
        exporter.push(&job.more(move |_, _| json!({"total_steps": total})).records());
        severity(&exporter, 0)
    };
    assert_eq!(resumed(6_600), "info");
    assert_eq!(resumed(1_600), "critical", "the steps of this launch alone");
    assert_eq!(resumed(11_600), "critical", "steps counted twice");

    let exporter = Exporter::start(&[]);
    exporter.push(&leak(1, (0, FOUND), |_, step| json!({"total_steps": 1_500 + step})));
    assert_eq!(severity(&exporter, 0), "critical");
    let second = |_: u64, step: u64| json!({"total_steps": 1_600, "attempt": 1, "time": START + 10_000 + step});
    exporter.push(&leak(1, (0, FOUND), second));
    assert_eq!(severity(&exporter, 0), "info");
}

#[test]
fn ranks_that_go_on_must_agree_on_the_last_step() {
    let of_ranks = |of: fn(u64) -> Value| {
        let exporter = Exporter::start(&[]);
        exporter.push(&leak(2, (0, FOUND), move |rank, _| of(rank)));
        exporter
    };
    let same = of_ranks(|_| json!({"total_steps": 1_600}));
    assert_eq!([0, 1].map(|rank| severity(&same, rank)), ["info", "info"]);
    let different = of_ranks(|rank| json!({"total_steps": 1_600 + rank}));
    assert_eq!([0, 1].map(|rank| severity(&different, rank)), ["critical", "critical"]);
    let one =
        of_ranks(|rank| if rank == 0 { json!({"total_steps": 1_600}) } else { json!({}) });
    assert_eq!([0, 1].map(|rank| severity(&one, rank)), ["critical", "critical"]);
    one.end("job", &json!({"rank": 1, "outcome": "completed"}));
    one.push(&leak(1, (FOUND, FOUND + 1), total(1_600)));
    assert_eq!(severity(&one, 0), "info", "the other one has ended");
    let deadlines = of_ranks(|rank| json!({"deadline": START + 1_990 + 10 * rank}));
    assert_eq!([0, 1].map(|rank| severity(&deadlines, rank)), ["info", "info"]);
    let end = deadlines.status()["runs"][0]["end_time"].as_f64();
    assert_eq!(end, Some(float(START + 2_000)), "the latest");
}

#[test]
fn evaluation_between_steps_and_the_last_one_undo_nothing() {
    let exporter = Exporter::start(&[]);
    exporter.push(&leak(1, (0, FOUND), total(1_600)));
    let between = |seconds: u64, phase: &str| {
        json!({"run": "job", "rank": 0, "step": FOUND - 1, "time": START + FOUND + seconds, "total_steps": 1_600,
            "phase": phase, "allocated_bytes": BASE + FOUND * LEAK, "reserved_bytes": BASE + FOUND * LEAK, "total_bytes": CAPACITY})
    };
    let phases: Vec<Value> = (1..60).map(|n| between(10 * n, "sample")).collect();
    exporter.push(&phases);
    assert_eq!(severity(&exporter, 0), "info", "ten minutes of an evaluation");
    exporter.push(&[between(700, "eval")]);
    assert_eq!(severity(&exporter, 0), "info");
    let phases: Vec<Value> = (71..400).map(|n| between(10 * n, "idle")).collect();
    exporter.push(&phases);
    assert_ne!(severity(&exporter, 0), "info", "an hour without steps is no training");
}

#[test]
fn leak_of_a_run_that_went_to_its_last_step_is_still_one_for_its_card_and_gates() {
    let exporter = Exporter::start(&[]);
    exporter.push(&leak(1, (0, 1_601), total(1_600)));
    let (severity, sentence) = creep(&exporter, 0);
    assert_eq!(severity, "info");
    assert!(
        sentence.contains("; the run ends at step 1,600 in less than a second, "),
        "{sentence}"
    );
    exporter.end("job", &json!({"outcome": "completed"}));
    let issue = &exporter.summary("job")["issues"][0];
    assert_eq!(
        (&issue["kind"], &issue["severity"]),
        (&json!("CREEP_CONFIRMED"), &json!("crit")),
        "{issue}"
    );
    let told = issue["summary"].as_str().unwrap();
    assert!(told.ends_with("; the run ended before, at step 1,600"), "{told}");
}

#[test]
fn deadline_of_the_exporter_is_in_each_record_that_it_keeps() {
    let folder = Folder::new("run_end");
    let directory = text(&folder.path("recordings"));
    let end = "2025-11-24T16:33:20+00:00";
    let arguments = ["--deadline", end, "--record.directory", directory.as_str()];
    let exporter = Exporter::start(&arguments);
    exporter.push(&leak(1, (0, FOUND), |_, _| json!({})));
    let run = &exporter.status()["runs"][0];
    assert_eq!(run["end_time"], 1_764_002_000.0, "{run}");
    assert_eq!(severity(&exporter, 0), "info");
    exporter.stop();
    let replayed = stepmem(&["replay", directory.as_str()], &[], b"");
    assert_eq!(replayed.code, Some(0), "{}", replayed.err);
    let creep = replayed.out.lines().find(|line| line.contains("CREEP_CONFIRMED")).unwrap();
    assert!(creep.contains(r#""severity":"info""#), "{creep}");

    let bad = stepmem(&["serve", "--deadline", "tomorrow"], &[], b"");
    assert_eq!(bad.code, Some(1), "{}", bad.err);
    assert!(
        bad.err.contains("--deadline")
            && bad.err.contains(r#""tomorrow" is neither a time such as"#),
        "{}",
        bad.err
    );
}

#[test]
fn deadline_that_has_passed_lowers_nothing() {
    let more = |_: u64, _: u64| json!({"deadline": START + FOUND - 100});
    assert_eq!(severity_with(more), "critical");
    let more = |_: u64, _: u64| json!({"deadline": START + FOUND - 10});
    assert_eq!(severity_with(more), "info", "schedulers wait before they kill");
}

#[test]
fn end_outlasts_a_restart_of_the_exporter() {
    let folder = Folder::new("run_end_state");
    let path = text(&folder.path("state"));
    let arguments = ["--state.file", path.as_str()];
    let first = Exporter::start(&arguments);
    first.push(&leak(1, (0, FOUND), |_, step| json!({"total_steps": 1_600 + step.min(1)})));
    assert_eq!(severity(&first, 0), "critical");
    first.stop();
    let second = Exporter::start(&arguments);
    second.push(&leak(1, (FOUND, FOUND + 20), total(1_601)));
    assert_eq!(severity(&second, 0), "critical", "it has moved before");
}
