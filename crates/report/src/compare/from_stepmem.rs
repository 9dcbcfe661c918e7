//! The figures of a summary of ours.

use std::collections::BTreeSet;

use crate::compare::figures::{
    LeakingLine, NotASummary, RankFigures, RunEnd, RunFigures, RunGrowth, RunHeadroom,
    RunHostHeadroom, RunIssue, RunPeak, RunSetup, RunSkew, SlopeInterval, device_kinds,
};
use crate::policy::{PeakMetric, PolicyName};
use crate::summary::model::{
    FigureSummary, Issue, IssueEvidence, IssueKind, RankOutcome, RankSummary, RankTrend,
    Summary,
};
use stepmem_engine::Basis;
use stepmem_types::site::SiteVerdict;
use stepmem_types::units::{Bytes, Count};

/// Returns the figures of a summary.
///
/// # Errors
/// The summary has no issue, where it has at least a verdict that nothing is wrong.
pub fn figures(summary: &Summary) -> Result<RunFigures, NotASummary> {
    if summary.issues.is_empty() {
        return Err(NotASummary("it has no issue".to_owned()));
    }
    let ranks = &summary.ranks;
    let coverage = &summary.coverage;
    let n_lost = u64::try_from(coverage.ranks_lost.len()).unwrap_or(u64::MAX);
    let ooms: Vec<u64> = ranks.iter().filter_map(|rank| rank.ooms).map(Count::get).collect();
    let skew = summary.metrics.get(&PeakMetric::Allocated).map(|metric| metric.skew_pct);
    Ok(RunFigures {
        policy: PolicyName::Stepmem,
        run: Some(summary.run.to_string()),
        setup: setup(summary),
        issues: RunIssue::of_all(&summary.issues),
        status: summary.diagnosis.status.to_string(),
        has_data: summary.diagnosis.kind != IssueKind::NoData,
        is_judged: coverage.ranks_judged > 0,
        steps: ranks.iter().map(|rank| rank.steps).max().map(float),
        allocated: peak(ranks, |rank| rank.allocated.as_ref()),
        peak_allocated: peak(ranks, |rank| rank.peak_allocated.as_ref()),
        peak_reserved: peak(ranks, |rank| rank.peak_reserved.as_ref()),
        pressure_ratio: ranks.iter().filter_map(|rank| rank.pressure_ratio).reduce(f64::max),
        headroom: ranks.iter().filter_map(headroom).min_by(|a, b| a.bytes.total_cmp(&b.bytes)),
        host_headroom: host_headroom(ranks),
        growth: fastest(ranks),
        skew: skew.map(|ratio| RunSkew { ratio, is_of_means: false }),
        worst_rank: summary.worst_rank.map(|rank| rank.get().into()),
        n_lost: Some(n_lost.saturating_add(coverage.n_ranks_missing.into())),
        n_ooms: (!ooms.is_empty()).then(|| ooms.iter().copied().fold(0, u64::saturating_add)),
        is_going_on: ranks.iter().any(|rank| rank.state == RankOutcome::Pushing),
        end: end(ranks),
        ranks: ranks.iter().map(|rank| rank_figures(summary, rank)).collect(),
        leaking_line: summary.issues.iter().find_map(leaking_line),
    })
}

fn setup(summary: &Summary) -> RunSetup {
    let capacities = || summary.ranks.iter().filter_map(|rank| rank.capacity_bytes);
    let device_models: Option<BTreeSet<String>> =
        summary.ranks.iter().map(|rank| rank.device_model.clone()).collect();
    RunSetup {
        world_size: summary.coverage.world_size(),
        device_kinds: device_kinds(
            summary.ranks.iter().filter_map(|rank| rank.device.as_ref()),
        ),
        device_models: device_models.unwrap_or_default(),
        capacity_min: capacities().map(Bytes::as_f64).reduce(f64::min),
        capacity_max: capacities().map(Bytes::as_f64).reduce(f64::max),
        workload: summary.workload.clone(),
    }
}

/// The worst end that a rank announced. A run that someone stopped at the keyboard did neither
/// complete nor fail.
fn end(ranks: &[RankSummary]) -> Option<RunEnd> {
    let outcome = |rank: &RankSummary| {
        Some(rank.end.as_ref().filter(|end| !end.is_keyboard_interrupt())?.outcome)
    };
    let worst = ranks.iter().filter_map(outcome).max()?;
    let of_it = ranks.iter().filter(|rank| outcome(rank) == Some(worst));
    Some(RunEnd { outcome: worst, ranks: of_it.map(|rank| rank.rank.get().into()).collect() })
}

fn rank_figures(summary: &Summary, rank: &RankSummary) -> RankFigures {
    let is_own = |issue: &&Issue| issue.is_wrong() && issue.ranks.contains(&rank.rank);
    RankFigures {
        rank: rank.rank.get().into(),
        issues: summary.issues.iter().filter(is_own).map(|of| of.status.to_string()).collect(),
        allocated: rank_peak(rank.allocated.as_ref()),
        peak_allocated: rank_peak(rank.peak_allocated.as_ref()),
    }
}

fn rank_peak(figure: Option<&FigureSummary>) -> RunPeak {
    RunPeak {
        max: figure.map(|figure| float(figure.max_bytes)),
        mean: figure.map(|figure| figure.mean_bytes),
        noise: figure.and_then(|figure| figure.noise_bytes),
    }
}

/// The line that leaks by the evidence of an issue, if it is about growth and a memory snapshot
/// shows one; of host memory the line that makes or fills what holds it, or allocates it.
fn leaking_line(issue: &Issue) -> Option<LeakingLine> {
    let IssueEvidence::Finding(evidence) = &issue.evidence else { return None };
    let of = evidence.growth()?;
    let site = of.site.as_ref().filter(|site| site.verdict == SiteVerdict::Leak);
    let holder = of.holder.as_ref().filter(|_| of.is_on_host);
    let at = site.map_or_else(|| holder?.at.as_ref(), |site| site.at.as_ref())?.to_string();
    let object = holder.filter(|holder| site.is_none() && holder.lines.is_none());
    let holder = object.map(|holder| holder.name.to_string());
    Some(LeakingLine { at, holder })
}

/// The least host memory that is left next to the device of a rank.
fn host_headroom(ranks: &[RankSummary]) -> Option<RunHostHeadroom> {
    let left = ranks.iter().filter_map(|rank| {
        let host = rank.host.as_ref()?;
        let total_bytes = host.total_bytes?.as_f64();
        Some(RunHostHeadroom { bytes: host.headroom_bytes()?, total_bytes })
    });
    left.min_by(|a, b| a.bytes.total_cmp(&b.bytes))
}

/// The headroom of a rank; summaries that do not name its basis rest on the peak of live
/// memory.
fn headroom(rank: &RankSummary) -> Option<RunHeadroom> {
    let basis = rank.headroom_basis.unwrap_or(Basis::Allocated);
    Some(RunHeadroom { bytes: rank.headroom_bytes?, basis })
}

fn peak(ranks: &[RankSummary], of: fn(&RankSummary) -> Option<&FigureSummary>) -> RunPeak {
    let worst = ranks.iter().filter_map(of).max_by_key(|figure| figure.max_bytes);
    RunPeak {
        max: worst.map(|figure| float(figure.max_bytes)),
        mean: ranks.iter().filter_map(of).map(|figure| figure.mean_bytes).reduce(f64::max),
        noise: worst.and_then(|figure| figure.noise_bytes),
    }
}

/// The growth of the rank that grows fastest, of those that rise or creep if there is one.
fn fastest(ranks: &[RankSummary]) -> Option<RunGrowth> {
    let growth = |trend: &RankTrend| {
        let ends = trend.slope_lower_bytes_per_step.zip(trend.slope_upper_bytes_per_step);
        Some(RunGrowth {
            is_growing: trend.stage.is_some(),
            slope: trend.slope_bytes_per_step?,
            interval: ends.map(|(lower, upper)| SlopeInterval { lower, upper }),
        })
    };
    RunGrowth::fastest(ranks.iter().filter_map(|rank| growth(rank.trend.as_ref()?)))
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "at most 2^53")]
fn float(n: u64) -> f64 {
    n as f64
}
