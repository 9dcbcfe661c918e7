//! The figures of TraceML's section on step memory, whose peaks are means over the steps.

use std::collections::BTreeMap;

use crate::compare::figures::{NotASummary, RunFigures, RunIssue, RunPeak, RunSetup, RunSkew};
use crate::policy::{PeakMetric, PolicyName};
use crate::traceml::file::{
    TraceMlFileIssue, TraceMlFileMetric, TraceMlGlobal, TraceMlPoint, TraceMlSection,
};

/// The kinds that mean that nothing is wrong, or nothing known.
const NEUTRAL: [&str; 3] = ["BALANCED", "NO_DATA", "NO_GPU"];

/// Returns the figures of a section of the run of that name.
///
/// # Errors
/// The section has no issue, or one without a kind or a severity.
pub(crate) fn figures(
    run: Option<String>,
    section: TraceMlSection,
) -> Result<RunFigures, NotASummary> {
    let TraceMlSection { diagnosis, issues, global, metrics } = section;
    let diagnosis = diagnosis.unwrap_or_default();
    let metrics = metrics.unwrap_or_default();
    let global = global.unwrap_or_default();
    let has_data =
        diagnosis.kind.is_some_and(|kind| !["NO_DATA", "NO_GPU"].contains(&kind.as_str()));
    let issues = wrong(issues.unwrap_or_default())?;
    let steps_analyzed = global.window.as_ref().and_then(|window| window.steps_analyzed);
    let highest = point(global.worst.as_ref(), PeakMetric::Reserved);
    let highest = highest.and_then(|point| point.idx.as_ref()?.parse().ok());
    let of_issue = issues.first().and_then(|issue| issue.ranks.first().copied());
    Ok(RunFigures {
        policy: PolicyName::TraceMl,
        run,
        setup: RunSetup::default(),
        status: diagnosis.status.unwrap_or_default(),
        has_data,
        is_judged: has_data,
        steps: diagnosis.steps_used.or(steps_analyzed),
        allocated: RunPeak::default(),
        peak_allocated: peak(&global, &metrics, PeakMetric::Allocated),
        peak_reserved: peak(&global, &metrics, PeakMetric::Reserved),
        pressure_ratio: PeakMetric::ALL
            .into_iter()
            .filter_map(|metric| metrics.get(metric.as_label())?.pressure_frac)
            .reduce(f64::max),
        headroom: None,
        host_headroom: None,
        growth: None,
        skew: skew(&global, &metrics),
        worst_rank: of_issue.or(highest),
        n_lost: None,
        n_ooms: None,
        is_going_on: false,
        end: None,
        ranks: Vec::new(),
        leaking_line: None,
        issues,
    })
}

/// Returns the issues, without a verdict that nothing is wrong.
fn wrong(issues: Vec<TraceMlFileIssue>) -> Result<Vec<RunIssue>, NotASummary> {
    let issue = |issue: TraceMlFileIssue| {
        let kind = issue.kind?;
        Some(RunIssue {
            status: issue.status.unwrap_or_else(|| kind.clone()),
            severity: issue.severity?,
            ranks: issue.ranks.into_iter().flatten().flatten().collect(),
            kind,
        })
    };
    if issues.is_empty() {
        return Err(NotASummary("it has no issue".to_owned()));
    }
    let issues = issues.into_iter().map(issue).collect::<Option<Vec<RunIssue>>>();
    let mut issues =
        issues.ok_or_else(|| NotASummary("an issue has no kind or no severity".to_owned()))?;
    issues.retain(|issue| !NEUTRAL.contains(&issue.kind.as_str()));
    Ok(issues)
}

fn peak(
    global: &TraceMlGlobal,
    metrics: &BTreeMap<String, TraceMlFileMetric>,
    metric: PeakMetric,
) -> RunPeak {
    RunPeak {
        max: metrics.get(metric.as_label()).and_then(|metric| metric.worst_peak_bytes),
        mean: point(global.worst.as_ref(), metric).and_then(|point| point.value),
        noise: None,
    }
}

/// Returns the skew of peaks where there are peaks, else that of means.
fn skew(
    global: &TraceMlGlobal,
    metrics: &BTreeMap<String, TraceMlFileMetric>,
) -> Option<RunSkew> {
    let metric = PeakMetric::Allocated;
    if let Some(ratio) = metrics.get(metric.as_label()).and_then(|metric| metric.skew_pct) {
        return Some(RunSkew { ratio, is_of_means: false });
    }
    let worst = point(global.worst.as_ref(), metric)?.value?;
    let median = point(global.median.as_ref(), metric)?.value.filter(|median| *median > 0.0)?;
    Some(RunSkew { ratio: (worst - median) / median, is_of_means: true })
}

fn point(
    points: Option<&BTreeMap<String, TraceMlPoint>>,
    metric: PeakMetric,
) -> Option<&TraceMlPoint> {
    points?.get(&format!("{}_bytes", metric.as_label()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::compare::figures::RunSkew;
    use crate::compare::read::read;
    use crate::policy::IssueSeverity;

    #[test]
    fn final_summary_of_traceml_has_its_means_and_its_issues() {
        let issue = json!({
            "kind": "CREEP_CONFIRMED", "status": "MEMORY CREEP", "severity": "warn",
            "summary": "peak allocated is rising across the window.", "metric": "peak_allocated",
            "phase": "memory", "score": 14.0778, "share_pct": null, "skew_pct": 0.002_477,
            "ranks": [3], "evidence": { "note": "baseline 39236665344 B" },
        });
        let point = |value: f64, idx: &str| json!({ "value": value, "idx": idx });
        let figures = read(json!({
            "schema_version": 1.7, "duration_s": 300.0, "meta": { "run_name": "new_creep" },
            "step_memory": {
                "metadata": { "training_total_steps": 301 }, "diagnosis": issue, "issues": [issue],
                "global": {
                    "index_by": "global_rank",
                    "window": { "kind": "step_window", "steps_analyzed": 300 },
                    "average": { "peak_allocated_bytes": 39.0 },
                    "median": { "peak_allocated_bytes": point(40.0, "1") },
                    "worst": {
                        "peak_allocated_bytes": point(50.0, "3"),
                        "peak_reserved_bytes": point(60.0, "2"),
                    },
                },
                "groups": { "by": "global_rank", "rows": {} }, "card": "TraceML",
            },
        }))
        .unwrap();
        assert_eq!((figures.run.as_deref(), figures.steps), (Some("new_creep"), Some(300.0)));
        assert_eq!(
            (figures.peak_allocated.max, figures.peak_allocated.mean),
            (None, Some(50.0))
        );
        assert_eq!(figures.skew, Some(RunSkew { ratio: 0.25, is_of_means: true }));
        assert_eq!(figures.worst_rank, Some(3));
        let kinds = figures.issues.iter().map(|issue| (issue.kind.as_str(), issue.severity));
        assert_eq!(kinds.collect::<Vec<_>>(), [("CREEP_CONFIRMED", IssueSeverity::Warn)]);
    }

    #[test]
    fn verdict_that_nothing_is_wrong_is_no_issue_and_its_rank_is_that_of_the_highest_peak() {
        let issue = json!({ "kind": "BALANCED", "severity": "info", "ranks": [null] });
        let worst = json!({ "peak_reserved_bytes": { "value": 6.0, "idx": "2" } });
        let section =
            json!({ "diagnosis": issue, "issues": [issue], "global": { "worst": worst } });
        let figures = read(json!({ "step_memory": section })).unwrap();
        assert_eq!((figures.issues.len(), figures.worst_rank), (0, Some(2)));
        assert!(figures.has_data && figures.is_judged);
    }
}
