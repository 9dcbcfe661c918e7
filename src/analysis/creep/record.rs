//! The inputs of the estimator: records of steps and readings of devices.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::axis::AxisPoint;
use crate::model::units::UnixTime;

/// One accepted record of a rank; every figure is finite, bytes are 0 to 2^53.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct MemoryRecord {
    /// Its place on the axis of the series.
    pub at: AxisPoint,
    /// Bytes live at its end.
    pub allocated: f64,
    /// Maximum of live bytes within it, if known.
    pub peak: Option<f64>,
    /// Bytes that the caching allocator holds, if known.
    pub reserved: Option<f64>,
    /// Maximum of that within the step, if known.
    pub peak_reserved: Option<f64>,
}

/// One reading of the device that the rank runs on; every figure is finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceReading {
    /// When it was taken.
    pub time: UnixTime,
    /// Bytes in use on the device, by all processes.
    pub device_used: f64,
    /// Bytes in use by the rank's process, if the driver reports them.
    pub process_used: Option<f64>,
}
