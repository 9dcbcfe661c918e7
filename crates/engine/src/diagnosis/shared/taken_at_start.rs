//! Memory that a rank took at its start and that has been level since: nearly full, and no load
//! that could be made smaller.

use crate::diagnosis::shared::input::{DiagnosisInput, Subject};
use crate::diagnosis::shared::plan::{is_rise, others_grow};
use crate::diagnosis::shared::pressure::{self, Pressure};
use crate::ranks::lifetime::Kept;
use stepmem_detect::{Signal, Trend};
use stepmem_types::units::Bytes;

/// The memory of a rank on its device, by signal.
const OF_DEVICE: [Signal; 3] = [Signal::Allocated, Signal::Reserved, Signal::OutsideAllocator];

/// Live memory of a rank at the start of its process, while it has been level since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenAtStart {
    bytes: f64,
}

impl TakenAtStart {
    /// Returns the memory that is live since the first part of an incarnation of a rank on a
    /// device. `None` once live memory was above that at the end of any step, next to growth of
    /// any other memory on the device, where the allocator ran out of memory or had to give
    /// some up, and where the peaks of steps are unknown.
    pub(crate) fn of(input: &DiagnosisInput<'_>, subject: &Subject<'_, '_>) -> Option<Self> {
        let rank = subject.rank().filter(|rank| !rank.identity.is_host())?;
        let is_short = rank.has_retried || rank.oom.is_some();
        let grows = |signal| rank.detectors.trend(signal).is_some_and(Trend::is_growing);
        let grows = OF_DEVICE.into_iter().any(grows) || others_grow(input, rank);
        // What steps take on top is known.
        rank.lifetime.means(Kept::PeakAllocated).next()?;
        let bytes = rank.lifetime.means(Kept::Allocated).next()?;
        let (most, _) = rank.lifetime.allocated.max?;
        let left = |of: Pressure| of.capacity.as_f64() * (1.0 - of.ratio);
        let left = pressure::of_rank(rank).map(left).fold(f64::INFINITY, f64::min);
        let is_level = !is_rise(most.as_f64() - bytes, left);
        (is_level && !is_short && !grows).then_some(Self { bytes })
    }

    /// Returns whether a pressure is of this memory: all that comes on top of it (what steps take
    /// for themselves, the allocator's cache, other processes) could be twice as much.
    pub(crate) fn explains(self, pressure: &Pressure) -> bool {
        let capacity = pressure.capacity.as_f64();
        let peak = pressure.ratio * capacity;
        peak - self.bytes <= capacity - peak
    }

    /// Returns it in whole bytes.
    pub(crate) fn bytes(self) -> Option<u64> {
        Bytes::rounded(self.bytes).ok().map(Bytes::get)
    }
}
