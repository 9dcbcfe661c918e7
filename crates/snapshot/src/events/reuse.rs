//! The earlier block whose memory an allocation takes: the allocator hands out what was freed
//! before it asks the driver.

use std::collections::BTreeMap;

use crate::analyze::device::DeviceScene;
use crate::integer::at;
use crate::model::Action;
use crate::replay::{Allocation, NO_ALLOCATION};

/// The blocks whose memory an allocation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// The allocation that most of it was last used by; [`NO_ALLOCATION`] if none in the window
    /// was there before.
    pub allocation: u32,
    /// Number of blocks.
    pub blocks: u32,
}

impl Reuse {
    const NONE: Self = Self { allocation: NO_ALLOCATION, blocks: 0 };

    /// The allocation that most of it was last used by.
    pub fn number(self) -> Option<u32> {
        Some(self.allocation).filter(|number| *number != NO_ALLOCATION)
    }
}

/// Finds for each allocation of a device whose memory it takes. Memory that went back to the
/// driver in between is new.
pub(crate) fn find(scene: &DeviceScene<'_>) -> Vec<Reuse> {
    let allocations = &scene.timeline.allocations;
    let mut reuses = vec![Reuse::NONE; allocations.len()];
    let mut users = Users::default();
    for (number, allocation) in (0..).zip(allocations).filter(|(_, a)| a.is_older()) {
        users.take(number, allocation);
    }
    for (event, number) in scene.events.iter().zip(&scene.timeline.of_event) {
        match event.action {
            Action::Alloc => {
                let Some(allocation) = allocations.get(at(*number)) else { continue };
                let found = users.take(*number, allocation);
                if let Some(reuse) = reuses.get_mut(at(*number)) {
                    *reuse = found;
                }
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                users.clear(event.address, event.address.saturating_add(event.size));
            }
            _ => {}
        }
    }
    reuses
}

/// The last user of each byte.
#[derive(Default)]
struct Users {
    /// Ranges by their start, with their end and the allocation.
    ranges: BTreeMap<u64, (u64, u32)>,
    /// Allocations of the ranges that are taken, with the bytes of each.
    taken: Vec<(u32, u64)>,
}

impl Users {
    /// Gives an allocation its range, and returns who had it before.
    fn take(&mut self, number: u32, allocation: &Allocation) -> Reuse {
        let (start, end) =
            (allocation.address, allocation.address.saturating_add(allocation.size));
        if start == end {
            return Reuse::NONE;
        }
        let reuse = self.clear(start, end);
        self.ranges.insert(start, (end, number));
        reuse
    }

    /// Takes a range from those who had it, and returns who they were.
    fn clear(&mut self, start: u64, end: u64) -> Reuse {
        self.taken.clear();
        let before = self.ranges.range(..=start).next_back();
        let mut from =
            before.filter(|(_, (until, _))| *until > start).map_or(start, |(from, _)| *from);
        while from < end
            && let Some((first, range)) = self.ranges.range(from..end).next()
        {
            let (first, (until, number)) = (*first, *range);
            self.ranges.remove(&first);
            if first < start {
                self.ranges.insert(first, (start, number));
            }
            if until > end {
                self.ranges.insert(end, (until, number));
            }
            self.taken.push((number, until.min(end).saturating_sub(first.max(start))));
            from = until.max(start);
        }
        self.most_of_taken()
    }

    fn most_of_taken(&mut self) -> Reuse {
        self.taken.sort_unstable();
        let (mut reuse, mut most) = (Reuse::NONE, 0);
        for pieces in self.taken.chunk_by(|(a, _), (b, _)| a == b) {
            let bytes: u64 = pieces.iter().map(|(_, bytes)| bytes).sum();
            reuse.blocks += 1;
            if bytes > most {
                most = bytes;
                reuse.allocation = pieces.first().map_or(NO_ALLOCATION, |(number, _)| *number);
            }
        }
        reuse
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Place;
    use crate::replay::NEVER;

    fn block(address: u64, size: u64) -> Allocation {
        Allocation {
            address,
            size,
            requested: size,
            from: 1,
            until: NEVER,
            freed: NEVER,
            stack: 0,
            place: Place::default(),
            is_pending: false,
            is_vanished: false,
            is_workspace: false,
        }
    }

    #[test]
    fn a_block_takes_the_memory_of_those_that_it_covers() {
        let mut users = Users::default();
        let mut take = |number, address, size| {
            let reuse = users.take(number, &block(address, size));
            (reuse.number(), reuse.blocks)
        };
        assert_eq!(take(0, 1000, 100), (None, 0));
        assert_eq!(take(1, 1100, 300), (None, 0));
        // Half of the first, half of what lies behind it: the larger part names it.
        assert_eq!(take(2, 1050, 100), (Some(0), 2));
        // Inside of one: what is left on both sides stays with it.
        assert_eq!(take(3, 1200, 50), (Some(1), 1));
        assert_eq!(take(4, 1000, 400), (Some(1), 4));
        assert_eq!(take(5, 1400, 0), (None, 0));
    }

    #[test]
    fn memory_that_went_back_to_the_driver_is_new() {
        let mut users = Users::default();
        users.take(0, &block(1000, 100));
        users.clear(900, 1050);
        assert_eq!(users.take(1, &block(1000, 50)).number(), None);
        assert_eq!(users.take(2, &block(1050, 50)).number(), Some(0));
    }
}
