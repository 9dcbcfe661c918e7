//! The end of an allocation: the line or the autograd node that freed it, as far as the file
//! shows it, or the window.

use crate::analyze::device::DeviceScene;
use crate::analyze::phases::StepPhase;
use crate::events::order::AllocationOrder;
use crate::integer::at;
use crate::model::{Action, NO_STACK};
use crate::replay::{Allocation, NEVER};

/// The end of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The end of the window: it is alive.
    EndOfWindow,
    /// A stack by number: the one that its free has.
    Stack(u32),
    /// A stack by number that shows a call only: the events that allocate before and after the
    /// free lie further in. Python gives a function's variables back to the line that calls it.
    Call(u32, u32, u32),
    /// Autograd: its free has no stack, and comes between allocations of the backward pass.
    Backward,
    /// A free without a stack: the line that made it had just made the next one.
    Replaced,
    /// A free without a stack: the events that allocate before and after it.
    Between(Option<u32>, Option<u32>),
    /// The trace has no free: the address was allocated again, or the segments do not show the
    /// block.
    Lost,
}

/// The event in which an allocation's free was requested, or completed where that is all there
/// is; `None` if neither is in the trace.
pub(crate) fn free_event(scene: &DeviceScene<'_>, allocation: &Allocation) -> Option<u32> {
    let first = allocation.freed.min(allocation.until);
    let event = first.checked_sub(1).filter(|_| first != NEVER)?;
    let action = scene.events.get(at(event)).map(|event| event.action);
    let is_free = matches!(action, Some(Action::FreeRequested | Action::FreeCompleted));
    is_free.then_some(event)
}

/// Returns the end of an allocation.
pub(crate) fn of(
    scene: &DeviceScene<'_>,
    order: &AllocationOrder,
    allocation: &Allocation,
) -> Ending {
    let Some(free) = free_event(scene, allocation) else {
        let is_alive = allocation.is_at_end();
        return if is_alive { Ending::EndOfWindow } else { Ending::Lost };
    };
    let stack = scene.events.get(at(free)).map_or(NO_STACK, |event| event.stack);
    if stack != NO_STACK {
        let inner = order.allocation_before(free).zip(order.allocation_after(free));
        let is_inner = |event| is_below(scene, event, stack);
        return match inner.filter(|(before, after)| is_inner(*before) && is_inner(*after)) {
            Some((before, after)) => Ending::Call(stack, before, after),
            None => Ending::Stack(stack),
        };
    }
    if scene.sites.has_stacks && scene.phases.of(at(free)) == StepPhase::Backward {
        return Ending::Backward;
    }
    let before = order.allocation_before(free);
    let is_next = |event: u32| {
        let other = scene.timeline.allocation_of(at(event));
        other.is_some_and(|other| {
            other.from > allocation.from
                && other.stack == allocation.stack
                && other.stack != NO_STACK
        })
    };
    if before.is_some_and(is_next) {
        return Ending::Replaced;
    }
    Ending::Between(before, order.allocation_after(free))
}

/// Returns whether an event's stack goes through all frames of the program that a stack has, and
/// on from there.
fn is_below(scene: &DeviceScene<'_>, event: u32, stack: u32) -> bool {
    let own = scene.events.get(at(event)).map_or(NO_STACK, |event| event.stack);
    let frames =
        |stack| -> Vec<u32> { scene.sites.user_frames(scene.snapshot, stack).collect() };
    let (inner, outer) = (frames(own), frames(stack));
    !outer.is_empty() && inner.len() > outer.len() && inner.ends_with(&outer)
}
