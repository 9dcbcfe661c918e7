//! Limits on everything together: ranks, runs, connections and bodies.

use std::cell::Cell;
use std::io::Write;

use serde_json::Value;
use stepmem::net::server::CONNECTIONS_MAX;

use crate::rig::exporter::Exporter;
use crate::rig::http::{JSON, NDJSON, connect, head};
use crate::rig::job::record;
use crate::rig::refusals::{check_problem, send};
use crate::rig::wait::await_true;

#[test]
fn refusals_are_logged_once_for_each_reason_and_minute() {
    let exporter = Exporter::start(&[]);
    for _ in 0..50 {
        check_problem(&exporter.post(r#"{"rank":"a"}"#), 400, "rank");
        check_problem(
            &exporter.post(r#"{"rank":0,"step":-1,"allocated_bytes":1}"#),
            400,
            "step",
        );
    }
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
    let log = exporter.log();
    let refused = log.iter().filter(|line| line["fields"]["message"] == "push refused");
    let mut told: Vec<_> = refused
        .map(|line| {
            let text = |field: &str| line["fields"][field].as_str().unwrap().to_owned();
            (line["level"].as_str().unwrap(), text("reason"), text("error"))
        })
        .collect();
    told.sort();
    let [(level, reason, error), of_step] = &told[..] else { panic!("{told:?}") };
    assert_eq!(
        (*level, reason.as_str(), of_step.1.as_str()),
        ("WARN", "malformed", "out_of_range")
    );
    assert!(error.contains("rank") && of_step.2.contains("step"), "{told:?}");
}

#[test]
fn address_space_that_is_too_small_for_the_ranks_lowers_them_with_a_warning() {
    let wrapper = ["prlimit", "--as=629145600"];
    let exporter = Exporter::start_within(&wrapper, &["--rank.max", "60000"]);
    let is_it = |line: &Value| line["fields"].to_string().contains("rank.max: 60000 ranks");
    let log = exporter.log();
    let line = log.iter().find(|line| is_it(line)).unwrap_or_else(|| panic!("{log:#?}"));
    assert_eq!(line["level"], "WARN");
    let text = line["fields"]["message"].as_str().unwrap();
    assert!(text.contains("600 MiB of address space (ulimit -v)"), "{text}");
    let n_ranks = text.split("stepmem holds ").nth(1).unwrap();
    let n_ranks: u32 = n_ranks.split(';').next().unwrap().parse().unwrap();
    assert!((1..4000).contains(&n_ranks), "{text}");
    let batch = |ranks: std::ops::Range<u32>| {
        let records: Vec<String> = ranks.map(|rank| record(rank, 1, 1)).collect();
        format!("[{}]", records.join(","))
    };
    let refusal = format!("exceeds the limit of {n_ranks}");
    check_problem(&exporter.post(batch(0..n_ranks + 1)), 429, &refusal);
    assert_eq!(exporter.post(batch(0..n_ranks)).json()["accepted"], n_ranks);
    // Ranks that fit are left alone.
    let exporter = Exporter::start_within(&wrapper, &["--rank.max", "10"]);
    assert_eq!(exporter.logged("WARN", "rank.max"), 0);
}

#[test]
fn hundred_thousand_ranks_are_refused_within_bounded_memory() {
    let exporter = Exporter::start(&["--push.body-max", "8388608"]);
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
    let before = exporter.resident_bytes_max();
    let batch = |ranks: std::ops::Range<u32>| {
        let records: Vec<String> = ranks.map(|rank| record(rank, 1, 1)).collect();
        format!("[{}]", records.join(","))
    };
    let all = batch(0..100_000);
    let lines = all[1..all.len() - 1].replace("},{", "}\n{");
    let detail = "the batch of 100000 records exceeds 8192";
    for _ in 0..3 {
        check_problem(&exporter.post(all.clone()), 413, detail);
        check_problem(&send(lines.as_bytes(), &[NDJSON], &exporter), 413, detail);
    }
    for first in (0..100_000).step_by(8_000) {
        let answer = exporter.post(batch(first..first + 8_000));
        check_problem(&answer, 429, "the batch brings the ranks to 800");
        check_problem(&answer, 429, "which exceeds the limit of 1024");
        assert_eq!(answer.header("retry-after"), "1");
    }
    let metrics = exporter.scrape();
    assert_eq!(metrics[r#"stepmem_run_ranks{run="default"}"#], 1.0);
    assert_eq!(metrics[r#"stepmem_pushes_total{result="too_many"}"#], 13.0);
    assert_eq!(metrics[r#"stepmem_series_dropped_total{reason="ranks"}"#], 104_000.0);
    assert_eq!(exporter.post(batch(0..1024)).json()["accepted"], 1024);
    assert_eq!(exporter.metric(r#"stepmem_run_ranks{run="default"}"#), Some(1024.0));
    let grown = exporter.resident_bytes_max().saturating_sub(before);
    assert!(grown < 24 * 1024 * 1024, "it grew by {grown} bytes");
}

#[test]
fn long_batch_is_taken_as_a_whole_or_not_at_all() {
    let exporter = Exporter::start(&["--rank.max", "2"]);
    let mut records: Vec<String> =
        (0..8_000).map(|n| record(n % 2, u64::from(n / 2), 1)).collect();
    records.push(record(2, 1, 1));
    let answer = exporter.post(format!("[{}]", records.join(",")));
    check_problem(&answer, 429, "the batch brings the ranks to 3");
    let metrics = exporter.scrape();
    assert!(metrics.keys().all(|series| !series.contains("rank=")), "{metrics:?}");
    assert_eq!(metrics[r#"stepmem_series_dropped_total{reason="ranks"}"#], 8_001.0);
    records.pop();
    let answer = exporter.post(format!("[{}]", records.join(",")));
    assert_eq!(answer.json()["accepted"], 8_000);
    let ranks = exporter.status()["ranks"].clone();
    let steps: Vec<&Value> =
        ranks.as_array().unwrap().iter().map(|rank| &rank["step"]).collect();
    assert_eq!(steps, [3_999, 3_999]);
}

#[test]
fn one_run_too_many_is_refused_with_count_and_limit() {
    let exporter = Exporter::start(&["--run.max", "2"]);
    let push = |run: &str| {
        let record = format!(r#"{{"run":"{run}","rank":7,"step":1,"allocated_bytes":1}}"#);
        exporter.post(record)
    };
    assert_eq!((push("a").status, push("b").status), (200, 200));
    let detail = "the batch brings the runs to 3, which exceeds the limit of 2";
    check_problem(&push("c"), 429, detail);
    assert_eq!(push("b").status, 200);
}

#[test]
fn flood_of_silent_connections_is_evicted_for_pushes_and_scrapes() {
    let exporter = Exporter::start(&[]);
    for (listener, address) in [("push", exporter.push), ("web", exporter.web)] {
        let flood: Vec<_> = (0..300).map(|_| connect(address)).collect();
        assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
        let shed = format!("stepmem_connections_shed_total{{listener=\"{listener}\"}}");
        let beyond = f64::from(u32::try_from(300 - CONNECTIONS_MAX).unwrap());
        // Each look is one more connection to the web server.
        let (n_shed, n_looks) = (Cell::new(0.0), Cell::new(0.0));
        await_true("those beyond the limit to go", || {
            n_shed.set(exporter.metric(&shed).unwrap());
            n_looks.set(n_looks.get() + 1.0);
            n_shed.get() > beyond
        });
        let (n_shed, n_looks) = (n_shed.get(), n_looks.get());
        assert!(n_shed <= beyond + 6.0 + n_looks, "{listener}: {n_shed} were shed");
        drop(flood);
    }
}

#[test]
fn flood_of_unfinished_pushes_is_evicted_for_whole_ones() {
    let exporter = Exporter::start(&[]);
    let head = head("POST", "/v1/steps", &[JSON], 100);
    let flood: Vec<_> = (0..300)
        .map(|_| {
            let mut stream = connect(exporter.push);
            stream.write_all(head.as_bytes()).ok();
            stream
        })
        .collect();
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
    drop(flood);
}

#[test]
fn unfinished_body_that_fills_the_budget_is_evicted() {
    let exporter = Exporter::start(&["--push.body-max", "8388608"]);
    let (held, own) = (vec![b' '; 8_300_000], vec![b' '; 100_000]);
    let mut flood: Vec<_> = (0..3).map(|_| connect(exporter.push)).collect();
    for stream in &mut flood {
        let begun = head("POST", "/v1/steps", &[JSON], held.len() + 1);
        stream.write_all(begun.as_bytes()).unwrap();
        stream.write_all(&held).ok();
    }
    check_problem(&exporter.post(own.clone()), 400, "the body is empty");
    let busy = r#"stepmem_pushes_total{result="busy"}"#;
    exporter.await_metrics("the limit", |metrics| metrics[busy] >= 1.0);
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
    check_problem(&exporter.post(own), 400, "the body is empty");
}

#[test]
fn head_over_the_limit_is_refused() {
    let exporter = Exporter::start(&[]);
    let long = "x".repeat(64 * 1024);
    let answer = send(record(7, 1, 1).as_bytes(), &[JSON, ("x-long", &long)], &exporter);
    assert_eq!(answer.status, 431);
    assert_eq!(exporter.get("/metrics", &[("x-long", &long)]).status, 431);
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
}
