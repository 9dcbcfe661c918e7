//! The memory that a figure rests on: where it is unknown, the figure rests on another and
//! names it.

use serde::{Deserialize, Serialize};

/// The memory that a pressure or a headroom rests on.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The recent peak of live memory of the rank.
    Allocated,
    /// The most live memory since the rank's process began, where its recent peak is unknown.
    HighWater,
    /// Bytes that the rank's allocator holds.
    Reserved,
    /// Everything in use on the device.
    Device,
    /// Host memory of a rank on a device, or of its container.
    Host,
    /// Everything that an unmanaged process holds.
    Process,
}

impl Basis {
    /// The value of the label `basis`.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::HighWater => "high_water",
            Self::Reserved => "reserved",
            Self::Device => "device",
            Self::Host => "host",
            Self::Process => "process",
        }
    }

    /// The figure of a summary that shows its peak.
    pub fn as_metric(self) -> &'static str {
        match self {
            Self::Allocated => "peak_allocated",
            Self::HighWater => "high_water_allocated",
            Self::Reserved => "peak_reserved",
            Self::Device => "device",
            Self::Host => "host",
            Self::Process => "process",
        }
    }
}
