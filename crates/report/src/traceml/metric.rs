//! The figures of one metric over the steps that all ranks have.

use serde::Serialize;

use crate::policy::PeakMetric;
use crate::traceml::trend::TraceMlTrend;
use stepmem_forecast::stats::median::median;
use stepmem_types::ids::Rank;

/// The figures of one metric over the common steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceMlMetric {
    pub metric: PeakMetric,
    pub window_size: usize,
    pub steps_used: usize,
    pub first_step: u64,
    pub completed_step: u64,
    pub ranks_seen: usize,
    pub ranks_used: usize,
    pub incomplete: bool,
    pub worst_peak_bytes: f64,
    pub median_peak_bytes: f64,
    pub worst_rank: Rank,
    pub skew_ratio: f64,
    pub skew_pct: f64,
    pub pressure_frac: Option<f64>,
    pub trend: TraceMlTrend,
}

/// The common steps, ascending, and one metric of every rank at each of them.
#[derive(Debug)]
pub struct CommonSteps<'a> {
    /// Number of steps that are analyzed, at most.
    pub window_size: usize,
    /// Number of ranks that were heard of, with those without a step.
    pub ranks_seen: usize,
    /// The greatest capacity that a rank or device reported, in bytes.
    pub capacity_bytes: Option<f64>,
    pub steps: &'a [u64],
    /// A value per step, by rank, in bytes.
    pub ranks: Vec<(Rank, Vec<f64>)>,
}

impl TraceMlMetric {
    /// Returns the figures; `None` without a common step.
    pub fn of(metric: PeakMetric, common: &CommonSteps<'_>) -> Option<Self> {
        let mut column = Vec::with_capacity(common.ranks.len());
        let mut worst = Vec::with_capacity(common.steps.len());
        let mut middle = Vec::with_capacity(common.steps.len());
        for idx in 0..common.steps.len() {
            column.clear();
            column.extend(common.ranks.iter().filter_map(|(_, values)| values.get(idx)));
            worst.push(column.iter().copied().reduce(f64::max)?);
            middle.push(median(&mut column)?);
        }
        let peaks: Vec<(Rank, f64)> = common
            .ranks
            .iter()
            .filter_map(|(rank, values)| {
                Some((*rank, values.iter().copied().reduce(f64::max)?))
            })
            .collect();
        let median_peak = median(&mut peaks.iter().map(|(_, peak)| *peak).collect::<Vec<_>>())?;
        // The lowest rank wins a tie.
        let (worst_rank, worst_peak) =
            peaks.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a })?;
        let by_median = |value: f64| if median_peak > 0.0 { value / median_peak } else { 0.0 };
        let ranks_used = peaks.len();
        Some(Self {
            metric,
            window_size: common.window_size,
            steps_used: common.steps.len(),
            first_step: *common.steps.first()?,
            completed_step: *common.steps.last()?,
            ranks_seen: common.ranks_seen,
            ranks_used,
            incomplete: ranks_used < common.ranks_seen,
            worst_peak_bytes: worst_peak,
            median_peak_bytes: median_peak,
            worst_rank,
            skew_ratio: by_median(worst_peak),
            skew_pct: by_median(worst_peak - median_peak),
            pressure_frac: common
                .capacity_bytes
                .filter(|capacity| *capacity > 0.0)
                .map(|capacity| (worst_peak / capacity).max(0.0)),
            trend: TraceMlTrend::of(&worst, &middle),
        })
    }
}
