//! The series that may grow.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::axis::Axis;

/// Which series grows; written as its label.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// Live tensor memory that survives every step.
    Allocated,
    /// What the caching allocator holds while the live set does not grow: fragmentation.
    Reserved,
    /// What the process holds beside its caching allocator: communication buffers, libraries.
    OutsideAllocator,
    /// All that a process holds that does not push, by the driver's word. Where records of the
    /// others count steps, its count seconds since the first reading.
    Process,
}

impl Signal {
    /// Every signal, in the order of declaration.
    pub const ALL: [Self; 4] =
        [Self::Allocated, Self::Reserved, Self::OutsideAllocator, Self::Process];

    /// The signal as a label's value.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Reserved => "reserved",
            Self::OutsideAllocator => "outside_allocator",
            Self::Process => "process",
        }
    }

    /// Returns the axis that its slope and its time to out-of-memory are counted along.
    pub fn axis(self) -> Axis {
        match self {
            Self::Allocated | Self::Reserved | Self::OutsideAllocator => Axis::Steps,
            Self::Process => Axis::Seconds,
        }
    }
}
