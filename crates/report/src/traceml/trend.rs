//! TraceML's view of growth: three levels of a series.

use serde::Serialize;

/// The fewest common steps that are judged.
pub(crate) const STEPS_MIN: usize = 50;
/// The newest values of a series that its levels are taken from.
pub const WINDOW_STEPS: usize = 10_000;
/// Growth from which creep is confirmed, in bytes: 1 GiB, on every device.
const CONFIRMED_BYTES: f64 = 1_073_741_824.0;
/// The growth that adds one to the score, in bytes: 100 MiB.
const SCORE_BYTES: f64 = 104_857_600.0;
/// The trend's own window of the growth per step.
const GROWTH_STEPS_MAX: usize = 1000;
/// Shares of the series between which its early, middle and late levels are averaged.
const BASELINE: Band = Band { start: 0.15, end: 0.25 };
const MID: Band = Band { start: 0.45, end: 0.55 };
const RECENT: Band = Band { start: 0.90, end: 1.00 };
/// A baseline below this has no relative growth.
const BASELINE_MIN: f64 = 1e-12;

/// Three levels of the worst rank's and the middle rank's value at each step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TraceMlTrend {
    pub eligible: bool,
    pub baseline_avg_bytes: Option<f64>,
    pub mid_avg_bytes: Option<f64>,
    pub recent_avg_bytes: Option<f64>,
    pub overall_abs_delta_bytes: Option<f64>,
    pub overall_worst_growth_pct: Option<f64>,
    pub overall_median_growth_pct: Option<f64>,
    pub trend_window_steps: Option<usize>,
    pub avg_growth_bytes_per_step: Option<f64>,
    pub early: bool,
    pub confirmed: bool,
    pub score: f64,
}

impl TraceMlTrend {
    /// Returns the trend of the worst and the middle value of each step, in order.
    pub fn of(worst: &[f64], middle: &[f64]) -> Self {
        if worst.len() < STEPS_MIN {
            return Self::default();
        }
        let (worst_levels, middle_levels) = (Levels::of(worst), Levels::of(middle));
        let delta = worst_levels.recent - worst_levels.baseline;
        let rises = worst_levels.rises() && middle_levels.rises();
        let (growth, middle_growth) = (worst_levels.growth(), middle_levels.growth());
        let floored = |growth: Option<f64>| growth.unwrap_or(0.0).max(0.0);
        let n_steps = worst.len().min(GROWTH_STEPS_MAX);
        let first = worst.get(worst.len() - n_steps);
        let per_step = first
            .zip(worst.last())
            .map(|(first, last)| (last - first) / (whole(n_steps) - 1.0));
        Self {
            eligible: true,
            baseline_avg_bytes: Some(worst_levels.baseline),
            mid_avg_bytes: Some(worst_levels.mid),
            recent_avg_bytes: Some(worst_levels.recent),
            overall_abs_delta_bytes: Some(delta),
            overall_worst_growth_pct: growth,
            overall_median_growth_pct: middle_growth,
            trend_window_steps: Some(n_steps),
            avg_growth_bytes_per_step: per_step,
            early: rises && delta > 0.0,
            confirmed: rises && delta >= CONFIRMED_BYTES,
            score: delta.max(0.0) / SCORE_BYTES
                + floored(growth) * 10.0
                + floored(middle_growth) * 6.0,
        }
    }
}

/// A part of a series, as shares of its length.
struct Band {
    start: f64,
    end: f64,
}

/// The early, middle and late level of a series.
struct Levels {
    baseline: f64,
    mid: f64,
    recent: f64,
}

impl Levels {
    /// Returns the levels of at most [`WINDOW_STEPS`] of the newest values.
    fn of(values: &[f64]) -> Self {
        let newest = values.get(values.len().saturating_sub(WINDOW_STEPS)..).unwrap_or(values);
        let level = |Band { start, end }: Band| {
            let n = newest.len();
            let start = index((whole(n) * start).floor()).min(n.saturating_sub(1));
            let end = index((whole(n) * end).ceil()).clamp(start + 1, n.max(start + 1));
            let band = newest.get(start..end).unwrap_or_default();
            band.iter().sum::<f64>() / whole(band.len().max(1))
        };
        Self { baseline: level(BASELINE), mid: level(MID), recent: level(RECENT) }
    }

    fn rises(&self) -> bool {
        self.recent - self.mid > 0.0 && self.mid > self.baseline
    }

    fn growth(&self) -> Option<f64> {
        (self.baseline.abs() > BASELINE_MIN)
            .then(|| (self.recent - self.baseline) / self.baseline)
    }
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "far below 2^53")]
fn whole(n: usize) -> f64 {
    n as f64
}

#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a length, never negative"
)]
fn index(value: f64) -> usize {
    value as usize
}
