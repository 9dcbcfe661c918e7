//! TraceML's rules: the issues that one metric raises.

use crate::policy::IssueSeverity;
use crate::traceml::issue::{TraceMlEvidence, TraceMlIssue, TraceMlKind};
use crate::traceml::metric::TraceMlMetric;
use crate::traceml::trend::STEPS_MIN;

const PRESSURE_WARN: f64 = 0.92;
const PRESSURE_CRIT: f64 = 0.97;
/// Skew and pressure from which an imbalance is a warning, and from which it is critical.
const IMBALANCE_WARN: ImbalanceLimit = ImbalanceLimit { skew: 0.20, pressure: 0.30 };
const IMBALANCE_CRIT: ImbalanceLimit = ImbalanceLimit { skew: 0.30, pressure: 0.50 };

/// Both must be reached.
struct ImbalanceLimit {
    skew: f64,
    pressure: f64,
}

/// Returns the issues of a metric; none below [`STEPS_MIN`] common steps.
pub(crate) fn issues(metric: &TraceMlMetric) -> Vec<TraceMlIssue> {
    if metric.steps_used < STEPS_MIN {
        return Vec::new();
    }
    [pressure(metric), imbalance(metric), creep(metric)].into_iter().flatten().collect()
}

fn pressure(metric: &TraceMlMetric) -> Option<TraceMlIssue> {
    let pressure_frac = metric.pressure_frac.filter(|pressure| *pressure >= PRESSURE_WARN)?;
    Some(TraceMlIssue {
        severity: if pressure_frac >= PRESSURE_CRIT {
            IssueSeverity::Crit
        } else {
            IssueSeverity::Warn
        },
        score: Some(pressure_frac),
        evidence: TraceMlEvidence::Pressure { pressure_frac },
        ..issue(TraceMlKind::HighPressure, metric)
    })
}

fn imbalance(metric: &TraceMlMetric) -> Option<TraceMlIssue> {
    let (skew_pct, pressure_frac) = (metric.skew_pct.max(0.0), metric.pressure_frac?);
    let reaches =
        |limit: ImbalanceLimit| skew_pct >= limit.skew && pressure_frac >= limit.pressure;
    let severity = if reaches(IMBALANCE_CRIT) {
        IssueSeverity::Crit
    } else if reaches(IMBALANCE_WARN) {
        IssueSeverity::Warn
    } else {
        return None;
    };
    Some(TraceMlIssue {
        severity,
        score: Some(skew_pct),
        evidence: TraceMlEvidence::Imbalance { skew_pct, pressure_frac },
        ..issue(TraceMlKind::Imbalance, metric)
    })
}

fn creep(metric: &TraceMlMetric) -> Option<TraceMlIssue> {
    let trend = &metric.trend;
    let (kind, severity) = match (trend.confirmed, trend.early) {
        (true, _) => (TraceMlKind::CreepConfirmed, IssueSeverity::Warn),
        (false, true) => (TraceMlKind::CreepEarly, IssueSeverity::Info),
        (false, false) => return None,
    };
    Some(TraceMlIssue {
        severity,
        score: Some(trend.score),
        evidence: TraceMlEvidence::Creep {
            overall_abs_delta_bytes: trend.overall_abs_delta_bytes?,
            overall_worst_growth_pct: trend.overall_worst_growth_pct,
            overall_median_growth_pct: trend.overall_median_growth_pct,
        },
        ..issue(kind, metric)
    })
}

/// Returns the part of an issue that all kinds share.
fn issue(kind: TraceMlKind, metric: &TraceMlMetric) -> TraceMlIssue {
    TraceMlIssue {
        kind,
        status: kind.title(),
        severity: IssueSeverity::Info,
        metric: metric.metric,
        phase: Some("memory"),
        score: None,
        share_pct: None,
        // TraceML's rules see no negative skew.
        skew_pct: Some(metric.skew_pct.max(0.0)),
        ranks: vec![metric.worst_rank],
        evidence: TraceMlEvidence::Neutral {
            steps_used: metric.steps_used,
            worst_rank: Some(metric.worst_rank),
        },
    }
}
