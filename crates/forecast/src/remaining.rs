//! Bytes that growth can still take.

use crate::signal::Signal;
use crate::trend::Trend;
use crate::usage::Usage;
use stepmem_types::units::Interval;

/// The least remaining share of the memory that no peak has used: an allocator that runs out
/// gives cached memory back first.
const REMAINING_OF_UNTOUCHED_MIN: f64 = 0.25;
/// The least that may be left, as a share of the likely number.
const REMAINING_LEAST_RATIO: f64 = 0.25;
/// The share of its cache that an allocator gives back that takes memory page by page.
const GIVEN_BACK_RATIO: f64 = 0.5;

impl Trend {
    /// Returns the bytes left until out-of-memory within `free` bytes that its process may have,
    /// once the growth has taken `grown` more than its usage.
    pub fn remaining(&self, free: f64, grown: f64) -> Interval {
        let Usage { peak, reserved } = self.usage_grown(grown);
        let unreserved = (free - reserved).max(0.0);
        let untouched = (free - peak).max(unreserved);
        let cache = untouched - unreserved;
        let (likely, spread) = match self.signal {
            Signal::OutsideAllocator | Signal::Process => (unreserved, 0.0),
            // The growth stays in the cache; the rest of the cache is given back.
            Signal::Reserved => ((untouched - self.growth_bytes).max(unreserved), cache),
            _ if self.is_followed => (unreserved + GIVEN_BACK_RATIO * cache, cache),
            // An allocator that takes segments keeps those that hold any live block.
            _ => (unreserved.max(REMAINING_OF_UNTOUCHED_MIN * untouched), cache),
        };
        let around = Interval::around(likely, spread);
        Interval { lower: around.lower.max(REMAINING_LEAST_RATIO * likely), ..around }
    }

    /// Returns the usage once the growth has taken `bytes` more.
    fn usage_grown(&self, bytes: f64) -> Usage {
        let (of_peak, of_reserved) = match self.signal {
            Signal::Reserved | Signal::OutsideAllocator => (0.0, bytes),
            Signal::Process => (bytes, bytes),
            _ => (bytes, if self.is_followed { bytes } else { 0.0 }),
        };
        let peak = self.usage.peak + of_peak;
        let least = if of_peak > 0.0 { peak } else { 0.0 };
        Usage { peak, reserved: (self.usage.reserved + of_reserved).max(least) }
    }
}
