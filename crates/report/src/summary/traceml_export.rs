//! A summary with the sections of TraceML's final summary (schema 1.7), for its tools. The keys
//! are the same where the meaning is the same. Where TraceML has means over the steps, here are
//! means over the steps.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::policy::PeakMetric;
use crate::summary::model::{FigureSummary, Issue, RankSummary, Summary};
use stepmem_forecast::stats::median::median;
use stepmem_types::format::units::bytes;

/// Version of TraceML's final summary.
const TRACEML_SCHEMA_VERSION: f64 = 1.7;
/// TraceML's names of the two metrics of the section, in its order.
const METRICS: [(&str, FigureOf); 2] = [
    ("peak_allocated_bytes", |rank| rank.peak_allocated.as_ref()),
    ("peak_reserved_bytes", |rank| rank.peak_reserved.as_ref()),
];

/// A summary of ours, and the sections that TraceML's tools read.
#[derive(Debug, Serialize)]
pub struct TraceMlExport<'s> {
    schema_version: f64,
    meta: Value,
    primary_diagnosis: Value,
    system: Value,
    process: Value,
    step_time: Value,
    step_memory: Value,
    #[serde(flatten)]
    summary: &'s Summary,
}

impl<'s> TraceMlExport<'s> {
    /// The summary with the sections that TraceML's tools read.
    pub fn of(summary: &'s Summary) -> Self {
        Self {
            schema_version: TRACEML_SCHEMA_VERSION,
            meta: meta(summary),
            primary_diagnosis: issue(&summary.diagnosis),
            system: no_data("system"),
            process: no_data("process"),
            step_time: no_data("step_time"),
            step_memory: step_memory(summary),
            summary,
        }
    }
}

/// Returns the run itself in TraceML's words.
fn meta(summary: &Summary) -> Value {
    let nodes: BTreeSet<_> = summary.ranks.iter().filter_map(|rank| rank.node_rank).collect();
    let devices: BTreeSet<_> =
        summary.ranks.iter().filter_map(|rank| rank.device.as_ref()).collect();
    json!({
        "run_name": summary.run,
        "mode": mode(summary),
        "world_size": summary.coverage.ranks_expected,
        "nodes_observed": (!nodes.is_empty()).then_some(nodes.len()),
        "gpus_observed": (!devices.is_empty()).then_some(devices.len()),
    })
}

/// Returns the section on step memory.
fn step_memory(summary: &Summary) -> Value {
    let coverage = &summary.coverage;
    let window = summary.metrics.get(&PeakMetric::Allocated);
    json!({
        "metadata": metadata(mode(summary), METRICS.map(|(name, _)| name).as_slice(), &json!({
            "duration_s": summary.duration_s,
            "global_ranks_seen": coverage.ranks_seen,
            "global_ranks_used": window.map_or(0, |metric| metric.ranks_used),
            "training_total_steps": window.map_or(0, |metric| metric.steps_used),
            "training_latest_step": window.map(|metric| metric.completed_step),
        })),
        "diagnosis": issue(&summary.diagnosis),
        "issues": summary.issues.iter().map(issue).collect::<Vec<_>>(),
        "global": {
            "index_by": "global_rank",
            "window": {
                "kind": "step_window", "alignment": "each_rank", "samples": null,
                "steps_analyzed": window.map_or(0, |metric| metric.steps_used),
                "start_step": window.map(|metric| metric.first_step),
                "end_step": window.map(|metric| metric.completed_step),
                "completed_step": window.map(|metric| metric.completed_step),
                "window_size": null,
            },
            "average": by_metric(|of| average(summary, of)),
            "median": by_metric(|of| point(nearest_to_median(&means(summary, of)))),
            "worst": by_metric(|of| point(worst(&means(summary, of)))),
        },
        "groups": { "by": "global_rank", "rows": rows(summary) },
        "units": { "memory": "bytes" },
        "card": card(summary),
    })
}

/// Returns an issue with a key that TraceML uses for other sections.
fn issue(issue: &Issue) -> Value {
    let mut issue = json!(issue);
    if let Some(keys) = issue.as_object_mut() {
        keys.insert("share_pct".to_owned(), Value::Null);
    }
    issue
}

/// Returns a section that TraceML has and stepmem does not measure.
fn no_data(section: &str) -> Value {
    let diagnosis = json!({
        "kind": "NO_DATA", "status": "NO DATA", "severity": "info",
        "summary": "stepmem does not measure this.", "action": "None.", "metric": null,
        "phase": null, "score": null, "share_pct": null, "skew_pct": null, "ranks": [],
        "evidence": {},
    });
    json!({
        "metadata": metadata("no_data", &[], &json!({ "samples": 0 })),
        "diagnosis": diagnosis,
        "issues": [diagnosis],
        "global": {
            "index_by": "global_rank",
            "window": {
                "kind": "sample_window", "alignment": "none", "samples": 0,
                "steps_analyzed": null, "start_step": null, "end_step": null,
                "completed_step": null, "window_size": null,
            },
            "average": {}, "median": {}, "worst": {},
        },
        "groups": { "by": "global_rank", "rows": {} },
        "units": {},
        "card": format!("{section}: no data"),
    })
}

fn mode(summary: &Summary) -> &'static str {
    let mut nodes = summary.ranks.iter().filter_map(|rank| rank.node_rank);
    let first = nodes.next();
    match () {
        () if !summary.metrics.contains_key(&PeakMetric::Allocated) => "no_data",
        () if nodes.any(|node| Some(node) != first) => "multi_node",
        () => "single_node",
    }
}

/// TraceML's metadata, every key of which is always there.
fn metadata(mode: &str, metrics: &[&str], known: &Value) -> Value {
    let mut metadata: Map<String, Value> = [
        "duration_s",
        "samples",
        "nodes_expected",
        "nodes_observed",
        "nodes_coverage",
        "nodes_partial",
        "gpus_observed",
        "global_ranks_seen",
        "global_ranks_used",
        "training_total_steps",
        "training_latest_step",
    ]
    .into_iter()
    .map(|key| (key.to_owned(), known.get(key).cloned().unwrap_or_default()))
    .collect();
    metadata.insert("mode".to_owned(), mode.into());
    metadata.insert("section_metric_names".to_owned(), metrics.into());
    Value::Object(metadata)
}

type FigureOf = fn(&RankSummary) -> Option<&FigureSummary>;

fn by_metric(value: impl Fn(FigureOf) -> Value) -> Value {
    METRICS.into_iter().map(|(name, of)| (name.to_owned(), value(of))).collect()
}

/// The mean of the per-step values of each rank that has them, ascending by rank.
fn means(summary: &Summary, of: FigureOf) -> Vec<(u32, f64)> {
    let mean = |rank: &RankSummary| Some((rank.rank.get(), of(rank)?.mean_bytes));
    summary.ranks.iter().filter_map(mean).collect()
}

fn average(summary: &Summary, of: FigureOf) -> Value {
    let means = means(summary, of);
    let n_ranks = f64::from(u32::try_from(means.len()).unwrap_or(u32::MAX));
    let sum: f64 = means.iter().map(|(_, mean)| mean).sum();
    (!means.is_empty()).then(|| sum / n_ranks).into()
}

fn point(picked: Option<(u32, f64)>) -> Value {
    json!({
        "value": picked.map(|(_, mean)| mean),
        "idx": picked.map(|(rank, _)| rank.to_string()),
    })
}

/// The largest mean; the lowest rank wins a tie.
fn worst(means: &[(u32, f64)]) -> Option<(u32, f64)> {
    means.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a })
}

/// The rank whose mean is nearest to the median.
fn nearest_to_median(means: &[(u32, f64)]) -> Option<(u32, f64)> {
    let mut sorted: Vec<f64> = means.iter().map(|(_, mean)| *mean).collect();
    let median = median(&mut sorted)?;
    let off = |(rank, mean): &(u32, f64)| ((mean - median).abs(), *mean, *rank);
    let is_nearer = |a: &(u32, f64), b: &(u32, f64)| off(b) < off(a);
    means.iter().copied().reduce(|a, b| if is_nearer(&a, &b) { b } else { a })
}

fn rows(summary: &Summary) -> Value {
    let row = |rank: &RankSummary| {
        let metrics = by_metric(|of| of(rank).map(|figures| figures.mean_bytes).into());
        let identity = json!({
            "global_rank": rank.rank, "local_rank": rank.local_rank, "node_rank": rank.node_rank,
            "hostname": null, "local_world_size": null,
            "world_size": summary.coverage.ranks_expected,
        });
        (rank.rank.to_string(), json!({ "identity": identity, "metrics": metrics }))
    };
    summary.ranks.iter().map(row).collect()
}

/// The section's card, in TraceML's five lines.
fn card(summary: &Summary) -> String {
    let window = summary.metrics.get(&PeakMetric::Allocated);
    let steps = window.map_or(0, |metric| metric.steps_used);
    let stats = window.map_or_else(
        || "n/a".to_owned(),
        |metric| {
            format!(
                "peak allocated worst {} on r{} | skew {:.1}%",
                bytes(metric.worst_peak_bytes),
                metric.worst_rank,
                100.0 * metric.skew_pct
            )
        },
    );
    format!(
        "stepmem Step Memory Summary | steps {steps} | global ranks {}\nStep Memory\n\
         - Diagnosis: {}\n- Scope: all {steps} steps\n- Stats: {stats}\n- Why: {}.",
        summary.coverage.ranks_seen, summary.diagnosis.status, summary.diagnosis.summary
    )
}
