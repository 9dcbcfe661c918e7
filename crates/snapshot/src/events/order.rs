//! The allocations around each event, which show what a free without a stack belongs to.

use crate::analyze::device::DeviceScene;
use crate::model::{Action, NO_STACK};

/// The allocations around each event.
#[derive(Debug)]
pub struct AllocationOrder {
    /// Events that allocate, rising.
    allocating: Vec<u32>,
    /// Set when frees have stacks: it was recorded with `context="all"`.
    pub frees_have_stacks: bool,
}

impl AllocationOrder {
    /// Follows the events of a device.
    pub fn new(scene: &DeviceScene<'_>) -> Self {
        let is_free = |action| matches!(action, Action::FreeRequested | Action::FreeCompleted);
        let mut frees = scene.events.iter().filter(|event| is_free(event.action));
        let numbered = (0..).zip(scene.events);
        let allocating = numbered.filter(|(_, event)| event.action == Action::Alloc);
        Self {
            allocating: allocating.map(|(number, _)| number).collect(),
            frees_have_stacks: frees.any(|event| event.stack != NO_STACK),
        }
    }

    /// The last event before this one that allocates.
    pub fn allocation_before(&self, event: u32) -> Option<u32> {
        let n_before = self.allocating.partition_point(|other| *other < event);
        n_before.checked_sub(1).and_then(|last| self.allocating.get(last)).copied()
    }

    /// The next event after this one that allocates.
    pub fn allocation_after(&self, event: u32) -> Option<u32> {
        let next = self.allocating.partition_point(|other| *other <= event);
        self.allocating.get(next).copied()
    }
}
