//! The detector's input: samples of a rank's memory and readings of its device.

use serde::{Deserialize, Serialize};

use stepmem_forecast::AxisPoint;
use stepmem_types::saved;
use stepmem_types::units::UnixTime;

/// The memory of a rank after one step, or at one time; every figure is finite, bytes are 0 to
/// 2^53.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Sample {
    /// The sample's place on the axis of the series.
    pub at: AxisPoint,
    /// Bytes of the blocks live at its end.
    #[serde(deserialize_with = "saved::places")]
    pub allocated: f64,
    /// Bytes that were asked for in them, if known: less than the blocks by what the allocator
    /// rounds up.
    #[serde(deserialize_with = "saved::places")]
    pub requested: Option<f64>,
    /// Maximum of live bytes within it, if known.
    #[serde(deserialize_with = "saved::places")]
    pub peak: Option<f64>,
    /// The peak if known, else what it cannot have exceeded, if that is known.
    #[serde(deserialize_with = "saved::places")]
    pub peak_bound: Option<f64>,
    /// Bytes that the caching allocator holds, if known.
    #[serde(deserialize_with = "saved::places")]
    pub reserved: Option<f64>,
    /// Maximum of that within the step, if known.
    #[serde(deserialize_with = "saved::places")]
    pub peak_reserved: Option<f64>,
    /// Blocks of the allocator that are live at its end, if it counts them.
    #[serde(deserialize_with = "saved::places")]
    pub live_blocks: Option<f64>,
}

impl Sample {
    /// Returns the live bytes that are judged: those asked for, which no block that is larger
    /// than its tensor blurs.
    pub(super) fn live(&self) -> f64 {
        self.requested.unwrap_or(self.allocated)
    }
}

/// A reading of the device that the rank runs on; every figure is finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceReading {
    /// The time when it was taken.
    pub time: UnixTime,
    /// Bytes in use on the device, by all processes.
    pub device_used: f64,
    /// Bytes in use by the rank's process, if the driver reports them.
    pub process_used: Option<f64>,
}
