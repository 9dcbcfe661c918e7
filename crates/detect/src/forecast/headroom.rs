//! Bytes left on the device: those that growth is weighed against, and those that it can still
//! take.

use std::iter;

use serde::{Deserialize, Serialize};

use crate::capacity::Capacity;
use crate::ladder::{Block, count};
use crate::signal::Signal;
use crate::surroundings::Surroundings;
use stepmem_types::saved;
use stepmem_types::units::{GIBIBYTE, Interval};

/// Stands in for an unknown capacity: 80 GiB, as most training GPUs have (A100, H100). Doubled
/// until the memory seen in use fits.
const STAND_IN_CAPACITY_BYTES: f64 = 80.0 * GIBIBYTE;
/// The least remaining share of the memory that no peak has used: an allocator that runs out
/// gives cached memory back first.
const REMAINING_OF_UNTOUCHED_MIN: f64 = 0.25;
/// The least that may be left, as a share of the likely number.
const REMAINING_LEAST_RATIO: f64 = 0.25;
/// Reserved memory follows live memory when it reaches a new high in this share of the blocks.
const FOLLOWED_RATIO: f64 = 0.5;
/// The share of its cache that an allocator gives back that takes memory page by page.
const GIVEN_BACK_RATIO: f64 = 0.5;

/// The most that slack is believed to grow for each byte of live memory.
const SLACK_RATIO_MAX: f64 = 10.0;

/// The most memory that some blocks used.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Usage {
    #[serde(deserialize_with = "saved::places")]
    peak: f64,
    #[serde(deserialize_with = "saved::places")]
    reserved: f64,
}

/// The growth that bytes are left for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    pub(crate) signal: Signal,
    /// Bytes since its onset.
    pub(crate) bytes: f64,
    /// Set when reserved memory is taken page by page as live memory grows.
    pub(crate) is_followed: bool,
    /// The bytes by which reserved memory grows beyond each byte of live memory.
    pub(crate) slack_ratio: f64,
}

impl Growth {
    /// Returns the rate at which growth at a rate uses up what is left. The slack that grows with
    /// it does so too, unless it is given back: in the later course of most jobs it is.
    pub(crate) fn used_at(&self, rate: Interval) -> Interval {
        Interval { upper: rate.upper * (1.0 + self.slack_ratio), ..rate }
    }
}

/// The memory that a series may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Bytes that are not used outside the series' process.
    free: f64,
}

impl Room {
    /// Returns the room within a capacity of which `outside_bytes` are in use outside the
    /// series' process; `None` where nothing is known of it.
    pub(crate) fn of(capacity: Capacity, outside_bytes: f64) -> Option<Self> {
        Some(Self { free: capacity.reachable(outside_bytes)? })
    }
}

impl Usage {
    /// Returns the most that the newer half of `blocks` used.
    pub(crate) fn of_newer_half(blocks: &[Block]) -> Self {
        Self::as_of(blocks, iter::empty(), 0.0, 0.0)
    }

    /// Returns the usage of the newer half of `blocks`, had memory been as high then as it is
    /// at `now`, with growth of `slope` since: the highest peak came before some of the growth.
    /// `finer` are shorter blocks, of which it is better known when.
    pub(crate) fn as_of<'a>(
        blocks: &'a [Block],
        finer: impl Iterator<Item = &'a [Block]>,
        now: f64,
        slope: f64,
    ) -> Self {
        let newer = blocks.get(blocks.len() / 2..).unwrap_or_default();
        let from = newer.first().map_or(now, |first| first.at.position);
        finer.chain([blocks]).fold(Self { peak: 0.0, reserved: 0.0 }, |most, blocks| {
            let ends = blocks.iter().skip(1).map(|next| next.at.position).chain([now]);
            let of_half =
                blocks.iter().zip(ends).filter(|(block, _)| block.at.position >= from);
            of_half.fold(most, |most, (block, end)| {
                let peak = f64::from(block.peak) + slope * (now - end).max(0.0);
                Self {
                    peak: most.peak.max(peak),
                    reserved: most.reserved.max(block.reserved.into()),
                }
            })
        })
    }

    /// Returns the bytes that growth is weighed against: what was never reserved, or a share of
    /// what was never live.
    pub(crate) fn headroom(&self, around: &Surroundings<'_>) -> f64 {
        let stand_in = || {
            let mut capacity = STAND_IN_CAPACITY_BYTES;
            while capacity < self.peak.max(self.reserved) + around.outside_bytes {
                capacity *= 2.0;
            }
            capacity
        };
        let capacity = around.capacity.whole().unwrap_or_else(stand_in);
        let outside = around.outside_bytes;
        let free = around.capacity.reachable(outside).unwrap_or(capacity - outside);
        let config = around.config;
        let (untouched_ratio, least) = match around.signal {
            Signal::Allocated
            | Signal::Reserved
            | Signal::Host
            | Signal::Children
            | Signal::Shm => (config.untouched_ratio, config.headroom_ratio_min),
            Signal::OutsideAllocator => (0.0, config.headroom_ratio_min),
            Signal::Process => (0.0, config.process_headroom_ratio_min),
        };
        (free - self.reserved).max(untouched_ratio * (free - self.peak)).max(least * capacity)
    }

    /// Returns the usage once growth has taken `bytes` more.
    pub(crate) fn grown(&self, bytes: f64, growth: &Growth) -> Self {
        let (of_peak, of_reserved) = match growth.signal {
            Signal::Allocated | Signal::Host | Signal::Children | Signal::Shm
                if !growth.is_followed =>
            {
                (bytes, 0.0)
            }
            Signal::Allocated
            | Signal::Host
            | Signal::Children
            | Signal::Shm
            | Signal::Process => (bytes, bytes),
            Signal::Reserved | Signal::OutsideAllocator => (0.0, bytes),
        };
        let peak = self.peak + of_peak;
        let least = if of_peak > 0.0 { peak } else { 0.0 };
        Self { peak, reserved: (self.reserved + of_reserved).max(least) }
    }

    /// Returns the bytes left until out-of-memory for growth.
    pub(crate) fn remaining(&self, room: Room, growth: &Growth) -> RemainingBytes {
        let free = room.free;
        let unreserved = (free - self.reserved).max(0.0);
        let untouched = (free - self.peak).max(unreserved);
        let cache = untouched - unreserved;
        let (likely, spread) = match growth.signal {
            Signal::OutsideAllocator | Signal::Process => (unreserved, 0.0),
            // The growth stays in the cache; the rest of the cache is given back.
            Signal::Reserved => ((untouched - growth.bytes).max(unreserved), cache),
            Signal::Allocated | Signal::Host | Signal::Children | Signal::Shm
                if growth.is_followed =>
            {
                (unreserved + GIVEN_BACK_RATIO * cache, cache)
            }
            // An allocator that takes segments keeps those that hold any live block.
            Signal::Allocated | Signal::Host | Signal::Children | Signal::Shm => {
                (unreserved.max(REMAINING_OF_UNTOUCHED_MIN * untouched), cache)
            }
        };
        RemainingBytes { likely, spread }
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

/// Returns the bytes by which reserved memory grew beyond each byte of live memory, from the
/// older half of `blocks` to the newer one; 0 where it did not.
pub(crate) fn slack_ratio(blocks: &[Block]) -> f64 {
    let (older, newer) = blocks.split_at(blocks.len() / 2);
    let rise = |of: fn(&Block) -> f64| {
        let mean = |blocks: &[Block]| blocks.iter().map(of).sum::<f64>() / count(blocks.len());
        mean(newer) - mean(older)
    };
    let live = rise(|block| block.minimum);
    let reserved = rise(|block| block.reserved.into());
    let ratio = if live > 0.0 { reserved / live - 1.0 } else { 0.0 };
    if ratio > 0.0 { ratio.min(SLACK_RATIO_MAX) } else { 0.0 }
}

/// The bytes left until out-of-memory, and how far off they may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemainingBytes {
    likely: f64,
    spread: f64,
}

impl RemainingBytes {
    /// Returns the bytes with their interval.
    pub(crate) fn interval(self) -> Interval {
        let around = Interval::around(self.likely, self.spread);
        Interval { lower: around.lower.max(REMAINING_LEAST_RATIO * self.likely), ..around }
    }
}
