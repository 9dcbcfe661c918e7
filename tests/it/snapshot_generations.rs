//! Leaks by the generations of what is alive: recordings of simulated jobs whose truth is known by construction. A leak that
//! begins in the middle is found, and what ends or has a bound is none.

use std::collections::VecDeque;
use std::fs;

use serde_json::Value;

use crate::rig::command::words;
use crate::rig::folder::{Folder, text};
use crate::rig::snapshot::{answer, data, page};
use crate::rig::snapshot_job::{Job, KIB, MIB};
use crate::rig::snapshot_programs::{LEAKING_FILE, Program, Truth};

/// The memory of its own that a job makes and keeps, step by step.
#[derive(Clone, Copy, Debug)]
enum Kept {
    /// One block from a step on, and in each so-many-th step after it.
    List { from: u64, every: u64 },
    /// Blocks of different sizes.
    Mixed { from: u64 },
    /// A list that is emptied in each so-many-th step.
    Cleared { from: u64, every: u64 },
    /// The newest so many.
    Ring { from: u64, length: usize },
    /// So many, in any order.
    Random { from: u64, length: usize },
    /// A block in each step until so many are there.
    Cache { from: u64, length: u64 },
    /// Two a step, of which one goes.
    Half { from: u64 },
}

/// Runs a job; returns the file.
fn run(kept: Kept, n_steps: u64, is_marked: bool) -> Vec<u8> {
    let mut job = Job::new(4, is_marked);
    let mut held: VecDeque<u64> = VecDeque::new();
    for step in 0..n_steps {
        job.step(|job| keep(job, &mut held, kept, step));
    }
    job.pickle()
}

fn keep(job: &mut Job, held: &mut VecDeque<u64>, kept: Kept, step: u64) {
    let line = job.lines.keep;
    match kept {
        Kept::List { from, every } if step >= from && (step - from).is_multiple_of(every) => {
            held.push_back(job.make(768 * KIB, line));
        }
        Kept::Mixed { from } if step >= from => {
            held.push_back(job.make((1 + step * 7 % 5) * 256 * KIB, line));
        }
        Kept::Cleared { from, every } if step >= from => {
            if step % every == every - 1 {
                held.drain(..).for_each(|block| job.drop(block));
            }
            held.push_back(job.make(512 * KIB, line));
        }
        Kept::Ring { from, length } if step >= from => {
            held.push_back(job.make(2 * MIB, line));
            if held.len() > length {
                job.drop(held.pop_front().unwrap());
            }
        }
        Kept::Random { from, length } if step >= from => {
            if held.len() >= length {
                let place = usize::try_from(step * 7919 % 104_729).unwrap() % held.len();
                job.drop(held.remove(place).unwrap());
            }
            held.push_back(job.make(2 * MIB, line));
        }
        Kept::Cache { from, length } if (from..from + length).contains(&step) => {
            held.push_back(job.make(3 * MIB, line));
        }
        Kept::Half { from } if step >= from => {
            held.push_back(job.make(MIB / 2, line));
            let gone = job.make(MIB, job.lines.other);
            job.drop(gone);
        }
        _ => {}
    }
}

fn leaks() -> Vec<(Kept, u64)> {
    let mut programs = Vec::new();
    // From the start, and in five whole steps.
    programs.extend([6, 7, 9, 30].map(|n_steps| (Kept::List { from: 0, every: 1 }, n_steps)));
    programs.extend([6, 8].map(|n_steps| (Kept::Half { from: 0 }, n_steps)));
    // From the middle.
    for (from, n_steps) in [(4, 12), (6, 16), (10, 20), (20, 30), (30, 40), (51, 60), (12, 40)]
    {
        programs.push((Kept::List { from, every: 1 }, n_steps));
        programs.push((Kept::Mixed { from }, n_steps));
    }
    // Stairs.
    for (from, every, n_steps) in [(0, 5, 30), (10, 5, 40), (0, 8, 40), (3, 2, 24), (20, 3, 44)]
    {
        programs.push((Kept::List { from, every }, n_steps));
    }
    programs
}

fn healthy() -> Vec<(Kept, u64)> {
    let mut programs = Vec::new();
    for (from, length, n_steps) in
        [(0, 3, 12), (0, 8, 30), (5, 4, 20), (10, 6, 30), (20, 9, 40), (40, 8, 60), (0, 2, 7)]
    {
        programs.push((Kept::Ring { from, length }, n_steps));
        programs.push((Kept::Random { from, length }, n_steps));
    }
    for (from, every, n_steps) in [(0, 4, 20), (0, 7, 30), (6, 5, 24), (0, 12, 40), (20, 9, 50)]
    {
        programs.push((Kept::Cleared { from, every }, n_steps));
    }
    for (from, length, n_steps) in [(0, 5, 20), (0, 8, 30), (6, 4, 20), (10, 9, 40), (2, 3, 12)]
    {
        programs.push((Kept::Cache { from, length }, n_steps));
    }
    programs
}

/// The leak that the command finds in a job's file.
fn leak_of(folder: &Folder, (kept, n_steps): (Kept, u64), is_marked: bool) -> Value {
    let path = folder.path("job.pickle");
    fs::write(&path, run(kept, n_steps, is_marked)).unwrap();
    answer(&["show", &text(&path), "--json"])["devices"][0]["leak"].clone()
}

#[test]
fn leaks_are_found_wherever_they_begin() {
    let folder = Folder::new("generations-leaks");
    let programs = leaks();
    for is_marked in [true, false] {
        for program in &programs {
            let leak = leak_of(&folder, *program, is_marked);
            assert_eq!(leak["verdict"], "leak", "{program:?} {is_marked}: {leak}");
            let line = (&leak["blame"]["file"], &leak["blame"]["line"]);
            assert_eq!(line, (&"/job/keep.py".into(), &5.into()), "{program:?}: {leak}");
        }
    }
    assert!(programs.len() >= 20, "{}", programs.len());
}

#[test]
fn what_ends_or_has_a_bound_is_no_leak() {
    let folder = Folder::new("generations-healthy");
    let programs = healthy();
    for is_marked in [true, false] {
        for program in &programs {
            let leak = leak_of(&folder, *program, is_marked);
            assert_eq!(leak["verdict"], "none", "{program:?} {is_marked}: {leak}");
        }
    }
    assert!(programs.len() >= 20, "{}", programs.len());
}

#[test]
fn a_real_leak_from_the_middle_names_its_line_and_what_would_look_the_same() {
    for name in ["snap_default", "snap_expandable", "snap_python"] {
        let path = data(&format!("h200/{name}.pickle.gz"));
        let leak = answer(&["show", &path, "--json"])["devices"][0]["leak"].clone();
        assert_eq!(leak["verdict"], "leak", "{name}: {leak}");
        let (file, line) = (leak["blame"]["file"].as_str().unwrap(), &leak["blame"]["line"]);
        assert!(file.ends_with("common.py") && *line == 25, "{name}: {}", leak["blame"]);
        assert_eq!(leak["sites"][0]["generations"], 8, "{name}: {leak}");
        let ratio = leak["explained_ratio"].as_f64().unwrap();
        assert!((0.9..1.1).contains(&ratio), "{name}: {ratio}");
        let shown = words(&page(&["show", &path]));
        let possible =
            "A queue or cache of more than 8 steps that is not full yet would look the same.";
        assert!(shown.contains(possible), "{name}: {shown}");
    }
}

/// A leak until 64 MiB do not fit, while pieces of 6 MiB lie free; the error frees what was kept, or does not.
fn out_of_memory(from: u64, n_steps: u64, is_unwound: bool) -> Vec<u8> {
    let mut job = Job::new(4, true);
    let mut held = Vec::new();
    for step in 0..n_steps {
        job.step(|job| {
            if step == 1 {
                let other = job.lines.other;
                let pieces: Vec<u64> = (0..20).map(|_| job.make(6 * MIB, other)).collect();
                for piece in pieces {
                    job.drop(piece);
                }
            }
            if step >= from {
                held.push(job.make(16 * MIB, job.lines.keep));
            }
        });
    }
    job.step(|job| job.fail(64 * MIB, 8 * MIB, job.lines.keep));
    if is_unwound {
        for block in held {
            job.drop(block);
        }
    }
    job.pickle()
}

#[test]
fn a_leak_is_the_cause_of_running_out_of_memory_where_pieces_lie_free() {
    let folder = Folder::new("generations-oom");
    let path = text(&folder.path("oom.pickle"));
    let why = |bytes: Vec<u8>| {
        fs::write(&path, bytes).unwrap();
        answer(&["show", &path, "--json"])["devices"][0]["oom"][0].clone()
    };
    for (from, n_steps) in [(0, 6), (0, 9), (10, 20), (2, 20), (12, 30)] {
        for is_unwound in [false, true] {
            let failure = why(out_of_memory(from, n_steps, is_unwound));
            assert_eq!(failure["cause"], "fragmentation", "{from} {n_steps}");
            assert!(failure["eligible_free_bytes"].as_u64() > Some(64 * MIB));
            let root = &failure["root_cause"];
            assert_eq!(root["cause"], "leak", "{from} {n_steps} {is_unwound}: {root}");
            assert_eq!(root["location"]["line"], 5, "{from} {n_steps} {is_unwound}: {root}");
        }
    }
    // Four steps tell nothing: no leak is denied.
    let text =
        why(out_of_memory(0, 4, false))["root_cause"]["text"].as_str().unwrap().to_owned();
    assert!(text.contains("too few steps to tell whether a leak explains it"), "{text}");
}

/// Drawn programs of each kind.
const DRAWN: u64 = 80;

/// Returns whether a program leaks by the command's answer: lines of others are never blamed.
fn is_blamed(program: &Program, leak: &Value) -> bool {
    let is_leak = leak["verdict"] == "leak";
    let sites = leak["sites"].as_array().unwrap();
    assert_eq!(is_leak, !sites.is_empty(), "{program:?}: {leak}");
    assert!(sites.iter().all(|site| site["file"] == LEAKING_FILE), "{program:?}: {leak}");
    let is_caller = leak["blame"]["file"] == "/job/train.py" && leak["blame"]["line"] == 33;
    assert!(!is_leak || leak["blame"]["file"] == LEAKING_FILE || is_caller, "{program:?}");
    is_leak
}

#[test]
fn drawn_leaks_are_found_and_nothing_that_is_bounded_is_blamed() {
    let folder = Folder::new("generations-drawn");
    let path = text(&folder.path("job.pickle"));
    let leak_of = |seed: u64, truth: Truth| {
        let program = Program::draw(seed, truth);
        fs::write(&path, program.run()).unwrap();
        let leak = answer(&["show", &path, "--json"])["devices"][0]["leak"].clone();
        (is_blamed(&program, &leak), format!("{program:?}: {leak}"))
    };
    let mut missed = Vec::new();
    for seed in 0..DRAWN {
        let (is_found, program) = leak_of(seed, Truth::Leaks);
        missed.extend((!is_found).then_some(program));
        let (is_found, program) = leak_of(seed, Truth::Healthy);
        assert!(!is_found, "{program}");
    }
    let limit = usize::try_from(DRAWN / 20).unwrap();
    assert!(missed.len() <= limit, "{} of {DRAWN} missed: {missed:#?}", missed.len());
}

#[test]
fn what_is_not_full_yet_is_said_to_be_possible() {
    let folder = Folder::new("generations-unfilled");
    let path = text(&folder.path("job.pickle"));
    for seed in 0..DRAWN / 2 {
        let program = Program::draw(seed, Truth::NotFullYet);
        fs::write(&path, program.run()).unwrap();
        let device = answer(&["show", &path, "--json"])["devices"][0].clone();
        if is_blamed(&program, &device["leak"]) {
            let shown = words(&page(&["show", &path]));
            let possible = "that is not full yet would look the same.";
            assert!(shown.contains(possible), "{program:?}: {shown}");
        }
    }
}

/// A job with a list that grows from a step on.
fn list(from: u64, n_steps: u64) -> Job {
    let mut job = Job::new(4, true);
    for step in 0..n_steps {
        job.step(|job| {
            if step >= from {
                job.make(768 * KIB, job.lines.keep);
            }
        });
    }
    job
}

#[test]
fn growth_of_few_steps_is_neither_blamed_nor_denied() {
    let folder = Folder::new("generations-few");
    let path = text(&folder.path("job.pickle"));
    fs::write(&path, list(23, 30).pickle()).unwrap();
    let device = answer(&["show", &path, "--json"])["devices"][0].clone();
    assert_eq!(device["leak"]["verdict"], "none");
    let notes = device["notes"].as_array().unwrap();
    let note = notes.iter().find(|note| note["kind"] == "possible_leak").unwrap();
    assert_eq!(note["location"]["line"], 5);
    let shown = words(&page(&["show", &path]));
    let unknown = "It is not known yet whether keep.py:5 will go on growing";
    assert!(shown.contains(unknown), "{shown}");
}

#[test]
fn a_recording_of_the_state_alone_claims_nothing() {
    let folder = Folder::new("generations-state");
    let path = text(&folder.path("job.pickle"));
    let mut job = list(0, 30);
    job.snapshot.events.clear();
    job.snapshot.annotations.clear();
    fs::write(&path, job.pickle()).unwrap();
    let leak = answer(&["show", &path, "--json"])["devices"][0]["leak"].clone();
    assert_eq!(leak["verdict"], "insufficient_history", "{leak}");
    let shown = words(&page(&["show", &path]));
    assert!(shown.contains("Cannot be told: the snapshot has no events"), "{shown}");
}

#[test]
fn a_leak_without_which_no_piece_were_large_enough_is_not_the_cause() {
    let folder = Folder::new("generations-small");
    let path = text(&folder.path("oom.pickle"));
    for (leaked, usual) in [(KIB, 0), (MIB, 60 * MIB)] {
        let mut job = Job::new(4, true);
        for step in 0..12 {
            job.step(|job| {
                let other = job.lines.other;
                let n_pieces = if step == 1 { 20 } else { 0 };
                let pieces: Vec<u64> =
                    (0..n_pieces).map(|_| job.make(6 * MIB, other)).collect();
                let whole = (usual > 0).then(|| job.make(usual, other));
                pieces.into_iter().chain(whole).for_each(|piece| job.drop(piece));
                job.make(leaked, job.lines.keep);
            });
        }
        job.step(|job| job.fail(64 * MIB, 8 * MIB, job.lines.keep));
        fs::write(&path, job.pickle()).unwrap();
        let device = answer(&["show", &path, "--json"])["devices"][0].clone();
        assert_eq!(device["leak"]["verdict"], "leak", "{}", device["leak"]);
        let root = &device["oom"][0]["root_cause"];
        assert_eq!(root["cause"], "fragmentation", "{leaked} {root}");
    }
}
