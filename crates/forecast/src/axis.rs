//! Where a series is: its axis, and a place on that.

use serde::{Deserialize, Serialize};

use stepmem_types::saved::{self, Floats};
use stepmem_types::units::{Count, UnixTime};

/// The unit of a series' axis.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum Axis {
    /// Global steps of training.
    #[default]
    Steps,
    /// Seconds since the first reading or sample.
    Seconds,
}

impl Axis {
    /// Returns the step at a place on it; `None` where it counts seconds.
    pub fn step(self, position: f64) -> Option<Count> {
        Some(position).filter(|_| self == Self::Steps).and_then(Count::whole)
    }
}

/// A place on a series' axis, and when it was reached.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct AxisPoint {
    /// The place in units of the axis, finite: the global step just completed, or the seconds
    /// since the first reading.
    #[serde(deserialize_with = "saved::places")]
    pub position: f64,
    /// The time when it was reached.
    pub time: UnixTime,
}

/// The fields of a point have their ranges.
impl Floats for AxisPoint {
    fn wrong(&self, _: &dyn Fn(f64) -> bool) -> Option<f64> {
        None
    }
}
