//! The state file: it outlasts a restart, and is never trusted blindly.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use stepmem::store::state;
use stepmem_engine::DiagnosisKind;
use stepmem_engine::acks::{ACKS_MAX, REASON_BYTES_MAX};
use stepmem_engine::saved::{FINDINGS_SAVED_MAX, SavedRest, SavedState};
use stepmem_types::ids::Run;

use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::{Job, record};
use crate::rig::json::{has, without_clock};
use crate::rig::units::MIB;

/// An exporter takes a state file over so soon after the end of the one that kept it.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(10);
/// The default of `--rank.max`.
const RANKS_MAX: usize = 1024;

fn start(folder: &Folder) -> Exporter {
    Exporter::start(&["--state.file", &text(&folder.path("state"))])
}

fn warnings(log: &[Value]) -> Vec<String> {
    let is_warning = |entry: &&Value| entry["level"] == "WARN";
    log.iter().filter(is_warning).map(|entry| entry["fields"].to_string()).collect()
}

#[test]
fn restart_in_the_middle_of_a_leak_forgets_nothing() {
    let whole = Exporter::start(&[]);
    whole.push(&Job::leaking("leaky", 0..3000, 4 * MIB).records());

    let folder = Folder::new("state-leak");
    let first = start(&folder);
    first.push(&Job::leaking("leaky", 0..1500, 4 * MIB).records());
    first.stop();
    let second = start(&folder);
    second.push(&Job::leaking("leaky", 1500..3000, 4 * MIB).records());

    let forgetful = Exporter::start(&[]);
    forgetful.push(&Job::leaking("leaky", 1500..3000, 4 * MIB).records());

    let creep =
        |exporter: &Exporter| Some(exporter.finding("CREEP_CONFIRMED")?["evidence"].clone());
    // The halves of the job have noise of their own; the growth and its onset are what counts.
    let (whole, second) = (creep(&whole).unwrap(), creep(&second).unwrap());
    let onset = |evidence: &Value| evidence["onset_step"].as_u64().unwrap();
    assert!(onset(&second) < 1500, "{second:#}");
    assert!(onset(&second).abs_diff(onset(&whole)) <= 64, "{second:#} {whole:#}");
    assert!(creep(&forgetful).is_none_or(|evidence| onset(&evidence) >= 1500));
}

#[test]
fn second_exporter_of_a_state_file_keeps_none_until_the_first_ends() {
    let folder = Folder::new("state-shared");
    let of = |run: &str| format!(r#"stepmem_run_ranks{{run="{run}"}}"#);
    let push = |exporter: &Exporter, run: &str| {
        let body = format!(r#"{{"run":"{run}","rank":0,"step":1,"allocated_bytes":1}}"#);
        assert_eq!(exporter.post(body).status, 200);
    };
    let told = |entry: &Value| entry["fields"].to_string().contains("another exporter keeps");
    let first = start(&folder);
    push(&first, "first");
    // It serves, and its end leaves the file as it is.
    let second = start(&folder);
    assert_eq!(second.metric(&of("first")), None);
    push(&second, "second");
    let log = second.stop();
    assert!(log.iter().any(|entry| entry["level"] == "WARN" && told(entry)), "{log:#?}");
    let third = start(&folder);
    push(&third, "third");
    first.signal("KILL");
    let takes =
        |entry: &Value| entry["fields"].to_string().contains("keeps the state from now");
    third.await_log("the takeover", TAKEN_OVER_WITHIN, takes);
    third.stop();
    let last = start(&folder);
    assert_eq!(last.metric(&of("third")), Some(1.0));
    assert_eq!((last.metric(&of("first")), last.metric(&of("second"))), (None, None));
    assert!(!last.stop().iter().any(told));
}

#[test]
fn lock_of_a_state_that_cannot_be_made_stops_no_exporter() {
    let folder = Folder::new("state-no-lock");
    fs::create_dir(folder.path("state.lock")).unwrap();
    let first = start(&folder);
    first.push_step(&json!({"run": "kept", "rank": 0}), 1, 1);
    first.stop();
    assert_eq!(start(&folder).metric(r#"stepmem_run_ranks{run="kept"}"#), Some(1.0));
}

#[test]
fn finding_outlasts_a_restart_and_is_not_raised_again() {
    let folder = Folder::new("state-since");
    let first = start(&folder);
    first.push(&Job::leaking("leaky", 0..3000, 4 * MIB).records());
    let body = json!({"rank": 2, "kind": "IMBALANCE", "for_seconds": 3600, "reason": "known"});
    first.take("/v1/runs/leaky/ack", &body);
    first.await_metrics("creep", |metrics| {
        metrics.contains_key(
            r#"stepmem_diagnosis_severity{run="leaky",rank="2",kind="CREEP_CONFIRMED"}"#,
        )
    });
    let seen = |exporter: &Exporter| {
        let findings: Vec<_> = exporter.findings().iter().map(without_clock).collect();
        (findings, exporter.status()["acks"].clone())
    };
    let before = seen(&first);
    first.stop();

    let second = start(&folder);
    assert_eq!(before, seen(&second));
    let raised = |entry: &Value| entry["fields"]["message"] == "raised";
    assert!(!second.stop().iter().any(raised));
}

#[test]
fn rank_that_ended_outlasts_a_restart() {
    let folder = Folder::new("state-ended");
    let first = start(&folder);
    first.push(&Job::leaking("leaky", 0..3000, 4 * MIB).records());
    first.end("leaky", &json!({"outcome": "completed"}));
    let ranks = |exporter: &Exporter| exporter.status()["ranks"].as_array().unwrap().len();
    let before = ranks(&first);
    assert!(before > 0);
    first.stop();

    let second = start(&folder);
    assert_eq!(ranks(&second), before);
    let log = second.stop();
    assert_eq!(warnings(&log), Vec::<String>::new());
}

#[test]
fn corrupt_file_is_set_aside_with_one_warning() {
    let folder = Folder::new("state-broken");
    let first = start(&folder);
    first.push(&Job::leaking("calm", 0..200, 0).records());
    first.stop();
    let good = fs::read(folder.path("state")).unwrap();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let newer = String::from_utf8_lossy(&good[..8]).into_owned() + "state 99.0.0 1\n";
    let cut = good[..good.len() / 2].to_vec();

    for (bytes, said) in [
        (flipped, "checksum"),
        (cut, "checksum"),
        (newer.into_bytes(), "is not a state file of stepmem"),
        (Vec::new(), "is not a state file of stepmem"),
        (vec![0; SavedState::bytes_max(RANKS_MAX) + 1], "exceeds"),
    ] {
        fs::write(folder.path("state"), &bytes).unwrap();
        let exporter = start(&folder);
        assert_eq!(exporter.status()["ranks"], json!([]));
        assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
        let log = exporter.stop();
        let [warning] = &warnings(&log)[..] else { panic!("{log:#?}") };
        assert!(warning.contains(said), "{warning}");
        assert_eq!(fs::read(folder.path("state.set-aside")).unwrap(), bytes);
        let fresh = start(&folder);
        assert_eq!(fresh.status()["ranks"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn files_that_never_were_states_are_all_kept() {
    let folder = Folder::new("state-foreign");
    for (idx, aside) in ["state.set-aside", "state.set-aside-2"].iter().enumerate() {
        let bytes = format!("the weights of model {idx}").into_bytes();
        fs::write(folder.path("state"), &bytes).unwrap();
        start(&folder).stop();
        assert_eq!(fs::read(folder.path(aside)).unwrap(), bytes);
    }
    assert_eq!(fs::read(folder.path("state.set-aside")).unwrap(), b"the weights of model 0");
}

#[test]
fn greatest_last_part_is_not_too_long_to_be_read_back() {
    let labels = DiagnosisKind::ALL.iter().map(|kind| kind.label());
    let kind = labels.max_by_key(|label| label.len()).unwrap();
    let subject = json!({"Rank": {"run": "r".repeat(Run::BYTES_MAX), "rank": 1_048_575}});
    let finding = json!({"subject": &subject, "kind": kind, "since": 2e9});
    let time = json!({"secs": 300_000_000_000_u64, "nanos": 999_999_999});
    let reason = "r".repeat(REASON_BYTES_MAX);
    let ack = json!({"subject": &subject, "kind": kind, "reason": reason, "since": &time, "until": &time});
    let rest = json!({
        "started": 2e9, "uptime": &time, "findings": vec![finding; FINDINGS_SAVED_MAX], "acks": vec![ack; ACKS_MAX],
    });
    let rest: SavedRest = serde_json::from_value(rest).unwrap();
    // The part begins with its kind.
    let n_bytes = 1 + state::part(&rest).unwrap().len();
    assert!(n_bytes <= SavedState::PART_BYTES_MAX, "{n_bytes}");
}

#[test]
fn leftover_of_a_crash_beside_the_file_is_ignored() {
    let folder = Folder::new("state-crash");
    let first = start(&folder);
    first.push(&Job::leaking("calm", 0..200, 0).records());
    first.stop();
    fs::write(folder.path("state.new"), "half a state").unwrap();
    let second = start(&folder);
    assert_eq!(second.status()["ranks"].as_array().unwrap().len(), 4);
    assert_eq!(warnings(&second.stop()), Vec::<String>::new());
}

#[test]
fn folder_that_goes_is_logged_once_and_disturbs_nothing() {
    let folder = Folder::new("state-gone");
    let (of_state, file) = (folder.path("of-state"), text(&folder.path("of-state/state")));
    fs::create_dir(&of_state).unwrap();
    let exporter = Exporter::start(&["--state.file", &file]);
    fs::remove_dir_all(&of_state).unwrap();
    exporter.push(&Job::leaking("calm", 0..200, 0).records());
    assert_eq!(exporter.status()["ranks"].as_array().unwrap().len(), 4);
    let warnings = warnings(&exporter.stop());
    let [warning] = &warnings[..] else { panic!("{warnings:#?}") };
    assert!(warning.contains(&file), "{warning}");
}

/// The state that an exporter would have left if the system's clock had been ahead by so many seconds: its start is the
/// first value of the last part, behind the number of the part's kind.
fn shift_clock(path: &Path, seconds: f64) {
    let mut bytes = fs::read(path).unwrap();
    let header = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let word = |at: usize| {
        let word = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        usize::try_from(word).unwrap()
    };
    let (mut last, mut next) = (header, header);
    while word(next) > 0 {
        last = next;
        next += 4 + word(next);
    }
    let (kind, end) = (last + 4, next + 4);
    let started = f64::from_le_bytes(bytes[kind + 1..kind + 9].try_into().unwrap());
    bytes[kind + 1..kind + 9].copy_from_slice(&(started + seconds).to_le_bytes());
    let sum = crc32fast::hash(&bytes[header..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&sum);
    fs::write(path, bytes).unwrap();
}

fn last_push_age(exporter: &Exporter) -> f64 {
    let status = exporter.status();
    let of_rank = &status["ranks"][0]["last_push_time"];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    now - of_rank.as_f64().unwrap_or_else(|| panic!("{status:#}"))
}

#[test]
fn clock_that_is_set_while_the_exporter_restarts_moves_no_push_and_begins_no_life() {
    for ahead in [3600.0, -3600.0] {
        let folder = Folder::new("state-clock");
        let first = start(&folder);
        first.push(&Job::new(1, 50).untimed().records());
        first.stop();
        shift_clock(&folder.path("state"), ahead);
        let second = start(&folder);
        if ahead > 0.0 {
            // A clock that was behind cannot be told from an exporter that was away for an hour.
            assert!(last_push_age(&second).abs() < 60.0, "{}", last_push_age(&second));
        }
        second.push(&Job::new(1, 50).steps(51..101).untimed().records());
        assert!(last_push_age(&second).abs() < 60.0, "{}", last_push_age(&second));
        let status = second.status();
        assert_eq!(status["ranks"][0]["steps_total"], 100, "one life: {status:#}");
        has(&status["records"], &json!({"late": 0, "restarted": 0}));
    }
}
