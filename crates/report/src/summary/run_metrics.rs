//! The figures of the run by metric, with TraceML's keys and true maxima over the whole
//! attempt.

use std::collections::BTreeMap;

use crate::policy::PeakMetric;
use crate::summary::model::{RankSummary, RunMetric, RunMetricTrend};
use crate::summary::peaks::Peaks;
use stepmem_detect::{Signal, Stage};
use stepmem_engine::lifetime::{Bands, Kept};
use stepmem_engine::{LIVE_SIGNALS, RankView, RunView};
use stepmem_forecast::stats::median::median;
use stepmem_types::ids::Rank;

/// Returns the figures of every metric that a rank has.
pub(crate) fn run_metrics(
    run: &RunView<'_>,
    ranks: &[RankSummary],
) -> BTreeMap<PeakMetric, RunMetric> {
    let metrics = PeakMetric::ALL.into_iter();
    metrics.filter_map(|metric| Some((metric, run_metric(run, ranks, metric)?))).collect()
}

/// Returns whether the detector has seen enough of the rank to judge its live memory.
pub(crate) fn is_judged(rank: &RankView<'_>) -> bool {
    LIVE_SIGNALS.iter().any(|signal| rank.detectors.of(*signal).slope(*signal).is_some())
}

fn run_metric(
    run: &RunView<'_>,
    ranks: &[RankSummary],
    metric: PeakMetric,
) -> Option<RunMetric> {
    of_peaks(metric, &Peaks::of(run, metric), ranks, trend(run, metric))
}

/// Returns whether the rank that the first is about grew more.
pub(crate) fn has_more_growth(a: &RunMetricTrend, b: &RunMetricTrend) -> bool {
    let grown = |trend: &RunMetricTrend| trend.overall_abs_delta_bytes.unwrap_or(f64::MIN);
    grown(a) > grown(b)
}

/// Returns the figures of a metric from the peaks of the ranks; `None` without any.
pub(crate) fn of_peaks(
    metric: PeakMetric,
    Peaks(peaks): &Peaks,
    ranks: &[RankSummary],
    trend: RunMetricTrend,
) -> Option<RunMetric> {
    let mut sorted: Vec<f64> = peaks.iter().map(|(_, peak)| *peak).collect();
    let median = median(&mut sorted)?;
    // The lowest rank wins a tie.
    let (worst_rank, worst) =
        peaks.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a })?;
    let by_median = |value: f64| if median > 0.0 { value / median } else { 0.0 };
    let pressure = |(rank, peak): &(Rank, f64)| {
        let of_rank = ranks.iter().find(|of| of.rank == *rank)?;
        if of_rank.is_limited_beyond_memory() {
            return of_rank.pressure_ratio; // peaks are no part of what is limited
        }
        let capacity = of_rank.capacity_bytes.filter(|bytes| bytes.get() > 0)?;
        Some(peak / capacity.as_f64())
    };
    Some(RunMetric {
        metric,
        steps_used: ranks.iter().map(|rank| rank.steps).max()?,
        first_step: ranks.iter().filter_map(|rank| Some(rank.first?.step)).min()?,
        completed_step: ranks.iter().filter_map(|rank| Some(rank.last?.step)).max()?,
        ranks_seen: ranks.len(),
        ranks_used: peaks.len(),
        incomplete: peaks.len() < ranks.len(),
        worst_peak_bytes: worst,
        median_peak_bytes: median,
        worst_rank,
        skew_ratio: by_median(worst),
        skew_pct: by_median(worst - median),
        pressure_frac: peaks.iter().filter_map(pressure).reduce(f64::max),
        trend,
    })
}

/// The growth of one metric of one rank.
struct RankGrowth<'r, 'a> {
    rank: Rank,
    view: &'r RankView<'a>,
    bands: Bands,
    delta_bytes: f64,
    ratio: Option<f64>,
}

fn trend(run: &RunView<'_>, metric: PeakMetric) -> RunMetricTrend {
    let kept = match metric {
        PeakMetric::Allocated => Kept::PeakAllocated,
        PeakMetric::Reserved => Kept::PeakReserved,
    };
    let growth = |(rank, view)| {
        let view: &RankView<'_> = view;
        let bands = view.lifetime.bands(kept)?;
        let delta_bytes = bands.recent_bytes - bands.baseline_bytes;
        let ratio =
            Some(delta_bytes / bands.baseline_bytes).filter(|_| bands.baseline_bytes > 0.0);
        Some(RankGrowth { rank, view, bands, delta_bytes, ratio })
    };
    let mut grown: Vec<RankGrowth<'_, '_>> =
        run.ranks.iter().map(|(rank, view)| (*rank, view)).filter_map(growth).collect();
    let mut ratios: Vec<f64> = grown.iter().filter_map(|growth| growth.ratio).collect();
    // The lowest rank wins a tie.
    grown.sort_by(|a, b| b.delta_bytes.total_cmp(&a.delta_bytes));
    let Some(RankGrowth { rank, view, bands, delta_bytes, ratio }) = grown.first() else {
        return RunMetricTrend::default();
    };
    let stage = |stage: Stage| {
        let mut trends = run.ranks.iter().flat_map(|(_, view)| view.detectors.trends());
        trends.any(|trend| {
            LIVE_SIGNALS.contains(&trend.signal) && trend.stage == stage && trend.is_growing()
        })
    };
    RunMetricTrend {
        eligible: is_judged(view),
        rank: Some(*rank),
        baseline_avg_bytes: Some(bands.baseline_bytes),
        mid_avg_bytes: Some(bands.mid_bytes),
        recent_avg_bytes: Some(bands.recent_bytes),
        overall_abs_delta_bytes: Some(*delta_bytes),
        overall_worst_growth_pct: *ratio,
        overall_median_growth_pct: median(&mut ratios),
        trend_window_steps: Some(view.lifetime.n_steps()),
        allocated_slope_bytes_per_step: view
            .detectors
            .own()
            .slope(Signal::Allocated)
            .and_then(|slope| slope.bytes_per_step)
            .map(|slope| slope.value),
        early: stage(Stage::Rising),
        confirmed: stage(Stage::Creeping),
    }
}
