//! `stepmem compare`: which way two summaries differ, why, and what a CI gate sees.

use serde_json::{Value, json};

use crate::rig::command::{Ended, stepmem};
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::noise::noise;
use crate::rig::summary::{summary, traceml_export};
use crate::rig::units::{GIB, MIB};

/// The summary of [`recording`].
fn job(steps: u64, leak: u64) -> Value {
    summary(&recording(steps, leak))
}

/// The four ranks of the demo's kind of job: one is heavier, and one leaks if it does.
fn recording(steps: u64, leak: u64) -> String {
    let live = move |rank: u64, step| {
        let level = if rank == 2 { 41 * GIB } else { 30 * GIB };
        let leaked = if rank == 1 { leak * step } else { 0 };
        level + leaked + noise(rank, step + leak, 48 * MIB)
    };
    let peak =
        move |rank, step| live(rank, step) + 10 * GIB + noise(rank + 9, step + leak, GIB);
    Job::new(4, steps).world(4).live(live).peak(peak).recording()
}

fn compare(old: &Value, new: &Value, name: &str) -> (Value, Ended) {
    let folder = Folder::new(name);
    let (old, new) =
        (folder.write("old", &old.to_string()), folder.write("new", &new.to_string()));
    let json = stepmem(&["compare", "--json", &old, &new], &[], b"");
    let shown = stepmem(&["compare", &old, &new], &[], b"");
    assert_eq!(json.code, shown.code);
    assert!(shown.out.lines().all(|line| line.chars().count() <= 100), "{}", shown.out);
    let comparison = serde_json::from_str(&json.out).unwrap_or_else(|_| panic!("{}", json.err));
    (comparison, shown)
}

fn reasons(comparison: &Value, direction: &str) -> Vec<String> {
    let all = comparison["reasons"].as_array().unwrap().iter();
    all.filter(|reason| reason["direction"] == direction)
        .map(|reason| reason["sentence"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn fixed_leak_is_an_improvement_with_reasons_and_a_new_one_a_regression() {
    let (leaking, fixed) = (job(1800, 12 * MIB), job(1800, 0));
    let (comparison, shown) = compare(&leaking, &fixed, "fixed");
    assert_eq!(comparison["verdict"], "IMPROVEMENT", "{}", shown.out);
    assert_eq!(shown.code, Some(0));
    let better = reasons(&comparison, "better");
    for part in
        ["MEMORY CREEP (critical) on rank 1 is gone", "peak allocated fell", "headroom rose"]
    {
        assert!(better.iter().any(|reason| reason.contains(part)), "{part}: {better:?}");
    }
    assert_eq!(reasons(&comparison, "worse"), Vec::<String>::new());
    let (comparison, shown) = compare(&fixed, &leaking, "leaking");
    assert_eq!((&comparison["verdict"], shown.code), (&json!("REGRESSION"), Some(1)));
    assert!(reasons(&comparison, "worse")[0].contains("MEMORY CREEP"), "{}", shown.out);
}

#[test]
fn same_job_twice_is_equivalent() {
    let (a, b) = (job(1800, 0), job(1700, 0));
    let (comparison, shown) = compare(&a, &b, "same");
    assert_eq!(
        (&comparison["verdict"], shown.code),
        (&json!("EQUIVALENT"), Some(0)),
        "{}",
        shown.out
    );
}

#[test]
fn summaries_of_earlier_schemas_compare_as_one_of_today() {
    let (leaking, fixed) = (job(1800, 12 * MIB), job(1800, 0));
    let of_today = compare(&leaking, &fixed, "today").0;
    // The second schema had the sections that are now in an export only.
    let renamed = |text: String, names: &[(&str, &str)]| {
        names.iter().fold(text, |text, (later, earlier)| {
            assert!(text.contains(later), "{later}");
            text.replace(later, earlier)
        })
    };
    let second = traceml_export(&recording(1800, 12 * MIB)).to_string();
    let second = renamed(second, &[(r#""schema_version":3"#, r#""schema_version":2"#)]);
    let first = renamed(
        second.clone(),
        &[
            (r#""schema_version":2"#, r#""schema_version":1"#),
            ("peak_imbalance_ratio", "imbalance_ratio"),
            ("allocated_slope_bytes_per_step", "avg_growth_bytes_per_step"),
        ],
    );
    for (old, name) in [(second, "second-schema"), (first, "first-schema")] {
        let (of_old, shown) = compare(&serde_json::from_str(&old).unwrap(), &fixed, name);
        assert_eq!(of_old, of_today, "{}", shown.err);
    }
}

#[test]
fn less_memory_with_a_new_leak_is_mixed() {
    let old = summary(&Job::new(2, 1500).live(|_, _| 60 * GIB).recording());
    let new =
        summary(&Job::new(2, 1500).live(|_, step| 30 * GIB + step * 12 * MIB).recording());
    let (comparison, shown) = compare(&old, &new, "mixed");
    assert_eq!(
        (&comparison["verdict"], shown.code),
        (&json!("MIXED"), Some(1)),
        "{}",
        shown.out
    );
}

#[test]
fn tenth_more_memory_is_not_equivalent() {
    let of = |gib: u64| summary(&Job::new(2, 600).live(move |_, _| gib * GIB).recording());
    let (comparison, shown) = compare(&of(40), &of(43), "tenth");
    assert_eq!(
        (&comparison["verdict"], shown.code),
        (&json!("REGRESSION"), Some(1)),
        "{}",
        shown.out
    );
}

#[test]
fn creep_that_becomes_pressure_is_not_equivalent() {
    let old =
        summary(&Job::new(1, 1500).live(|_, step| 30 * GIB + step * 12 * MIB).recording());
    let new = summary(&Job::new(1, 1500).live(|_, _| 79 * GIB).recording());
    let (comparison, shown) = compare(&old, &new, "pressure");
    assert_eq!(
        (&comparison["verdict"], shown.code),
        (&json!("MIXED"), Some(1)),
        "{}",
        shown.out
    );
}

#[test]
fn run_too_short_to_judge_does_not_show_that_a_leak_is_gone() {
    let (leaking, short) = (job(1800, 12 * MIB), job(40, 0));
    let (comparison, shown) = compare(&leaking, &short, "short");
    assert_eq!(
        (&comparison["verdict"], shown.code),
        (&json!("INCONCLUSIVE"), Some(2)),
        "{}",
        shown.out
    );
    assert!(shown.out.contains("too few steps to judge creep"), "{}", shown.out);
}

#[test]
fn lost_rank_is_a_regression() {
    let whole = Job::new(4, 900).live(|_, _| 30 * GIB).recording();
    let dead = Job::new(1, 100).first_rank(3).live(|_, _| 30 * GIB).recording();
    let rest = Job::new(3, 900).live(|_, _| 30 * GIB).recording();
    let (comparison, shown) = compare(&summary(&whole), &summary(&(dead + &rest)), "lost");
    assert_eq!(
        (&comparison["verdict"], shown.code),
        (&json!("REGRESSION"), Some(1)),
        "{}",
        shown.out
    );
    assert_eq!(reasons(&comparison, "worse"), ["ranks lost: 1 instead of 0"]);
}

#[test]
fn leak_of_one_rank_shows_although_another_rank_is_larger() {
    let of = |leak: u64| {
        let live = move |rank: u64, step: u64| match rank {
            3 => 20 * GIB + step * leak,
            5 => 60 * GIB,
            _ => 20 * GIB,
        };
        summary(&Job::new(8, 1024).live(live).recording())
    };
    let (comparison, shown) = compare(&of(12 * MIB), &of(0), "hidden");
    assert_eq!(comparison["metrics"]["peak_allocated_bytes"]["direction"], "same");
    let ranks = comparison["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 1, "{}", shown.out);
    assert_eq!(
        (&ranks[0]["rank"], &ranks[0]["peak"]["direction"]),
        (&json!(3), &json!("better"))
    );
    assert_eq!(ranks[0]["issues"], json!({"old": ["MEMORY CREEP"], "new": []}));
    let row = |label: &str| {
        let line = shown.out.lines().find(|line| line.starts_with(label)).unwrap_or_default();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("rank 3: diagnosis"), "rank 3: diagnosis MEMORY CREEP none changed");
    assert!(
        row("rank 3: peak allocated").ends_with("-12.0 GiB (-37.5%) better"),
        "{}",
        shown.out
    );
    assert!(!shown.out.contains("rank 5"), "{}", shown.out);
}

#[test]
fn rows_of_many_ranks_are_bounded() {
    let of = |gib: u64| summary(&Job::new(64, 30).live(move |_, _| gib * GIB).recording());
    let (comparison, shown) = compare(&of(40), &of(43), "rows");
    assert_eq!(comparison["ranks"].as_array().unwrap().len(), 64);
    assert_eq!(shown.out.lines().filter(|line| line.starts_with("rank ")).count(), 16);
    assert!(shown.out.contains("… and 48 more ranks"), "{}", shown.out);
}

/// A summary whose only rank ended like this.
fn ended(outcome: &str, error_type: Option<&str>) -> Value {
    let mut summary = job(1800, 0);
    let end = json!({
        "outcome": outcome, "time": null, "step": null, "error_type": error_type,
        "error_message": null, "requested_bytes": null,
    });
    summary["ranks"][2]["end"] = end;
    summary["ranks"][2]["state"] = json!("ended");
    summary
}

#[test]
fn ends_are_compared_as_ends() {
    let (failed, completed) = (ended("failed", Some("ValueError")), ended("completed", None));
    let stopped = ended("failed", Some("KeyboardInterrupt"));
    for (old, new, verdict, reason) in [
        (
            &completed,
            &failed,
            "REGRESSION",
            Some("the run failed on rank 2 instead of completing"),
        ),
        (
            &failed,
            &completed,
            "IMPROVEMENT",
            Some("the run completed instead of failing on rank 2"),
        ),
        (&completed, &completed, "EQUIVALENT", None),
        (&completed, &stopped, "EQUIVALENT", None),
        (&job(1800, 0), &failed, "EQUIVALENT", None),
    ] {
        let (comparison, shown) = compare(old, new, "ends");
        assert_eq!(comparison["verdict"], verdict, "{}", shown.out);
        let all = [reasons(&comparison, "worse"), reasons(&comparison, "better")].concat();
        assert_eq!(all, reason.map(str::to_owned).as_slice(), "{}", shown.out);
    }
    let (comparison, shown) = compare(&completed, &failed, "end-words");
    assert_eq!(comparison["end"], json!({"old": "completed", "new": "failed"}));
    assert!(shown.out.lines().any(|line| line.starts_with("end ")), "{}", shown.out);
}

#[test]
fn exit_code_1_is_explained_in_a_sentence() {
    let of = |gib: u64, leak: u64| {
        let live = move |_, step: u64| gib * GIB + step * leak;
        summary(&Job::new(1, 1500).live(live).recording())
    };
    let (comparison, shown) = compare(&of(30, 0), &of(40, 0), "one");
    let expected = "exit code 1 because of this: peak allocated rose from 30.0 GiB to 40.0 GiB";
    let reason = comparison["exit_reason"].as_str().unwrap();
    assert!(reason.starts_with(expected), "{reason}");
    assert!(
        shown.out.contains("  exit code 1 because of this: peak allocated"),
        "{}",
        shown.out
    );
    let (comparison, shown) = compare(&of(60, 0), &of(30, 12 * MIB), "mixed-words");
    assert_eq!(comparison["verdict"], "MIXED", "{}", shown.out);
    let reason = comparison["exit_reason"].as_str().unwrap();
    assert!(reason.ends_with("; what got better does not outweigh that"), "{reason}");
    let (comparison, _) = compare(&of(30, 0), &of(30, 0), "none");
    assert_eq!(comparison["exit_reason"], Value::Null);
}

#[test]
fn directory_of_a_launch_stands_for_the_summary_in_it() {
    let folder = Folder::new("compare-folder");
    let json = job(400, 0).to_string();
    std::fs::create_dir(folder.path("launch")).unwrap();
    let file = folder.write("launch/final_summary.json", &json);
    let ended = stepmem(&["compare", &text(&folder.path("launch")), &file], &[], b"");
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
}

#[test]
fn directory_of_a_run_stands_for_its_latest_launch() {
    let folder = Folder::new("compare-run");
    let (old, new) = (job(1800, 12 * MIB), job(1800, 0));
    for (run, launch, summary) in [
        ("leaky", "2026-11-21T16-43-11", &new),
        ("leaky", "2026-11-22T16-43-11", &old),
        ("fixed", "2026-11-23T16-43-11-9", &old),
        ("fixed", "2026-11-23T16-43-11-10", &new),
    ] {
        std::fs::create_dir_all(folder.path(&format!("{run}/{launch}"))).unwrap();
        folder.write(&format!("{run}/{launch}/final_summary.json"), &summary.to_string());
    }
    // With the link to the latest, and on a disk without links.
    std::os::unix::fs::symlink("2026-11-22T16-43-11", folder.path("leaky/latest")).unwrap();
    let (leaky, fixed) = (text(&folder.path("leaky")), text(&folder.path("fixed")));
    let ended = stepmem(&["compare", &leaky, &fixed], &[], b"");
    assert!(ended.out.starts_with("Verdict: IMPROVEMENT"), "{}{}", ended.out, ended.err);
    let ended = stepmem(&["compare", &fixed, &leaky], &[], b"");
    assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
    std::fs::create_dir(folder.path("empty")).unwrap();
    let empty = text(&folder.path("empty"));
    let ended = stepmem(&["compare", &leaky, &empty], &[], b"");
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("empty: there is no summary"), "{}", ended.err);
}

/// Returns `summary` with every rank changed.
fn with_ranks(mut summary: Value, change: impl Fn(&mut Value)) -> Value {
    summary["ranks"].as_array_mut().unwrap().iter_mut().for_each(change);
    summary
}

#[test]
fn runs_of_other_ranks_devices_capacity_or_workload_are_not_compared() {
    let job = job(400, 0);
    let of = |device: &str, model: Option<&str>, gib: u64| {
        with_ranks(job.clone(), |rank| {
            rank["device"] = json!(device);
            rank["device_model"] = json!(model);
            rank["capacity_bytes"] = json!(gib * GIB);
        })
    };
    let mut eight = job.clone();
    eight["coverage"]["ranks_expected"] = json!(8);
    let with_workload = |name: &str| {
        let mut summary = job.clone();
        summary["workload"] = json!(name);
        summary
    };
    let (h100, a100) = (of("GPU-1", Some("H100"), 80), of("GPU-2", Some("A100"), 80));
    for (old, new, reason) in [
        (&job, &eight, "the old run has 4 ranks, the new one 8 ranks"),
        (&h100, &a100, "the old run is on H100, the new one on A100"),
        (&h100, &of("cpu", None, 80), "the old run is on a GPU, the new one on the host"),
        (
            &of("GPU-1", None, 80),
            &of("GPU-2", None, 40),
            "a rank of the old run has a capacity of 80.0 GiB, one of the new run 40.0 GiB",
        ),
        (
            &with_workload("7b, batch 8"),
            &with_workload("7b, batch 16"),
            "the old run's workload is 7b, batch 8, the new one's 7b, batch 16",
        ),
    ] {
        let (comparison, shown) = compare(old, new, "other");
        assert_eq!(
            (&comparison["verdict"], shown.code),
            (&json!("INCONCLUSIVE"), Some(2)),
            "{}",
            shown.out
        );
        assert_eq!(comparison["incomparable"], json!([reason]));
        assert!(shown.out.contains("not comparable: the") || reason.starts_with("a rank"));
        assert!(!shown.out.contains(" same") && !shown.out.contains("worse"), "{}", shown.out);
        let folder = Folder::new("allowed");
        let files = [
            folder.write("old.json", &old.to_string()),
            folder.write("new.json", &new.to_string()),
        ];
        let arguments = ["compare", "--allow-incomparable", &files[0], &files[1]];
        let allowed = stepmem(&arguments, &[], b"");
        assert_eq!(allowed.code, Some(0));
        assert!(allowed.out.starts_with("Verdict: INCONCLUSIVE"), "{}", allowed.out);
    }
}

#[test]
fn devices_of_one_model_and_almost_one_capacity_are_compared_and_so_is_what_is_not_known() {
    let job = job(400, 0);
    let of = |device: &str, bytes: u64| {
        with_ranks(job.clone(), |rank| {
            rank["device"] = json!(device);
            rank["device_model"] = json!("H100");
            rank["capacity_bytes"] = json!(bytes);
        })
    };
    let mut named = job.clone();
    named["workload"] = json!("7b");
    for (old, new) in [
        (&of("GPU-1", 80 * GIB), &of("GPU-2", 79 * GIB)),
        (&job, &of("GPU-1", 80 * GIB)),
        (&job, &named),
    ] {
        let (comparison, shown) = compare(old, new, "alike");
        assert_eq!(comparison["verdict"], "EQUIVALENT", "{}", shown.out);
    }
    // What leaves the verdict open for another reason is not allowed.
    let (leaking, short) = (self::job(1800, 12 * MIB), self::job(40, 0));
    let folder = Folder::new("open");
    let files = [
        folder.write("old.json", &leaking.to_string()),
        folder.write("new.json", &short.to_string()),
    ];
    let arguments = ["compare", "--allow-incomparable", &files[0], &files[1]];
    assert_eq!(stepmem(&arguments, &[], b"").code, Some(2));
}

/// A summary as TraceML 0.3.6 writes it: means over the steps, and only what fired.
fn traceml(status: (&str, &str, &str), mean: u64) -> Value {
    let (kind, status, severity) = status;
    let issue = json!({
        "kind": kind, "status": status, "severity": severity, "metric": "peak_reserved",
        "phase": "memory", "score": 1.0, "share_pct": null, "skew_pct": 0.01, "ranks": [1],
        "evidence": {},
    });
    let point = |mean: u64, rank: &str| {
        let point = json!({ "value": mean, "idx": rank });
        json!({ "peak_allocated_bytes": point, "peak_reserved_bytes": point })
    };
    json!({
        "schema_version": 1.7, "meta": { "run_name": "theirs" }, "system": {}, "process": {},
        "step_time": {},
        "step_memory": {
            "diagnosis": issue, "issues": [issue],
            "global": {
                "window": { "steps_analyzed": 400 },
                "median": point(mean, "0"), "worst": point(mean + GIB / 8, "1"),
            },
        },
    })
}

#[test]
fn summaries_of_traceml_compare_on_either_side() {
    let balanced = traceml(("BALANCED", "BALANCED", "info"), 40 * GIB);
    let creeping = traceml(("CREEP_CONFIRMED", "MEMORY CREEP", "warn"), 42 * GIB);
    let pressed = traceml(("HIGH_PRESSURE", "HIGH PRESSURE", "crit"), 46 * GIB);
    for (old, new, verdict, code) in [
        (&balanced, &creeping, "REGRESSION", 1),
        (&creeping, &balanced, "IMPROVEMENT", 0),
        (&balanced, &pressed, "REGRESSION", 1),
        (&balanced, &balanced, "EQUIVALENT", 0),
        (&job(1800, 12 * MIB), &balanced, "IMPROVEMENT", 0),
        (&balanced, &job(1800, 12 * MIB), "REGRESSION", 1),
    ] {
        let (comparison, shown) = compare(old, new, "theirs");
        assert_eq!(
            (&comparison["verdict"], shown.code),
            (&json!(verdict), Some(code)),
            "{}",
            shown.out
        );
    }
    let (comparison, shown) = compare(&creeping, &balanced, "words");
    assert_eq!(comparison["diagnosis"]["old"]["policy"], "traceml");
    assert!(shown.out.contains("means are compared"), "{}", shown.out);
    assert_eq!(comparison["metrics"]["peak_allocated_bytes"]["label"], "mean peak allocated");
}

#[test]
fn answer_of_the_traceml_policy_can_be_compared() {
    let records = |leak: u64| {
        Job::new(1, 400)
            .live(move |_, step| 30 * GIB + step * leak)
            .peak(move |_, step| 31 * GIB + step * leak)
            .reserved(move |_, step| 32 * GIB + step * leak)
            .recording()
    };
    let said = |records: &str| {
        // TraceML needs both peaks.
        let records = records.replace("\"reserved_bytes\"", "\"peak_reserved_bytes\"");
        let ended = stepmem(
            &["summary", "--policy", "traceml", "--json", "-"],
            &[],
            records.as_bytes(),
        );
        serde_json::from_str::<Value>(&ended.out).unwrap()
    };
    let (comparison, shown) = compare(&said(&records(0)), &said(&records(12 * MIB)), "said");
    assert_eq!(comparison["verdict"], "REGRESSION", "{}", shown.out);
    assert!(shown.out.contains("MEMORY CREEP (TraceML)"), "{}", shown.out);
}

#[test]
fn file_that_is_not_a_summary_cannot_be_compared() {
    let folder = Folder::new("no-summary");
    let good = folder.write("good", &job(100, 0).to_string());
    let mut later = job(100, 0);
    later["generator"]["schema_version"] = json!(99);
    let later = folder.write("later", &later.to_string());
    let missing = text(&folder.path("missing"));
    for (bad, part) in [
        (folder.write("empty", ""), "EOF"),
        (folder.write("list", "[]"), "not a JSON object"),
        (folder.write("other", r#"{"a":1}"#), "no step_memory"),
        (later, "schema_version is 99"),
        (missing, "No such file"),
    ] {
        for pair in [[&bad, &good], [&good, &bad]] {
            let ended = stepmem(&["compare", pair[0], pair[1]], &[], b"");
            assert_eq!(ended.code, Some(2), "{}", ended.out);
            assert!(ended.err.contains(part) && ended.err.contains(&bad), "{}", ended.err);
        }
    }
    let nothing = summary(r#"{"rank":0,"step":1,"phase":"eval","allocated_bytes":1}"#);
    let (comparison, shown) = compare(&nothing, &job(1800, 0), "nothing");
    assert_eq!(
        (&comparison["verdict"], shown.code),
        (&json!("INCONCLUSIVE"), Some(2)),
        "{}",
        shown.out
    );
}
