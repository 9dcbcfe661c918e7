//! A simulated rank for the tests of this room.

use crate::analysis::creep::axis::AxisPoint;
use crate::analysis::creep::estimator::CreepEstimator;
use crate::analysis::creep::record::MemoryRecord;
use crate::analysis::creep::rules::CreepSettings;
use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::trend::{Stage, Trend};
use crate::model::units::{GIBIBYTE, UnixTime};

pub(super) const CAPACITY: Option<f64> = Some(80.0 * GIBIBYTE);

/// Noise of -0.5 to 0.5 that is the same in every run.
pub(super) fn noise(step: f64) -> f64 {
    (step * 12.9898).sin() * 43_758.545_3 % 0.5
}

/// A place on an axis, reached at a time in seconds since 1970.
pub(super) fn at(position: f64, seconds: f64) -> AxisPoint {
    AxisPoint { position, time: UnixTime::new(seconds).expect("a time in range") }
}

/// A record of one step a second with noise in the batch; `leak` of it is live and reserved.
pub(super) fn record(step: f64, leak: f64) -> MemoryRecord {
    let allocated = 20.0 * GIBIBYTE + leak;
    let peak = Some(allocated + GIBIBYTE * (10.0 + noise(step)));
    let reserved = Some(32.0 * GIBIBYTE + leak);
    MemoryRecord {
        at: at(step, 1e9 + step),
        allocated,
        peak,
        peak_bound: peak,
        reserved,
        peak_reserved: reserved,
    }
}

/// An estimator fed with one record per step, and how often a trend changed.
pub(super) struct Simulation {
    pub(super) estimator: CreepEstimator,
    pub(super) step: f64,
    pub(super) n_changes: u32,
}

impl Simulation {
    pub(super) fn new() -> Self {
        let estimator = CreepEstimator::new(CreepSettings::default());
        Self { estimator, step: 0.0, n_changes: 0 }
    }

    pub(super) fn run(&mut self, n_records: u32, of_step: impl Fn(f64) -> MemoryRecord) {
        for _ in 0..n_records {
            self.n_changes += u32::from(self.estimator.train(&of_step(self.step), CAPACITY));
            self.step += 1.0;
        }
    }

    /// Runs until a trend changes, for at most `n_records_max` records.
    pub(super) fn run_until_change(
        &mut self,
        n_records_max: u32,
        of_step: impl Fn(f64) -> MemoryRecord,
    ) -> bool {
        (0..n_records_max).any(|_| {
            let is_changed = self.estimator.train(&of_step(self.step), CAPACITY);
            self.step += 1.0;
            is_changed
        })
    }

    pub(super) fn trend(&self, signal: Signal) -> Option<Trend> {
        self.estimator.trends().find(|trend| trend.signal == signal).copied()
    }

    pub(super) fn stage(&self, signal: Signal) -> Option<Stage> {
        self.trend(signal).map(|trend| trend.stage)
    }
}

pub(super) fn assert_within(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance, "{value} is not {expected} ± {tolerance}");
}

pub(super) fn assert_finite(trend: &Trend) {
    for value in [
        trend.slope_bytes_per_unit.value,
        trend.slope_bytes_per_unit.lower,
        trend.slope_bytes_per_unit.upper,
        trend.growth_bytes,
        trend.headroom_bytes().unwrap_or(0.0),
        trend.share_ratio,
        trend.confidence_ratio(),
        trend.seconds_per_unit().unwrap_or(0.0),
        trend.eta_steps().map_or(0.0, |eta| eta.likely),
        trend.eta_steps().map_or(0.0, |eta| eta.lower),
        trend.eta_steps().and_then(|eta| eta.upper).unwrap_or(0.0),
        trend.onset.time.get(),
        trend.eta_seconds().map_or(0.0, |eta| eta.likely),
    ] {
        assert!(value.is_finite(), "{trend:?}");
    }
    assert!((0.0..=1.0).contains(&trend.confidence_ratio()), "{trend:?}");
    assert!((0.0..=1.0).contains(&trend.share_ratio), "{trend:?}");
}
