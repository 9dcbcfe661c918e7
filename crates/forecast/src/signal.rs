//! The series that may grow.

use serde::{Deserialize, Serialize};

use crate::axis::Axis;

/// A series that may grow; serialized as its label.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// Live tensor memory that survives every step.
    Allocated,
    /// Memory of the caching allocator while live memory does not grow: fragmentation.
    Reserved,
    /// Memory of the process outside its caching allocator: communication buffers, libraries.
    OutsideAllocator,
    /// Host memory of a rank whose live memory is a device's.
    Host,
    /// Memory that the child processes of a rank hold of their own, on the host.
    Children,
    /// Files in `/dev/shm`, whoever made them.
    Shm,
    /// All memory of an unmanaged process, as the driver reports it; counted in seconds
    /// since the first reading instead of steps.
    Process,
}

impl Signal {
    /// Every signal, in order of declaration.
    pub const ALL: [Self; 7] = [
        Self::Allocated,
        Self::Reserved,
        Self::OutsideAllocator,
        Self::Host,
        Self::Children,
        Self::Shm,
        Self::Process,
    ];

    /// Returns the value of the label `signal`.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Reserved => "reserved",
            Self::OutsideAllocator => "outside_allocator",
            Self::Host => "host",
            Self::Children => "children",
            Self::Shm => "shm",
            Self::Process => "process",
        }
    }

    /// Returns whether it is memory of the host beside the rank's own figures.
    pub fn is_beside(self) -> bool {
        matches!(self, Self::Host | Self::Children | Self::Shm)
    }

    /// Returns the axis of its slope and its time to out-of-memory, in a rank that steps.
    pub fn axis(self) -> Axis {
        match self {
            Self::Allocated
            | Self::Reserved
            | Self::OutsideAllocator
            | Self::Host
            | Self::Children
            | Self::Shm => Axis::Steps,
            Self::Process => Axis::Seconds,
        }
    }
}
