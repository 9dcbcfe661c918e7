//! What an exporter leaves behind: the card of each run in its log, and the verdict in its termination message.

use std::fs;

use serde_json::{Value, json};

use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::units::GIB;
use crate::rig::wait::{DEADLINE, await_true};

const LEAK_BYTES: u64 = 8 << 20;

/// Two ranks; rank 1 leaks 8 MiB a step.
fn push_leak(exporter: &Exporter, run: &str) {
    let live = |rank, step| 30 * GIB + (step % 7) * 1024 + rank * step * LEAK_BYTES;
    let job = Job::new(2, 0).run(run).steps(0..1500).world(2).untimed();
    exporter.push(&job.live(live).records());
}

fn is_card(entry: &Value, run: &str) -> bool {
    let fields = &entry["fields"];
    let message = fields["message"].as_str().unwrap_or_default();
    fields["run"] == run && message.starts_with("summary\n")
}

fn card(log: &[Value], run: &str) -> String {
    let cards: Vec<&Value> = log.iter().filter(|entry| is_card(entry, run)).collect();
    let [card] = cards[..] else { panic!("{} cards of {run}: {log:#?}", cards.len()) };
    card["fields"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn sigterm_leaves_the_card_in_the_log_and_the_verdict_in_the_message() {
    let folder = Folder::new("conclusion-term");
    let message = folder.write("termination-log", &"of an earlier container\n".repeat(99));
    let arguments = ["--termination-message-path", &message];
    let exporter = Exporter::start_sidecar(&arguments, &[]);
    push_leak(&exporter, "job");
    let log = exporter.stop();
    let card = card(&log, "job");
    let message = fs::read_to_string(message).unwrap();
    for text in [&card, &message] {
        assert!(text.contains("MEMORY CREEP (critical) on rank 1"), "{text}");
        assert!(text.contains("8.00 MiB/step"), "the rate: {text}");
        assert!(text.contains("Next: "), "{text}");
        assert!(text.contains("Run job: 2 of 2 ranks, steps 0 to 1,499"), "{text}");
    }
    assert!(card.contains("RANK") && !message.contains("RANK"), "{message}");
    assert!(message.starts_with("MEMORY CREEP"), "{message}");
}

#[test]
fn a_run_that_ends_is_concluded_once_and_a_rank_that_ends_is_not() {
    let folder = Folder::new("conclusion-end");
    let path = folder.path("message");
    let arguments = ["--termination-message-path", &text(&path)];
    let exporter = Exporter::start(&arguments);
    push_leak(&exporter, "job");
    exporter.push_step(&json!({ "run": "other", "rank": 0 }), 1, GIB);
    for body in [r#"{"rank":0,"outcome":"completed"}"#, r#"{"rank":1,"outcome":"completed"}"#] {
        assert_eq!(exporter.post_to("/v1/runs/job/end", body).status, 200);
    }
    exporter.await_log("the card", DEADLINE, |entry| is_card(entry, "job"));
    let written = || fs::read_to_string(&path).unwrap_or_default();
    await_true("the message", || written().contains("Run job"));
    assert!(!written().contains("Run other"), "{}", written());
    let log = exporter.stop();
    card(&log, "job");
    card(&log, "other");
    // The worst run stands first.
    let message = written();
    assert!(message.find("Run job").unwrap() < message.find("Run other").unwrap(), "{message}");
}

#[test]
fn a_message_of_many_runs_fits_into_4_kib() {
    let folder = Folder::new("conclusion-many");
    let path = folder.path("message");
    let arguments = ["--termination-message-path", &text(&path)];
    let exporter = Exporter::start(&arguments);
    for run in 0..60 {
        let name = format!("{run:x>100}");
        exporter.push_step(&json!({ "run": name, "rank": 0, "world_size": 4 }), 1, GIB);
    }
    exporter.stop();
    let message = fs::read_to_string(&path).unwrap();
    assert!((2000..=4096).contains(&message.len()), "{}", message.len());
    assert!(message.ends_with("…\n"), "{message}");
}

#[test]
fn a_message_that_cannot_be_written_is_logged_and_ends_nothing() {
    let arguments = ["--termination-message-path", "/proc/termination-log"];
    let exporter = Exporter::start_sidecar(&arguments, &[]);
    exporter.push_step(&json!({ "rank": 0 }), 1, GIB);
    let log = exporter.stop();
    let is_it = |entry: &&Value| entry["fields"].to_string().contains("/proc/termination-log");
    assert_eq!(log.iter().filter(is_it).count(), 1, "{log:#?}");
    card(&log, "default");
}

#[test]
fn a_run_on_the_cpu_is_about_host_memory() {
    let exporter = Exporter::start(&[]);
    let live = |_, step| 3 * GIB + (step % 7) * 1024 + step * LEAK_BYTES;
    let job = Job::new(1, 0).run("job").steps(0..1500).untimed().live(live);
    let on_cpu = job.more(|_, _| json!({ "device": "cpu", "total_bytes": 64 * GIB }));
    exporter.push(&on_cpu.records());
    let findings = exporter.status()["findings"].clone();
    let sentence = findings[0]["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("host memory grows by 8.00 MiB/step"), "{findings}");
    assert_eq!(findings[0]["evidence"]["is_on_host"], true);
    let log = exporter.stop();
    let raised = log.iter().find(|entry| entry["fields"]["message"] == "raised").unwrap();
    assert!(
        raised["fields"]["sentence"].as_str().unwrap().starts_with("host memory"),
        "{raised}"
    );
    let card = card(&log, "job");
    assert!(card.contains("Why: host memory grows"), "{card}");
}
