//! Out of memory: which allocation, why, and who held what at that moment.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::snapshot::model::{Action, Event, NO_POOL};
use crate::snapshot::num::{at, id};
use crate::snapshot::replay::{Allocation, NEVER, NO_ALLOCATION, SMALL_REQUEST_BYTES};
use crate::snapshot::scene::DeviceScene;
use crate::snapshot::sites::{SiteRow, Sum};

const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
const LARGE_PAGE_BYTES: u64 = 20 << 20;

/// Why it ran out.
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

/// One failed allocation.
#[derive(Clone, Debug)]
pub struct OutOfMemory {
    pub event: u32,
    /// Unix time in µs; 0 where the file has none.
    pub time_us: u64,
    /// Bytes asked for, rounded.
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
    /// Why it ran out.
    pub cause: OomCause,
    /// Stack of the allocation; 0 if it has none.
    pub stack: u32,
    /// Who held what.
    pub rows: Vec<SiteRow>,
}

/// Every failed allocation of the window.
pub fn find(scene: &DeviceScene<'_>) -> Vec<OutOfMemory> {
    let events: Vec<usize> = scene
        .events
        .iter()
        .enumerate()
        .filter(|(_, event)| event.action == Action::OutOfMemory)
        .map(|(number, _)| number)
        .collect();
    if events.is_empty() {
        return Vec::new();
    }
    let mut levels = scene.timeline.levels(scene.events).enumerate();
    let mut found: Vec<OutOfMemory> = events
        .iter()
        .filter_map(|number| {
            let (_, level) = levels.find(|(at, _)| at == number)?;
            let event = scene.events.get(*number)?;
            Some(OutOfMemory {
                event: id(*number),
                time_us: event.time_us,
                requested: event.size,
                device_free: event.address,
                reserved: level.reserved,
                active: level.active,
                largest_free: 0,
                eligible_free: 0,
                pending: 0,
                cause: OomCause::Shortage,
                stack: event.stack,
                rows: Vec::new(),
            })
        })
        .collect();
    let mut past = Past::at_end(scene);
    for out_of_memory in found.iter_mut().rev() {
        past.rewind(scene, at(out_of_memory.event));
        out_of_memory.explain(scene, &past);
    }
    found
}

impl OutOfMemory {
    fn explain(&mut self, scene: &DeviceScene<'_>, past: &Past) {
        let state = self.event;
        let Some(event) = scene.events.get(at(state)) else { return };
        let wanted = Wanted::new(event);
        let alive = || {
            past.alive.iter().filter_map(|number| scene.timeline.allocations.get(at(*number)))
        };
        let mut live: Vec<(u64, u64)> = alive().map(|a| (a.address, a.size)).collect();
        live.sort_unstable();
        for gap in past.gaps(&wanted, &live) {
            self.largest_free = self.largest_free.max(gap);
            self.eligible_free += gap;
        }
        self.pending = alive()
            .filter(|a| wanted.fits(a) && is_pending(a, state))
            .map(|allocation| allocation.size)
            .sum();
        let reachable = self.eligible_free.saturating_add(self.device_free);
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

fn requests(scene: &DeviceScene<'_>) -> Vec<(u64, u64)> {
    if scene.events.iter().all(|event| event.action != Action::SegmentUnmap) {
        return Vec::new();
    }
    let allocations = scene.timeline.allocations.iter();
    let mut requests: Vec<(u64, u64)> = allocations.map(|a| (a.address, a.requested)).collect();
    requests.sort_unstable();
    requests
}

/// Whether its free was asked for and is not completed.
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
        let pool = if event.pool == NO_POOL { 0 } else { u32::from(event.pool) };
        Self { stream: event.stream, pool, is_small: event.size <= SMALL_REQUEST_BYTES }
    }

    fn fits(&self, allocation: &Allocation) -> bool {
        allocation.stream == self.stream
            && u32::from(allocation.pool) == self.pool
            && (allocation.size <= SMALL_REQUEST_BYTES) == self.is_small
    }
}

/// A range that was taken from the driver.
#[derive(Clone, Copy, Debug)]
struct Range {
    end: u64,
    stream: u32,
    pool: u32,
    is_small: bool,
    is_expandable: bool,
}

/// A moment that is reached by going back from the end: what was mapped, and what was alive.
struct Past {
    ranges: BTreeMap<u64, Range>,
    /// Allocations by number, in no order.
    alive: Vec<u32>,
    /// The place of each allocation in `alive`.
    places: Vec<u32>,
    /// Addresses and tensor bytes of all allocations, by address; empty if nothing was unmapped.
    requests: Vec<(u64, u64)>,
    /// Events that are still ahead of the moment's past.
    event: usize,
}

impl Past {
    fn at_end(scene: &DeviceScene<'_>) -> Self {
        let ranges = scene.device.segments.iter().map(|segment| {
            let range = Range {
                end: segment.address.saturating_add(segment.size),
                stream: segment.stream,
                pool: segment.pool,
                is_small: segment.is_small,
                is_expandable: segment.is_expandable,
            };
            (segment.address, range)
        });
        let mut past = Self {
            ranges: ranges.collect(),
            alive: Vec::new(),
            places: vec![0; scene.timeline.allocations.len()],
            requests: requests(scene),
            event: scene.events.len(),
        };
        for (number, allocation) in (0..).zip(&scene.timeline.allocations) {
            if allocation.until == NEVER {
                past.revive(number);
            }
        }
        past
    }

    /// Goes back to the state before an event.
    fn rewind(&mut self, scene: &DeviceScene<'_>, event: usize) {
        for number in (event..self.event).rev() {
            let Some(past) = scene.events.get(number) else { continue };
            let own = scene.timeline.of_event.get(number).copied().unwrap_or(NO_ALLOCATION);
            match past.action {
                Action::Alloc => {
                    self.unmake(own);
                    if let Some(displaced) = scene.timeline.displaced_by(id(number)) {
                        self.revive(displaced);
                    }
                }
                Action::FreeCompleted => self.revive(own),
                Action::SegmentAlloc => {
                    self.ranges.remove(&past.address);
                }
                Action::SegmentFree => {
                    self.insert(past, past.size == SMALL_SEGMENT_BYTES, false);
                }
                Action::SegmentMap => self.carve(past.address, past.size),
                Action::SegmentUnmap => {
                    let is_small = self.is_small(past);
                    self.insert(past, is_small, true);
                }
                _ => {}
            }
        }
        self.event = event;
    }

    fn revive(&mut self, number: u32) {
        if let Some(place) = self.places.get_mut(at(number)) {
            *place = id(self.alive.len());
            self.alive.push(number);
        }
    }

    fn unmake(&mut self, number: u32) {
        let Some(place) = self.places.get(at(number)).copied() else { return };
        if self.alive.get(at(place)) != Some(&number) {
            return;
        }
        self.alive.swap_remove(at(place));
        if let Some(moved) = self.alive.get(at(place)).copied()
            && let Some(slot) = self.places.get_mut(at(moved))
        {
            *slot = place;
        }
    }

    fn insert(&mut self, event: &Event, is_small: bool, is_expandable: bool) {
        let pool = if event.pool == NO_POOL { 0 } else { u32::from(event.pool) };
        let end = event.address.saturating_add(event.size);
        let range = Range { end, stream: event.stream, pool, is_small, is_expandable };
        self.ranges.insert(event.address, range);
    }

    /// Whether an unmapped range was of the small pool: as its neighbour is, else as what was allocated in it.
    fn is_small(&self, event: &Event) -> bool {
        let end = event.address.saturating_add(event.size);
        let before = self.ranges.range(..event.address).next_back();
        let after = self.ranges.get(&end);
        let touching =
            before.map(|(_, range)| range).filter(|range| range.end == event.address);
        if let Some(range) = touching.or(after).filter(|range| range.is_expandable) {
            return range.is_small;
        }
        let first = self.requests.partition_point(|(address, _)| *address < event.address);
        match self.requests.get(first).filter(|(address, _)| *address < end) {
            Some((_, requested)) => *requested <= SMALL_REQUEST_BYTES,
            None => !event.size.is_multiple_of(LARGE_PAGE_BYTES),
        }
    }

    /// Takes a mapped piece out of the range that it is in.
    fn carve(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        let Some((start, range)) = self.ranges.range(..=address).next_back() else { return };
        let (start, range) = (*start, *range);
        if !range.is_expandable || range.end < end {
            return;
        }
        self.ranges.remove(&start);
        if start < address {
            self.ranges.insert(start, Range { end: address, ..range });
        }
        if end < range.end {
            self.ranges.insert(end, range);
        }
    }

    /// Free runs that fit what is wanted. `live`: addresses and sizes of live blocks, rising.
    fn gaps(&self, wanted: &Wanted, live: &[(u64, u64)]) -> Vec<u64> {
        let mut gaps = Vec::new();
        let mut live = live.iter().peekable();
        let mut open: Option<(u64, Range)> = None;
        for (start, range) in &self.ranges {
            let fits = range.stream == wanted.stream
                && range.pool == wanted.pool
                && range.is_small == wanted.is_small;
            if !fits {
                continue;
            }
            let joined = open.filter(|(_, before)| {
                before.is_expandable && range.is_expandable && before.end == *start
            });
            if joined.is_none()
                && let Some((free_from, before)) = open
            {
                gaps.push(before.end.saturating_sub(free_from));
            }
            let mut free_from = joined.map_or(*start, |(free_from, _)| free_from);
            while live.next_if(|(address, _)| *address < *start).is_some() {}
            while let Some((address, size)) = live.next_if(|(address, _)| *address < range.end)
            {
                gaps.push(address.saturating_sub(free_from));
                free_from = address.saturating_add(*size);
            }
            open = Some((free_from, *range));
        }
        if let Some((free_from, before)) = open {
            gaps.push(before.end.saturating_sub(free_from));
        }
        gaps
    }
}
