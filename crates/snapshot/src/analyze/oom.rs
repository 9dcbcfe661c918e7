//! Out of memory: which allocation, why, and who held what at that moment.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use crate::analyze::device::DeviceScene;
use crate::analyze::history::{History, Range};
use crate::analyze::sites::{SiteRow, Sum};
use crate::integer::{at, id};
use crate::model::{Action, Event};
use crate::replay::{Allocation, MemoryLevel, NEVER, SMALL_REQUEST_BYTES};

/// A driver that has this many times what an allocation takes had enough.
const LEFT_RATIO: u64 = 2;
/// The allocator takes segments of this size for requests below the next one.
const MEDIUM_SEGMENT_BYTES: u64 = 20 << 20;
const MEDIUM_REQUEST_BYTES: u64 = 10 << 20;
/// Other segments are a multiple of this.
const SEGMENT_UNIT: u64 = 2 << 20;

/// The reason for which the allocator had nothing to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OomCause {
    /// There was not enough.
    Shortage,
    /// There was enough, but in pieces.
    Fragmentation,
    /// There was enough, but other streams still used it.
    PendingFree,
}

/// The memory without which the allocation would not have failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RootCause {
    /// Memory that a line leaked.
    Leak,
    /// Memory that the step needs itself.
    #[default]
    Peak,
    /// Enough was free, in pieces, and no leak explains that.
    Fragmentation,
    /// Enough was freed, and another stream still used it.
    PendingFrees,
    /// Someone else took memory of the device.
    Others,
    /// A limit of the process's own, as a memory fraction: the driver had enough.
    OwnLimit,
}

/// The reason for which an allocation failed.
#[derive(Clone, Debug, Default)]
pub struct Why {
    pub cause: RootCause,
    /// Bytes that would have had to be absent.
    pub bytes: u64,
    /// Bytes that would have been free without them.
    pub free_bytes: u64,
    /// The line that holds most of them.
    pub row: Option<SiteRow>,
}

/// A limit of what the process may reserve, as its failure shows it. No file has the limit itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OwnLimit {
    /// The most that the process reserved.
    pub at_least_bytes: u64,
    /// The bytes that it would have reserved.
    pub less_than_bytes: u64,
}

impl OwnLimit {
    /// Returns the limit that stopped an allocation of `requested` bytes, where the driver had
    /// several times what it takes. `most`: the most that was reserved before.
    fn of(level: MemoryLevel, event: &Event, most: u64) -> Option<Self> {
        let (requested, device_free) = (event.size, event.address);
        let needed = segment_bytes(requested);
        let less_than_bytes = level.reserved.saturating_add(needed);
        // More was reserved before: the limit was lowered since.
        let at_least_bytes = if most < less_than_bytes { most } else { level.reserved };
        (device_free >= LEFT_RATIO.saturating_mul(needed))
            .then_some(Self { at_least_bytes, less_than_bytes })
    }
}

/// Returns the bytes that the allocator takes from the driver for a request.
fn segment_bytes(requested: u64) -> u64 {
    if requested <= SMALL_REQUEST_BYTES {
        SEGMENT_UNIT
    } else if requested < MEDIUM_REQUEST_BYTES {
        MEDIUM_SEGMENT_BYTES
    } else {
        requested.next_multiple_of(SEGMENT_UNIT)
    }
}

/// A failed allocation.
#[derive(Clone, Debug)]
pub struct OutOfMemory {
    pub event: u32,
    /// Unix time in µs; 0 where the file has none.
    pub time_us: u64,
    /// Requested bytes, rounded.
    pub requested: u64,
    /// Bytes that the driver had left.
    pub device_free: u64,
    /// Bytes taken from the driver.
    pub reserved: u64,
    /// Bytes of blocks that were not inactive.
    pub active: u64,
    /// The largest free block that it could have had.
    pub largest_free: u64,
    /// All such blocks.
    pub eligible_free: u64,
    /// Bytes that waited for other streams.
    pub pending: u64,
    /// The limit of the process's own that stopped it; `None` where the driver had too little.
    pub own_limit: Option<OwnLimit>,
    /// The reason for which the allocator had nothing to give.
    pub cause: OomCause,
    /// The reason for which there was not more.
    pub why: Why,
    /// Stack of the allocation; 0 if it has none.
    pub stack: u32,
    /// The lines that held memory.
    pub rows: Vec<SiteRow>,
}

/// Every failed allocation of the window.
pub(crate) fn find(scene: &DeviceScene<'_>) -> Vec<OutOfMemory> {
    let is_failure = |event: &Event| event.action == Action::OutOfMemory;
    if !scene.events.iter().any(is_failure) {
        return Vec::new();
    }
    let (mut found, mut most) = (Vec::new(), 0);
    let levels = scene.timeline.levels(scene.events);
    for ((number, event), level) in scene.events.iter().enumerate().zip(levels) {
        most = level.reserved.max(most);
        if is_failure(event) {
            found.push(OutOfMemory {
                event: id(number),
                time_us: event.time_us,
                requested: event.size,
                device_free: event.address,
                reserved: level.reserved,
                active: level.active,
                largest_free: 0,
                eligible_free: 0,
                pending: 0,
                own_limit: OwnLimit::of(level, event, most),
                cause: OomCause::Shortage,
                why: Why::default(),
                stack: event.stack,
                rows: Vec::new(),
            });
        }
    }
    let mut history = History::at_end(scene);
    for out_of_memory in found.iter_mut().rev() {
        history.rewind(scene, at(out_of_memory.event));
        out_of_memory.explain(scene, &history);
    }
    found
}

impl OutOfMemory {
    /// Returns the bytes that the driver could have given.
    pub fn given(&self) -> u64 {
        if self.own_limit.is_some() { 0 } else { self.device_free }
    }

    /// Returns the bytes that were free for it.
    pub fn reachable(&self) -> u64 {
        self.eligible_free.saturating_add(self.given())
    }

    /// Returns all bytes that the process could have.
    pub fn within_reach(&self) -> u64 {
        self.reserved.saturating_add(self.given())
    }

    /// Returns the most bytes in one piece that it could have had without some blocks, by their
    /// addresses: where they lie, or from the driver in place of segments that only they held.
    /// `history` is at its event.
    pub fn room_without(
        &self,
        scene: &DeviceScene<'_>,
        history: &History,
        absent: &HashSet<u64>,
    ) -> u64 {
        let Some(event) = scene.events.get(at(self.event)) else { return 0 };
        let wanted = Wanted::new(event);
        let rest = live(scene, history, |address| !absent.contains(&address));
        let piece = history.gaps(|range| wanted.is_from(range), &rest).into_iter().max();
        let gone = live(scene, history, |address| absent.contains(&address));
        let has = |live: &[(u64, u64)], start: u64, end: u64| {
            let before = |address| live.partition_point(|(start, _)| *start < address);
            before(start) < before(end)
        };
        let freed = history.ranges.iter().filter(|(start, range)| {
            has(&gone, **start, range.end) && !has(&rest, **start, range.end)
        });
        let freed: u64 = freed.map(|(start, range)| range.end.saturating_sub(*start)).sum();
        piece.unwrap_or(0).max(self.given().saturating_add(freed))
    }

    fn explain(&mut self, scene: &DeviceScene<'_>, history: &History) {
        let state = self.event;
        let Some(event) = scene.events.get(at(state)) else { return };
        let wanted = Wanted::new(event);
        let alive = || {
            history
                .alive
                .iter()
                .filter_map(|number| scene.timeline.allocations.get(at(*number)))
        };
        let live = live(scene, history, |_| true);
        for gap in history.gaps(|range| wanted.is_from(range), &live) {
            self.largest_free = self.largest_free.max(gap);
            self.eligible_free += gap;
        }
        self.pending = alive()
            .filter(|a| wanted.fits(a) && is_pending(a, state))
            .map(|allocation| allocation.size)
            .sum();
        let reachable = self.reachable();
        self.cause = if self.largest_free < self.requested && self.requested <= reachable {
            OomCause::Fragmentation
        } else if self.pending > 0 && self.requested <= reachable.saturating_add(self.pending) {
            OomCause::PendingFree
        } else {
            OomCause::Shortage
        };
        let mut of_origin: BTreeMap<u32, Sum> = BTreeMap::new();
        for allocation in alive() {
            of_origin.entry(scene.sites.origin(allocation)).or_default().add(allocation);
        }
        self.rows = scene.sites.rows(scene.snapshot, of_origin.into_iter());
    }
}

/// The live blocks of a moment with some addresses: addresses and sizes, rising.
fn live(
    scene: &DeviceScene<'_>,
    history: &History,
    is_wanted: impl Fn(u64) -> bool,
) -> Vec<(u64, u64)> {
    let alive = history.alive.iter().filter_map(|own| scene.timeline.allocations.get(at(*own)));
    let live = alive.map(|own| (own.address, own.size));
    let mut live: Vec<(u64, u64)> = live.filter(|(address, _)| is_wanted(*address)).collect();
    live.sort_unstable();
    live
}

/// Returns whether its free was requested and is not completed.
fn is_pending(allocation: &Allocation, state: u32) -> bool {
    allocation.freed <= state || (allocation.is_pending && allocation.freed == NEVER)
}

/// The memory that an allocation could be served from.
struct Wanted {
    stream: u32,
    pool: u32,
    is_small: bool,
}

impl Wanted {
    fn new(event: &Event) -> Self {
        let pool = event.place.pool().unwrap_or(0);
        Self { stream: event.place.stream(), pool, is_small: event.size <= SMALL_REQUEST_BYTES }
    }

    fn is_from(&self, range: &Range) -> bool {
        range.stream == self.stream
            && range.pool == self.pool
            && range.is_small == self.is_small
    }

    fn fits(&self, allocation: &Allocation) -> bool {
        allocation.place.stream() == self.stream
            && allocation.place.pool().unwrap_or(0) == self.pool
            && (allocation.size <= SMALL_REQUEST_BYTES) == self.is_small
    }
}
