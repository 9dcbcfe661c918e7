//! The table of claims: whatever a card, a finding or an explanation says is a row of it, each row is said, and none stands beside
//! one that contradicts it.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stepmem_engine::{DiagnosisKind, Evidence};
use stepmem_report::summary::{self, Summary};
use stepmem_types::claims::{Claim, Sentence, Statement, contradictions};

use crate::rig::claims::{
    compared, gates, line, on_device, patched, series, several_snapshots, told, traces,
};
use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::Folder;
use crate::rig::job::{Job, recording};
use crate::rig::noise::noise;
use crate::rig::snapshot::{answer, data};
use crate::rig::summary::summary;
use crate::rig::units::{GIB, MIB};

/// The places of rows that no scenario below says.
const OF_FILES: &str = "said of no snapshot of tests/data";
const OF_COMPARE: &str =
    "said of summaries that tests/it/compare.rs and crates/report/src/compare write";
const OF_STATUS: &str =
    "said of statuses that the tests of src/commands/status.rs and tests/it/nvml write";

/// The rows that no scenario below says, and why.
const UNSAID: [(Claim, &str); 16] = [
    (Claim::PeakReservedChanged, OF_COMPARE),
    (Claim::HostHeadroomChanged, OF_COMPARE),
    (Claim::NoData, OF_COMPARE),
    (Claim::GateUnread, "said where the baseline was not read, which a command refuses"),
    (Claim::FreesUnnamed, OF_FILES),
    (Claim::NoCategoryChanged, OF_FILES),
    (Claim::ProcessMemoryUnknown, OF_STATUS),
    (Claim::NoDriver, OF_STATUS),
    (Claim::NvmlSilent, OF_STATUS),
    (Claim::DeviceError, OF_STATUS),
    (Claim::GoneHolds, OF_STATUS),
    (Claim::NameShared, OF_STATUS),
    (Claim::NameTaken, OF_STATUS),
    (Claim::SnapshotWritten, "said with a snapshot of a real program: python/tests"),
    (Claim::MayGrow, "said of a snapshot that tests/it/snapshot_generations.rs writes"),
    (Claim::Holds, "said of a job in a real Prometheus: tests/fleet"),
];

const KIB: u64 = 1 << 10;

/// The statements of the sentence and the advice of evidence; its words stand in the sentence,
/// in order.
fn of_evidence(kind: DiagnosisKind, json: &Value) -> Vec<Statement> {
    let evidence =
        Evidence::decode(kind, json).unwrap_or_else(|error| panic!("{error}: {json:#}"));
    let sentence = evidence.sentence();
    for statement in sentence.statements() {
        let words = statement.words();
        assert!(sentence.words().contains(words), "{words:?}: {sentence}");
    }
    let said: Vec<Statement> =
        sentence.into_statements().into_iter().chain(evidence.advice()).collect();
    assert_eq!(contradictions(&said), [], "{said:#?}");
    said
}

fn holder() -> Value {
    json!({"name": "`losses`", "kind": "list", "at": line(), "tensors": 12, "bytes": GIB,
        "tensors_per_step": 1.0, "bytes_per_step": 1_048_576.5, "step": 900, "keeps_more": false})
}

/// Growth, patched.
fn growth(patch: &Value) -> Vec<Statement> {
    let growth = json!({
        "signal": "allocated", "growth_bytes": 3e8, "onset_step": 100, "onset_time": 1e9,
        "slope_bytes_per_step": 1_148_576.0, "slope_lower_bytes_per_step": 1e6,
        "slope_upper_bytes_per_step": 1.3e6, "slope_bytes_per_second": 2e6,
        "headroom_bytes": 1e10, "oom_eta_steps": 1e4, "oom_eta_lower_steps": 9e3,
        "oom_eta_seconds": 5e3, "oom_eta_lower_seconds": 4.5e3, "confidence_ratio": 0.99,
    });
    of_evidence(DiagnosisKind::CreepConfirmed, &patched(&growth, patch))
}

fn by_time() -> Value {
    json!({"slope_bytes_per_step": null, "slope_lower_bytes_per_step": null,
        "slope_upper_bytes_per_step": null, "onset_step": null, "oom_eta_steps": null,
        "oom_eta_lower_steps": null})
}

/// Returns a search that named nothing.
fn unseen(is_complete: bool, saw_growth: Option<bool>) -> Value {
    json!({"searched": {"is_complete": is_complete, "step": 7, "saw_growth": saw_growth}})
}

fn growths() -> Vec<Statement> {
    let site = |verdict: &str| {
        json!({"site": {"verdict": verdict, "at": line(), "share_ratio": 0.9,
            "bytes_per_step": 7e6, "steps": 20, "stack": []}})
    };
    let filling = |doubt: &str| {
        let fill =
            json!({"items": 900, "items_max": 1000, "items_per_step": 1, "is_own": true});
        let holder = patched(&holder(), &json!({"fill": fill}));
        let doubt = Some(doubt).filter(|doubt| !doubt.is_empty());
        json!({"holder": holder, "filling": {"full_in_steps": 100.0, "full_bytes": 2e9,
            "remaining_bytes": 1e8, "left_bytes": 5e9, "doubt": doubt}})
    };
    let kept = |state: &str| json!({"kept_blocks": {"state": state, "blocks_per_step": 2.0}});
    let searched = |outcome: &str| {
        json!({"signal": "host", "is_on_host": true, "searched": {"step": 7,
            "is_complete": true, "objects_read": 9, "objects_met": 10, "lines":
            {"outcome": outcome, "malloc_free_bytes_per_step": 1e6}}})
    };
    let malloc = |used: f64, free: f64| {
        json!({"signal": "host", "is_on_host": true, "malloc": {"step": 880, "used_bytes": GIB,
            "free_bytes": GIB, "between_bytes": 1e8, "used_growth_bytes": used, "free_growth_bytes": free}})
    };
    let run_end = |first: &str, restarts: f64| {
        json!({"run_end": {"first": first, "step": 10_000, "in_steps": 0.0, "in_seconds": 9.0,
            "spare_steps": -12.5, "restarts": restarts}})
    };
    let removal =
        json!({"removal": {"outcome": "nothing", "at": line()}, "bytes_per_step": 5e5});
    let of_removal = patched(&holder(), &removal);
    let unseen = [unseen(false, None), unseen(true, Some(false))];
    let patches = [
        json!({}),
        json!({"is_accelerating": true}),
        by_time(),
        json!({"slope_bytes_per_step": null, "slope_bytes_per_second": null}),
        json!({"level_since_step": 400, "level_since_time": 2e9}),
        json!({"level_since_time": 2e9, "is_full": true}),
        kept("accumulates"),
        kept("fades"),
        kept("level"),
        json!({"signal": "children", "children": {"workers": {"count": 3, "bytes": GIB}}}),
        json!({"signal": "shm", "shm": {"used_bytes": GIB, "limit_bytes": 2 * GIB}}),
        json!({"stalled_seconds": 35.5}),
        site("leak"),
        site("none"),
        site("insufficient_history"),
        json!({"holder": holder()}),
        json!({"holder": of_removal}),
        json!({"holder": patched(&holder(), &json!({"lines": {"outcome": "named"}}))}),
        json!({"searched": {"is_complete": true, "step": 7, "objects_read": 9, "objects_met": 10}}),
        searched("native"),
        searched("spread"),
        searched("arenas"),
        searched("slow"),
        patched(&malloc(9e7, 0.0), &searched("spread")),
        malloc(0.0, 9e7),
        filling(""),
        filling("items_vary"),
        json!({"headroom_bytes": 0.0}),
        json!({"container": {"limit_bytes": GIB, "ranks": 2}}),
        json!({"container": {"limit_bytes": GIB, "ranks": 2, "is_whole": true}}),
        json!({"oom_eta_steps": null, "oom_eta_seconds": null}),
        json!({"oom_eta_seconds": null, "oom_eta_lower_seconds": null}),
        run_end("run", 0.0),
        run_end("memory", 2.0),
        run_end("memory", 21.0),
        patched(&run_end("run", 0.0), &json!({"is_over": true})),
        patched(&by_time(), &json!({"signal": "process"})),
    ];
    patches.iter().chain(&unseen).flat_map(growth).collect()
}

fn other_findings() -> Vec<Statement> {
    let oom = |patch: Value| {
        let base = json!({"ooms": 1, "is_fatal": false, "oom_step": 400});
        of_evidence(DiagnosisKind::OutOfMemory, &patched(&base, &patch))
    };
    let too_large = json!({"holder": patched(&holder(), &json!({"fill": {"items": 900,
        "items_max": 1000, "items_per_step": 1.0, "is_own": true}})),
        "filling": {"full_in_steps": 100.0, "full_bytes": 2e9, "remaining_bytes": 1e8}});
    let pressure = json!({"pressure_ratio": 0.95, "basis": "allocated", "capacity_bytes": 80 * GIB,
        "never_live_ratio": 0.25, "private_pools_bytes": 20 * GIB});
    let site =
        json!({"at": line(), "requested_bytes": GIB, "held": [{"at": line(), "bytes": GIB}]});
    let all = [
        oom(
            json!({"is_fatal": true, "requested_bytes": GIB, "headroom_bytes": 1e9, "growth_bytes": 1e9}),
        ),
        oom(json!({"is_fatal": true, "unit": "calls"})),
        oom(json!({"is_fatal": true, "is_kill": true})),
        oom(json!({"is_kill": true, "likely_kill": {"container_used_ratio": 0.97}})),
        oom(json!({"is_last": true, "ending": "failed", "site": site})),
        oom(json!({"limit": {"origin": "program", "bytes": GIB}})),
        of_evidence(DiagnosisKind::HighPressure, &pressure),
        of_evidence(
            DiagnosisKind::HighPressure,
            &json!({"pressure_ratio": 0.95,
            "basis": "allocated", "capacity_bytes": 80 * GIB, "is_level": true}),
        ),
        of_evidence(
            DiagnosisKind::HighPressure,
            &json!({"pressure_ratio": 0.95, "basis": "allocated",
            "capacity_bytes": 80 * GIB, "taken_at_start_bytes": 75 * GIB}),
        ),
        of_evidence(
            DiagnosisKind::HighPressure,
            &patched(&pressure, &json!({"too_large": too_large})),
        ),
        of_evidence(
            DiagnosisKind::Imbalance,
            &json!({"imbalance_ratio": 0.5, "median_bytes": 1e9,
            "pressure_ratio": 0.7, "peak_basis": "allocated"}),
        ),
        of_evidence(
            DiagnosisKind::Fragmentation,
            &json!({"peak_fragmentation_ratio": 0.6,
            "peak_reserved_bytes": 40 * GIB, "capacity_bytes": 80 * GIB}),
        ),
        of_evidence(
            DiagnosisKind::OutsideAllocator,
            &json!({"outside_bytes": 2e10,
            "outside_ratio": 0.25, "capacity_bytes": 80 * GIB}),
        ),
        of_evidence(DiagnosisKind::GpuLost, &json!({"code": "gpu_is_lost"})),
        of_evidence(
            DiagnosisKind::PhaseRising,
            &json!({"phase": "sleep", "floor_basis": "process",
            "floor_bytes": 1e10, "floor_before_bytes": 4e9, "floor_ends": 3, "full_in_seconds": 5400.0}),
        ),
    ];
    all.into_iter().flatten().collect()
}

fn card_of(job: &Job) -> Vec<Statement> {
    let summary = summary(&job.recording());
    told(&summary["statements"], summary["text"].as_str().unwrap())
}

fn explained(folder: &Folder, job: &Job, rank: &str) -> Vec<Statement> {
    let file = folder.write("steps.jsonl", &job.recording());
    let explain = |more: &[&str]| {
        let asked = ["explain", "--run", "job", "--rank", rank, &file];
        let ended = stepmem(&[&asked[..], more].concat(), &[], b"");
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended.out
    };
    let json: Value = serde_json::from_str(&explain(&["--json"])).unwrap();
    told(&json["statements"], &explain(&[]))
}

fn explained_live(exporter: &Exporter, rank: &str) -> Vec<Statement> {
    let url = format!("http://{}", exporter.web);
    let explain = |more: &[&str]| {
        let asked = ["explain", "--url", &url, "--rank", rank];
        let ended = stepmem(&[&asked[..], more].concat(), &[], b"");
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended.out
    };
    let json: Value = serde_json::from_str(&explain(&["--json"])).unwrap();
    // The age of the last push is another at each call.
    let text = explain(&[]);
    let mut said = json["statements"].clone();
    said.as_array_mut().unwrap().retain(|of| of["claim"] != "activity");
    let mut said = told(&said, &text);
    said.push(Statement::new(Claim::Activity, "last push"));
    said
}

/// The statements of the card of a run whose summary is patched.
fn card_with(job: &Job, patch: &Value) -> Vec<Statement> {
    let summary = patched(&summary(&job.recording()), patch);
    let mut summary: Summary = serde_json::from_value(summary).unwrap();
    summary::put(&mut summary);
    told(&serde_json::to_value(&summary.statements).unwrap(), &summary.text)
}

fn cards() -> Vec<Statement> {
    let leaking = |rank, step| if rank == 0 { 8 * MIB * step } else { 0 };
    let ranks = |n_ranks, n_steps| Job::new(n_ranks, n_steps).live(|_, _| 30 * GIB);
    let slow = |_, step: u64| 20 * KIB * step;
    let level = || on_device(400, |_, _| 0);
    let rank = |patch: Value| {
        let summary = summary(&level().recording());
        json!({"ranks": [patched(&summary["ranks"][0], &patch)]})
    };
    let burst = on_device(400, |_, step| if step < 90 { 75 * GIB } else { 0 });
    let failed = json!({"state": "ended", "end": {"outcome": "failed", "step": 400}});
    let lost = json!({"coverage": {"ranks_lost": [{"rank": 3, "last": null, "state": "silent"}],
        "n_ranks_missing": 1, "ranks_missing": [1]}});
    let host = json!({"sentence": "its container uses 3.00 GiB of 4.00 GiB"});
    let planned =
        json!({"planned_restarts": {"restarts": 4, "lost_steps": 0, "lost_ratio": 0.019}});
    let all = [
        card_of(&level()),
        card_with(&level(), &planned),
        card_of(&on_device(20, |_, _| 0)),
        card_of(&ranks(4, 400).world(8)),
        card_of(&ranks(18, 60)),
        card_of(&on_device(400, |_, step| 72 * KIB * step)),
        card_of(&on_device(150, |_, step| 4 * MIB * (step / 20))),
        card_of(&on_device(400, slow).seconds_per_step(600.0)),
        card_of(&on_device(900, leaking)),
        card_of(&Job::new(3, 900).live(move |_, step| 4 * GIB + 8 * MIB * step)),
        card_of(&burst.seconds_per_step(60.0)),
        card_of(&level().more(|_, _| json!({"phase": "eval"}))),
        card_of(&Job::new(4, 400).live(|rank, _| if rank == 0 { 9 * GIB } else { 60 * GIB })),
        card_with(&level(), &rank(json!({"seconds_without_steps": 900.0}))),
        card_with(&level(), &rank(json!({"outside_allocator_bytes": 9e9}))),
        card_with(&level(), &rank(json!({"ooms": 2}))),
        card_with(&level(), &rank(json!({"host": host}))),
        card_with(&level(), &rank(failed)),
        card_with(&level(), &lost),
    ];
    let mut said: Vec<Statement> = all.into_iter().flatten().collect();
    let exporter = Exporter::start(&[]);
    let end = json!({"rank": 0, "outcome": "failed", "error_type": "ValueError", "step": 400});
    exporter.push(&on_device(400, |_, _| 0).records());
    exporter.end("job", &end);
    let failed = exporter.summary("job");
    said.extend(told(&failed["statements"], failed["text"].as_str().unwrap()));
    said
}

/// The statements on real snapshots, each in the words of the text.
fn snapshots() -> Vec<Statement> {
    let names = [
        "guides/amp1",
        "guides/oomloop.oom",
        "guides/ring_buffer_4",
        "vectors/leak_python_stacks",
        "vectors/short_7_steps",
        "vectors/no_stacks",
        "vectors/clean_cache_12",
    ];
    let of = |name: &str| {
        let file = data(&format!("{name}.pickle.gz"));
        let asked = ["show", &file, "--batch-size", "8", "--capacity", "80GiB"];
        let answer = answer(&[&asked[..], &["--json"]].concat());
        let shown = stepmem(&[&["snapshot"], &asked[..]].concat(), &[], b"");
        assert_eq!(shown.code, Some(0), "{}", shown.err);
        let mut said = Vec::new();
        for device in answer["devices"].as_array().unwrap() {
            let statements = device["statements"].as_array().unwrap();
            // The text breaks the name of a line, or cuts it.
            let whole = statements.iter().filter(|of| of["claim"] != "site_leaks").cloned();
            said.extend(told(&whole.collect(), &shown.out));
            let all: Vec<Statement> =
                serde_json::from_value(device["statements"].clone()).unwrap();
            said.extend(all);
        }
        said
    };
    names.iter().flat_map(|name| of(name)).collect()
}

/// One rank was judged, and another joined late.
fn partly_judged() -> String {
    let mut records = on_device(400, |_, _| 0).records();
    records.extend(on_device(400, |_, _| 0).first_rank(1).steps(389..401).records());
    records.sort_by(|a, b| a["time"].as_f64().unwrap().total_cmp(&b["time"].as_f64().unwrap()));
    recording(&records)
}

fn stories(folder: &Folder) -> Vec<Statement> {
    let leak = |_, step: u64| 8 * MIB * step.saturating_sub(100);
    let ends = |_, step: u64| 24 * MIB * step.min(700);
    let mut said = explained(folder, &on_device(900, leak), "0");
    said.extend(explained(folder, &on_device(2_500, ends), "0"));
    said.extend(explained(folder, &on_device(400, |_, _| 0), "0"));
    said.extend(explained(folder, &on_device(12, |_, _| 0), "0"));
    let unknown = on_device(12, |_, _| 0).more(|_, _| json!({"total_bytes": null}));
    said.extend(explained(folder, &unknown, "0"));
    said
}

fn live_stories() -> Vec<Statement> {
    let exporter = Exporter::start(&[]);
    let end = |_, _| json!({"total_steps": 5_000});
    exporter.push(&on_device(900, |_, step| 8 * MIB * step).more(end).records());
    exporter.push(&Job::new(1, 12).first_rank(1).more(end).records());
    exporter.push(&Job::new(1, 400).first_rank(2).more(end).records());
    let rise = |rank, step: u64| GIB + noise(rank, step, 64 * KIB) + 70 * KIB * step;
    exporter.push(&Job::new(1, 400).first_rank(3).live(rise).more(end).records());
    let mut said: Vec<Statement> =
        ["0", "1", "2", "3"].iter().flat_map(|rank| explained_live(&exporter, rank)).collect();
    let raised = said.iter().find(|of| of.claim() == Claim::Raised).unwrap().words();
    let kind = if raised.contains("CREEP") { "CREEP_CONFIRMED" } else { "CREEP_EARLY" };
    let ack = json!({"rank": 0, "kind": kind, "reason": "known", "for_seconds": 3600});
    assert_eq!(exporter.post_to("/v1/runs/job/ack", ack.to_string()).status, 200);
    said.extend(explained_live(&exporter, "0"));
    said.extend(statuses(&exporter));
    said
}

/// The statements of `status` on an acknowledged finding, whose time left is another at each
/// call.
fn statuses(exporter: &Exporter) -> Vec<Statement> {
    let url = format!("http://{}", exporter.web);
    let status =
        |more: &[&str]| stepmem(&[&["status", "--url", &url], more].concat(), &[], b"").done();
    let json: Value = serde_json::from_str(&status(&["--json"])).unwrap();
    let flat = status(&[]).split_whitespace().collect::<Vec<_>>().join(" ");
    let said: Vec<Statement> = serde_json::from_value(json["statements"].clone()).unwrap();
    for of in &said {
        let words = of.words().split(':').next().unwrap();
        let words = words.split(" in ").next().unwrap().split(" for ").next().unwrap();
        assert!(flat.contains(words), "{words:?}: {flat}");
    }
    said
}

#[test]
fn each_row_is_said_by_a_scenario_or_is_named_as_unsaid() {
    let folder = Folder::new("claims");
    let live = live_stories();
    let of_commands = [compared(), gates(), several_snapshots(), traces(), series()].concat();
    let parts = [
        growths(),
        other_findings(),
        cards(),
        stories(&folder),
        live,
        snapshots(),
        of_commands,
    ];
    let mut said: BTreeSet<Claim> = parts.iter().flatten().map(Statement::claim).collect();
    let summary = summary(&partly_judged());
    let of_part = told(&summary["statements"], summary["text"].as_str().unwrap());
    said.extend(of_part.iter().map(Statement::claim));
    // Of a file that an earlier version wrote.
    said.extend(Sentence::read("words", &[]).statements().iter().map(Statement::claim));
    let unsaid: Vec<&str> = Claim::ALL
        .iter()
        .filter(|claim| !said.contains(claim) && UNSAID.iter().all(|(of, _)| of != *claim))
        .map(|claim| claim.row().name)
        .collect();
    assert_eq!(unsaid, Vec::<&str>::new(), "rows that nothing says");
    let needless: Vec<&Claim> =
        UNSAID.iter().map(|(of, _)| of).filter(|of| said.contains(of)).collect();
    assert_eq!(needless, Vec::<&Claim>::new(), "rows that are said after all");
}

#[test]
fn nothing_to_do_needs_all_ranks_judged_and_no_line_that_rises() {
    let is_said = |said: &[Statement], claim| said.iter().any(|of| of.claim() == claim);
    let level = card_of(&on_device(400, |_, _| 0));
    assert!(is_said(&level, Claim::NothingToDo));
    // 110 years of it would fit, and yet it rises: by 7.8 MiB over the run.
    let slow = card_of(&on_device(400, |_, step| 20 * KIB * step).seconds_per_step(600.0));
    assert!(is_said(&slow, Claim::RisesStraight) && is_said(&slow, Claim::LastsLong));
    assert!(!is_said(&slow, Claim::NothingToDo));
    // A rank of which nothing is known yet is not level.
    let summary = summary(&partly_judged());
    let text = summary["text"].as_str().unwrap();
    assert!(text.starts_with("BALANCED SO FAR\n"), "{text}");
    assert!(text.contains("1 of 2 ranks took enough steps to judge creep"), "{text}");
    assert!(!text.contains("Nothing to do"), "{text}");
}

#[test]
fn recorded_is_said_of_nothing_that_this_version_finds() {
    let leaking = card_of(&on_device(900, |_, step| 8 * MIB * step));
    let exporter = Exporter::start(&[]);
    exporter.push(&on_device(900, |_, step| 8 * MIB * step).records());
    let live = explained_live(&exporter, "0");
    assert!([leaking, live].iter().flatten().all(|of| of.claim() != Claim::Recorded));
}
