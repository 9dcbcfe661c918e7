//! States whose exporters end: by a forged number, by a kill, or as they should.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::{Job, record};
use crate::rig::units::MIB;
use crate::rig::wait::await_true;

fn start(state: &Path) -> Exporter {
    Exporter::start(&["--state.file", &text(state)])
}

/// The mark of a state that is being resumed.
fn mark(state: &Path) -> PathBuf {
    PathBuf::from(format!("{}.resuming", text(state)))
}

fn n_ranks(exporter: &Exporter) -> usize {
    exporter.status()["ranks"].as_array().unwrap().len()
}

/// Ends it as the kernel does for lack of memory.
fn kill(exporter: Exporter) {
    exporter.signal("KILL");
    drop(exporter);
}

/// A state of four ranks that push, one of which leaks, left by an exporter that was stopped.
fn left_by_a_stop(state: &Path) {
    let first = start(state);
    first.push(&Job::leaking("leaky", 0..600, 4 * MIB).records());
    first.stop();
    assert!(!mark(state).exists());
}

#[test]
fn state_is_set_aside_after_the_second_exporter_that_ended_over_it() {
    let folder = Folder::new("state-deadly");
    let state = folder.path("state");
    left_by_a_stop(&state);
    let good = fs::read(&state).unwrap();
    for n_ends in 1..=2 {
        let exporter = start(&state);
        assert_eq!(n_ranks(&exporter), 4, "after {} ends", n_ends - 1);
        let content = fs::read_to_string(mark(&state)).unwrap();
        assert!(content.ends_with(&format!(" {n_ends}\n")), "{content:?}");
        // None of its ranks has pushed.
        kill(exporter);
    }
    let exporter = start(&state);
    assert_eq!(exporter.status()["ranks"], json!([]));
    let log = exporter.stop();
    let warned = |entry: &&Value| entry["fields"].to_string().contains("state set aside");
    assert_eq!(log.iter().filter(warned).count(), 1);
    assert_eq!(fs::read(folder.path("state.set-aside")).unwrap(), good);
    assert!(!mark(&state).exists());
}

#[test]
fn killed_exporters_keep_their_state_once_its_ranks_were_judged() {
    let folder = Folder::new("state-kills");
    let state = folder.path("state");
    left_by_a_stop(&state);
    for n_kills in 0..20 {
        let exporter = start(&state);
        assert_eq!(n_ranks(&exporter), 4, "after {n_kills} kills");
        let steps = 600 + n_kills..601 + n_kills;
        exporter.push(&Job::leaking("leaky", steps, 4 * MIB).records());
        await_true("the end of the mark", || !mark(&state).exists());
        kill(exporter);
    }
    let last = start(&state);
    assert_eq!(n_ranks(&last), 4);
    assert!(!folder.path("state.set-aside").exists());
}

#[test]
fn single_kills_stops_and_other_boots_count_no_second_end() {
    let folder = Folder::new("state-single");
    let state = folder.path("state");
    left_by_a_stop(&state);
    // Since when a finding holds is in the state alone.
    let since = |exporter: &Exporter| {
        exporter.finding("CREEP_EARLY").map(|finding| finding["since"].clone())
    };
    let first = start(&state);
    let held = since(&first);
    assert!(held.is_some());
    first.stop();
    for _ in 0..4 {
        // One that is killed at once, and one that is stopped at once.
        kill(start(&state));
        let exporter = start(&state);
        assert_eq!((n_ranks(&exporter), since(&exporter)), (4, held.clone()));
        exporter.stop();
        assert!(!mark(&state).exists());
    }
    for content in ["another-boot 7\n", "", "7", "\u{1b}[2J 9\n", "another boot 2\n"] {
        fs::write(mark(&state), content).unwrap();
        let exporter = start(&state);
        assert_eq!(n_ranks(&exporter), 4, "{content:?}");
        kill(exporter);
        start(&state).stop();
    }
    assert!(!folder.path("state.set-aside").exists());
}

#[test]
fn state_of_jobs_that_ended_is_kept_through_kills() {
    let folder = Folder::new("state-jobs");
    let state = folder.path("state");
    let first = start(&state);
    first.push(&Job::leaking("leaky", 0..100, 0).records());
    first.end("leaky", &json!({"outcome": "completed"}));
    first.stop();
    for _ in 0..4 {
        let exporter = start(&state);
        assert_eq!(n_ranks(&exporter), 4);
        // Nobody pushes who could be judged.
        await_true("the end of the mark", || !mark(&state).exists());
        kill(exporter);
    }
    assert!(!folder.path("state.set-aside").exists());
}

#[test]
fn rank_that_does_not_push_leaves_the_mark_to_those_that_do() {
    let folder = Folder::new("state-partly");
    let state = folder.path("state");
    left_by_a_stop(&state);
    let exporter = start(&state);
    let of_rank = |rank: u64| {
        let mut record: Value = serde_json::from_str(&record(0, 601, 20 << 30)).unwrap();
        (record["run"], record["rank"]) = ("leaky".into(), rank.into());
        record
    };
    for rank in 0..3 {
        exporter.push(&[of_rank(rank)]);
    }
    let judged = || exporter.scrape().contains_key("stepmem_up");
    await_true("a status", judged);
    assert!(mark(&state).exists());
    exporter.push(&[of_rank(3)]);
    await_true("the end of the mark", || !mark(&state).exists());
}
