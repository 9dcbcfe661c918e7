//! What TraceML would have said, as lines for a terminal.

use crate::analysis::diagnosis::wording::{bytes, percent};
use crate::report::traceml::{Answer, Issue, Metric};

/// Puts an answer into words.
pub fn render(answer: &Answer) -> String {
    let mut text = String::new();
    for (idx, issue) in answer.issues.iter().enumerate() {
        let lead = if idx == 0 { "TraceML 0.3.6 says" } else { "              and" };
        let metric = answer.metrics.get(issue.metric);
        let line = format!("{lead} {}\n", sentence(issue, metric));
        text.push_str(&line);
    }
    text
}

fn sentence(issue: &Issue, metric: Option<&Metric>) -> String {
    let severity = issue.severity.as_label();
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
