//! Bytes left on the device that growth is weighed against.

use std::iter;

use crate::ladder::Block;
use crate::surroundings::Surroundings;
use stepmem_forecast::{Signal, Usage};

/// Returns the most that the newer half of `blocks` used.
pub(super) fn usage_of_newer_half(blocks: &[Block]) -> Usage {
    usage_as_of(blocks, iter::empty(), 0.0, 0.0)
}

/// Returns the usage of the newer half of `blocks`, had memory been as high then as it is
/// at `now`, with growth of `slope` since: the highest peak came before some of the growth.
/// `finer` are shorter blocks, of which it is better known when.
pub(super) fn usage_as_of<'a>(
    blocks: &'a [Block],
    finer: impl Iterator<Item = &'a [Block]>,
    now: f64,
    slope: f64,
) -> Usage {
    let newer = blocks.get(blocks.len() / 2..).unwrap_or_default();
    let from = newer.first().map_or(now, |first| first.at.position);
    let mut most = Usage::default();
    for blocks in finer.chain([blocks]) {
        let ends = blocks.iter().skip(1).map(|next| next.at.position).chain([now]);
        for (block, end) in blocks.iter().zip(ends) {
            if block.at.position >= from {
                let peak = f64::from(block.peak) + slope * (now - end).max(0.0);
                most.peak = most.peak.max(peak);
                most.reserved = most.reserved.max(block.reserved.into());
            }
        }
    }
    most
}

/// Returns the bytes that growth is weighed against: what was never reserved, or a share of
/// what was never live.
pub(super) fn headroom(usage: &Usage, around: &Surroundings<'_>) -> f64 {
    let (config, outside) = (around.config, around.outside_bytes);
    let stand_in = || {
        let mut capacity = config.stand_in_capacity;
        while capacity < usage.peak.max(usage.reserved) + outside {
            capacity *= 2.0;
        }
        capacity
    };
    let capacity = around.capacity.whole().unwrap_or_else(stand_in);
    let free = around.capacity.reachable(outside).unwrap_or(capacity - outside);
    let (untouched_ratio, least) = match around.signal {
        Signal::OutsideAllocator => (0.0, config.headroom_ratio_min),
        Signal::Process => (0.0, config.process_headroom_ratio_min),
        _ => (config.untouched_ratio, config.headroom_ratio_min),
    };
    (free - usage.reserved).max(untouched_ratio * (free - usage.peak)).max(least * capacity)
}
