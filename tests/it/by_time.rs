//! Ranks that take no steps: samples by time are judged by time, and give way to steps. And what marks a step.

use serde_json::{Value, json};

use stepmem_report::summary::Summary;
use stepmem_report::{ExitGate, FailOn, GateVerdict};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::Folder;
use crate::rig::job::Job;
use crate::rig::summary::summary;
use crate::rig::units::{GIB, MIB, float};

/// Samples of a process, one in a tenth of a second, that hold so much by their number.
fn samples(n: u64, live: impl Fn(u64) -> u64 + 'static) -> Job {
    let process = json!({"phase": "sample", "step": 0, "instance": "1111111111111111"});
    Job::new(1, n)
        .seconds_per_step(0.1)
        .capacity(2 * GIB)
        .device("cpu")
        .live(move |_, number| live(number))
        .more(move |_, _| process.clone())
}

fn leak(number: u64) -> u64 {
    GIB / 4 + 8 * MIB * number
}

fn kinds(status: &Value) -> Vec<&str> {
    let findings = status["findings"].as_array().unwrap();
    findings.iter().filter_map(|finding| finding["kind"].as_str()).collect()
}

#[test]
fn leak_without_steps_is_found_by_time_and_never_counted_in_steps() {
    let exporter = Exporter::start(&[]);
    exporter.push(&samples(120, leak).records());
    let status = exporter.status();
    assert_eq!(kinds(&status), ["CREEP_CONFIRMED"], "{status:#}");
    let evidence = &status["findings"][0]["evidence"];
    let per_second = evidence["slope_bytes_per_second"].as_f64().unwrap();
    assert!((per_second / float(80 * MIB) - 1.0).abs() < 0.02, "{evidence}");
    for field in ["slope_bytes_per_step", "onset_step", "oom_eta_steps"] {
        assert_eq!(evidence.get(field), None, "{field}");
    }
    let rank = &status["ranks"][0];
    assert_eq!((&rank["is_by_time"], &rank["steps_total"]), (&json!(true), &json!(0)));
    let metrics = exporter.scrape();
    let named = |name: &str| metrics.keys().any(|series| series.starts_with(name));
    assert!(!named("stepmem_rank_step{") && !named("stepmem_creep_slope_bytes_per_step{"));
    assert!(named("stepmem_creep_slope_bytes_per_second{"));
    assert_eq!(
        status["findings"][0]["sentence"].as_str().map(|of| of.contains("/step")),
        Some(false)
    );
    let advice = status["findings"][0]["advice"].as_str().unwrap();
    assert!(advice.starts_with("Look at what the program keeps from call to call"), "{advice}");
}

#[test]
fn card_of_a_run_without_steps_says_so() {
    let card = |job: Job| summary(&job.recording())["text"].as_str().unwrap().to_owned();
    let leaking = card(samples(120, leak));
    assert!(leaking.starts_with("MEMORY CREEP (critical) on rank 0"), "{leaking}");
    assert!(leaking.contains("no optimizer steps, 120 samples by time in 11 s"), "{leaking}");
    assert!(leaking.contains("GiB/h"), "{leaking}");
    let level = card(samples(400, |_| GIB));
    assert!(level.starts_with("BALANCED"), "{level}");
    assert!(level.contains("judged by time as no optimizer stepped"), "{level}");
    let short = card(samples(20, |_| GIB));
    assert!(short.starts_with("TOO FEW SAMPLES"), "{short}");
}

#[test]
fn card_of_a_run_without_steps_that_failed_has_something_to_do() {
    let exporter = Exporter::start(&[]);
    exporter.push(&samples(400, |_| GIB).records());
    let end = json!({
        "rank": 0, "instance": "1111111111111111", "outcome": "failed", "error_type": "ValueError",
    });
    assert_eq!(exporter.post_to("/v1/runs/job/end", end.to_string()).status, 200);
    let body = exporter.get("/api/v1/runs/job/summary", &[]).body;
    let summary: Value = serde_json::from_str(&body).unwrap();
    let text = summary["text"].as_str().unwrap();
    assert!(text.starts_with("BALANCED UNTIL IT FAILED"), "{text}");
    assert!(text.contains("rank 0 failed") && text.contains("judged by time"), "{text}");
    assert!(!text.contains("Nothing to do"), "{text}");
}

#[test]
fn run_that_was_judged_by_time_is_judged_by_a_gate() {
    let verdict = |job: Job| {
        let run: Summary = serde_json::from_value(summary(&job.recording())).unwrap();
        let option = FailOn::parse("creep").unwrap();
        let gate = ExitGate::new([&option].into_iter(), None, |_| Err(String::new()));
        gate.unwrap().judge(&[&run])
    };
    assert!(matches!(verdict(samples(120, leak)), GateVerdict::Failed(_)));
    assert_eq!(verdict(samples(400, |_| GIB)), GateVerdict::Passed(Vec::new()));
    assert!(matches!(verdict(samples(20, |_| GIB)), GateVerdict::Unjudged(_)));
}

#[test]
fn story_of_a_rank_without_steps_is_told_by_time() {
    let folder = Folder::new("by-time");
    let file = folder.write("steps.jsonl", &samples(120, leak).recording());
    let text = stepmem(&["explain", &file], &[], b"").out;
    assert!(text.contains("120 samples by time, no optimizer steps; "), "{text}");
    assert!(text.contains("Live memory, the least of each 2 readings: "), "{text}");
    assert!(!text.contains("step 0") && !text.contains("each step"), "{text}");
    let story = stepmem(&["explain", "--json", &file], &[], b"").out;
    let story: Value = serde_json::from_str(&story).unwrap();
    assert_eq!((&story["readings"], story.get("steps")), (&json!(120), None), "{story:#}");
}

#[test]
fn steps_take_over_from_samples() {
    let exporter = Exporter::start(&[]);
    exporter.push(&samples(60, |number| GIB / 4 + 2 * MIB * number).records());
    // A process that only samples does not keep the rank from the one that it starts.
    let process = json!({"instance": "2222222222222222"});
    let steps = Job::new(1, 400).starting_at(10.0).seconds_per_step(0.1).capacity(2 * GIB);
    let steps = steps.device("cpu").live(|_, _| GIB).more(move |_, _| process.clone());
    exporter.push(&steps.records());
    let status = exporter.status();
    assert_eq!(kinds(&status), [""; 0], "{status:#}");
    let rank = &status["ranks"][0];
    assert_eq!((&rank["step"], &rank["steps_total"]), (&json!(400), &json!(400)));
    assert_eq!((rank.get("is_by_time"), &rank["is_judged"]), (None, &json!(true)));
    // It samples on, and is refused.
    let late = samples(1, |_| GIB).starting_at(60.0).records();
    assert_eq!(exporter.post(late[0].to_string()).status, 409);
}

#[test]
fn samples_before_the_first_step_of_a_process_are_forgotten() {
    let exporter = Exporter::start(&[]);
    let process = || json!({"instance": "1111111111111111"});
    exporter.push(&samples(60, leak).records());
    let steps = Job::new(1, 400).starting_at(10.0).seconds_per_step(0.1).capacity(2 * GIB);
    let steps = steps.device("cpu").live(|_, _| GIB).more(move |_, _| process());
    exporter.push(&steps.records());
    let status = exporter.status();
    assert_eq!(kinds(&status), [""; 0], "{status:#}");
    assert_eq!(status["ranks"][0].get("is_by_time"), None);
    let text = [samples(60, leak).recording(), steps.recording()].concat();
    let card = summary(&text);
    assert_eq!(card["ranks"][0]["steps"], 400, "{card:#}");
    assert_eq!(card["ranks"][0]["allocated"]["mean_bytes"], float(GIB), "of steps alone");
}

#[test]
fn process_that_goes_on_without_steps_is_said_to() {
    let steps = || Job::new(1, 60).device("cpu").capacity(2 * GIB).live(|_, _| GIB);
    let idle = Job::new(1, 200)
        .starting_at(100.0)
        .device("cpu")
        .more(|_, _| json!({"phase": "idle", "step": 60}));
    let exporter = Exporter::start(&[]);
    exporter.push(&steps().records());
    assert_eq!(
        exporter.metric(r#"stepmem_rank_without_steps_seconds{run="job",rank="0",uuid="cpu"}"#),
        None
    );
    exporter.push(&idle.records());
    let seconds =
        exporter.metric(r#"stepmem_rank_without_steps_seconds{run="job",rank="0",uuid="cpu"}"#);
    assert_eq!(seconds, Some(240.0));
    assert_eq!(exporter.status()["ranks"][0]["steps_total"], 60);
    let card = summary(&(steps().recording() + &idle.recording()));
    let text = card["text"].as_str().unwrap();
    assert!(
        text.contains("Went on without steps: rank 0, for 4 min 0 s after step 60."),
        "{text}"
    );
    assert!(!text.contains("Look again after more steps"), "{text}");
    // A growing inference after training is judged by time.
    let infers = samples(150, leak).starting_at(400.0);
    let process = json!({"phase": "sample", "step": 60, "instance": null});
    exporter.push(&infers.more(move |_, _| process.clone()).records());
    assert_eq!(kinds(&exporter.status()), ["CREEP_CONFIRMED"]);
}

#[test]
fn marks_are_counted_and_recorded() {
    let exporter = Exporter::start(&[]);
    let marked = Job::new(1, 40).more(|_, step| match step % 20 {
        0 => json!({"marks": ["eval", "epoch"]}),
        10 => json!({"phase": "checkpoint"}),
        _ => json!({}),
    });
    exporter.push(&marked.records());
    for (mark, n) in [("eval", 2.0), ("epoch", 2.0), ("checkpoint", 2.0)] {
        let series =
            format!(r#"stepmem_rank_marks_total{{run="job",rank="0",uuid="",mark="{mark}"}}"#);
        assert_eq!(exporter.metric(&series), Some(n), "{mark}");
    }
    let unknown = json!({"rank": 0, "step": 50, "allocated_bytes": 1, "marks": ["lunch"]});
    let answer = exporter.post(unknown.to_string());
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("lunch") && answer.body.contains("eval, checkpoint, epoch"));
}
