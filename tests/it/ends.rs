//! The ends of ranks: what stays of them, who may announce them, and what the exporter still waits for.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use stepmem_engine::status::ExporterStatus;
use stepmem_engine::wire::{Layout, decode_end, decode_steps};
use stepmem_engine::{Engine, EngineConfig, Event};
use stepmem_types::ids::Run;
use stepmem_types::units::Uptime;

use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::json::{has, text_of};
use crate::rig::summary::issue;
use crate::rig::units::{GIB, MIB};
use crate::rig::wait::{DEADLINE, await_true};

const OWN: &str = "00000000000000aa";
const OTHER: &str = "00000000000000bb";

/// The finding of a rank that is out of memory.
fn found(exporter: &Exporter) -> Option<Value> {
    exporter.finding("OUT_OF_MEMORY")
}

/// Seconds of the day at which a line was logged.
fn seconds_of(entry: &Value) -> f64 {
    let (_, time) = entry["timestamp"].as_str().unwrap().split_once('T').unwrap();
    let parts = time.trim_end_matches('Z').split(':').map(|part| part.parse::<f64>().unwrap());
    parts.fold(0.0, |sum, part| sum * 60.0 + part)
}

/// A job that leaks until it has no memory left, as its client reports it.
fn dying() -> Job {
    let live = |_, step: u64| 4 * GIB + step * 80 * MIB;
    Job::new(1, 250).capacity(24 * GIB).live(live).more(|_, _| json!({"instance": OWN}))
}

fn oom() -> Value {
    json!({
        "rank": 0, "outcome": "oom", "instance": OWN, "step": 251, "requested_bytes": 2 * GIB,
        "error_type": "torch.OutOfMemoryError", "error_message": "CUDA out of memory.",
    })
}

#[test]
fn death_by_oom_stays_in_every_output() {
    let exporter = Exporter::start(&["--creep.warmup-steps", "0"]);
    exporter.push(&dying().records());
    exporter.end("job", &oom());
    let metrics = exporter.scrape();
    let of = |name: &str| metrics.get(&format!("{name}{{run=\"job\",rank=\"0\",uuid=\"\"}}"));
    assert_eq!(of("stepmem_rank_step"), Some(&250.0));
    assert_eq!(of("stepmem_rank_oom_events_total"), Some(&1.0));
    assert_eq!(of("stepmem_rank_last_push_timestamp_seconds"), None);
    assert_eq!(of("stepmem_oom_eta_seconds"), None);
    assert_eq!(metrics[r#"stepmem_run_ranks{run="job"}"#], 0.0);
    let critical = r#"stepmem_diagnosis_severity{run="job",rank="0",kind="OUT_OF_MEMORY"}"#;
    assert_eq!(metrics[critical], 3.0);
    let end = json!({"outcome": "oom", "error_type": "torch.OutOfMemoryError"});
    has(&exporter.status()["ranks"][0], &json!({"state": "ended", "end": end}));
    let died = found(&exporter).unwrap();
    assert!(text_of(&died, "advice").contains("MEMORY CREEP"), "{died}");
    let evidence = &died["evidence"];
    has(evidence, &json!({"oom_step": 251, "is_fatal": true, "requested_bytes": 2 * GIB}));
    assert!(evidence["headroom_bytes"].as_f64().is_some(), "{evidence}");
    // What had been found stays as an answer that pages no more, and nothing counts down.
    let creep = exporter.finding("CREEP_CONFIRMED").expect("the creep stays");
    assert_eq!(creep["severity"], "info");
    assert!(creep["evidence"].get("oom_eta_seconds").is_none(), "{creep}");
    assert!(evidence["growth_bytes"].as_f64().unwrap() > 0.0, "{evidence}");
}

/// A job of 20 steps whose allocator has counted `n_ooms` errors since step 6.
fn caught(n_ooms: u64) -> Job {
    let ooms =
        move |_, step: u64| json!({"instance": OWN, "ooms": u64::from(step >= 6) * n_ooms});
    Job::new(1, 20).more(ooms)
}

fn caught_end(outcome: &str, ooms: u64) -> Value {
    json!({"rank": 0, "outcome": outcome, "instance": OWN, "step": 20, "ooms": ooms})
}

/// The finding after an end, with its sentence on the card and the errors of the run.
fn oom_of(job: &Job, end: &Value) -> (Value, String, Value) {
    let exporter = Exporter::start(&[]);
    exporter.push(&job.records());
    exporter.end("job", end);
    let summary = exporter.summary("job");
    let issue = issue(&summary, "OUT_OF_MEMORY");
    let sentence = issue.map_or(String::new(), |issue| text_of(&issue, "summary").to_owned());
    (found(&exporter).unwrap_or_default(), sentence, summary["ranks"][0]["ooms"].clone())
}

#[test]
fn errors_are_a_finding_by_when_they_were_and_how_the_process_ended() {
    let silent = "caught an out-of-memory error after step 20 and ended without another step";
    let twice = "caught 2 out-of-memory errors after step 20 and then ended with an error";
    let went_on = "ran out of memory before step 6 and went on";
    let failed = "ran out of memory before step 6 and went on (1 so far); it ended with another error later";
    let killed = "the kernel killed its process for lack of memory after step 20";
    let mut kill = caught_end("oom", 0);
    kill["error_type"] = json!("oom_kill");
    for (job, end, severity, expected) in [
        (caught(0), caught_end("completed", 1), "warning", silent),
        (caught(0), caught_end("failed", 2), "critical", twice),
        // What the records had is no news.
        (caught(1), caught_end("completed", 1), "warning", went_on),
        (caught(1), caught_end("failed", 1), "warning", failed),
        (caught(0), kill, "critical", killed),
    ] {
        let (found, sentence, ooms) = oom_of(&job, &end);
        assert_eq!(found["severity"], severity, "{expected}: {found:#}");
        assert!(sentence.starts_with(expected), "{sentence}");
        assert_eq!(ooms, end["ooms"], "{expected}");
        if expected == killed {
            assert_eq!(found["evidence"]["is_kill"], true);
            assert!(text_of(&found, "advice").starts_with("Look at host memory"), "{found:#}");
        } else if expected == silent {
            assert_eq!(found["evidence"]["ooms"], 1);
        }
    }
    let (found, _, ooms) = oom_of(&caught(0), &caught_end("completed", 0));
    assert_eq!((found, ooms), (Value::Null, json!(0)));
}

#[test]
fn end_as_completed_after_a_last_error_is_corrected_by_whoever_knows_the_exit_code() {
    let correction = json!({"rank": 0, "outcome": "oom", "step": 20});
    let corrected = |caught_before: u64, n_ooms: u64| {
        let exporter = Exporter::start(&[]);
        exporter.push(&caught(caught_before).records());
        exporter.end("job", &caught_end("completed", n_ooms));
        let failed = json!({"rank": 0, "outcome": "failed"});
        let end = |body: &Value| exporter.post_to("/v1/runs/job/end", body.to_string()).status;
        let statuses = [end(&correction), end(&failed)];
        (statuses, exporter.status()["ranks"][0].clone(), found(&exporter))
    };
    let (statuses, rank, found) = corrected(0, 1);
    assert_eq!(statuses, [200, 409]);
    let found = found.unwrap();
    assert_eq!(found["severity"], "critical");
    let words = text_of(&found, "sentence");
    assert!(words.starts_with("ended out of memory at step 20"), "{words}");
    has(&rank, &json!({"end": {"outcome": "oom"}, "oom_events_total": 1}));
    // It went on after its error, or had none: its own end counts.
    for (caught_before, n_ooms) in [(1, 1), (0, 0)] {
        let (statuses, rank, _) = corrected(caught_before, n_ooms);
        assert_eq!(statuses, [409, 409]);
        assert_eq!(rank["end"]["outcome"], "completed", "{rank:#}");
    }
}

#[test]
fn end_is_corrected_by_the_exit_code_after_a_restart_too_and_stays_corrected() {
    let folder = Folder::new("ends-corrected");
    let start = || Exporter::start(&["--state.file", &text(&folder.path("state"))]);
    let first = start();
    first.push(&caught(0).records());
    first.end("job", &caught_end("completed", 1));
    first.stop();
    let second = start();
    let correction = json!({"rank": 0, "outcome": "oom", "step": 20});
    second.end("job", &correction);
    let shown = |exporter: &Exporter| {
        let (found, rank) = (found(exporter).unwrap(), exporter.status()["ranks"][0].clone());
        let figures = [&found["severity"], &rank["oom_events_total"], &rank["end"]];
        json!([figures, found["sentence"]])
    };
    let before = shown(&second);
    assert_eq!((&before[0][0], &before[0][1]), (&json!("critical"), &json!(1)));
    assert_eq!(before[0][2]["outcome"], "oom");
    let words = before[1].as_str().unwrap();
    assert!(words.starts_with("ended out of memory at step 20"), "{words}");
    second.stop();
    assert_eq!(shown(&start()), before);
}

#[test]
fn error_that_ends_the_process_counts_once() {
    for (job, counted, expected) in [(caught(0), 1, 1), (caught(2), 3, 3)] {
        let exporter = Exporter::start(&[]);
        exporter.push(&job.records());
        exporter.end("job", &caught_end("oom", counted));
        let rank = &exporter.status()["ranks"][0];
        assert_eq!(rank["oom_events_total"], expected, "{rank:#}");
        let (found, _, ooms) = oom_of(&job, &caught_end("oom", counted));
        assert_eq!((&found["severity"], ooms), (&json!("critical"), json!(expected)));
    }
}

#[test]
fn rank_is_ended_by_the_process_that_holds_it_alone() {
    let exporter = Exporter::start(&[]);
    exporter.push(&Job::new(1, 5).more(|_, _| json!({"instance": OWN})).records());
    let of_other = json!({"rank": 0, "outcome": "completed", "instance": OTHER});
    let refused = exporter.post_to("/v1/runs/job/end", of_other.to_string());
    assert_eq!(refused.status, 409);
    assert_eq!(exporter.status()["ranks"][0]["state"], "pushing");
    exporter.end("job", &json!({"outcome": "completed", "instance": OTHER}));
    assert_eq!(exporter.status()["ranks"][0]["state"], "pushing");
    // One that does not name itself ends it, as a launcher's script does.
    exporter.end("job", &json!({"outcome": "failed"}));
    assert_eq!(exporter.status()["ranks"][0]["state"], "ended");
}

#[test]
fn ended_ranks_free_their_place_at_once() {
    let exporter = Exporter::start(&["--run.max", "2", "--rank.max", "4"]);
    for n in 0..300 {
        let run = format!("short-{n}");
        exporter.push(&Job::new(4, 2).run(&run).records());
        exporter.end(&run, &json!({"outcome": "completed"}));
    }
    let dropped = r#"stepmem_series_dropped_total{reason="ranks"}"#;
    assert_eq!(exporter.metric(dropped), Some(0.0));
    // A bound holds what stays of them.
    let n_ranks = exporter.status()["ranks"].as_array().unwrap().len();
    assert_eq!(n_ranks, 1024);
    let dropped = r#"stepmem_series_dropped_total{reason="ended"}"#;
    assert_eq!(exporter.metric(dropped), Some(1200.0 - 1024.0));
}

#[test]
fn silent_rank_says_so_and_counts_nothing_down() {
    let exporter = Exporter::start(&[]);
    let job = Job::leaking("leaky", 0..3000, 4 * MIB).seconds_per_step(0.5);
    exporter.push(&job.records());
    assert!(exporter.status()["ranks"][2]["oom_eta_seconds"].as_f64().is_some());
    await_true("the silence", || exporter.status()["ranks"][2]["state"] == "silent");
    let status = exporter.status();
    assert!(status["ranks"][2]["silent_seconds"].as_f64().unwrap() >= 10.0);
    assert!(status["ranks"][2].get("oom_eta_seconds").is_none_or(Value::is_null), "{status:#}");
    let finding = exporter.finding("CREEP_CONFIRMED").unwrap();
    let sentence = finding["sentence"].as_str().unwrap();
    assert!(sentence.contains(" left; no steps for "), "{sentence}");
}

#[test]
fn terminated_exporter_waits_for_the_scrape_of_a_death_and_writes_first() {
    let folder = Folder::new("ends-linger");
    let (state, summaries) = (folder.path("state"), folder.path("summaries"));
    let exporter =
        Exporter::start(&["--state.file", &text(&state), "--summary.dir", &text(&summaries)]);
    exporter.push(&dying().records());
    exporter.end("job", &oom());
    exporter.signal("TERM");
    exporter.await_log("the wait", DEADLINE, |entry| {
        entry["fields"]["message"] == "waiting for a last scrape"
    });
    await_true("the state", || state.exists());
    await_true("the summary", || fs::read_dir(&summaries).is_ok());
    let metrics = exporter.scrape();
    assert!(metrics.keys().any(|series| series.contains("OUT_OF_MEMORY")), "{metrics:#?}");
    let (status, log) = exporter.wait();
    assert!(status.success());
    assert!(
        !log.iter().any(|entry| entry["fields"]["message"] == "no scrape came"),
        "{log:#?}"
    );
}

#[test]
fn terminated_exporter_ends_after_25_s_without_the_scrape_of_a_death() {
    let exporter = Exporter::start(&[]);
    exporter.push(&dying().records());
    exporter.end("job", &oom());
    exporter.signal("TERM");
    let (status, log) = exporter.wait();
    assert!(status.success());
    let at = |message: &str| {
        let entry = log.iter().find(|entry| entry["fields"]["message"] == message);
        seconds_of(entry.unwrap_or_else(|| panic!("{message}: {log:#?}")))
    };
    let waited = (at("no scrape came") - at("waiting for a last scrape")).rem_euclid(86_400.0);
    assert!(waited >= 25.0, "{waited} s");
}

#[test]
fn terminated_exporter_waits_for_no_scrape_of_a_run_that_completed() {
    let exporter = Exporter::start(&[]);
    exporter.push(&dying().records());
    exporter.end("job", &json!({"outcome": "completed"}));
    let log = exporter.stop();
    assert!(!log.iter().any(|entry| entry["fields"]["message"] == "waiting for a last scrape"));
}

#[test]
fn run_whose_ranks_fall_silent_together_has_ended_unannounced() {
    let exporter = Exporter::start(&["--rank.ttl", "1s"]);
    exporter.push(&Job::new(2, 50).records());
    await_true("the silence", || exporter.status()["ranks"] == json!([]));
    let summary = exporter.summary("job");
    assert_eq!(summary["coverage"]["ranks_lost"], json!([]));
    assert_eq!(summary["ranks"][0]["state"], "ended_unannounced");
}

/// An engine whose time is the test's.
struct Engined(Engine);

impl Engined {
    fn at(seconds: u64) -> Uptime {
        Uptime(Duration::from_secs(seconds))
    }

    fn handle(&mut self, event: &Event, seconds: u64) {
        self.0.handle(event, Self::at(seconds)).unwrap();
    }

    /// The numbers of ranks and findings in the status.
    fn shown(&mut self, seconds: u64) -> (usize, usize) {
        self.handle(&Event::Tick, seconds);
        let status = self.0.status(Self::at(seconds), ExporterStatus::default());
        (status.ranks.len(), status.findings.len())
    }
}

/// An engine in which a rank died of memory at 100 seconds.
fn died() -> Engined {
    let mut engine = Engined(Engine::new(EngineConfig::default(), 1e9));
    let body = Value::from(Job::new(1, 5).untimed().records()).to_string();
    let batch = decode_steps(body.as_bytes(), Layout::Json).unwrap();
    engine.handle(&Event::Steps(batch), 100);
    let end = decode_end(oom().to_string().as_bytes()).unwrap();
    engine.handle(&Event::End(Run::new("job").unwrap(), end), 100);
    engine
}

#[test]
fn ended_rank_keeps_its_row_and_findings_for_ten_minutes_and_until_a_scrape() {
    let mut scraped = died();
    scraped.handle(&Event::Scraped, 101);
    assert_eq!(scraped.shown(100 + 600), (1, 1));
    assert_eq!(scraped.shown(100 + 601), (0, 0));
    let mut unread = died();
    assert_eq!(unread.shown(100 + 601), (1, 1), "Prometheus has not read it");
    unread.handle(&Event::Scraped, 1000);
    assert_eq!(unread.shown(1001), (0, 0));
    let mut forgotten = died();
    assert_eq!(forgotten.shown(100 + 3600), (1, 1));
    assert_eq!(forgotten.shown(100 + 3601), (0, 0), "nothing scrapes");
}
