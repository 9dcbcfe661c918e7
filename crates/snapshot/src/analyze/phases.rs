//! The program's phase at each event, and its passes of backward: several in a step where
//! gradients accumulate.

use serde::Serialize;

use crate::analyze::roles::{StackRole, StackRoles};
use crate::integer::id;
use crate::model::{Action, Event};

/// A pass of backward allocates at least this part of what the longest one does: others are
/// noise.
const PASS_PART_MAX: u32 = 4;

/// The phase of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepPhase {
    /// Making activations.
    #[default]
    Forward,
    /// Making gradients.
    Backward,
    /// Exchanging data between ranks, outside of the model and of autograd.
    Collective,
    /// Updating weights.
    Optimizer,
    /// Dropping gradients.
    ZeroGrad,
}

impl StepPhase {
    /// Every phase.
    pub const ALL: [Self; 5] =
        [Self::Forward, Self::Backward, Self::Collective, Self::Optimizer, Self::ZeroGrad];
}

/// A pass of backward: consecutive allocations that autograd makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardPass {
    /// Event of its first allocation.
    pub first: u32,
    /// Event of its last allocation.
    pub last: u32,
    /// Event of the next allocation of anything else; the number of events if there is none.
    pub next: u32,
    n_allocations: u32,
}

/// The phases of a device's window.
#[derive(Clone, Debug, Default)]
pub struct Phases {
    of_event: Vec<StepPhase>,
    /// Passes of backward, rising.
    pub passes: Vec<BackwardPass>,
}

impl StackRole {
    /// The phase that a stack of this role is taken in; `now`: the phase before it.
    pub fn phase(self, now: StepPhase) -> StepPhase {
        match self {
            Self::Collective => now,
            Self::Forward => StepPhase::Forward,
            Self::Backward => StepPhase::Backward,
            Self::Exchange => StepPhase::Collective,
            Self::Scaling | Self::Update => StepPhase::Optimizer,
            Self::ZeroGrad => StepPhase::ZeroGrad,
        }
    }
}

impl Phases {
    /// Follows the events of a device. `zero_grads`: where marks show calls of `zero_grad`,
    /// each the first event and the one after its last, rising.
    pub fn new(events: &[Event], roles: &StackRoles, zero_grads: &[(u32, u32)]) -> Self {
        let mut zero_grads = zero_grads.iter().peekable();
        let mut phases =
            Self { of_event: Vec::with_capacity(events.len()), passes: Vec::new() };
        let mut now = StepPhase::Forward;
        for (number, event) in (0..).zip(events) {
            if event.action == Action::Alloc {
                let role = roles.of(event.stack);
                phases.add(number, role == StackRole::Backward, now == StepPhase::Backward);
                now = role.phase(now);
                if let Some(pass) = phases.passes.last_mut()
                    && now != StepPhase::Backward
                {
                    pass.next = pass.next.min(number);
                }
            }
            while zero_grads.next_if(|(_, end)| *end <= number).is_some() {}
            let is_marked = zero_grads.peek().is_some_and(|(first, _)| *first <= number);
            phases.of_event.push(if is_marked {
                StepPhase::ZeroGrad
            } else {
                phase_of(event, roles, now)
            });
        }
        for pass in &mut phases.passes {
            pass.next = pass.next.min(id(events.len()));
        }
        let longest = phases.passes.iter().map(|pass| pass.n_allocations).max().unwrap_or(0);
        phases
            .passes
            .retain(|pass| pass.n_allocations.saturating_mul(PASS_PART_MAX) >= longest);
        phases
    }

    fn add(&mut self, number: u32, is_backward: bool, was_backward: bool) {
        match self.passes.last_mut() {
            Some(pass) if is_backward && was_backward => {
                pass.last = number;
                pass.n_allocations += 1;
            }
            _ if is_backward => {
                self.passes.push(BackwardPass {
                    first: number,
                    last: number,
                    next: u32::MAX,
                    n_allocations: 1,
                });
            }
            _ => {}
        }
    }

    /// The phase of an event by its number on the device.
    #[inline]
    pub fn of(&self, event: usize) -> StepPhase {
        self.of_event.get(event).copied().unwrap_or_default()
    }

    /// The state after the first allocation that follows the pass of backward which an event is
    /// in.
    pub fn after_pass(&self, event: u32) -> Option<u32> {
        let begun = self.passes.partition_point(|pass| pass.first <= event);
        let pass = begun.checked_sub(1).and_then(|pass| self.passes.get(pass))?;
        (event <= pass.last).then_some(pass.next.saturating_add(1))
    }

    /// The passes of backward that begin between two events, the second not included.
    pub fn passes_between(&self, first: u32, end: u32) -> &[BackwardPass] {
        let from = self.passes.partition_point(|pass| pass.first < first);
        let to = self.passes.partition_point(|pass| pass.first < end).max(from);
        self.passes.get(from..to).unwrap_or(&[])
    }
}

/// A free is of the phase that it comes in, unless its own stack shows another. A request to
/// the driver is of the allocation that it is for.
fn phase_of(event: &Event, roles: &StackRoles, now: StepPhase) -> StepPhase {
    match event.action {
        // With context="alloc", a free shows the stack of the allocation: backward's, in
        // zero_grad.
        Action::FreeRequested | Action::FreeCompleted => match roles.of(event.stack) {
            role @ (StackRole::Update | StackRole::Scaling | StackRole::ZeroGrad) => {
                role.phase(now)
            }
            StackRole::Forward
            | StackRole::Backward
            | StackRole::Collective
            | StackRole::Exchange => now,
        },
        Action::SegmentAlloc | Action::SegmentMap | Action::OutOfMemory => {
            roles.of(event.stack).phase(now)
        }
        _ => now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(first: u32, last: u32, n_allocations: u32) -> BackwardPass {
        BackwardPass { first, last, next: u32::MAX, n_allocations }
    }

    #[test]
    fn passes_are_counted_from_an_event_to_an_event() {
        let passes = vec![pass(3, 5, 2), pass(9, 9, 1), pass(20, 25, 3)];
        let phases = Phases { passes, ..Phases::default() };
        assert_eq!(phases.passes_between(0, 20).len(), 2);
        assert_eq!(phases.passes_between(3, 4).len(), 1);
        assert_eq!(phases.passes_between(4, 9).len(), 0);
        assert_eq!(phases.passes_between(9, 3).len(), 0);
    }

    #[test]
    fn a_pass_goes_on_while_autograd_allocates() {
        let mut phases = Phases::default();
        let roles = [false, true, true, false, true, false];
        let mut was_backward = false;
        for (number, is_backward) in (0..).zip(roles) {
            phases.add(number, is_backward, was_backward);
            was_backward = is_backward;
        }
        assert_eq!(phases.passes, [pass(1, 2, 2), pass(4, 4, 1)]);
    }
}
