//! How ranks come, go and come back, and how the exporter itself stops.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpListener;

use serde_json::json;

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::http::{JSON, connect, head, read_answer};
use crate::rig::job::record;
use crate::rig::wait::await_true;

/// A value of rank 0 of the default run.
fn of_rank(metrics: &BTreeMap<String, f64>, name: &str) -> Option<f64> {
    metrics
        .get(&format!("stepmem_rank_{name}{{run=\"default\",rank=\"0\",uuid=\"\"}}"))
        .copied()
}

/// The number of records by result, of every result that is not zero.
fn records(metrics: &BTreeMap<String, f64>) -> Vec<(&str, f64)> {
    metrics
        .iter()
        .filter_map(|(series, count)| {
            let result = series.strip_prefix("stepmem_push_records_total{result=\"")?;
            (*count > 0.0).then_some((result.trim_end_matches("\"}"), *count))
        })
        .collect()
}

fn has_rank(metrics: &BTreeMap<String, f64>) -> bool {
    metrics.keys().any(|series| series.contains("rank=\"") || series.contains("run=\""))
}

fn push(exporter: &Exporter, record: impl Into<Vec<u8>>) {
    let answer = exporter.post(record);
    assert_eq!(answer.status, 200, "{}", answer.body);
}

fn end(exporter: &Exporter, run: &str, body: &str) -> u16 {
    let path = format!("/v1/runs/{run}/end");
    exporter.post_to(&path, body).status
}

#[test]
fn duplicate_and_late_steps_are_counted_and_change_nothing() {
    let exporter = Exporter::start(&[]);
    push(&exporter, record(0, 100, 1000));
    push(&exporter, record(0, 100, 2000));
    push(&exporter, record(0, 99, 3000));
    push(&exporter, record(0, 68, 4000));
    let metrics = exporter.scrape();
    assert_eq!(records(&metrics), [("accepted", 1.0), ("duplicate", 1.0), ("late", 2.0)]);
    assert_eq!(of_rank(&metrics, "memory_allocated_bytes"), Some(1000.0));
    assert_eq!(of_rank(&metrics, "interval_peak_allocated_bytes"), Some(1000.0));
    assert_eq!(of_rank(&metrics, "steps_total"), Some(1.0));
    assert_eq!(of_rank(&metrics, "step"), Some(100.0));
}

#[test]
fn contradictory_figures_are_accepted_and_counted() {
    let exporter = Exporter::start(&[]);
    for (step, (field, value)) in [
        ("peak_allocated_bytes", 99),
        ("reserved_bytes", 99),
        ("total_bytes", 99),
        ("peak_allocated_bytes", 100),
        ("reserved_bytes", 100),
        ("total_bytes", 100),
    ]
    .into_iter()
    .enumerate()
    {
        let mut record = json!({ "rank": 0, "step": step, "allocated_bytes": 100 });
        record[field] = json!(value);
        push(&exporter, record.to_string());
    }
    assert_eq!(records(&exporter.scrape()), [("accepted", 6.0), ("inconsistent", 3.0)]);
}

#[test]
fn silent_rank_leaves_every_output_and_comes_back_with_its_count() {
    let exporter = Exporter::start(&["--rank.ttl", "1s"]);
    push(&exporter, record(0, 1, 1000));
    push(&exporter, record(0, 2, 1000));
    assert!(has_rank(&exporter.scrape()));
    assert_eq!(exporter.status()["ranks"][0]["steps_total"], 2);
    exporter.await_metrics("silence", |metrics| !has_rank(metrics));
    let status = exporter.status();
    assert_eq!((&status["ranks"], &status["runs"]), (&json!([]), &json!([])));
    assert!(!exporter.get("/metrics", &[]).body.contains("stepmem_rank_"));
    push(&exporter, record(0, 3, 1000));
    assert_eq!(of_rank(&exporter.scrape(), "steps_total"), Some(3.0));
}

#[test]
fn finding_of_a_silent_rank_goes_with_it() {
    let exporter = Exporter::start(&["--rank.ttl", "2s"]);
    let full = json!({ "rank": 0, "step": 1, "allocated_bytes": 99, "peak_allocated_bytes": 99, "total_bytes": 100 });
    push(&exporter, full.to_string());
    let pressed = r#"stepmem_diagnosis_severity{run="default",rank="0",kind="HIGH_PRESSURE"}"#;
    exporter.await_metrics("pressure", |metrics| metrics.contains_key(pressed));
    exporter.await_metrics("silence", |metrics| !has_rank(metrics));
    exporter.await_metrics("clearance", |metrics| !metrics.contains_key(pressed));
    assert_eq!(exporter.logged("INFO", "\"cleared\""), 1);
}

#[test]
fn ended_rank_is_no_longer_counted_and_a_newer_push_brings_it_back() {
    let exporter = Exporter::start(&[]);
    push(&exporter, format!("[{},{}]", record(0, 1, 1000), record(1, 1, 1000)));
    assert_eq!(end(&exporter, "default", r#"{"rank":0,"outcome":"completed"}"#), 200);
    let metrics = exporter.scrape();
    // Its last row stays for the answer; it no longer counts as one that pushes.
    assert_eq!(of_rank(&metrics, "step"), Some(1.0));
    assert_eq!(of_rank(&metrics, "last_push_timestamp_seconds"), None);
    assert_eq!(metrics[r#"stepmem_run_ranks{run="default"}"#], 1.0);
    push(&exporter, record(0, 1, 1000));
    assert_eq!(
        exporter.status()["ranks"][0]["state"],
        "ended",
        "a duplicate does not bring it back"
    );
    push(&exporter, record(0, 2, 1000));
    assert_eq!(exporter.status()["ranks"][0]["state"], "pushing");
    assert_eq!(of_rank(&exporter.scrape(), "steps_total"), Some(2.0));
}

#[test]
fn ended_run_ends_with_all_its_ranks() {
    let exporter = Exporter::start(&[]);
    let of = |run: &str, rank: u32| {
        json!({ "run": run, "rank": rank, "step": 1, "allocated_bytes": 1 }).to_string()
    };
    let odd = "a \"b\" \\ ü/ö";
    push(&exporter, format!("[{},{},{}]", of(odd, 0), of(odd, 1), of("other", 0)));
    let path = "a%20%22b%22%20%5C%20%C3%BC%2F%C3%B6";
    assert_eq!(end(&exporter, path, r#"{"outcome":"failed"}"#), 200);
    let runs = &exporter.status()["runs"];
    let pushing: Vec<_> =
        runs.as_array().unwrap().iter().filter(|run| run["ranks"] != 0).collect();
    assert_eq!(pushing.len(), 1, "{runs}");
    assert_eq!(pushing[0]["run"], "other");
}

#[test]
fn end_of_an_unknown_run_leaves_no_trace_and_an_operator_is_told() {
    let exporter = Exporter::start(&[]);
    push(&exporter, record(0, 1, 1000));
    assert_eq!(end(&exporter, "unknown-run", r#"{"rank":0,"outcome":"oom"}"#), 404);
    assert_eq!(end(&exporter, "default", r#"{"rank":5,"outcome":"oom"}"#), 404);
    // A client may end before its first step.
    let of_client = r#"{"rank":5,"instance":"00000000000000aa","outcome":"oom"}"#;
    assert_eq!(end(&exporter, "unknown-run", of_client), 200);
    let metrics = exporter.scrape();
    assert!(!metrics.keys().any(|series| series.contains("unknown-run")));
    assert_eq!(metrics[r#"stepmem_run_ranks{run="default"}"#], 1.0);
}

#[test]
fn malformed_end_is_refused_and_ends_nothing() {
    let exporter = Exporter::start(&[]);
    push(&exporter, record(0, 1, 1000));
    for (run, body, detail) in [
        ("default", "{\"rank\":0}", "missing field `outcome`"),
        ("default", "{\"rank\":0,\"outcome\":\"bored\"}", "unknown variant `bored`"),
        ("default", "{\"rank\":-1,\"outcome\":\"oom\"}", "rank: -1 is outside 0..=1048575"),
        ("default", "[0,\"oom\"]", "expected an object"),
        ("default", "", "the body is empty"),
        ("%FF", "{\"outcome\":\"oom\"}", "run"),
        ("a%0Ab", "{\"outcome\":\"oom\"}", "run: \"a\\nb\" contains a control character"),
    ] {
        let path = format!("/v1/runs/{run}/end");
        let answer = exporter.post_to(&path, body);
        assert_eq!(answer.status, 400, "{run} {body}");
        assert_eq!(answer.header("content-type"), "application/problem+json", "{run} {body}");
        let said = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(said.contains(detail), "{said}");
    }
    assert_eq!(of_rank(&exporter.scrape(), "steps_total"), Some(1.0));
}

#[test]
fn push_in_flight_ends_well_and_the_last_scrape_sees_it() {
    let exporter = Exporter::start(&["--stop.linger", "1s"]);
    let body = record(0, 1, 1000);
    let mut stream = connect(exporter.push);
    stream.write_all(head("POST", "/v1/steps", &[JSON], body.len()).as_bytes()).unwrap();
    stream.write_all(&body.as_bytes()[..10]).unwrap();
    assert_eq!(exporter.get("/-/ready", &[]).status, 200);
    exporter.signal("TERM");
    await_true("the stop", || exporter.get("/-/ready", &[]).status == 503);
    assert_eq!(of_rank(&exporter.scrape(), "step"), None);
    stream.write_all(&body.as_bytes()[10..]).unwrap();
    let answer = read_answer(&mut stream);
    assert_eq!((answer.status, &answer.json()["accepted"]), (200, &json!(1)));
    assert_eq!(of_rank(&exporter.scrape(), "step"), Some(1.0));
    assert_eq!(exporter.get("/-/healthy", &[]).status, 200);
    let (status, log) = exporter.wait();
    assert!(status.success(), "{status}: {log:?}");
    assert!(!log.iter().any(|entry| entry["level"] == "WARN" || entry["level"] == "ERROR"));
}

#[test]
fn new_pushes_are_refused_once_the_exporter_stops() {
    let exporter = Exporter::start(&["--stop.linger", "1s"]);
    exporter.signal("INT");
    await_true("the stop", || exporter.get("/-/ready", &[]).status == 503);
    await_true("the closed door", || std::net::TcpStream::connect(exporter.push).is_err());
    assert_eq!(exporter.metric("stepmem_up"), Some(1.0));
    assert!(exporter.wait().0.success());
}

#[test]
fn idle_and_silent_connections_do_not_hold_up_the_stop() {
    let exporter = Exporter::start(&[]);
    let silent = [connect(exporter.push), connect(exporter.web)];
    let mut idle = connect(exporter.web);
    idle.write_all(b"GET /-/healthy HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
    let mut first = [0];
    std::io::Read::read_exact(&mut idle, &mut first).unwrap();
    // They are still open when it has ended.
    exporter.signal("TERM");
    assert!(exporter.wait().0.success());
    drop((silent, idle));
}

#[test]
fn second_signal_aborts() {
    let exporter = Exporter::start(&["--stop.linger", "1h"]);
    exporter.signal("TERM");
    await_true("the stop", || exporter.get("/-/ready", &[]).status == 503);
    exporter.signal("TERM");
    let (status, log) = exporter.wait();
    assert_eq!(status.code(), Some(1));
    assert!(log.iter().any(|entry| entry == "error: aborted by a second signal"), "{log:?}");
}

#[test]
fn address_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (flag, other, what) in [
        ("--web.listen-address", "--push.listen-address", "web"),
        ("--push.listen-address", "--web.listen-address", "push"),
    ] {
        let ended =
            stepmem(&["serve", "--no-nvml", flag, &address, other, "127.0.0.1:0"], &[], b"");
        assert_eq!(ended.code, Some(1), "{}", ended.err);
        let setting = flag.trim_start_matches('-');
        let message = format!("error: {setting}: cannot listen on {address} ({what})");
        assert!(ended.err.contains(&message), "{}", ended.err);
    }
}
