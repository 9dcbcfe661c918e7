//! A moment that is reached by going back from the end: what was mapped, and what was alive.

use std::collections::BTreeMap;

use crate::analyze::device::DeviceScene;
use crate::integer::{at, id};
use crate::model::{Action, Event};
use crate::replay::{NEVER, NO_ALLOCATION, SMALL_REQUEST_BYTES, SMALL_SEGMENT_BYTES};

/// Bytes that the driver maps at once in a large expandable segment.
pub(crate) const LARGE_PAGE_BYTES: u64 = 20 << 20;

/// A range that was taken from the driver.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The address behind its last byte.
    pub end: u64,
    pub stream: u32,
    pub pool: u32,
    /// Set when it is of the small pool.
    pub is_small: bool,
    /// Set when it can be mapped and unmapped in pieces.
    pub is_expandable: bool,
}

/// A moment that is reached by going back from the end: what was mapped, and what was alive.
#[derive(Debug)]
pub struct History {
    /// The mapped ranges, by address.
    pub ranges: BTreeMap<u64, Range>,
    /// Allocations by number, in no order.
    pub alive: Vec<u32>,
    /// The place of each allocation in `alive`.
    places: Vec<u32>,
    /// Addresses and tensor bytes of all allocations, by address; empty if nothing was
    /// unmapped.
    requests: Vec<(u64, u64)>,
    /// Events that are still ahead of the moment's past.
    event: usize,
}

impl History {
    /// The end of the window.
    pub fn at_end(scene: &DeviceScene<'_>) -> Self {
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
        let mut history = Self {
            ranges: ranges.collect(),
            alive: Vec::new(),
            places: vec![0; scene.timeline.allocations.len()],
            requests: requests(scene),
            event: scene.events.len(),
        };
        for (number, allocation) in (0..).zip(&scene.timeline.allocations) {
            if allocation.until == NEVER {
                history.revive(number);
            }
        }
        history
    }

    /// The state that it is at.
    pub fn state(&self) -> u32 {
        id(self.event)
    }

    /// Goes back to the state before an event.
    pub fn rewind(&mut self, scene: &DeviceScene<'_>, event: usize) {
        for number in (event..self.event).rev() {
            let Some(undone) = scene.events.get(number) else { continue };
            let own = scene.timeline.of_event.get(number).copied().unwrap_or(NO_ALLOCATION);
            match undone.action {
                Action::Alloc => {
                    self.unmake(own);
                    if let Some(displaced) = scene.timeline.displaced_by(id(number)) {
                        self.revive(displaced);
                    }
                }
                Action::FreeCompleted => self.revive(own),
                Action::SegmentAlloc => {
                    self.ranges.remove(&undone.address);
                }
                Action::SegmentFree => {
                    self.insert(undone, undone.size == SMALL_SEGMENT_BYTES, false);
                }
                Action::SegmentMap => self.carve(undone.address, undone.size),
                Action::SegmentUnmap => {
                    let is_small = self.is_small(undone);
                    self.insert(undone, is_small, true);
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
        let pool = event.place.pool().unwrap_or(0);
        let end = event.address.saturating_add(event.size);
        let range = Range { end, stream: event.place.stream(), pool, is_small, is_expandable };
        self.ranges.insert(event.address, range);
    }

    /// Returns whether an unmapped range was of the small pool: as its neighbor is, else as
    /// what was allocated in it.
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

    /// The free runs in some ranges. `live`: addresses and sizes of live blocks, rising.
    pub fn gaps(&self, is_wanted: impl Fn(&Range) -> bool, live: &[(u64, u64)]) -> Vec<u64> {
        let mut gaps = Vec::new();
        let mut live = live.iter().peekable();
        let mut open: Option<(u64, Range)> = None;
        for (start, range) in self.ranges.iter().filter(|(_, range)| is_wanted(range)) {
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

fn requests(scene: &DeviceScene<'_>) -> Vec<(u64, u64)> {
    if scene.events.iter().all(|event| event.action != Action::SegmentUnmap) {
        return Vec::new();
    }
    let allocations = scene.timeline.allocations.iter();
    let mut requests: Vec<(u64, u64)> = allocations.map(|a| (a.address, a.requested)).collect();
    requests.sort_unstable();
    requests
}
