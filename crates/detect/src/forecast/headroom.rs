//! Bytes left on the device: those that growth is weighed against, and those that it can still
//! take.

use serde::{Deserialize, Serialize};

use crate::ladder::{Block, count};
use crate::signal::Signal;
use crate::surroundings::Surroundings;
use stepmem_types::saved;
use stepmem_types::units::{GIBIBYTE, Interval};

/// Stands in for an unknown capacity: 80 GiB, as most training GPUs have (A100, H100). Doubled
/// until the memory seen in use fits.
const STAND_IN_CAPACITY_BYTES: f64 = 80.0 * GIBIBYTE;
/// The least remaining share of the capacity while there is any: a driver's own use comes and
/// goes by that much.
const REMAINING_RATIO_MIN: f64 = 0.002;
/// The least remaining share of the memory that no peak has used: an allocator that runs out
/// gives cached memory back first.
const REMAINING_OF_UNTOUCHED_MIN: f64 = 0.25;
/// The least that may be left, as a share of the likely number.
const REMAINING_LEAST_RATIO: f64 = 0.25;
/// Reserved memory follows live memory when it reaches a new high in this share of the blocks.
const FOLLOWED_RATIO: f64 = 0.5;
/// The share of its cache that an allocator gives back that takes memory page by page.
const GIVEN_BACK_RATIO: f64 = 0.5;

/// The most memory that some blocks used.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    peak: f64,
    reserved: f64,
}

impl Usage {
    /// Returns the most that the newer half of `blocks` used.
    pub(crate) fn of_newer_half(blocks: &[Block]) -> Self {
        blocks.iter().skip(blocks.len() / 2).fold(
            Self { peak: 0.0, reserved: 0.0 },
            |most, block| Self {
                peak: most.peak.max(block.peak.into()),
                reserved: most.reserved.max(block.reserved.into()),
            },
        )
    }

    /// Returns the bytes that growth is weighed against: what was never reserved, or a share of
    /// what was never live.
    pub(crate) fn headroom(&self, around: &Surroundings<'_>) -> f64 {
        let capacity = around.capacity.unwrap_or_else(|| {
            let mut capacity = STAND_IN_CAPACITY_BYTES;
            while capacity < self.peak.max(self.reserved) + around.outside_bytes {
                capacity *= 2.0;
            }
            capacity
        });
        let config = around.config;
        let (untouched_ratio, least) = match around.signal {
            Signal::Allocated | Signal::Reserved | Signal::Host => {
                (config.untouched_ratio, config.headroom_ratio_min)
            }
            Signal::OutsideAllocator => (0.0, config.headroom_ratio_min),
            Signal::Process => (0.0, config.process_headroom_ratio_min),
        };
        let free = capacity - around.outside_bytes;
        (free - self.reserved).max(untouched_ratio * (free - self.peak)).max(least * capacity)
    }

    /// Returns the bytes left until out-of-memory for growth of `growth_bytes`; `None` where
    /// the capacity is unknown.
    pub(crate) fn remaining(
        &self,
        around: &Surroundings<'_>,
        growth_bytes: f64,
        is_followed: bool,
    ) -> Option<RemainingBytes> {
        let capacity = around.capacity?;
        let free = capacity - around.outside_bytes;
        let is_left = free > self.peak.min(self.reserved);
        let least = if is_left { REMAINING_RATIO_MIN * capacity } else { 0.0 };
        let unreserved = (free - self.reserved).max(least);
        let untouched = (free - self.peak).max(unreserved);
        let cache = untouched - unreserved;
        let (likely, spread) = match around.signal {
            Signal::OutsideAllocator | Signal::Process => (unreserved, 0.0),
            // The growth stays in the cache; the rest of the cache is given back.
            Signal::Reserved => ((untouched - growth_bytes).max(unreserved), cache),
            Signal::Allocated | Signal::Host if is_followed => {
                (unreserved + GIVEN_BACK_RATIO * cache, cache)
            }
            // An allocator that takes segments keeps those that hold any live block.
            Signal::Allocated | Signal::Host => {
                (unreserved.max(REMAINING_OF_UNTOUCHED_MIN * untouched), cache)
            }
        };
        Some(RemainingBytes { likely, spread })
    }
}

/// Returns whether reserved memory reaches a new high in at least half of the blocks. It is
/// then taken page by page as live memory grows, not in segments larger than that.
pub(crate) fn is_followed(blocks: &[Block]) -> bool {
    let Some((first, rest)) = blocks.split_first() else { return false };
    let (mut high, mut n_highs) = (first.reserved, 0.0);
    for block in rest {
        n_highs += if block.reserved > high { 1.0 } else { 0.0 };
        high = high.max(block.reserved);
    }
    n_highs >= FOLLOWED_RATIO * count(rest.len())
}

/// The bytes left until out-of-memory, and how far off they may be.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct RemainingBytes {
    #[serde(deserialize_with = "saved::figures")]
    likely: f64,
    #[serde(deserialize_with = "saved::figures")]
    spread: f64,
}

impl RemainingBytes {
    /// Returns the bytes with their interval.
    pub(crate) fn interval(self) -> Interval {
        let around = Interval::around(self.likely, self.spread);
        Interval { lower: around.lower.max(REMAINING_LEAST_RATIO * self.likely), ..around }
    }
}
