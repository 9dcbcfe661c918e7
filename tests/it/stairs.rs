//! Live memory in stairs: of a leak at events that are marked or at none, and of jobs that take more on purpose.

use std::ops::Range;

use serde_json::{Value, json};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::units::{GIB, MIB};

/// Steps from one stair to the next.
const PERIOD: u64 = 300;
const STAIR: u64 = 800 * MIB;
/// The number of steps after a stair within which it is known.
const KNOWN_WITHIN: u64 = 40;

/// A job on one card of 24 GiB that holds so many bytes after each step, and 2 GiB more within it.
fn job(live: impl Fn(u64) -> u64 + Copy + 'static) -> Job {
    let peak = move |_, step| live(step) + 2 * GIB;
    Job::new(1, 0)
        .seconds_per_step(0.3)
        .capacity(24 * GIB)
        .live(move |_, step| live(step))
        .peak(peak)
        .reserved(peak)
}

fn staircase(step: u64) -> u64 {
    2 * GIB + step / PERIOD * STAIR
}

fn with_marks(job: Job, marks: &'static [&'static str]) -> Job {
    job.more(
        move |_, step| {
            if step.is_multiple_of(PERIOD) { json!({"marks": marks}) } else { json!({}) }
        },
    )
}

/// The steps at which growth was first rising and first crept in a job of so many steps.
fn raised(job: Job, n_steps: u64) -> [Option<u64>; 2] {
    let ended = stepmem(&["replay", "-"], &[], job.steps(1..n_steps).recording().as_bytes());
    let events: Vec<Value> =
        ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    ["CREEP_EARLY", "CREEP_CONFIRMED"].map(|kind| {
        let event = events.iter().find(|event| event["kind"] == kind)?;
        event["step"].as_u64()
    })
}

/// The steps at which a stair is known.
fn of_stair(n: u64) -> Range<u64> {
    n * PERIOD..n * PERIOD + KNOWN_WITHIN
}

#[test]
fn equal_stairs_without_marks_rise_with_the_third_and_creep_once_no_walk_explains_them() {
    let [rising, creep] = raised(job(staircase), 16 * PERIOD);
    assert!(rising.is_some_and(|step| of_stair(3).contains(&step)), "{rising:?}");
    assert!(creep.is_some_and(|step| step > 6 * PERIOD), "{creep:?}");
}

#[test]
fn stairs_that_are_marked_creep_with_the_fourth() {
    for mark in [&["eval"], &["checkpoint"], &["epoch"]] {
        let [rising, creep] = raised(with_marks(job(staircase), mark), 6 * PERIOD);
        assert!(rising.is_some_and(|step| of_stair(3).contains(&step)), "{mark:?} {rising:?}");
        assert!(creep.is_some_and(|step| of_stair(4).contains(&step)), "{mark:?} {creep:?}");
    }
}

#[test]
fn stairs_that_an_object_grew_with_creep_with_the_fourth() {
    let known = |n: u64| n * PERIOD + KNOWN_WITHIN;
    // From the third stair on an object takes all of the fourth; half a period; or a tenth of it.
    let cases = [
        (known(3), known(4), 1.0, "CREEP_CONFIRMED"),
        (known(3), known(4) - PERIOD / 2, 1.0, "CREEP_EARLY"),
        (known(3), known(4), 0.1, "CREEP_EARLY"),
        (known(2), known(3), 1.0, "CREEP_CONFIRMED"),
    ];
    for (first, last, share, kind) in cases {
        let exporter = Exporter::start(&[]);
        let push = |steps: Range<u64>| exporter.push(&job(staircase).steps(steps).records());
        push(1..last);
        assert_eq!(exporter.status()["findings"][0]["kind"], "CREEP_EARLY", "{first}");
        let stair = 838_860_800.0 * share;
        let report = json!({
            "run": "job", "rank": 0, "outcome": "named", "first_step": first, "last_step": last - 1,
            "holders": [{
                "name": "`Evaluator.results`", "kind": "list", "tensors": 4, "bytes": 4 * STAIR,
                "tensors_per_step": 0.01, "bytes_per_step": stair / 300.0,
            }],
        });
        assert_eq!(exporter.post_to("/v1/holders", report.to_string()).status, 200);
        push(last..known(4).max(last + 10));
        let status = exporter.status();
        assert_eq!(status["findings"][0]["kind"], kind, "{first} {last} {share}");
    }
}

#[test]
fn stairs_and_the_object_that_grew_with_them_outlast_a_restart() {
    let known = |n: u64| n * PERIOD + KNOWN_WITHIN;
    let (reported, last) = (known(4), known(4) + 10);
    let report = json!({
        "run": "job", "rank": 0, "outcome": "named", "first_step": known(3), "last_step": reported - 1,
        "holders": [{
            "name": "`Evaluator.results`", "kind": "list", "tensors": 4, "bytes": 4 * STAIR,
            "tensors_per_step": 0.01, "bytes_per_step": 838_860_800.0 / 300.0,
        }],
    });
    // Between two stairs, right after one, when it is known, and after the report.
    for restarted in [known(3) + 100, 4 * PERIOD + 2, reported, reported + 5] {
        let folder = Folder::new(&format!("stairs-restart-{restarted}"));
        let mut exporter = Some(start(&folder));
        let (mut at, mut is_reported) = (1, false);
        for until in [restarted.min(reported), restarted.max(reported), last] {
            let running = exporter.take().unwrap_or_else(|| start(&folder));
            running.push(&job(staircase).steps(at..until).records());
            at = until;
            if at >= reported && !is_reported {
                is_reported = true;
                assert_eq!(running.post_to("/v1/holders", report.to_string()).status, 200);
            }
            if at == restarted {
                running.stop();
            } else {
                exporter = Some(running);
            }
        }
        let status = exporter.unwrap_or_else(|| start(&folder)).status();
        let found = &status["findings"][0];
        assert_eq!(found["kind"], "CREEP_CONFIRMED", "{restarted} {found:#}");
        assert_eq!(found["evidence"]["holder"]["name"], "`Evaluator.results`", "{restarted}");
    }
}

fn start(folder: &Folder) -> Exporter {
    Exporter::start(&["--state.file", &text(&folder.path("state"))])
}

#[test]
fn jobs_that_take_more_in_stairs_do_not_page() {
    // Each group of layers adds its gradients and the optimizer's state, from the head down.
    let unfreezing = |step: u64| 4 * GIB + (step / PERIOD).min(6) * 400 * MIB;
    let unequal = |step: u64| {
        let groups = [100, 180, 260, 300, 300, 420, 900];
        let n_groups = usize::try_from(step / PERIOD).unwrap().min(groups.len());
        4 * GIB + groups.iter().take(n_groups).sum::<u64>() * MIB
    };
    // What stays live of a batch grows with its length or resolution.
    let curriculum = |step: u64| 4 * GIB + (step / PERIOD).min(5) * 60 * MIB;
    let resizing = |step: u64| 4 * GIB + (128 + 32 * (step / PERIOD).min(4)).pow(2) * 3000;
    for (name, job) in [
        ("unfreezing", job(unfreezing)),
        ("unfreezing of unequal groups", job(unequal)),
        ("unfreezing at epochs", with_marks(job(unfreezing), &["epoch"])),
        ("unfreezing of unequal groups at epochs", with_marks(job(unequal), &["epoch"])),
        ("curriculum", job(curriculum)),
        ("curriculum at epochs", with_marks(job(curriculum), &["epoch"])),
        ("resizing", job(resizing)),
        ("resizing at epochs", with_marks(job(resizing), &["epoch"])),
    ] {
        let [_, creep] = raised(job, 12 * PERIOD);
        assert_eq!(creep, None, "{name}");
    }
}
