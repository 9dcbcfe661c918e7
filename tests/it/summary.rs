//! `stepmem summary`: what it says of a recording, and what must not change that.

use std::sync::LazyLock;

use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};
use serde_json::{Value, json};

use stepmem_report::summary::{IssueEvidence, IssueKind, Summary};

use crate::rig::command::stepmem;
use crate::rig::folder::{Folder, root};
use crate::rig::job::Job;
use crate::rig::json::has;
use crate::rig::noise::noise;
use crate::rig::schema::{holds, schema};
use crate::rig::summary::{summary, traceml_export};
use crate::rig::units::{GIB, MIB};

fn index(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

/// A job of which a rank leaks, another is heavier, and a third dies.
fn troubled() -> Job {
    Job::new(6, 1200).world(8).live(|rank, step| match rank {
        1 => 30 * GIB + noise(rank, step, 16 * MIB) + step * 16 * MIB,
        4 => 50 * GIB,
        _ => 30 * GIB + noise(rank, step, 16 * MIB),
    })
}

fn golden(name: &str, text: &str) {
    let path = root().join("tests/data/report").join(name);
    if std::env::var_os("STEPMEM_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text, expected,
        "{name}: STEPMEM_BLESS=1 cargo test --test it summary writes it"
    );
}

#[test]
fn card_has_verdict_reason_advice_and_every_rank() {
    let dead = Job::new(1, 300).first_rank(6).live(|_, _| 30 * GIB).recording();
    let ended = stepmem(&["summary", "-"], &[], (dead + &troubled().recording()).as_bytes());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.lines().all(|line| line.chars().count() <= 100), "{}", ended.out);
    golden("troubled.txt", &ended.out);
}

#[test]
fn run_with_too_few_steps_to_judge_is_not_called_balanced() {
    for (steps, kind, status) in
        [(20, "TOO_FEW_STEPS", "TOO FEW STEPS"), (400, "BALANCED", "BALANCED")]
    {
        let summary = summary(&Job::new(2, steps).live(|_, _| 30 * GIB).recording());
        let verdict = &summary["diagnosis"];
        assert_eq!((&verdict["kind"], &verdict["status"]), (&json!(kind), &json!(status)));
        let card = summary["text"].as_str().unwrap();
        assert_eq!(card.lines().next(), Some(status), "{card}");
    }
}

#[test]
fn card_of_a_thousand_ranks_fits_a_screen() {
    let job = Job::new(1024, 20).live(|rank, _| (30 + rank % 5) * GIB);
    let ended = stepmem(&["summary", "-"], &[], job.recording().as_bytes());
    assert!(ended.out.lines().all(|line| line.chars().count() <= 100), "{}", ended.out);
    assert!(ended.out.lines().count() < 40, "{}", ended.out);
    assert!(ended.out.contains("… and 1008 more ranks"), "{}", ended.out);
}

#[test]
fn long_names_do_not_break_lines() {
    let run = "a".repeat(128);
    let record = json!({ "run": run, "rank": 0, "step": 1, "allocated_bytes": 1 }).to_string();
    let ended = stepmem(&["summary", "-"], &[], record.as_bytes());
    assert!(ended.out.lines().all(|line| line.chars().count() <= 100), "{}", ended.out);
}

#[test]
fn summary_has_the_shape_that_its_schema_describes() {
    let schema = schema("final_summary");
    let summary = summary(&troubled().recording());
    let version = &schema["properties"]["generator"]["properties"]["schema_version"]["const"];
    assert_eq!(summary["generator"]["schema_version"], *version);
    holds(&schema, &summary);
}

#[test]
fn export_has_the_sections_of_traceml_and_no_other_json_has_them() {
    let records = troubled().recording();
    let (own, export) = (summary(&records), traceml_export(&records));
    for section in ["system", "process", "step_time"] {
        assert_eq!(export[section]["diagnosis"]["kind"], "NO_DATA");
        assert_eq!(own.get(section), None);
    }
    has(&export, &json!({"schema_version": 1.7, "meta": {"run_name": own["run"]}}));
    for verdict in [&export["primary_diagnosis"], &export["step_memory"]["diagnosis"]] {
        has(verdict, &json!({"kind": own["diagnosis"]["kind"], "share_pct": null}));
    }
    for (key, value) in own.as_object().unwrap() {
        assert_eq!(export[key], *value, "{key}");
    }
}

#[test]
fn summary_reads_back_as_it_was_written() {
    let peaks = Job::new(2, 1500)
        .live(|_, _| 30 * GIB)
        .peak(|_, step| if step == 40 { 79 * GIB } else { 36 * GIB });
    let low = Job::new(4, 600).live(|rank, _| if rank == 1 { 10 * GIB } else { 60 * GIB });
    for records in [troubled(), peaks, low, Job::new(2, 20)].map(|job| job.recording()) {
        let written = summary(&records);
        let read: Summary = serde_json::from_value(written.clone()).unwrap();
        for issue in &read.issues {
            assert!(!matches!(issue.kind, IssueKind::Other(_)), "{issue:?}");
            assert!(!matches!(issue.evidence, IssueEvidence::Other(_)), "{issue:?}");
        }
        assert_eq!(serde_json::to_value(read).unwrap(), written);
    }
}

#[test]
fn recordings_of_more_than_one_run_ask_for_its_name() {
    let two = ["a", "b"].map(|run| {
        json!({ "run": run, "rank": 0, "step": 1, "allocated_bytes": 1 }).to_string() + "\n"
    });
    for policy in ["stepmem", "traceml"] {
        let ask = |run: &[&str]| {
            let arguments = [&["summary", "--policy", policy, "-"], run].concat();
            stepmem(&arguments, &[], two.concat().as_bytes())
        };
        let ended = ask(&[]);
        ended.fails(2, "--run");
        assert_eq!(ask(&["--run", "a"]).code, Some(0));
    }
    let ended = stepmem(&["summary", "--run", "c", "-"], &[], two.concat().as_bytes());
    ended.fails(2, "no run c");
    let ended = stepmem(&["summary", "--window", "5", "-"], &[], two.concat().as_bytes());
    ended.fails(2, "--policy traceml");
}

#[test]
fn replay_by_traceml_prints_its_final_answer_in_a_line() {
    let records = Job::new(2, 60).live(|_, _| 79 * GIB).recording();
    let ended = stepmem(&["replay", "--policy", "traceml", "-"], &[], records.as_bytes());
    let line: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(line["status"]["diagnosis"]["kind"], "NO_DATA", "no peaks were pushed");
    let ended = stepmem(&["summary", "--policy", "traceml", "-"], &[], records.as_bytes());
    assert!(ended.out.contains("peak_reserved_bytes"), "{}", ended.out);
    let ended = stepmem(&["replay", "--policy", "ours", "-"], &[], records.as_bytes());
    ended.fails(2, "[possible values: stepmem, traceml]");
}

static TROUBLED: LazyLock<(Vec<String>, Value)> = LazyLock::new(|| {
    let records: Vec<String> = troubled().recording().lines().map(str::to_owned).collect();
    let summary = summary(&records.join("\n"));
    (records, summary)
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..Default::default() })]

    #[test]
    fn order_of_ranks_does_not_matter(seed in any::<u64>()) {
        let (records, expected) = &*TROUBLED;
        let mut steps: Vec<Vec<String>> = records.chunks(6).map(<[String]>::to_vec).collect();
        for (idx, ranks) in (0_u64..).zip(&mut steps) {
            ranks.rotate_left(index(noise(seed, idx, 6)));
            if noise(seed, idx, 2) == 1 {
                ranks.reverse();
            }
        }
        prop_assert_eq!(&summary(&steps.concat().join("\n")), expected);
    }

    #[test]
    fn pushes_that_come_twice_do_not_matter(seed in any::<u64>()) {
        let (records, expected) = &*TROUBLED;
        let twice = (0_u64..).zip(records).flat_map(|(idx, record)| {
            std::iter::repeat_n(record.as_str(), 1 + index(noise(seed, idx, 3)))
        });
        let twice: Vec<&str> = twice.collect();
        prop_assert_eq!(&summary(&twice.join("\n")), expected);
    }

    #[test]
    fn split_of_a_recording_does_not_matter(seed in any::<u64>(), n_files in 2_usize..6, by_rank in any::<bool>()) {
        let (records, expected) = &*TROUBLED;
        let folder = Folder::new(&format!("split-{seed}"));
        let mut files = vec![String::new(); n_files];
        for (idx, record) in records.iter().enumerate() {
            let file = if by_rank { idx % 6 % n_files } else { idx * n_files / records.len() };
            files[file].push_str(&format!("{record}\n"));
        }
        let mut paths: Vec<String> =
            files.iter().enumerate().map(|(idx, text)| folder.write(&format!("{idx}"), text)).collect();
        paths.rotate_left(index(seed % 5) % n_files);
        let arguments: Vec<&str> =
            ["summary", "--json"].into_iter().chain(paths.iter().map(String::as_str)).collect();
        let ended = stepmem(&arguments, &[], b"");
        prop_assert_eq!(&serde_json::from_str::<Value>(&ended.out).unwrap(), expected);
    }
}
