//! Leaks by several states of one process, without a trace: what is alive at the ends of its steps, compared by address.

use std::collections::{BTreeSet, VecDeque};
use std::fs;

use serde_json::Value;
use stepmem_snapshot::{Block, Device, Segment, Snapshot, State, write};

use crate::rig::command::{stepmem, words};
use crate::rig::folder::{Folder, text};
use crate::rig::noise::Noise;
use crate::rig::schema::{holds, schema};
use crate::rig::snapshot::{answer, page};
use crate::rig::snapshot_job::{Job, KIB, MIB, files, list, states};
use crate::rig::snapshot_programs::{LEAKING_FILE, Program, Truth};

/// The newest so many.
fn ring(n_steps: u64, from: u64, length: usize) -> Vec<Vec<u8>> {
    let mut held = VecDeque::new();
    states(n_steps, |job, step| {
        if step >= from {
            held.push_back(job.make(2 * MIB, job.lines.keep));
        }
        if held.len() > length {
            job.drop(held.pop_front().unwrap());
        }
    })
}

/// Emptied in each so-many-th step.
fn cleared(n_steps: u64, every: u64) -> Vec<Vec<u8>> {
    let mut held = Vec::new();
    states(n_steps, |job, step| {
        if step % every == every - 1 {
            held.drain(..).for_each(|block| job.drop(block));
        }
        held.push(job.make(512 * KIB, job.lines.keep));
    })
}

/// The states of a job that keeps a block a step until so many are there.
fn cache(n_steps: u64, length: u64) -> Vec<Vec<u8>> {
    states(n_steps, |job, step| {
        if step < length {
            job.make(3 * MIB, job.lines.keep);
        }
    })
}

const FRAME: (&str, u64, &str) = ("/job/keep.py", 5, "keep");

/// The file of some blocks of one line.
fn state_of(blocks: &[(u64, u64)], frame: (&str, u64, &str)) -> Vec<u8> {
    let mut snapshot = Snapshot::empty();
    let stack = snapshot.stack(&[frame]);
    let block = |(address, size)| Block {
        address,
        size,
        requested: size,
        state: State::Allocated,
        stack,
    };
    let blocks: Vec<Block> = blocks.iter().copied().map(block).collect();
    let size = blocks.iter().map(|block| block.size).fold(0, u64::saturating_add);
    let segment = Segment { size, active_size: size, blocks, ..Segment::default() };
    snapshot.devices.push(Device { index: 0, segments: vec![segment], events: (0, 0) });
    write(&snapshot)
}

fn arguments(paths: &[String]) -> Vec<&str> {
    std::iter::once("diff").chain(paths.iter().map(String::as_str)).collect()
}

/// The births that the command reports for some states, in the published form.
#[track_caller]
fn births(folder: &Folder, states: &[Vec<u8>]) -> Value {
    births_of(&files(folder, states))
}

#[track_caller]
fn births_of(paths: &[String]) -> Value {
    let answer = answer(&[&arguments(paths)[..], &["--json"]].concat());
    holds(&schema("snapshot-diff"), &answer);
    answer["devices"][0]["births"].clone()
}

#[test]
fn the_line_that_keeps_some_of_each_step_is_named_by_five_states() {
    let folder = Folder::new("states-leak");
    for states in [list(5, 0, 1), list(9, 0, 1)[4..].to_vec(), list(12, 3, 1), list(30, 0, 5)] {
        let found = births(&folder, &states);
        assert_eq!(found["verdict"], "leak", "{found}");
        let sites = found["sites"].as_array().unwrap();
        assert_eq!((sites.len(), &sites[0]["line"]), (1, &5.into()), "{found}");
        assert!(sites[0]["file"] == "/job/keep.py" && found["doubt"].is_null(), "{found}");
    }
    let found = births(&folder, &list(5, 0, 1));
    assert_eq!(found["bytes_per_state"], 786_432.0, "{found}");
    assert_eq!((&found["sites"][0]["blocks"], &found["states"]), (&4.into(), &5.into()));
    let paths = files(&folder, &list(5, 0, 1));
    let shown = words(&page(&arguments(&paths)));
    for said in [
        "Leak LEAK 768 KiB from state to state, at job/keep.py:5 keep",
        "A queue or cache of more than 5 blocks that is not full yet would look the same, and so would cycles that were not collected yet. \
         To tell, take the states further apart, each after `gc.collect()`.",
        "what was freed and allocated again as it was counts as old",
        "4 blocks stay, born in 4 gaps between states",
        "Next: look at the line named under Leak",
    ] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
}

#[test]
fn growth_that_others_give_back_is_no_leak() {
    let folder = Folder::new("states-moved");
    let mut held = Vec::new();
    let moved = states(12, |job, step| {
        if step == 0 {
            held.extend((0..12).map(|_| job.make(2 * MIB, job.lines.other)));
        }
        job.make(2 * MIB, job.lines.keep);
        job.drop(held.pop().unwrap());
    });
    assert_eq!(births(&folder, &moved)["verdict"], "none");
}

#[test]
fn what_turns_over_is_emptied_or_full_is_no_leak() {
    let folder = Folder::new("states-healthy");
    let healthy = [
        ring(5, 0, 2),
        ring(20, 0, 8),
        ring(30, 10, 6),
        ring(40, 0, 8)[30..].to_vec(),
        // Longer than the states: its oldest are older than they are.
        ring(70, 0, 50)[60..].to_vec(),
        cleared(20, 4),
        cleared(30, 7),
        cache(20, 5),
        cache(30, 10),
        states(8, |_, _| {}),
        // One that is made again, at another address and larger each time, has one generation.
        {
            let mut before = None;
            states(9, |job, step| {
                let made = job.make((step + 1) * MIB, job.lines.keep);
                if let Some(before) = before.replace(made) {
                    job.drop(before);
                }
            })
        },
    ];
    for (number, states) in healthy.iter().enumerate() {
        let found = births(&folder, states);
        assert_ne!(found["verdict"], "leak", "{number}: {found}");
        assert!(found["sites"].as_array().unwrap().is_empty(), "{number}: {found}");
    }
}

#[test]
fn drawn_leaks_are_found_by_states_and_nothing_that_is_bounded_is_blamed() {
    let folder = Folder::new("states-drawn");
    let mut missed = Vec::new();
    let mut n_leaks = 0;
    for seed in 0..40 {
        let program = Program::draw(seed, Truth::Leaks);
        if !program.makes_one_again() {
            let found = births(&folder, &program.states());
            let sites = found["sites"].as_array().unwrap();
            assert!(sites.iter().all(|site| site["file"] == LEAKING_FILE), "{found}");
            n_leaks += 1;
            missed.extend(sites.is_empty().then(|| format!("{program:?}: {found}")));
        }
        let program = Program::draw(seed, Truth::Healthy);
        let found = births(&folder, &program.states());
        assert_ne!(found["verdict"], "leak", "{program:?}: {found}");
    }
    assert!(20 * missed.len() <= n_leaks, "{} of {n_leaks} missed: {missed:#?}", missed.len());
}

/// States so many steps apart, of a cache whose keys are drawn from so many, some in each step.
fn keys(seed: u64, n_keys: usize, drawn: usize, apart: u64) -> Vec<Vec<u8>> {
    let mut noise = Noise(seed);
    let mut known = BTreeSet::new();
    let all = states(4 * apart + 1, |job, _| {
        for _ in 0..drawn {
            if known.insert(noise.below(n_keys)) {
                job.make(256 * KIB, job.lines.keep);
            }
        }
    });
    all.into_iter().step_by(usize::try_from(apart).unwrap()).collect()
}

#[test]
fn growth_that_may_end_is_said_to_be_possible() {
    let folder = Folder::new("states-possible");
    let possible = [
        // Two stretches of growth do not tell.
        list(5, 1, 2),
        list(5, 2, 1),
        // Ever fewer keys are new.
        keys(1, 60, 1, 20),
        keys(2, 40, 2, 8),
        keys(3, 200, 8, 6),
    ];
    for (number, states) in possible.iter().enumerate() {
        let paths = files(&folder, states);
        let found = births_of(&paths);
        let lines = found["possible"].as_array().unwrap();
        assert_eq!((&found["verdict"], lines.len()), (&"none".into(), 1), "{number}: {found}");
        assert_eq!(lines[0]["line"], 5, "{number}: {found}");
        let said = "It is not known yet whether job/keep.py:5 keep will go on growing; no other line does, as far as 5 states show it.";
        let shown = words(&page(&arguments(&paths)));
        assert!(shown.contains(said) && !shown.contains("LEAK"), "{number}: {shown}");
    }
    // As many of each time are a leak, however many.
    for n_blocks in [1, 7, 40] {
        let found = births(
            &folder,
            &states(5, |job, _| {
                (0..n_blocks).for_each(|_| _ = job.make(64 * KIB, job.lines.keep));
            }),
        );
        assert_eq!(found["verdict"], "leak", "{found}");
        assert_eq!(found["sites"][0]["held_blocks"], 5 * n_blocks, "{found}");
    }
}

#[test]
fn few_states_and_files_given_twice_tell_nothing() {
    let folder = Folder::new("states-few");
    let all = list(6, 0, 1);
    for states in [all[..3].to_vec(), all[..4].to_vec()] {
        let found = births(&folder, &states);
        assert_eq!(found["verdict"], "insufficient_history", "{found}");
        assert_eq!(found["doubt"], "few_states", "{found}");
    }
    let twice = [0, 1, 1, 2, 3, 3].map(|state| all[state].clone());
    let found = births(&folder, &twice);
    let counts = (&found["states"], &found["different_states"]);
    assert_eq!(counts, (&6.into(), &4.into()), "{found}");
    assert_eq!(found["verdict"], "insufficient_history", "{found}");
    let shown = words(&page(&arguments(&files(&folder, &twice))));
    let said = "Cannot be told: 4 different states, and a verdict needs 5 of one process, each at the end of a step. \
                2 of the files show the very state of another.";
    assert!(shown.contains(said), "{shown}");
    // What holds no more is level, however often it was written.
    let level: Vec<Vec<u8>> = states(8, |_, _| {}).split_off(2);
    let level = births(&folder, &level);
    assert!(
        level["verdict"] == "none" && level["different_states"].as_u64() < Some(5),
        "{level}"
    );
    // Two files are compared as ever.
    let paths = files(&folder, &all[..2]);
    let found = answer(&[&arguments(&paths)[..], &["--json"]].concat());
    assert_eq!(found["devices"][0].get("births"), None);
}

#[test]
fn files_of_other_processes_or_in_another_order_tell_nothing() {
    let folder = Folder::new("states-other");
    // Of other ranks, whose addresses may be the same.
    let names = files(&folder, &list(5, 0, 1));
    let of_ranks: Vec<String> = (0..)
        .zip(&names)
        .map(|(rank, from)| {
            let to = text(&folder.path(&format!("run_rank{rank}_step9.pickle")));
            fs::rename(from, &to).unwrap();
            to
        })
        .collect();
    assert_eq!(births_of(&of_ranks)["doubt"], "other_process");
    // At other addresses: nothing of one is in the next.
    let strangers: Vec<Vec<u8>> =
        (1..6).map(|base| state_of(&[(base << 40, MIB), (base << 41, MIB)], FRAME)).collect();
    assert_eq!(births(&folder, &strangers)["doubt"], "other_process");
    // The trace of each state tells its time.
    let timed = |n_steps: u64| {
        let mut job = Job::new(4, true);
        for _ in 0..n_steps {
            job.step(|job| _ = job.make(768 * KIB, job.lines.keep));
        }
        job.pickle()
    };
    let ordered: Vec<Vec<u8>> = (1..=5).map(timed).collect();
    assert_eq!(births(&folder, &ordered)["verdict"], "leak");
    let swapped = [0, 2, 1, 3, 4].map(|state| ordered[state].clone());
    let found = births(&folder, &swapped);
    assert_eq!(
        (&found["doubt"], &found["verdict"]),
        (&"not_in_order".into(), &"insufficient_history".into())
    );
    // Without times, what is gone between two and there again shows it, or a line that shrinks.
    for order in [[4, 3, 2, 1, 0], [0, 4, 1, 3, 2], [0, 1, 3, 2, 4]] {
        let states = list(5, 0, 1);
        let states = order.map(|state: usize| states[state].clone());
        assert_eq!(births(&folder, &states)["verdict"], "none", "{order:?}");
    }
}

#[test]
fn states_without_stacks_name_no_line() {
    let folder = Folder::new("states-bare");
    let mut job = Job::new(4, false);
    let mut states = Vec::new();
    for _ in 0..6 {
        job.step(|job| _ = job.make(768 * KIB, job.lines.keep));
        job.begin_recording(false);
        states.push(job.state());
    }
    let found = births(&folder, &states);
    assert_eq!(
        (&found["doubt"], &found["sites"]),
        (&"no_stacks".into(), &Value::Array(vec![]))
    );
}

#[test]
fn hostile_and_broken_states_end_the_command_in_order() {
    let folder = Folder::new("states-hostile");
    let mut states = list(6, 0, 1);
    states[3] = b"no pickle".to_vec();
    let paths = files(&folder, &states);
    let ended = stepmem(&[&["snapshot"][..], &arguments(&paths)].concat(), &[], b"");
    assert_eq!(ended.code, Some(2), "{}", ended.err);
    assert!(ended.err.contains("state3.pickle"), "{}", ended.err);
    // Blocks of all sizes at all addresses, two at one of them.
    let hostile: Vec<Vec<u8>> = (0..6)
        .map(|state| {
            let places = (0..=state).map(|place| u64::MAX - place);
            let blocks: Vec<(u64, u64)> =
                places.flat_map(|place| [(place, 1), (place, u64::MAX >> 4)]).collect();
            state_of(&blocks, ("\u{1b}]0;x\u{7}.py", u64::MAX, "<b>"))
        })
        .collect();
    let paths = files(&folder, &hostile);
    let out = text(&folder.path("out.html"));
    for more in [&["--json"][..], &[], &["--html", &out]] {
        let ended = stepmem(&[&["snapshot"][..], &arguments(&paths), more].concat(), &[], b"");
        assert!(matches!(ended.code, Some(0 | 2)), "{:?} {}", ended.code, ended.err);
        assert!(
            !ended.out.contains('\u{1b}') && !ended.err.contains("panicked"),
            "{}",
            ended.out
        );
    }
}
