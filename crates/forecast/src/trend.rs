//! Growth that holds, and the figures that follow from it.

use serde::{Deserialize, Serialize};

use crate::axis::{Axis, AxisPoint};
use crate::signal::Signal;
use crate::slope_interval::{Bend, SinceOnset};
use crate::time_to_oom::Rising;
use crate::usage::Usage;
use stepmem_types::saved;
use stepmem_types::units::Interval;

/// The urgency of a trend.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub enum Stage {
    /// Grows steadily, but an innocent explanation is left.
    Rising,
    /// No innocent explanation is left.
    Creeping,
}

/// The phase of a trend: its growth goes on, or has ended.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub enum Phase {
    /// The growth goes on.
    Growing {
        /// The point where growth went on after it had been level; `None` if it never was.
        resumed: Option<AxisPoint>,
    },
    /// The growth has ended.
    Level {
        /// The point where the signal last rose.
        since: AxisPoint,
        /// Units of the axis after which that was known.
        #[serde(deserialize_with = "saved::amounts")]
        known_after: f64,
    },
}

/// Growth that crept and ended.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct EndedGrowth {
    /// Bytes that were gained.
    #[serde(deserialize_with = "saved::figures")]
    pub bytes: f64,
    /// The point where the growth began.
    pub onset: AxisPoint,
    /// The point where the signal last rose.
    pub until: AxisPoint,
}

/// Growth that holds, or has ended lately.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Trend {
    /// The series that grows.
    pub signal: Signal,
    /// The axis that it is counted along.
    pub axis: Axis,
    /// The urgency of the growth.
    pub stage: Stage,
    /// The phase: the growth goes on, or has ended.
    pub phase: Phase,
    /// The point where this stage was raised.
    pub raised: AxisPoint,
    /// The point of its newest sample.
    pub seen: AxisPoint,
    /// The point where the growth begins; it stays as it was when the trend was raised.
    pub onset: AxisPoint,
    /// The slope by the latest window that shows it, in bytes per unit of the axis, with its 95
    /// % interval, which has no slope in it that is not growth. Others see it in an
    /// [`Outlook`](crate::outlook::Outlook).
    pub slope_bytes_per_unit: Interval,
    /// The slope with the interval of those that come next, by which the time left is told.
    pub ahead_bytes_per_unit: Interval,
    /// The change of the slope since the onset.
    pub bend: Bend,
    /// The rise of the slope with each unit, where it surely rises; else 0.
    #[serde(deserialize_with = "saved::amounts")]
    pub gain: f64,
    /// The growth since the onset, as measured.
    #[serde(deserialize_with = "saved::figures")]
    pub growth_bytes: f64,
    /// The memory in use, by the newer half of the window that shows it…
    pub usage: Usage,
    /// …when that last got a block: the place on the axis.
    #[serde(deserialize_with = "saved::places")]
    pub used_at: f64,
    /// Set when reserved memory is taken page by page as live memory grows.
    pub is_followed: bool,
    /// The bytes by which it then grows beyond each byte of live memory.
    #[serde(deserialize_with = "saved::amounts")]
    pub slack_ratio: f64,
    /// The time to gain those bytes as a multiple of the time at this slope: above 1 when
    /// growth fades. `None` where line and power law disagree, so that the time is unknown.
    #[serde(deserialize_with = "saved::amounts")]
    pub time_factor: Option<f64>,
    /// The growth of the latest window as a share of itself and the headroom, 0 to 1.
    #[serde(deserialize_with = "saved::ratios")]
    pub share_ratio: f64,
    /// The probability that a random walk does not grow like that, 0 to 1; a fifth lower where
    /// the capacity is unknown.
    #[serde(deserialize_with = "saved::ratios")]
    pub confidence_ratio: f64,
}

impl Trend {
    /// Takes over what was measured since the onset.
    pub fn measure(&mut self, found: &SinceOnset) {
        let has_gone_on = self.seen.position > self.raised.position;
        self.slope_bytes_per_unit = if has_gone_on { found.settled } else { found.slope };
        self.ahead_bytes_per_unit = found.ahead;
        self.bend = found.bend;
        self.gain = found.gain;
    }

    /// Returns the rate at which growth at `rate` uses up what is left. The slack that grows with
    /// it does so too, unless it is given back: in the later course of most jobs it is.
    pub(crate) fn used_at(&self, rate: Interval) -> Interval {
        Interval { upper: rate.upper * (1.0 + self.slack_ratio), ..rate }
    }

    /// Returns the rate that goes on rising.
    pub(crate) fn rising(&self) -> Rising {
        let since_onset = self.seen.position - self.onset.position;
        let rate = self.slope_bytes_per_unit.value + 0.5 * self.gain * since_onset;
        Rising { rate, gain: self.gain }
    }

    /// Returns whether its growth goes on.
    pub fn is_growing(&self) -> bool {
        matches!(self.phase, Phase::Growing { .. })
    }

    /// Returns whether there is something to tell of it: it grows, or has crept.
    pub fn is_told(&self) -> bool {
        self.is_growing() || self.stage == Stage::Creeping
    }

    /// Returns the point where the signal last rose, if its growth has ended.
    pub fn level_since(&self) -> Option<AxisPoint> {
        match self.phase {
            Phase::Growing { .. } => None,
            Phase::Level { since, .. } => Some(since),
        }
    }

    /// Returns the point where its growth went on after it had been level.
    pub fn resumed(&self) -> Option<AxisPoint> {
        match self.phase {
            Phase::Growing { resumed } => resumed,
            Phase::Level { .. } => None,
        }
    }
}

/// The rate at which a signal changes, with 95 % intervals.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Slope {
    /// Bytes per step; `None` for a signal that does not count steps.
    pub bytes_per_step: Option<Interval>,
    /// Bytes per second; `None` while the pace is unknown.
    pub bytes_per_second: Option<Interval>,
    /// Set when the signal rises in a straight line, however little.
    pub is_straight: bool,
}

impl Slope {
    /// Converts a slope along an axis; `seconds_per_unit` of that axis, if known.
    pub fn along(axis: Axis, bytes_per_unit: Interval, seconds_per_unit: Option<f64>) -> Self {
        Self {
            bytes_per_step: Some(bytes_per_unit).filter(|_| axis == Axis::Steps),
            bytes_per_second: seconds_per_unit.map(|seconds| Interval {
                value: bytes_per_unit.value / seconds,
                lower: bytes_per_unit.lower / seconds,
                upper: bytes_per_unit.upper / seconds,
            }),
            is_straight: false,
        }
    }
}
