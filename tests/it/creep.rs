//! Small recorded jobs with known truth through the real binary: the same transitions as ever, byte for byte, and
//! none that the truth forbids. `eval/simulator/golden.py` writes the jobs, `STEPMEM_BLESS=1` the transitions.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::rig::command::stepmem;
use crate::rig::folder::root;
use crate::rig::schema::holds_definition;

/// Every job in `tests/data/creep`, healthy ones first.
const JOBS: [&str; 12] = [
    "gc_sawtooth",
    "cache_exp",
    "curriculum_linear",
    "restart_resume",
    "kitchen_sink",
    "replay_fill",
    "one_rank",
    "late_onset",
    "with_restarts",
    "per_checkpoint",
    "reserved_only",
    "external",
];
/// Diagnoses that page when they are a warning or worse.
const PAGING: [&str; 3] = ["CREEP_CONFIRMED", "FRAGMENTATION", "OUTSIDE_ALLOCATOR"];

fn file(job: &str, ending: &str) -> PathBuf {
    root().join("tests/data/creep").join(format!("{job}.{ending}"))
}

fn recording(job: &str) -> Vec<u8> {
    let packed = File::open(file(job, "jsonl.gz")).unwrap();
    let unpacked = Command::new("gzip").arg("-dc").stdin(packed).output().unwrap();
    assert!(unpacked.status.success(), "{job}: {unpacked:?}");
    unpacked.stdout
}

/// The transitions of a job, a line each; the final status is not among them.
fn transitions(job: &str) -> String {
    stepmem(&["replay", "-"], &[], &recording(job))
        .done()
        .split_inclusive('\n')
        .filter(|line| !line.starts_with(r#"{"status""#))
        .collect()
}

fn is_page(transition: &Value) -> bool {
    PAGING.iter().any(|kind| transition["kind"] == *kind) && transition["severity"] != "info"
}

#[test]
fn recorded_jobs_give_the_same_transitions_as_ever() {
    for job in JOBS {
        let found = transitions(job);
        let path = file(job, "expected.jsonl");
        if std::env::var_os("STEPMEM_BLESS").is_some() {
            fs::write(&path, &found).unwrap();
        }
        let expected = fs::read_to_string(&path).unwrap();
        assert!(
            found == expected,
            "{job}: other transitions than in {}\n{found}",
            path.display()
        );
    }
}

#[test]
fn healthy_job_does_not_page_and_a_leak_pages_for_its_own_rank_in_time() {
    for job in JOBS {
        let truth: Value =
            serde_json::from_slice(&fs::read(file(job, "truth.json")).unwrap()).unwrap();
        let found: Vec<Value> = transitions(job)
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .filter(is_page)
            .collect();
        let raised: Vec<_> = found.iter().filter(|page| page["state"] == "raised").collect();
        match truth["cls"].as_str() {
            Some("healthy") => assert!(raised.is_empty(), "{job}: {raised:?}"),
            // It cannot be known before the growth ends; then it must be taken back.
            Some("ambiguous") => {
                let all = transitions(job);
                let last: Value = serde_json::from_str(all.lines().last().unwrap()).unwrap();
                assert!(!raised.is_empty() && !is_page(&last), "{job}: {last}");
            }
            _ => {
                assert!(!raised.is_empty(), "{job} is not found");
                let ranks = truth["leak_ranks"].as_array().unwrap();
                for page in raised {
                    let time = page["time"].as_f64();
                    assert!(ranks.contains(&page["rank"]), "{job}: {page}");
                    assert!(time >= truth["onset_time"].as_f64(), "{job}: {page}");
                    let is_in_time =
                        truth["oom_time"].as_f64().is_none_or(|oom| time < Some(oom));
                    assert!(is_in_time, "{job}: {page}");
                }
            }
        }
    }
}

/// The name of a diagnosis among people.
fn title(kind: &str) -> String {
    match kind {
        "CREEP_EARLY" => "MEMORY RISING".to_owned(),
        "CREEP_CONFIRMED" => "MEMORY CREEP".to_owned(),
        other => other.replace('_', " "),
    }
}

#[test]
fn story_of_a_rank_has_every_finding_within_100_columns() {
    for job in JOBS {
        let truth: Value =
            serde_json::from_slice(&fs::read(file(job, "truth.json")).unwrap()).unwrap();
        let rank = truth["leak_ranks"][0].as_u64().unwrap_or(0);
        let story =
            stepmem(&["explain", "-", "--rank", &rank.to_string()], &[], &recording(job))
                .done();
        for line in story.lines() {
            assert!(line.chars().count() <= 100, "{job}: {line}");
        }
        let expected = fs::read_to_string(file(job, "expected.jsonl")).unwrap();
        let transitions =
            expected.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        for said in transitions.filter(|said| said["rank"] == rank && said["state"] == "raised")
        {
            let words = format!(
                "{}, {}:",
                title(said["kind"].as_str().unwrap()),
                said["severity"].as_str().unwrap()
            );
            assert!(story.contains(&words), "{job}: {said}\n{story}");
        }
        assert!(story.contains("Live memory: "), "{job}: {story}");
    }
}

#[test]
fn story_as_json_has_the_transitions_of_replay() {
    for job in ["per_checkpoint", "reserved_only", "with_restarts"] {
        let truth: Value =
            serde_json::from_slice(&fs::read(file(job, "truth.json")).unwrap()).unwrap();
        let rank = truth["leak_ranks"][0].as_u64().unwrap_or(0);
        let arguments = ["explain", "-", "--json", "--rank", &rank.to_string()];
        let story = stepmem(&arguments, &[], &recording(job)).json();
        holds_definition("explain", "recorded", &story);
        let told: Vec<&Value> =
            of(&story["events"]).map(|event| &event["transition"]).collect();
        let replayed = transitions(job);
        let replayed: Vec<Value> =
            replayed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of_rank: Vec<&Value> = replayed.iter().filter(|it| it["rank"] == rank).collect();
        assert!(!of_rank.is_empty(), "{job}");
        assert_eq!(told, of_rank, "{job}");
        for event in of(&story["events"]) {
            let is_cleared = event["transition"]["state"] == "cleared";
            assert_eq!(event["cause"].is_string(), is_cleared, "{job}: {event:#}");
        }
    }
}

fn of(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().unwrap().iter()
}

#[test]
fn story_of_a_rank_that_is_not_there_is_an_error() {
    let arguments = ["explain", "-", "--run", "unknown", "--rank", "7"];
    stepmem(&arguments, &[], b"").fails(2, "no train step of rank 7 of run unknown");
}
