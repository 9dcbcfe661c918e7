//! The list of a device's allocations and frees, in order.

use crate::analyze::device_report::DeviceReport;
use crate::analyze::phases::StepPhase;
use crate::events::ending::{self, Ending};
use crate::events::filter::{EventFilter, LineFilter};
use crate::events::order::AllocationOrder;
use crate::events::reuse::{self, Reuse};
use crate::integer::at;
use crate::model::{Action, NO_STACK};
use crate::replay::{Allocation, NO_ALLOCATION};

/// A device's events, with the data for the text about each.
#[derive(Debug)]
pub struct EventList<'a> {
    /// The device's answers.
    pub report: &'a DeviceReport<'a>,
    /// The order in which allocations were made.
    pub order: AllocationOrder,
    /// The allocation whose memory each allocation takes.
    pub reuses: Vec<Reuse>,
    filter: EventFilter,
    /// Set for each stack that passes through the line that is selected; empty if none is.
    through: Vec<bool>,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowAction {
    Alloc,
    /// The free, and its completion, where that is later.
    Free,
    /// An allocation failed.
    OutOfMemory,
}

/// An event of the list.
#[derive(Clone, Copy, Debug)]
pub struct EventRow {
    /// The event's place in the trace, from 0.
    pub event: u32,
    pub action: RowAction,
    /// The allocation that it is of; [`NO_ALLOCATION`] for one that failed.
    pub allocation: u32,
}

impl<'a> EventList<'a> {
    /// Makes the list of what is selected.
    pub fn new(report: &'a DeviceReport<'a>, filter: EventFilter) -> Self {
        let scene = &report.scene;
        let through = match &filter.line {
            Some(line) => line.stacks(scene.snapshot),
            None => Vec::new(),
        };
        Self {
            report,
            order: AllocationOrder::new(scene),
            reuses: reuse::find(scene),
            filter,
            through,
        }
    }

    /// Allocations, frees and failed allocations, in order; those that are selected.
    pub fn rows(&self) -> impl Iterator<Item = EventRow> + '_ {
        let events = &self.report.scene.events;
        let numbered = (0..).zip(events.iter());
        numbered.filter_map(|(event, _)| self.row(event)).filter(|row| self.is_wanted(*row))
    }

    /// Returns the number of events that the list leaves out although the filter does not:
    /// segments, completions of frees, marks.
    pub fn n_others(&self) -> usize {
        let events = (0..).zip(self.report.scene.events);
        events.filter(|(event, _)| self.row(*event).is_none()).count()
    }

    fn row(&self, event: u32) -> Option<EventRow> {
        let scene = &self.report.scene;
        let number = scene.timeline.of_event.get(at(event)).copied().unwrap_or(NO_ALLOCATION);
        let action = match scene.events.get(at(event))?.action {
            Action::Alloc => RowAction::Alloc,
            Action::FreeRequested => RowAction::Free,
            // Where its request is in the trace, that is the row.
            Action::FreeCompleted => {
                let freed = scene.timeline.allocations.get(at(number))?.freed;
                (freed == event + 1).then_some(RowAction::Free)?
            }
            Action::OutOfMemory => RowAction::OutOfMemory,
            _ => return None,
        };
        Some(EventRow { event, action, allocation: number })
    }

    fn is_wanted(&self, row: EventRow) -> bool {
        let filter = &self.filter;
        if !self.is_in_range(row.event) {
            return false;
        }
        if let Some(allocation) = self.allocation(row.allocation) {
            return self.fits(allocation);
        }
        let event = self.report.scene.events.get(at(row.event));
        filter.address.is_none()
            && event
                .is_some_and(|event| event.size >= filter.bytes_min && self.passes(event.stack))
    }

    /// Returns whether an event lies in the steps, phases and events that are selected.
    pub fn is_in_range(&self, event: u32) -> bool {
        let filter = &self.filter;
        (filter.first_event..=filter.last_event).contains(&event)
            && filter.phase.is_none_or(|phase| self.phase(event) == phase)
            && filter.step.is_none_or(|step| self.step(event) == Some(step))
    }

    /// Returns whether a block is selected by its size, its place or its line.
    fn fits(&self, allocation: &Allocation) -> bool {
        self.filter.fits(allocation)
            && (self.passes(allocation.stack) || self.passes(self.free_stack(allocation)))
    }

    /// Returns whether a block is selected: by itself, and by the event that made or the one
    /// that freed it.
    pub fn is_block_wanted(&self, number: u32) -> bool {
        let Some(allocation) = self.allocation(number) else { return false };
        let events = [self.alloc_event(allocation), self.free_event(allocation)];
        let mut rows = events.into_iter().flatten().filter_map(|event| self.row(event));
        let is_whole = self.filter.is_of_blocks();
        if is_whole { self.fits(allocation) } else { rows.any(|row| self.is_wanted(row)) }
    }

    /// The lines of a selected line's file, where no stack passes through it itself, that
    /// stacks of the trace pass through, rising.
    pub fn lines_instead(&self) -> Option<Vec<u64>> {
        let line = self.filter.line.as_ref().filter(|_| !self.through.contains(&true))?;
        let scene = &self.report.scene;
        let allocations = scene.timeline.allocations.iter();
        let mut stacks: Vec<u32> =
            allocations.flat_map(|a| [a.stack, self.free_stack(a)]).collect();
        stacks.sort_unstable();
        stacks.dedup();
        Some(line.lines(scene.snapshot, &stacks))
    }

    /// The line that is selected.
    pub fn line(&self) -> Option<&LineFilter> {
        self.filter.line.as_ref()
    }

    fn passes(&self, stack: u32) -> bool {
        self.filter.line.is_none() || self.through.get(at(stack)) == Some(&true)
    }

    /// An allocation by number.
    pub fn allocation(&self, number: u32) -> Option<&Allocation> {
        self.report.scene.timeline.allocations.get(at(number))
    }

    /// The step of an event.
    pub fn step(&self, event: u32) -> Option<u64> {
        self.report.scene.steps.of_event(at(event))
    }

    /// Returns the program's phase at an event.
    pub fn phase(&self, event: u32) -> StepPhase {
        self.report.scene.phases.of(at(event))
    }

    /// The event that made an allocation; `None` before the window.
    pub fn alloc_event(&self, allocation: &Allocation) -> Option<u32> {
        allocation.from.checked_sub(1)
    }

    /// The event that freed an allocation.
    pub fn free_event(&self, allocation: &Allocation) -> Option<u32> {
        ending::free_event(&self.report.scene, allocation)
    }

    /// The stack of an allocation's free.
    pub fn free_stack(&self, allocation: &Allocation) -> u32 {
        let event = self
            .free_event(allocation)
            .and_then(|event| self.report.scene.events.get(at(event)));
        event.map_or(NO_STACK, |event| event.stack)
    }

    /// Returns the end of an allocation.
    pub fn ending(&self, allocation: &Allocation) -> Ending {
        ending::of(&self.report.scene, &self.order, allocation)
    }

    /// Steps that begin while an allocation lives; `None` if its beginning or end is not in the
    /// window, or there are no steps.
    pub fn lifetime_steps(&self, allocation: &Allocation) -> Option<u32> {
        let steps = &self.report.scene.steps;
        let (from, until) = (self.alloc_event(allocation)?, self.free_event(allocation)?);
        let n_begun = steps.slot(at(until)).checked_sub(steps.slot(at(from)))?;
        (!steps.marks.is_empty()).then_some(n_begun)
    }

    /// Returns the allocation whose memory an allocation takes.
    pub fn reuse(&self, number: u32) -> Option<(u32, u32)> {
        let reuse = self.reuses.get(at(number))?;
        Some((reuse.number()?, reuse.blocks))
    }
}
