//! Moments within a step: after a pass of backward, and when `zero_grad` is called.

use crate::analyze::device_report::DeviceReport;
use crate::analyze::roles::StackRole;
use crate::analyze::steps::{marks_of, positions};
use crate::integer::at;

/// The state after a pass of backward of a step, from 1, before the program allocates anything
/// else; `None` if there is no such pass.
pub(crate) fn after(report: &DeviceReport<'_>, step: u64, number: u64) -> Option<u32> {
    let (first, end) = events_of(report, step)?;
    let passes = report.scene.phases.passes_between(first, end);
    let index = usize::try_from(number.checked_sub(1)?).ok()?;
    passes.get(index).map(|pass| pass.next)
}

/// The state before a step's first call of `zero_grad` frees anything, by a mark or a stack;
/// `None` if none is seen.
pub fn before_zero_grad(report: &DeviceReport<'_>, step: u64) -> Option<u32> {
    let scene = &report.scene;
    let (first, end) = events_of(report, step)?;
    let marks = marks_of(scene.snapshot, scene.device, scene.events, "Optimizer.zero_grad#");
    let mark =
        positions(scene.events, &marks).into_iter().find(|mark| (first..end).contains(mark));
    let by_stack = || {
        (first..end).find(|number| {
            let event = scene.events.get(at(*number));
            event.is_some_and(|event| scene.roles.of(event.stack) == StackRole::ZeroGrad)
        })
    };
    mark.or_else(by_stack)
}

/// The first event of a step and the one after its last.
fn events_of(report: &DeviceReport<'_>, step: u64) -> Option<(u32, u32)> {
    let steps = &report.scene.steps;
    let last = report.scene.last_slot();
    let slot = (1..=last).find(|slot| steps.label(*slot) == Some(step))?;
    Some(steps.events_of(slot, report.scene.events.len()))
}
