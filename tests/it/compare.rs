//! `stepmem compare`: which way two summaries differ, why, and what a CI gate sees.

use serde_json::{Value, json};

use crate::rig::command::{Ended, stepmem, words};
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::json::has;
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
    let (comparison, _) = check(&leaking, &fixed, ("IMPROVEMENT", 0), "fixed");
    let better = reasons(&comparison, "better");
    for part in
        ["MEMORY CREEP (critical) on rank 1 is gone", "peak allocated fell", "headroom rose"]
    {
        assert!(better.iter().any(|reason| reason.contains(part)), "{part}: {better:?}");
    }
    assert_eq!(reasons(&comparison, "worse"), Vec::<String>::new());
    let (comparison, shown) = check(&fixed, &leaking, ("REGRESSION", 1), "leaking");
    assert!(reasons(&comparison, "worse")[0].contains("MEMORY CREEP"), "{}", shown.out);
}

/// Compares, and checks verdict and exit code.
#[track_caller]
fn check(old: &Value, new: &Value, (verdict, code): (&str, i32), name: &str) -> (Value, Ended) {
    let (comparison, shown) = compare(old, new, name);
    let found = (comparison["verdict"].as_str(), shown.code);
    assert_eq!(found, (Some(verdict), Some(code)), "{name}: {}", shown.out);
    (comparison, shown)
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
fn verdict_weighs_memory_and_diagnoses() {
    let of = |n_ranks: u64, gib: u64, leak: u64| {
        let live = move |_, step| gib * GIB + step * leak;
        summary(&Job::new(n_ranks, 1500).live(live).recording())
    };
    let (leaking, fixed) = (job(1800, 12 * MIB), job(1800, 0));
    let (mixed, regression) = (("MIXED", 1), ("REGRESSION", 1));
    for (name, old, new, expected) in [
        ("the same job twice", &fixed, &job(1700, 0), ("EQUIVALENT", 0)),
        ("less memory with a new leak", &of(2, 60, 0), &of(2, 30, 12 * MIB), mixed),
        ("a tenth more memory", &of(2, 40, 0), &of(2, 43, 0), regression),
        ("a creep that becomes pressure", &of(1, 30, 12 * MIB), &of(1, 79, 0), mixed),
    ] {
        check(old, new, expected, name);
    }
    // A run too short to judge does not show that a leak is gone.
    let (_, shown) = check(&leaking, &job(40, 0), ("INCONCLUSIVE", 2), "short");
    assert!(shown.out.contains("too few steps to judge creep"), "{}", shown.out);
    let whole = Job::new(4, 900).live(|_, _| 30 * GIB).recording();
    let dead = Job::new(1, 100).first_rank(3).live(|_, _| 30 * GIB).recording();
    let rest = Job::new(3, 900).live(|_, _| 30 * GIB).recording();
    let (lost, _) = check(&summary(&whole), &summary(&(dead + &rest)), regression, "lost");
    assert_eq!(reasons(&lost, "worse"), ["ranks lost: 1 instead of 0"]);
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
    has(&ranks[0], &json!({"rank": 3, "peak": {"direction": "better"}}));
    assert_eq!(ranks[0]["issues"], json!({"old": ["MEMORY CREEP"], "new": []}));
    let row = |label: &str| {
        words(shown.out.lines().find(|line| line.starts_with(label)).unwrap_or_default())
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
    let worse = ["the run failed on rank 2 instead of completing"];
    let better = ["the run completed instead of failing on rank 2"];
    for (old, new, verdict, reason) in [
        (&completed, &failed, ("REGRESSION", 1), &worse[..]),
        (&failed, &completed, ("IMPROVEMENT", 0), &better),
        (&completed, &completed, ("EQUIVALENT", 0), &[]),
        (&completed, &stopped, ("EQUIVALENT", 0), &[]),
        (&job(1800, 0), &failed, ("EQUIVALENT", 0), &[]),
    ] {
        let (comparison, shown) = check(old, new, verdict, "ends");
        let all = [reasons(&comparison, "worse"), reasons(&comparison, "better")].concat();
        assert_eq!(all, reason, "{}", shown.out);
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
    let (comparison, _) = check(&of(60, 0), &of(30, 12 * MIB), ("MIXED", 1), "mixed-words");
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
    stepmem(&["compare", &text(&folder.path("launch")), &file], &[], b"").done();
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
    let better = stepmem(&["compare", &leaky, &fixed], &[], b"").done();
    assert!(better.starts_with("Verdict: IMPROVEMENT"), "{better}");
    stepmem(&["compare", &fixed, &leaky], &[], b"").fails(1, "");
    std::fs::create_dir(folder.path("empty")).unwrap();
    let empty = text(&folder.path("empty"));
    let none = "empty: the directory has no summary (final_summary.json) and no recording (*.jsonl, .gz, .zst)\n";
    stepmem(&["compare", &leaky, &empty], &[], b"").fails(2, none);
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
        let (comparison, shown) = check(old, new, ("INCONCLUSIVE", 2), "other");
        assert_eq!(comparison["incomparable"], json!([reason]));
        assert!(shown.out.contains("not comparable: the") || reason.starts_with("a rank"));
        assert!(!shown.out.contains(" same") && !shown.out.contains("worse"), "{}", shown.out);
        let allowed = allowing(old, new).done();
        assert!(allowed.starts_with("Verdict: INCONCLUSIVE"), "{allowed}");
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
        check(old, new, ("EQUIVALENT", 0), "alike");
    }
    // What leaves the verdict open for another reason is not allowed.
    let open = allowing(&self::job(1800, 12 * MIB), &self::job(40, 0));
    assert_eq!(open.code, Some(2));
}

fn allowing(old: &Value, new: &Value) -> Ended {
    let folder = Folder::new("allowing");
    let files =
        [("old", old), ("new", new)].map(|(name, of)| folder.write(name, &of.to_string()));
    stepmem(&["compare", "--allow-incomparable", &files[0], &files[1]], &[], b"")
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
        check(old, new, (verdict, code), "theirs");
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
        let arguments = ["summary", "--policy", "traceml", "--json", "-"];
        stepmem(&arguments, &[], records.as_bytes()).json()
    };
    let (old, new) = (said(&records(0)), said(&records(12 * MIB)));
    let (_, shown) = check(&old, &new, ("REGRESSION", 1), "said");
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
    let of_theirs = |memory: Value| json!({ "step_memory": memory }).to_string();
    let balanced = json!({ "kind": "BALANCED" });
    let grave = json!([{ "kind": "BALANCED", "severity": "grave" }]);
    let grave = of_theirs(json!({ "diagnosis": balanced, "issues": grave }));
    let ours = |name: &str, of: &str| folder.write(name, &format!(r#"{{"generator":{of}}}"#));
    for (bad, part) in [
        (folder.write("empty", ""), "no JSON at line 1"),
        (folder.write("list", "[]"), "not a JSON object"),
        (folder.write("other", r#"{"a":1}"#), "no step_memory"),
        (folder.write("undiagnosed", &of_theirs(json!({}))), "no diagnosis"),
        (folder.write("issueless", &of_theirs(json!({ "diagnosis": balanced }))), "no issue"),
        (
            folder.write("grave", &grave),
            "step_memory.issues[0].severity: unknown variant `grave`",
        ),
        (ours("versionless", r#"{"name":"stepmem"}"#), "schema_version is missing"),
        (ours("first", r#"{"name":"stepmem","schema_version":1}"#), "missing field"),
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
    check(&nothing, &job(1800, 0), ("INCONCLUSIVE", 2), "nothing");
}
