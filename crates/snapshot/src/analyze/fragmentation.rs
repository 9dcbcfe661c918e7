//! Memory that is reserved and not used: what could be given back, what cannot, and which
//! blocks hold it.

use std::collections::HashMap;

use crate::analyze::device::DeviceScene;
use crate::analyze::history::LARGE_PAGE_BYTES;
use crate::analyze::pools::is_private;
use crate::analyze::sites::{SiteRow, Sum};
use crate::integer::{at, count, real};
use crate::model::{Block, Segment, State};

/// Bytes that the driver maps at once in a small expandable segment.
const SMALL_PAGE_BYTES: u64 = 2 << 20;

/// The answer, at the end.
#[derive(Clone, Debug, Default)]
pub struct Fragmentation {
    /// Block bytes beyond what tensors requested.
    pub internal: u64,
    /// Free bytes that could go back to the driver.
    pub releasable: u64,
    /// Free bytes in segments that a live block or a private pool holds.
    pub stranded: u64,
    /// The largest free block.
    pub largest_free: u64,
    /// Lines whose blocks hold stranded bytes, with their share of it; the largest share first.
    pub pinners: Vec<(SiteRow, u64)>,
}

/// Measures a device.
pub(crate) fn measure(scene: &DeviceScene<'_>) -> Fragmentation {
    let mut found = Fragmentation::default();
    let origins: HashMap<u64, u32> = scene
        .timeline
        .allocations
        .iter()
        .filter(|allocation| allocation.is_at_end())
        .map(|allocation| (allocation.address, scene.sites.origin(allocation)))
        .collect();
    let mut shares: HashMap<u32, (Sum, f64)> = HashMap::new();
    for segment in &scene.device.segments {
        let stranded = found.add(segment, is_private(scene.snapshot, segment.pool));
        let live = || segment.blocks.iter().filter(|block| block.state != State::Inactive);
        let share = real(stranded) / real(count(live().count()).max(1));
        for block in live().filter(|_| stranded > 0) {
            let origin = origins.get(&block.address).copied().unwrap_or(block.stack);
            let (sum, pinned) = shares.entry(origin).or_default();
            sum.join(Sum { bytes: block.size, requested: block.requested, blocks: 1 });
            *pinned += share;
        }
    }
    found.pinners = pinners(scene, &shares);
    found
}

impl Fragmentation {
    /// Adds a segment; returns its stranded bytes. PyTorch gives nothing of a private pool back
    /// while a graph or a `MemPool` has it.
    fn add(&mut self, segment: &Segment, is_private: bool) -> u64 {
        let (free, live): (Vec<&Block>, Vec<&Block>) =
            segment.blocks.iter().partition(|block| block.state == State::Inactive);
        let loose: u64 = free.iter().map(|block| block.size).sum();
        let largest = free.iter().map(|block| block.size).max().unwrap_or(0);
        self.largest_free = self.largest_free.max(largest);
        self.internal +=
            live.iter().map(|block| block.size.saturating_sub(block.requested)).sum::<u64>();
        if live.is_empty() && !is_private {
            self.releasable += loose;
            return 0;
        }
        let pages: u64 = if segment.is_expandable && !is_private {
            free.iter().map(|block| whole_pages(segment, block)).sum()
        } else {
            0
        };
        self.releasable += pages;
        self.stranded += loose - pages;
        loose - pages
    }
}

/// Returns the bytes that the driver maps at once in an expandable segment.
pub(crate) fn page_bytes(is_small: bool) -> u64 {
    if is_small { SMALL_PAGE_BYTES } else { LARGE_PAGE_BYTES }
}

/// Bytes of the whole pages inside a free block, counted from the segment's address.
fn whole_pages(segment: &Segment, block: &Block) -> u64 {
    let page = page_bytes(segment.is_small);
    let start = block.address.saturating_sub(segment.address);
    let (first, end) = (start.div_ceil(page), start.saturating_add(block.size) / page);
    end.saturating_sub(first).saturating_mul(page).min(block.size)
}

fn pinners(scene: &DeviceScene<'_>, shares: &HashMap<u32, (Sum, f64)>) -> Vec<(SiteRow, u64)> {
    let mut of_origin = vec![Sum::default(); scene.sites.n_origins()];
    let mut of_site: HashMap<u32, f64> = HashMap::new();
    let mut origins: Vec<_> = shares.iter().collect();
    origins.sort_unstable_by_key(|(origin, _)| **origin);
    for (origin, (sum, share)) in origins {
        if let Some(slot) = of_origin.get_mut(at(*origin)) {
            *slot = *sum;
        }
        *of_site.entry(scene.sites.of_origin(*origin)).or_default() += share;
    }
    let rows = scene.sites.rows(scene.snapshot, (0..).zip(of_origin));
    let share = |row: &SiteRow| of_site.get(&row.site).map_or(0, |share| whole(*share));
    let mut pinners: Vec<(SiteRow, u64)> = rows
        .into_iter()
        .map(|row| (share(&row), row))
        .map(|(share, row)| (row, share))
        .collect();
    pinners.sort_by_key(|(_, share)| std::cmp::Reverse(*share));
    pinners
}

/// A share as a whole number of bytes.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share is not negative and saturates"
)]
fn whole(share: f64) -> u64 {
    share.round() as u64
}
