//! Memory that is full: growth that ends there, and pressure on the host.

use serde_json::Value;

use crate::rig::exporter::Exporter;
use crate::rig::job::Job;
use crate::rig::units::{GIB, MIB};
use crate::rig::wait::await_true;

/// The sentence and the advice of a finding.
fn found(exporter: &Exporter, kind: &str) -> (String, String) {
    let status = exporter.status();
    let findings = status["findings"].as_array().unwrap();
    let found = findings.iter().find(|found| found["kind"] == kind);
    let found = found.unwrap_or_else(|| panic!("{status:#}"));
    let word = |name: &str| found[name].as_str().unwrap().to_owned();
    (word("sentence"), word("advice"))
}

#[test]
fn growth_that_is_level_where_the_memory_is_full_says_so_and_what_to_do() {
    let reserved = |limit: u64| {
        let live = |_, _| 35 * GIB;
        let cache = move |_, step: u64| (40 * GIB + step * 20 * MIB).min(limit);
        Job::new(1, 4000).capacity(80 * GIB).live(live).peak(live).reserved(cache)
    };
    let host = |limit: u64| {
        let live = move |_, step: u64| (4 * GIB + step * 8 * MIB).min(limit);
        Job::new(1, 4000).capacity(24 * GIB).device("cpu").live(live).peak(live).reserved(live)
    };
    for (job, kind, level, action) in [
        (
            reserved(78 * GIB),
            "FRAGMENTATION",
            "level since: the card is full",
            "The card is full: ",
        ),
        (reserved(60 * GIB), "FRAGMENTATION", "level since", "Nothing, unless it grows again."),
        (
            host(23 * GIB),
            "CREEP_CONFIRMED",
            "level since: the memory is full",
            "The memory is full",
        ),
        (host(18 * GIB), "CREEP_CONFIRMED", "level since", "Nothing, unless it grows again."),
    ] {
        let exporter = Exporter::start(&[]);
        let records = job.records();
        let is_level = || found(&exporter, kind).0.contains("level since");
        let mut parts = records.chunks(200);
        exporter.push(&parts.by_ref().take(5).flatten().cloned().collect::<Vec<_>>());
        while !is_level() {
            exporter.push(parts.next().unwrap());
        }
        let (sentence, advice) = found(&exporter, kind);
        assert!(sentence.ends_with(level), "{sentence}");
        assert!(advice.starts_with(action), "{sentence}: {advice}");
    }
}

#[test]
fn growth_beyond_the_capacity_leaves_nothing_and_has_no_time_left() {
    let live = |_, step: u64| 20 * GIB + step * 8 * MIB;
    let job = Job::new(1, 800).capacity(24 * GIB).device("cpu").live(live).peak(live);
    let exporter = Exporter::start(&[]);
    exporter.push(&job.reserved(live).records());
    let says_so = || found(&exporter, "CREEP_CONFIRMED").0.ends_with("; nothing is left");
    await_true("the end of what is left", says_so);
    assert_eq!(exporter.status()["findings"][0]["evidence"]["headroom_bytes"], 0.0);
}

#[test]
fn pressure_on_the_host_is_of_host_memory_and_not_of_a_device() {
    let exporter = Exporter::start(&[]);
    let live = |_, step: u64| if step < 50 { 23 * GIB } else { 10 * GIB };
    let job =
        || Job::new(1, 0).capacity(24 * GIB).device("cpu").live(live).peak(live).reserved(live);
    exporter.push(&job().steps(1..20).records());
    await_true("the pressure", || {
        !exporter.status()["findings"].as_array().unwrap().is_empty()
    });
    let (sentence, advice) = found(&exporter, "HIGH_PRESSURE");
    assert!(sentence.starts_with("the peak of host memory is at 96% of "), "{sentence}");
    assert!(advice.starts_with("Reduce the host's memory load"), "{advice}");
    exporter.push(&job().steps(20..3000).records());
    let summary = exporter.get("/api/v1/runs/job/summary", &[]).body;
    let summary: Value = serde_json::from_str(&summary).unwrap();
    let issue = &summary["issues"][0];
    assert_eq!(issue["kind"], "HIGH_PRESSURE", "{summary:#}");
    let words = issue["summary"].as_str().unwrap();
    assert!(words.starts_with("the peak of host memory was at 96% of "), "{words}");
    assert!(issue["action"].as_str().unwrap().starts_with("Reduce the host's"), "{issue:#}");
}
