//! What the commands next to the card and `explain` state: `compare`, the gate of `run --fail-on`, `snapshot diff`, `ranks` and
//! `events`, `judge`.

use stepmem_types::claims::{Claim, Statement};

use crate::rig::claims::{gated, job, snapshots_answered};
use crate::rig::command::stepmem;
use crate::rig::folder::Folder;
use crate::rig::snapshot::data;
use crate::rig::snapshot_job::{files, states};
use crate::rig::units::MIB;

#[test]
fn next_step_of_a_diff_is_about_what_grew_only_where_a_line_grew() {
    let vector = |name: &str| data(&format!("vectors/{name}.pickle.gz"));
    let (before, after) = (vector("before_after.step10"), vector("before_after"));
    let advice = |files: [&str; 2]| {
        let said = snapshots_answered(&["diff", files[0], files[1]]);
        let advice = said.iter().find(|of| of.claim() == Claim::AdviceDiff);
        advice.map(|of| of.words().to_owned())
    };
    assert!(advice([&before, &after]).unwrap().contains("the line that grew most"));
    assert_eq!(advice([&before, &before]), None);
    // Two states of a job whose only line was freed.
    let folder = Folder::new("claims-shrunk");
    let mut held = Vec::new();
    let shrinking = states(2, |job, step| {
        if step == 0 {
            held.push(job.make(4 * MIB, job.lines.keep));
        } else {
            held.drain(..).for_each(|block| job.drop(block));
        }
    });
    let files = files(&folder, &shrinking);
    let words = advice([&files[0], &files[1]]).unwrap();
    assert!(!words.contains("grew") && words.contains("who holds"), "{words}");
}

#[test]
fn rate_of_several_lines_is_not_said_of_one() {
    let folder = Folder::new("claims-lines");
    let both = states(6, |job, _| {
        job.make(2 * MIB, job.lines.keep);
        job.make(MIB, job.lines.other);
    });
    let files = files(&folder, &both);
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let said = snapshots_answered(&[&["diff"], &files[..]].concat());
    let leak = said.iter().find(|of| of.claim() == Claim::BornLeak).unwrap();
    assert!(leak.words().ends_with("keep and 1 more line"), "{}", leak.words());
    let shown = stepmem(&[&["snapshot", "diff"], &files[..]].concat(), &[], b"").done();
    assert!(shown.contains("3.00 MiB from state to state, at "), "{shown}");
    assert!(shown.lines().any(|line| line.ends_with(" and 1 more line")), "{shown}");
}

#[test]
fn addresses_that_were_used_once_are_not_said_to_match_nothing() {
    let file = data("vectors/leak_python_stacks.pickle.gz");
    let asked = ["events", &file, "--step", "0", "--reuse", "--min-size", "1GiB"];
    let said = snapshots_answered(&asked);
    assert!(said.iter().any(|of| of.claim() == Claim::AddressesReused), "{said:?}");
}

#[test]
fn budget_above_a_baseline_is_said_in_the_percent_that_was_given() {
    let (verdict, said) = gated("peak:+7%:baseline.json", &[&job(2, 400, (60, 0))]);
    let words = verdict.sentences()[0].words();
    assert!(words.contains(", 7% above the 32.0 GiB of baseline.json ("), "{words}");
    let peak = said.iter().find(|of| of.claim() == Claim::GatePeak).unwrap();
    assert_eq!(peak.value().map(|bytes| bytes > 62e9), Some(true));
}

#[test]
fn finding_that_fails_a_gate_is_said_with_its_figures() {
    let (_, said) = gated("creep", &[&job(2, 900, (30, 8 * MIB))]);
    let claims: Vec<Claim> = said.iter().map(Statement::claim).collect();
    for claim in [Claim::GateFinding, Claim::RatePerStep, Claim::Since, Claim::GateCondition] {
        assert!(claims.contains(&claim), "{claim:?}: {claims:?}");
    }
}
