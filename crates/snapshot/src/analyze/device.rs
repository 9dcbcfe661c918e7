//! One device with everything that is known of it: what the questions are asked of.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::analyze::heads::LoopWindow;
use crate::analyze::phases::Phases;
use crate::analyze::roles::StackRoles;
use crate::analyze::sites::Sites;
use crate::analyze::steps::{Steps, spans_of};
use crate::analyze::workspaces;
use crate::integer::{at, id};
use crate::model::{Action, Device, Event, Snapshot};
use crate::replay::{Allocation, Timeline};

/// A device, replayed.
#[derive(Debug)]
pub struct DeviceScene<'a> {
    /// The file that the device is in.
    pub snapshot: &'a Snapshot,
    /// The device as the file has it.
    pub device: &'a Device,
    /// The device's trace, in order.
    pub events: &'a [Event],
    /// Sites of the file's stacks.
    pub sites: &'a Sites,
    /// The allocations, and when each was alive.
    pub timeline: Timeline,
    /// The roles that the file's stacks have in the step.
    pub roles: StackRoles,
    /// The program's phase at each event.
    pub phases: Phases,
    /// The places where steps begin.
    pub steps: Steps,
    /// The slots ([`Steps::slot`]) in which each allocation begins and ends.
    slots: Vec<[u32; 2]>,
    /// The state in which memory ran out for good: no step follows. What is freed after it is
    /// freed by the error.
    failed: Option<u32>,
    /// The lines that allocations without a stack mirror, by allocation; searched for by
    /// `mirrors` when a page first has such memory.
    pub(super) mirrors: OnceLock<HashMap<u32, u32>>,
}

/// An allocation with the slots in which it begins and ends: 0 if before the first mark, the
/// number of marks if after the last.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime<'a> {
    pub allocation: &'a Allocation,
    /// The slot in which it begins.
    pub from: u32,
    /// The slot in which it ends.
    pub until: u32,
}

impl<'a> DeviceScene<'a> {
    /// Replays a device.
    pub fn new(snapshot: &'a Snapshot, device: &'a Device, sites: &'a Sites) -> Self {
        let events = snapshot.events_of(device);
        let mut timeline = Timeline::new(snapshot, device);
        workspaces::find(sites, &mut timeline);
        let roles = StackRoles::new(snapshot, sites);
        let zero_grads = spans_of(snapshot, device, "Optimizer.zero_grad#");
        let phases = Phases::new(events, &roles, &zero_grads);
        let window = LoopWindow { snapshot, sites, roles: &roles, events };
        let steps = Steps::find(window, device, &phases);
        let slots = slots(&timeline, events, &steps);
        let failed = events.iter().rposition(|event| event.action == Action::OutOfMemory);
        let failed =
            failed.filter(|failed| steps.marks.last().is_none_or(|mark| at(*mark) <= *failed));
        Self {
            snapshot,
            device,
            events,
            sites,
            timeline,
            roles,
            phases,
            steps,
            slots,
            failed: failed.map(id),
            mirrors: OnceLock::new(),
        }
    }

    /// Allocations with the slots in which they begin and end.
    pub fn lifetimes(&self) -> impl Iterator<Item = Lifetime<'_>> {
        self.timeline.allocations.iter().zip(&self.slots).map(|(allocation, [from, until])| {
            Lifetime { allocation, from: *from, until: *until }
        })
    }

    /// The slots of an allocation by number.
    #[inline]
    pub fn slots_of(&self, number: u32) -> [u32; 2] {
        self.slots.get(at(number)).copied().unwrap_or_default()
    }

    /// Returns whether an allocation is there at the end: of the program's last step, if that
    /// failed.
    #[inline]
    pub fn is_kept(&self, allocation: &Allocation) -> bool {
        allocation.is_at_end() || self.failed.is_some_and(|state| allocation.is_alive(state))
    }

    /// The last slot that is a whole step.
    pub fn last_whole_slot(&self) -> u32 {
        self.steps.last_whole_slot(self.events, &self.phases)
    }

    /// The slot after the last mark.
    pub fn last_slot(&self) -> u32 {
        id(self.steps.marks.len())
    }
}

fn slots(timeline: &Timeline, events: &[Event], steps: &Steps) -> Vec<[u32; 2]> {
    let last = id(steps.marks.len());
    let mut slots = vec![[0, last]; timeline.allocations.len()];
    let mut marks = steps.marks.iter().peekable();
    let mut slot = 0;
    for ((number, event), allocation) in (0..).zip(events).zip(&timeline.of_event) {
        while marks.next_if(|mark| **mark <= number).is_some() {
            slot += 1;
        }
        let Some(lifetime) = slots.get_mut(at(*allocation)) else { continue };
        match event.action {
            Action::Alloc => *lifetime = [slot, last],
            Action::FreeCompleted => {
                let [_, until] = lifetime;
                *until = slot;
            }
            _ => {}
        }
    }
    slots
}
