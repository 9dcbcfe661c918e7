//! The allocations of the window, when each was alive and its exact size, from the end state
//! and the trace.
//!
//! A *state* is what lies between two events: state 0 is before the first event, state *n*
//! after event *n* − 1.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::integer::{at, id};
use crate::model::arena::AddressHash;
use crate::model::rounding::Rounding;
use crate::model::{Action, Device, Event, NO_STACK, Place, Segment, Snapshot, State};

/// A state that never comes: the allocation is alive at the end.
pub(crate) const NEVER: u32 = u32::MAX;
/// No allocation belongs to an event.
pub(crate) const NO_ALLOCATION: u32 = u32::MAX;
/// The largest request of the small pool, and the largest remainder that is not split off in
/// the large one.
pub(crate) const SMALL_REQUEST_BYTES: u64 = 1 << 20;
/// Bytes that the small pool takes from the driver at once.
pub(crate) const SMALL_SEGMENT_BYTES: u64 = 2 << 20;

/// A block from its allocation to its end.
#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    /// First byte.
    pub address: u64,
    /// Bytes of the tensor.
    pub requested: u64,
    /// Bytes of the block.
    pub size: u64,
    /// First state in which it is alive; 0 if it is older than the window.
    pub from: u32,
    /// First state in which it can be used again; [`NEVER`] if it is alive at the end.
    pub until: u32,
    /// First state in which its free was requested; [`NEVER`] if it was not in the window.
    pub freed: u32,
    pub stack: u32,
    pub place: Place,
    /// Set when it is waiting at the end for another stream.
    pub is_pending: bool,
    /// Set when the trace shows it alive at the end and the segments do not.
    pub is_vanished: bool,
    /// Set when it is a library's workspace, by its size and lifetime.
    pub is_workspace: bool,
}

impl Allocation {
    /// Returns whether it is alive in a state.
    #[inline]
    pub fn is_alive(&self, state: u32) -> bool {
        self.from <= state && state < self.until
    }

    /// Returns whether it is alive in a state, or at the end.
    #[inline]
    pub fn is_alive_in(&self, state: Option<u32>) -> bool {
        state.map_or_else(|| self.is_at_end(), |state| self.is_alive(state))
    }

    /// Returns whether the segments show it.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.until == NEVER && !self.is_vanished
    }

    /// Returns whether its free was completed right after its request.
    #[inline]
    pub fn is_freed_at_once(&self) -> bool {
        self.freed != NEVER && self.until == self.freed.saturating_add(1)
    }

    /// Returns whether it was made before the window.
    #[inline]
    pub fn is_older(&self) -> bool {
        self.from == 0
    }
}

/// The history of one device.
#[derive(Debug, Default)]
pub struct Timeline {
    /// The allocations in the order in which they are first seen.
    pub allocations: Vec<Allocation>,
    /// The allocation of each `Alloc`, `FreeRequested` and `FreeCompleted`; else
    /// [`NO_ALLOCATION`].
    pub of_event: Vec<u32>,
    /// Allocations that ended because their address was allocated again: the state, and the
    /// allocation.
    displaced: Vec<(u32, u32)>,
    /// The memory in use in state 0.
    pub at_start: MemoryLevel,
    /// Frees of allocations that are older than the window.
    pub unmatched_frees: u64,
    /// Number of contradictions in the file.
    pub violations: u64,
    /// The state in which most was active.
    pub peak: MemoryPeak,
}

/// The state with the most active bytes; the first of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPeak {
    /// Bytes of blocks that are not inactive.
    pub active: u64,
    /// Bytes taken from the driver then.
    pub reserved: u64,
    pub state: u32,
}

/// The memory in use in a state.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryLevel {
    /// Bytes of blocks that are not inactive.
    pub active: u64,
    /// Bytes taken from the driver.
    pub reserved: u64,
}

impl Timeline {
    /// Replays a device.
    pub fn new(snapshot: &Snapshot, device: &Device) -> Self {
        let events = snapshot.events_of(device);
        let mut timeline = Matching::new(events).finish(device);
        timeline.violations += device.segments.iter().map(segment_violations).sum::<u64>();
        Sizes::new(snapshot.rounding, device, events, &timeline.allocations)
            .fill(&mut timeline, events);
        let older = timeline.allocations.iter().filter(|a| a.is_older());
        timeline.at_start = MemoryLevel {
            active: older.map(|a| a.size).sum(),
            reserved: reserved_at_start(device, events),
        };
        timeline.peak = timeline.find_peak(events);
        timeline
    }

    /// The number of the last state.
    pub fn end(&self) -> u32 {
        id(self.of_event.len())
    }

    /// The allocation of an event.
    #[inline]
    pub fn allocation_of(&self, event: usize) -> Option<&Allocation> {
        self.allocations.get(at(*self.of_event.get(event)?))
    }

    /// The allocation that ended because another one of that event took its address.
    pub fn displaced_by(&self, event: u32) -> Option<u32> {
        let found = self.displaced.binary_search_by_key(&(event + 1), |(state, _)| *state);
        found.ok().and_then(|found| self.displaced.get(found)).map(|(_, number)| *number)
    }

    /// The state after an event as a list of events shows it: a free includes its completion,
    /// where that follows directly.
    pub fn state_after(&self, event: u32) -> u32 {
        let state = event.saturating_add(1);
        let is_free = self.allocation_of(at(event)).is_some_and(|allocation| {
            allocation.freed == state && allocation.is_freed_at_once()
        });
        state.saturating_add(u32::from(is_free))
    }

    /// Returns the memory in use after each event.
    pub fn levels<'a>(&'a self, events: &'a [Event]) -> impl Iterator<Item = MemoryLevel> + 'a {
        let mut level = self.at_start;
        let mut displaced = self.displaced.iter().peekable();
        (1..).zip(events).zip(&self.of_event).map(move |((state, event), number)| {
            while let Some((_, number)) = displaced.next_if(|(of, _)| *of == state) {
                level.active = level.active.saturating_sub(self.size(*number));
            }
            match event.action {
                Action::Alloc => level.active += self.size(*number),
                Action::FreeCompleted => {
                    level.active = level.active.saturating_sub(self.size(*number));
                }
                Action::SegmentAlloc | Action::SegmentMap => level.reserved += event.size,
                Action::SegmentFree | Action::SegmentUnmap => {
                    level.reserved = level.reserved.saturating_sub(event.size);
                }
                _ => {}
            }
            level
        })
    }

    fn size(&self, number: u32) -> u64 {
        self.allocations.get(at(number)).map_or(0, |allocation| allocation.size)
    }

    fn find_peak(&self, events: &[Event]) -> MemoryPeak {
        let MemoryLevel { active, reserved } = self.at_start;
        let mut peak = MemoryPeak { active, reserved, state: 0 };
        for (state, level) in (1..).zip(self.levels(events)) {
            if level.active > peak.active {
                peak = MemoryPeak { active: level.active, reserved: level.reserved, state };
            }
        }
        peak
    }
}

/// Joins allocations with their frees.
struct Matching {
    allocations: Vec<Allocation>,
    of_event: Vec<u32>,
    live: HashMap<u64, u32, AddressHash>,
    displaced: Vec<(u32, u32)>,
    unmatched_frees: u64,
    violations: u64,
}

impl Matching {
    fn new(events: &[Event]) -> Self {
        let n_allocations = events.iter().filter(|e| e.action == Action::Alloc).count();
        let mut matching = Self {
            allocations: Vec::with_capacity(n_allocations),
            of_event: Vec::with_capacity(events.len()),
            live: HashMap::with_hasher(AddressHash::default()),
            displaced: Vec::new(),
            unmatched_frees: 0,
            violations: 0,
        };
        for (state, event) in (1..).zip(events) {
            let number = matching.apply(state, event);
            matching.of_event.push(number);
        }
        matching
    }

    #[inline]
    fn apply(&mut self, state: u32, event: &Event) -> u32 {
        match event.action {
            Action::Alloc => {
                let number = self.push(event, state);
                if let Some(allocation) = self.allocations.get_mut(at(number)) {
                    allocation.stack = event.stack;
                }
                if let Some(before) = self.live.insert(event.address, number) {
                    self.violations += 1;
                    self.displaced.push((state, before));
                    if let Some(allocation) = self.allocations.get_mut(at(before)) {
                        allocation.until = state;
                    }
                }
                number
            }
            Action::FreeRequested => {
                let number = if let Some(number) = self.live.get(&event.address) {
                    *number
                } else {
                    let number = self.push(event, 0);
                    self.live.insert(event.address, number);
                    number
                };
                if let Some(allocation) = self.allocations.get_mut(at(number)) {
                    allocation.freed = state;
                }
                number
            }
            Action::FreeCompleted => {
                let number =
                    self.live.remove(&event.address).unwrap_or_else(|| self.push(event, 0));
                self.end(number, state);
                number
            }
            _ => NO_ALLOCATION,
        }
    }

    fn push(&mut self, event: &Event, from: u32) -> u32 {
        self.allocations.push(Allocation {
            address: event.address,
            requested: event.size,
            size: 0,
            from,
            until: NEVER,
            freed: NEVER,
            stack: NO_STACK,
            place: event.place,
            is_pending: false,
            is_vanished: false,
            is_workspace: false,
        });
        id(self.allocations.len() - 1)
    }

    fn end(&mut self, number: u32, state: u32) {
        if let Some(allocation) = self.allocations.get_mut(at(number)) {
            allocation.until = state;
            allocation.freed = allocation.freed.min(state);
            self.unmatched_frees += u64::from(allocation.is_older());
        }
    }

    /// Adds what the segments show at the end.
    fn finish(mut self, device: &Device) -> Timeline {
        for segment in &device.segments {
            for block in segment.blocks.iter().filter(|block| block.state != State::Inactive) {
                let known = self.live.remove(&block.address);
                let number = at(known.unwrap_or(id(self.allocations.len())));
                if known.is_none() {
                    let event = Event {
                        address: block.address,
                        size: block.requested,
                        place: Place::new(segment.stream, Some(segment.pool)),
                        ..Event::default()
                    };
                    self.push(&event, 0);
                }
                let Some(allocation) = self.allocations.get_mut(number) else { continue };
                if known.is_some() && allocation.requested != block.requested {
                    self.violations += 1;
                    allocation.requested = block.requested;
                }
                allocation.size = block.size;
                allocation.is_pending = block.state == State::Pending;
                if block.stack != NO_STACK {
                    allocation.stack = block.stack;
                }
            }
        }
        // Allocations that are alive in the trace and that the segments do not show.
        for number in self.live.values() {
            self.violations += 1;
            if let Some(allocation) = self.allocations.get_mut(at(*number)) {
                allocation.is_vanished = true;
            }
        }
        Timeline {
            allocations: self.allocations,
            of_event: self.of_event,
            displaced: self.displaced,
            unmatched_frees: self.unmatched_frees,
            violations: self.violations,
            ..Timeline::default()
        }
    }
}

/// Returns 0 for a segment whose blocks fill it and are as active as it reports, else 1.
fn segment_violations(segment: &Segment) -> u64 {
    let mut end = segment.address;
    let mut active = 0;
    for block in &segment.blocks {
        end = end.saturating_add(block.size);
        active += if block.state == State::Inactive { 0 } else { block.size };
    }
    let is_whole = end == segment.address.saturating_add(segment.size);
    u64::from(!is_whole || active != segment.active_size)
}

fn reserved_at_start(device: &Device, events: &[Event]) -> u64 {
    let end: u64 = device.segments.iter().map(|segment| segment.size).sum();
    let (mut more, mut less) = (end, 0);
    for event in events {
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => less += event.size,
            Action::SegmentFree | Action::SegmentUnmap => more += event.size,
            _ => {}
        }
    }
    more.saturating_sub(less)
}

/// The sizes of blocks that did not live to the end: their request rounded up. In a large
/// segment that is not expandable there is also a remainder of up to 1 MiB, which is never
/// split off.
struct Sizes {
    rounding: Rounding,
    /// Ends of large segments that are not expandable, by address.
    large: BTreeMap<u64, u64>,
    /// Addresses of live blocks above 1 MiB.
    live: BTreeSet<u64>,
}

impl Sizes {
    /// The state before the window.
    fn new(
        rounding: Rounding,
        device: &Device,
        events: &[Event],
        allocations: &[Allocation],
    ) -> Self {
        let mut large: BTreeMap<u64, u64> = device
            .segments
            .iter()
            .filter(|segment| !segment.is_small && !segment.is_expandable)
            .map(|segment| (segment.address, segment.address.saturating_add(segment.size)))
            .collect();
        for event in events.iter().rev() {
            match event.action {
                Action::SegmentAlloc => {
                    large.remove(&event.address);
                }
                Action::SegmentFree => add_segment(&mut large, event),
                _ => {}
            }
        }
        let live =
            allocations.iter().filter(|a| a.is_older() && is_large(a)).map(|a| a.address);
        Self { rounding, live: live.collect(), large }
    }

    fn fill(mut self, timeline: &mut Timeline, events: &[Event]) {
        for allocation in
            timeline.allocations.iter_mut().filter(|a| a.is_older() && !a.is_at_end())
        {
            allocation.size = self.size(allocation.address, allocation.requested);
        }
        for (event, number) in events.iter().zip(&timeline.of_event) {
            match event.action {
                Action::SegmentAlloc => add_segment(&mut self.large, event),
                Action::SegmentFree => {
                    self.large.remove(&event.address);
                }
                Action::Alloc => {
                    let Some(allocation) = timeline.allocations.get_mut(at(*number)) else {
                        continue;
                    };
                    if !allocation.is_at_end() {
                        allocation.size = self.size(allocation.address, allocation.requested);
                    }
                    if is_large(allocation) {
                        self.live.insert(allocation.address);
                    }
                }
                Action::FreeCompleted if event.size > SMALL_REQUEST_BYTES => {
                    self.live.remove(&event.address);
                }
                _ => {}
            }
        }
    }

    #[inline]
    fn size(&self, address: u64, requested: u64) -> u64 {
        let size = self.rounding.round(requested);
        if size <= SMALL_REQUEST_BYTES {
            return size;
        }
        let Some((_, end)) = self.large.range(..=address).next_back() else { return size };
        let next = self.live.range(address.saturating_add(1)..).next().copied();
        let limit = next.map_or(*end, |next| next.min(*end));
        match limit.checked_sub(address.saturating_add(size)) {
            Some(rest) if rest <= SMALL_REQUEST_BYTES => size + rest,
            _ => size,
        }
    }
}

fn is_large(allocation: &Allocation) -> bool {
    allocation.requested > SMALL_REQUEST_BYTES
}

fn add_segment(large: &mut BTreeMap<u64, u64>, event: &Event) {
    if event.size != SMALL_SEGMENT_BYTES {
        large.insert(event.address, event.address.saturating_add(event.size));
    }
}
