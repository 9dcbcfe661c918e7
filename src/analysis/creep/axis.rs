//! The axis along which a series is counted: steps of training, or time.

use serde::{Deserialize, Serialize};

use crate::model::units::UnixTime;

/// The unit of a series' axis.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum Axis {
    /// Global steps of training.
    #[default]
    Steps,
    /// Seconds since the first reading, or the first sample.
    Seconds,
}

/// A place on a series' axis, and when it was reached.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct AxisPoint {
    /// The place in units of the axis, finite: the global step just completed, or the seconds
    /// since the first reading.
    pub position: f64,
    /// When it was reached.
    pub time: UnixTime,
}
