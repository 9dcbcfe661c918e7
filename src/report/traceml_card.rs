//! What TraceML would have said, as lines for a terminal.

use crate::report::card::Page;
use crate::report::traceml::{Answer, Issue, Metric, STEPS_MIN};
use crate::text::units::{bytes, percent};

/// Puts an answer into words.
pub fn render(answer: &Answer) -> String {
    let mut page = Page::default();
    for (idx, issue) in answer.issues.iter().enumerate() {
        let lead = if idx == 0 { "TraceML 0.3.6 would have said" } else { "  and" };
        let metric = answer.metrics.get(issue.metric);
        page.paragraph((0, 2), &format!("{lead} {}", sentence(issue, metric)));
    }
    page.text
}

fn sentence(issue: &Issue, metric: Option<&Metric>) -> String {
    let severity = issue.severity.as_label();
    if issue.kind == "NO_DATA" {
        return format!(
            "{} ({severity}): it needs {STEPS_MIN} steps that all ranks have, with peak_allocated_bytes and \
             peak_reserved_bytes",
            issue.status
        );
    }
    let Some(metric) = metric else { return format!("{} ({severity})", issue.status) };
    let name = metric.metric.replace('_', " ");
    let pressure = metric
        .pressure_frac
        .map_or_else(String::new, |ratio| format!(" ({} of capacity)", percent(ratio)));
    let growth =
        metric.trend.overall_abs_delta_bytes.filter(|_| issue.kind.starts_with("CREEP"));
    let growth = growth.map_or_else(String::new, |delta| format!(", +{}", bytes(delta)));
    format!(
        "{} ({severity}): {name} {}{pressure} on rank {}, skew {}{growth}, {} steps",
        issue.status,
        bytes(metric.worst_peak_bytes),
        metric.worst_rank,
        percent(metric.skew_pct),
        metric.steps_used
    )
}
