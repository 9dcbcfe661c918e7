//! The demo and hostile labels through Prometheus, promtool, the reference parsers and Chromium.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stepmem_engine::metrics::METRICS;

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::HOSTILE_NAMES;
use crate::rig::json::{has, items};
use crate::rig::peers::{element, reference_scrape, rendered, run_peer};
use crate::rig::series::has_family;
use crate::rig::units::GIB;
use crate::rig::wait::{DEADLINE, await_true};

/// The rank of the demo that leaks.
const LEAKING: u64 = 3;

#[test]
fn demo_shows_memory_creep_for_the_leaking_rank_and_only_for_it() {
    let demo = Exporter::start_command("demo", &[], &[]);
    await_creep(&demo);

    let confirmed: Vec<String> = demo
        .scrape()
        .into_keys()
        .filter(|series| series.starts_with("stepmem_diagnosis_severity{"))
        .filter(|series| series.contains("CREEP"))
        .collect();
    let expected = r#"stepmem_diagnosis_severity{run="demo",rank="3",kind="CREEP_CONFIRMED"}"#;
    assert_eq!(confirmed, [expected]);

    let status = demo.status();
    let creeping: Vec<&Value> = items(&status["findings"])
        .filter(|finding| finding["kind"].as_str().unwrap().starts_with("CREEP"))
        .collect();
    assert_eq!(creeping.len(), 1, "{creeping:#?}");
    has(creeping[0], &json!({"rank": 3, "status": "MEMORY CREEP"}));

    let url = format!("http://{}", demo.web);
    let table = stepmem(&["status", "--url", &url], &[], b"").out;
    let creeping: Vec<&str> = table.lines().filter(|line| line.contains("MEMORY")).collect();
    let [row, sentence] = creeping[..] else { panic!("{table}") };
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert!(cells.contains(&"demo") && cells.contains(&"3"), "{row}");
    assert!(
        sentence.starts_with("MEMORY CREEP") && sentence.contains("rank 3 of demo"),
        "{table}"
    );

    let page = rendered(&format!("http://{}/", demo.web));
    let verdict = element(&page, "id=\"verdict-text\"");
    let verdict = verdict.replace("<b>", "").replace("</b>", "");
    assert!(verdict.starts_with("MEMORY CREEP on rank 3 of run demo"), "{verdict}");
    // The finding, the rank's row and the run's row say it; no other rank's row does.
    let rows = element(&page, "id=\"ranks-rows\"");
    let creeping: Vec<&str> =
        rows.split("<tr").filter(|row| row.contains("MEMORY CREEP")).collect();
    assert_eq!(creeping.len(), 1, "{rows}");

    // Nor did it say so of another rank on the way.
    for entry in demo.log() {
        let fields = &entry["fields"];
        if fields["kind"].as_str().is_some_and(|kind| kind.starts_with("CREEP")) {
            assert_eq!(fields["rank"], LEAKING, "{entry}");
        }
    }
}

#[test]
fn demo_dies_out_of_memory_and_after_its_restart_names_line_and_holder_again() {
    let demo = Exporter::start_command("demo", &["--leak-mib", "64"], &[]);
    await_logged(&demo, 1, |fields| {
        fields["message"] == "raised" && fields["kind"] == "OUT_OF_MEMORY"
    });
    let oom = r#"stepmem_diagnosis_severity{run="demo",rank="3",kind="OUT_OF_MEMORY"}"#;
    assert!(demo.scrape().contains_key(oom), "{:#?}", demo.scrape().keys());
    let url = format!("http://{}", demo.web);
    let table = stepmem(&["status", "--url", &url], &[], b"").out;
    assert!(table.contains("OUT OF MEMORY (critical), rank 3 of demo"), "{table}");
    assert!(table.contains("ended (oom)"), "{table}");
    let attempt = || {
        let status = demo.status();
        let rank = items(&status["ranks"]).find(|rank| rank["rank"] == LEAKING).cloned();
        rank.unwrap()["attempt"].clone()
    };
    await_true("the job starts again", || attempt() == 1);
    let holders = |fields: &Value| {
        fields["message"] == "holders" && fields["holder"] == "`Trainer.history`"
    };
    let analyzed = |fields: &Value| fields["message"] == "snapshot analyzed";
    let (n_holders, n_analyzed) = (n_logged(&demo, holders), n_logged(&demo, analyzed));
    await_logged(&demo, n_holders + 1, holders);
    await_logged(&demo, n_analyzed + 1, analyzed);
    assert_eq!(attempt(), 1);
}

/// The number of entries of a kind that a demo has logged.
fn n_logged(demo: &Exporter, is_it: impl Fn(&Value) -> bool) -> usize {
    demo.log().iter().filter(|entry| is_it(&entry["fields"])).count()
}

/// Waits until a demo has logged so many entries of a kind.
fn await_logged(demo: &Exporter, n: usize, is_it: impl Fn(&Value) -> bool) {
    await_true("an entry of the log", || n_logged(demo, &is_it) >= n);
}

#[test]
fn prometheus_finds_every_family_that_the_demo_shows() {
    let demo = Exporter::start_command("demo", &[], &[]);
    await_creep(&demo);
    let shown: BTreeSet<&str> = METRICS
        .iter()
        .map(|metric| metric.name)
        .filter(|name| has_family(&demo.scrape(), name))
        .collect();
    for needed in ["creep_growth_bytes", "oom_eta_seconds", "diagnosis_severity", "device_info"]
    {
        assert!(
            shown.contains(format!("stepmem_{needed}").as_str()),
            "the demo lacks {needed}"
        );
    }

    let folder = Folder::new("prometheus");
    let work = text(&folder.path(""));
    let names: Vec<&str> = shown.iter().copied().collect();
    let families = folder.write("families", &names.join("\n"));
    let target = demo.web.to_string();
    let arguments = ["--targets", &target, "--work-dir", &work, "--families"];
    let arguments = [&arguments[..], &[&families]].concat();
    let found = run_peer("prometheus.py", &arguments);
    for name in shown {
        assert!(found[name].as_u64().is_some_and(|n_series| n_series > 0), "{name}: {found}");
    }

    let url = format!("http://{target}/metrics");
    let scraped = run_peer("scrape.py", &[&url, "--live"]);
    assert_eq!(items(&scraped["families"]["stepmem_rank_step"]["samples"]).count(), 8);
}

#[test]
fn reference_parsers_read_hostile_labels_in_both_formats() {
    let exporter = Exporter::start(&["--rank.peak-interval", "1h"]);
    for (rank, text) in (0..).zip(HOSTILE_NAMES) {
        exporter.push_step(&json!({ "run": text, "device": text, "rank": rank }), 1, GIB);
    }
    let scraped = reference_scrape(&exporter);
    let runs: BTreeSet<&str> = items(&scraped["families"]["stepmem_rank_step"]["samples"])
        .map(|sample| sample[1]["run"].as_str().unwrap())
        .collect();
    assert_eq!(runs, BTreeSet::from(HOSTILE_NAMES));
    let devices: BTreeSet<&str> = items(&scraped["families"]["stepmem_rank_step"]["samples"])
        .map(|sample| sample[1]["uuid"].as_str().unwrap())
        .collect();
    assert_eq!(devices, BTreeSet::from(HOSTILE_NAMES));
}

/// Waits until the exporter confirms that the leaking rank of the demo creeps; no other rank may.
fn await_creep(demo: &Exporter) {
    let is_creep = |entry: &Value| {
        let fields = &entry["fields"];
        fields["message"] == "raised" && fields["kind"] == "CREEP_CONFIRMED"
    };
    let confirmed = demo.await_log("CREEP_CONFIRMED", DEADLINE, is_creep);
    assert_eq!(confirmed["fields"]["rank"], LEAKING, "{confirmed}");
}
