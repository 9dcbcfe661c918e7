//! Growth that holds, and what follows from it: how sure it is, and when it ends.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::context::{PeakUse, SeriesContext};
use crate::analysis::creep::signal::Signal;

/// What a confidence is worth while a trend only rises: of those that do, one in seven is a cache
/// that fills up.
const RISING_CONFIDENCE_RATIO: f64 = 0.9;

/// How sure and how pressing a trend is.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub enum Stage {
    /// Grows steadily, but has eaten little of the headroom or leaves more time than the
    /// horizon.
    Rising,
    /// Has eaten a notable share of the headroom and would eat the rest within the horizon.
    Creeping,
}

/// A rate of change with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slope {
    /// Bytes per step.
    pub per_step: f64,
    /// The interval's lower end, in bytes per step.
    pub lower: f64,
    /// The interval's upper end, in bytes per step.
    pub upper: f64,
    /// Bytes per second; `None` while the pace of the steps is unknown.
    pub per_second: Option<f64>,
}

/// Growth that holds now: steady, unreverted and not yet known to stop.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Trend {
    /// The series that grows.
    pub signal: Signal,
    /// How far it has come.
    pub stage: Stage,
    /// The step at which this stage was raised.
    pub raised_step: f64,
    /// When this stage was raised, in Unix seconds.
    pub raised_time: f64,
    /// The step from which the growth is seen; it stays as it was when the stage was raised.
    pub onset_step: f64,
    /// When that step ended, in Unix seconds.
    pub onset_time: f64,
    /// The rate by the latest window that shows it.
    pub slope_bytes_per_step: f64,
    /// The lower end of its 95 % interval.
    pub slope_lower_bytes_per_step: f64,
    /// The upper end of its 95 % interval.
    pub slope_upper_bytes_per_step: f64,
    /// The growth within that window, less what larger batches explain.
    pub growth_bytes: f64,
    /// What is left to grow into as of the latest block; `None` when the capacity is unknown.
    pub headroom_bytes: Option<f64>,
    /// The growth as a share of growth and headroom, 0 to 1.
    pub share_ratio: f64,
    /// The chance that the growth is more than a random walk's, 0 to 1: the normal tail of the
    /// window's rise in spreads of a walk with the same moves, drawn to one half by the rule of
    /// succession for its number of moves, and by a fifth lower when the capacity is unknown.
    pub(super) growth_chance: f64,
    /// The pace of the steps, smoothed; 0 while it is unknown.
    pub seconds_per_step: f64,
}

impl Trend {
    /// Returns the chance that this is a leak, 0 to 1: that it grows, and while it only rises a
    /// tenth less.
    pub fn confidence_ratio(&self) -> f64 {
        match self.stage {
            Stage::Rising => RISING_CONFIDENCE_RATIO * self.growth_chance,
            Stage::Creeping => self.growth_chance,
        }
    }

    /// Returns how many steps are left at this rate; `None` when the headroom is unknown.
    pub fn eta(&self) -> Option<Eta> {
        let headroom = self.headroom_bytes?;
        let at = |slope: f64| {
            Some(headroom / slope).filter(|steps| slope > 0.0 && steps.is_finite())
        };
        Some(Eta {
            steps: at(self.slope_bytes_per_step)?,
            lower_steps: at(self.slope_upper_bytes_per_step)?,
            upper_steps: at(self.slope_lower_bytes_per_step),
        })
    }

    /// Returns how many seconds are left at this rate; `None` when the headroom or the pace is
    /// unknown.
    pub fn eta_seconds(&self) -> Option<f64> {
        let pace = Some(self.seconds_per_step).filter(|seconds| *seconds > 0.0)?;
        Some(self.eta()?.steps * pace)
    }

    /// Takes over what `latest` measured and keeps when and as what this was raised.
    pub(super) fn follow(&mut self, latest: &Self) {
        *self = Self {
            stage: self.stage,
            raised_step: self.raised_step,
            raised_time: self.raised_time,
            onset_step: self.onset_step,
            onset_time: self.onset_time,
            ..*latest
        };
    }

    /// Brings the figures that do not depend on a window up to date.
    pub(super) fn refresh(&mut self, most: PeakUse, peak_weight: f64, context: &SeriesContext) {
        let headroom = context.headroom(most, peak_weight);
        self.headroom_bytes = context.capacity.map(|_| headroom);
        self.share_ratio = self.growth_bytes / (headroom + self.growth_bytes);
        self.seconds_per_step = context.seconds_per_step;
    }
}

/// How many steps are left until the headroom is used up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Eta {
    /// At the slope.
    pub steps: f64,
    /// At the upper end of its interval.
    pub lower_steps: f64,
    /// At the lower end of its interval; `None` when that is no growth.
    pub upper_steps: Option<f64>,
}
