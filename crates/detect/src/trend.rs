//! Growth that holds, and the figures that follow from it.

use serde::{Deserialize, Serialize};

use crate::forecast::headroom::RemainingBytes;
use crate::forecast::time_to_oom::TimeToOom;
use crate::pace::read_pace;
use crate::sample::{Axis, AxisPoint};
use crate::signal::Signal;
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
    Growing {
        /// Where it went on after it had been level; `None` if it never was.
        resumed: Option<AxisPoint>,
    },
    /// It has ended.
    Level {
        /// Where it last rose.
        since: AxisPoint,
        /// Units of the axis after which that was known.
        #[serde(deserialize_with = "saved::amounts")]
        known_after: f64,
    },
}

/// Growth that crept and ended.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct EndedGrowth {
    #[serde(deserialize_with = "saved::figures")]
    pub bytes: f64,
    pub onset: AxisPoint,
    /// Where it last rose.
    pub until: AxisPoint,
}

/// Growth that holds, or has ended lately.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Trend {
    /// The series that grows.
    pub signal: Signal,
    /// The axis that it is counted along.
    pub axis: Axis,
    pub stage: Stage,
    pub phase: Phase,
    /// Where this stage was raised.
    pub raised: AxisPoint,
    /// Where it was last brought up to date.
    pub seen: AxisPoint,
    /// Where the growth begins; it stays as it was when the trend was raised.
    pub onset: AxisPoint,
    /// The slope by the latest window that shows it, in bytes per unit of the axis, with its 95
    /// % interval.
    pub slope_bytes_per_unit: Interval,
    /// The growth since the onset, as measured.
    #[serde(deserialize_with = "saved::figures")]
    pub growth_bytes: f64,
    /// Bytes left until out-of-memory; `None` where the capacity is unknown.
    pub(super) remaining: Option<RemainingBytes>,
    /// The time to gain those bytes as a multiple of the time at this slope: above 1 when
    /// growth fades. `None` where line and power law disagree, so that the time is unknown.
    #[serde(deserialize_with = "saved::amounts")]
    pub(super) time_factor: Option<f64>,
    /// The growth of the latest window as a share of itself and the headroom, 0 to 1.
    #[serde(deserialize_with = "saved::ratios")]
    pub share_ratio: f64,
    /// The probability that a random walk does not grow like that, 0 to 1; a fifth lower where
    /// the capacity is unknown.
    #[serde(deserialize_with = "saved::ratios")]
    pub confidence_ratio: f64,
    /// Smoothed seconds per unit of the axis; `None` while unknown.
    #[serde(deserialize_with = "read_pace")]
    pub seconds_per_unit: Option<f64>,
    /// The factor between the ends of an interval up to which a time is known.
    #[serde(deserialize_with = "saved::amounts")]
    pub(super) known_within: f64,
}

impl Trend {
    /// Returns whether its growth goes on.
    pub fn is_growing(&self) -> bool {
        matches!(self.phase, Phase::Growing { .. })
    }

    /// Returns where it last rose, if its growth has ended.
    pub fn level_since(&self) -> Option<AxisPoint> {
        match self.phase {
            Phase::Growing { .. } => None,
            Phase::Level { since, .. } => Some(since),
        }
    }

    /// Returns where its growth went on after it had been level.
    pub fn resumed(&self) -> Option<AxisPoint> {
        match self.phase {
            Phase::Growing { resumed } => resumed,
            Phase::Level { .. } => None,
        }
    }

    /// Returns the bytes left to grow into; `None` where the capacity is unknown.
    pub fn headroom_bytes(&self) -> Option<f64> {
        self.remaining.map(|remaining| remaining.interval().value)
    }

    /// Returns the steps left at this slope; `None` when the headroom is unknown, the growth
    /// has ended or the axis is not one of steps.
    pub fn steps_to_oom(&self) -> Option<TimeToOom> {
        self.units_to_oom().filter(|_| self.axis == Axis::Steps)
    }

    /// Returns the seconds left at this slope; `None` when the headroom or the pace is unknown,
    /// or the growth has ended.
    pub fn seconds_to_oom(&self) -> Option<TimeToOom> {
        let pace = self.seconds_per_unit?;
        self.units_to_oom().map(|time| time.scaled(pace))
    }

    /// Returns the likely value of a time to OOM; `None` when it is not known well enough.
    pub fn known(&self, time: TimeToOom) -> Option<f64> {
        self.time_factor?;
        time.known_within(self.known_within)
    }

    fn units_to_oom(&self) -> Option<TimeToOom> {
        let remaining = self.remaining.filter(|_| self.is_growing())?.interval();
        TimeToOom::of(remaining, self.slope_bytes_per_unit, self.time_factor.unwrap_or(1.0))
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
