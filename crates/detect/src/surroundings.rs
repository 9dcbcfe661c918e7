//! The surroundings that growth is judged against.

use crate::config::Config;
use stepmem_forecast::{Axis, AxisPoint, Capacity, Signal};

/// The series and the device around a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings<'a> {
    pub(super) config: &'a Config,
    pub(super) signal: Signal,
    pub(super) axis: Axis,
    /// The point of the newest sample or reading.
    pub(super) now: AxisPoint,
    /// Steps, or what counts as one, that a unit of the axis brings.
    pub(super) steps_per_unit: f64,
    /// The bytes that may be taken.
    pub(super) capacity: Capacity,
    /// Bytes in use on the device outside the series' process.
    pub(super) outside_bytes: f64,
    /// Set while the allocator's live blocks become more and more, where that is of live memory.
    pub(super) is_accumulating: bool,
}
