//! Joins the summaries that several exporters wrote of one launch, each of its own ranks, to
//! the summary of the whole run.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::policy::PeakMetric;
use crate::summary::build::unseen;
use crate::summary::card;
use crate::summary::model::{Coverage, Issue, RankSummary, RunMetric, Summary};
use crate::summary::neutral::neutral;
use crate::summary::peaks::Peaks;
use crate::summary::run_metrics::{has_more_growth, of_peaks};
use stepmem_types::ids::Rank;

/// The reason that summaries are not of one launch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    #[error("there is no summary")]
    Nothing,
    #[error("they belong to different runs: {0} and {1}")]
    Runs(String, String),
    #[error("they belong to different launches of run {0}")]
    Launches(String),
}

/// Joins summaries of one launch; those of an earlier attempt are left out. IMBALANCE is that
/// which each exporter saw among its own ranks.
///
/// # Errors
/// There are none, or they are not of one launch.
pub fn merged(mut parts: Vec<Summary>) -> Result<Summary, MergeError> {
    let attempt = parts.iter().map(|part| part.attempt).max().ok_or(MergeError::Nothing)?;
    check(&parts)?;
    parts.retain(|part| part.attempt == attempt);
    parts.sort_by_key(|part| part.ranks.first().map(|rank| rank.rank));
    let mut ranks = ranks(&parts);
    let coverage = coverage(&parts, &ranks);
    let metrics = metrics(&parts, &ranks);
    let peak = metrics.get(&PeakMetric::Allocated);
    let (skew, highest) =
        (peak.map(|metric| metric.skew_pct), peak.map(|metric| metric.worst_rank));
    let peaks = Peaks(peaks(&ranks, PeakMetric::Allocated).collect());
    for rank in &mut ranks {
        rank.peak_imbalance_ratio = peaks.against_others(rank.rank).map(|of| of.ratio);
    }
    let mut issues = issues(&parts);
    if issues.is_empty() {
        issues.push(neutral(&coverage, &ranks, highest));
    }
    for issue in issues.iter_mut().filter(|issue| issue.is_wrong()) {
        issue.skew_pct = skew;
    }
    let span = coverage.first.zip(coverage.last);
    let generated_at = parts.iter().map(|part| part.generated_at.clone()).max();
    let mut snapshots: Vec<_> =
        parts.iter().filter_map(|part| part.snapshots.clone()).flatten().collect();
    snapshots.sort_by(|a, b| a.since.total_cmp(&b.since));
    let has_snapshots = parts.iter().any(|part| part.snapshots.is_some());
    // Each launcher of the run restarts its own ranks, all at the same steps.
    let planned = parts.iter().filter_map(|part| part.planned_restarts);
    let planned_restarts = planned.max_by_key(|planned| planned.restarts);
    let mut whole = parts.into_iter().next().ok_or(MergeError::Nothing)?;
    if let Some(worst) = issues.first() {
        whole.diagnosis = worst.clone();
    }
    whole.generated_at = generated_at.unwrap_or_default();
    whole.duration_s = span.map(|(first, last)| (last.time - first.time).max(0.0));
    whole.worst_rank = whole.diagnosis.ranks.first().copied().or(highest);
    whole.planned_restarts = planned_restarts;
    whole.snapshots = has_snapshots.then_some(snapshots);
    (whole.ranks, whole.issues) = (ranks, issues);
    (whole.coverage, whole.metrics) = (coverage, metrics);
    card::put(&mut whole);
    Ok(whole)
}

fn check(parts: &[Summary]) -> Result<(), MergeError> {
    let name = |part: &Summary| part.run.as_str().to_owned();
    for pair in parts.windows(2) {
        let [a, b] = pair else { continue };
        if a.run != b.run {
            return Err(MergeError::Runs(name(a), name(b)));
        }
        if a.launch != b.launch {
            return Err(MergeError::Launches(name(a)));
        }
    }
    Ok(())
}

/// Returns every rank, ascending; of one that two exporters had, the incarnation that began
/// last.
fn ranks(parts: &[Summary]) -> Vec<RankSummary> {
    let began = |rank: &RankSummary| rank.first.map_or(f64::NEG_INFINITY, |first| first.time);
    let mut by_rank: BTreeMap<Rank, RankSummary> = BTreeMap::new();
    for rank in parts.iter().flat_map(|part| &part.ranks) {
        if by_rank.get(&rank.rank).is_none_or(|held| began(held) < began(rank)) {
            by_rank.insert(rank.rank, rank.clone());
        }
    }
    by_rank.into_values().collect()
}

fn coverage(parts: &[Summary], ranks: &[RankSummary]) -> Coverage {
    let of_parts = || parts.iter().map(|part| &part.coverage);
    let ranks_expected = of_parts().filter_map(|of| of.ranks_expected).max();
    let is_seen = |rank| ranks.binary_search_by_key(&rank, |seen| seen.rank.get()).is_ok();
    let (ranks_missing, n_ranks_missing) = unseen(ranks_expected.unwrap_or(0), is_seen);
    Coverage {
        ranks_expected,
        ranks_seen: ranks.len(),
        ranks_missing,
        n_ranks_missing,
        ranks_lost: of_parts().flat_map(|of| of.ranks_lost.clone()).collect(),
        ranks_judged: of_parts().map(|of| of.ranks_judged).fold(0, usize::saturating_add),
        restarts: of_parts().map(|of| of.restarts).fold(0, u64::saturating_add),
        first: of_parts()
            .filter_map(|of| of.first)
            .reduce(|a, b| if b.step < a.step { b } else { a }),
        last: of_parts()
            .filter_map(|of| of.last)
            .reduce(|a, b| if b.step > a.step { b } else { a }),
    }
}

/// Joins the issues of a kind: the sentence of the worst, and all ranks, those of the worst
/// first.
fn issues(parts: &[Summary]) -> Vec<Issue> {
    let mut found: Vec<&Issue> = parts.iter().flat_map(|part| &part.issues).collect();
    found.retain(|issue| issue.is_wrong());
    let score = |issue: &Issue| issue.score.unwrap_or(f64::NEG_INFINITY);
    found.sort_by(|a, b| b.severity.cmp(&a.severity).then(score(b).total_cmp(&score(a))));
    let mut joined: Vec<Issue> = Vec::new();
    for issue in found {
        match joined.iter_mut().find(|worse| worse.kind == issue.kind) {
            Some(worse) => worse.ranks.extend(&issue.ranks),
            None => joined.push(issue.clone()),
        }
    }
    // Stable: of one severity, as the exporters have them.
    joined.sort_by_key(|issue| Reverse(issue.severity));
    joined
}

fn metrics(parts: &[Summary], ranks: &[RankSummary]) -> BTreeMap<PeakMetric, RunMetric> {
    let of = |metric: PeakMetric| {
        let trends =
            parts.iter().filter_map(|part| Some(part.metrics.get(&metric)?.trend.clone()));
        let trend = trends.reduce(|a, b| if has_more_growth(&b, &a) { b } else { a })?;
        Some((metric, of_peaks(metric, &Peaks(peaks(ranks, metric).collect()), ranks, trend)?))
    };
    PeakMetric::ALL.into_iter().filter_map(of).collect()
}

/// The highest peaks of ranks.
fn peaks(ranks: &[RankSummary], metric: PeakMetric) -> impl Iterator<Item = (Rank, f64)> {
    ranks.iter().filter_map(move |rank| Some((rank.rank, card::peak_of(rank, metric)?)))
}
