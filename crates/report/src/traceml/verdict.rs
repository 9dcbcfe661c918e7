//! The verdict as TraceML gives it, in the outer shape of our own summary.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use crate::policy::{IssueSeverity, PeakMetric, PolicyName};
use crate::traceml::issue::{TraceMlEvidence, TraceMlIssue, TraceMlKind};
use crate::traceml::metric::TraceMlMetric;
use crate::traceml::rules;
use crate::traceml::trend::STEPS_MIN;
use stepmem_types::ids::Rank;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceMlVerdict {
    /// `traceml`.
    pub policy: PolicyName,
    /// The first issue, with how many steps it is about.
    pub diagnosis: Option<TraceMlDiagnosis>,
    /// Everything that fired, in TraceML's order; never empty.
    pub issues: Vec<TraceMlIssue>,
    /// The figures by metric; empty when no step is common to all ranks.
    pub metrics: BTreeMap<PeakMetric, TraceMlMetric>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceMlDiagnosis {
    #[serde(flatten)]
    pub issue: TraceMlIssue,
    /// Number of common steps that it is about.
    pub steps_used: usize,
    /// The rank with the highest peak, also of a creep.
    pub worst_rank: Option<Rank>,
}

impl TraceMlVerdict {
    /// Judges metrics; `has_gpu` is `None` where the recording leaves that open.
    pub fn of(metrics: Vec<TraceMlMetric>, has_gpu: Option<bool>) -> Self {
        let judged = metrics.iter().filter(|_| has_gpu != Some(false));
        let mut issues: Vec<TraceMlIssue> = judged.flat_map(rules::issues).collect();
        issues.sort_by(|a, b| {
            let key = |issue: &TraceMlIssue| (issue.kind, Reverse(issue.severity));
            let score = |issue: &TraceMlIssue| issue.score.unwrap_or(0.0);
            key(a)
                .cmp(&key(b))
                .then(score(b).total_cmp(&score(a)))
                .then(a.metric.cmp(&b.metric))
        });
        if issues.is_empty() {
            issues.push(neutral(&metrics, has_gpu));
        }
        let metrics: BTreeMap<PeakMetric, TraceMlMetric> =
            metrics.into_iter().map(|metric| (metric.metric, metric)).collect();
        let diagnosis = issues.first().map(|issue| TraceMlDiagnosis {
            steps_used: metrics
                .get(&issue.metric)
                .filter(|_| issue.kind != TraceMlKind::NoGpu)
                .map_or(0, |metric| metric.steps_used),
            worst_rank: issue.ranks.first().copied(),
            issue: issue.clone(),
        });
        Self { policy: PolicyName::TraceMl, diagnosis, issues, metrics }
    }
}

/// Returns the issue that stands where no rule fires.
fn neutral(metrics: &[TraceMlMetric], has_gpu: Option<bool>) -> TraceMlIssue {
    let is_ready = metrics.iter().any(|metric| metric.steps_used >= STEPS_MIN);
    // Both peaks have the same steps; TraceML takes the last of them for a verdict, the first
    // for its absence.
    let (kind, about) = if has_gpu == Some(false) {
        (TraceMlKind::NoGpu, None)
    } else if is_ready {
        (TraceMlKind::Balanced, metrics.last())
    } else {
        (TraceMlKind::NoData, metrics.first())
    };
    TraceMlIssue {
        kind,
        status: kind.title(),
        severity: IssueSeverity::Info,
        metric: about.map_or(PeakMetric::Reserved, |metric| metric.metric),
        phase: None,
        score: None,
        share_pct: None,
        skew_pct: None,
        ranks: about.map(|metric| metric.worst_rank).into_iter().collect(),
        evidence: TraceMlEvidence::Neutral {
            steps_used: about.map_or(0, |metric| metric.steps_used),
            worst_rank: about.map(|metric| metric.worst_rank),
        },
    }
}
