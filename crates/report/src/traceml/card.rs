//! TraceML's verdict as lines for a terminal.

use crate::traceml::issue::{TraceMlIssue, TraceMlKind};
use crate::traceml::metric::TraceMlMetric;
use crate::traceml::trend::STEPS_MIN;
use crate::traceml::verdict::TraceMlVerdict;
use stepmem_types::format::page::{Indent, Page};
use stepmem_types::format::units::{bytes, many, percent};

/// Puts a verdict into words.
pub fn render(verdict: &TraceMlVerdict) -> String {
    let mut page = Page::default();
    for (idx, issue) in verdict.issues.iter().enumerate() {
        let lead = if idx == 0 { "TraceML 0.3.6 would have said" } else { "  and" };
        let metric = verdict.metrics.get(&issue.metric);
        page.paragraph(Indent::hanging(0), &format!("{lead} {}", sentence(issue, metric)));
    }
    page.into_text()
}

fn sentence(issue: &TraceMlIssue, metric: Option<&TraceMlMetric>) -> String {
    let severity = issue.severity.as_label();
    if issue.kind == TraceMlKind::NoData {
        return format!(
            "{} ({severity}): it needs {STEPS_MIN} steps that all ranks have in common, with peak_allocated_bytes and \
             peak_reserved_bytes",
            issue.status
        );
    }
    let Some(metric) = metric else { return format!("{} ({severity})", issue.status) };
    let name = metric.metric.as_label().replace('_', " ");
    let pressure = metric
        .pressure_frac
        .map_or_else(String::new, |ratio| format!(" ({} of capacity)", percent(ratio)));
    let growth = metric.trend.overall_abs_delta_bytes.filter(|_| issue.kind.is_creep());
    let growth = growth.map_or_else(String::new, |delta| format!(", +{}", bytes(delta)));
    format!(
        "{} ({severity}): {name} {}{pressure} on rank {}, skew {}{growth}, {}",
        issue.status,
        bytes(metric.worst_peak_bytes),
        metric.worst_rank,
        percent(metric.skew_pct),
        many(u64::try_from(metric.steps_used).unwrap_or(u64::MAX), "step")
    )
}
