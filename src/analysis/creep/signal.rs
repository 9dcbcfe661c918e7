//! The series that may grow.

use serde::{Deserialize, Serialize};

/// Which series grows.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
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

    /// Whether its records count steps; else they count seconds.
    pub fn counts_steps(self) -> bool {
        self != Self::Process
    }
}
