//! The figures of each step: its peak and in which phase, what it left, what it allocated.

use serde::Serialize;

use crate::analyze::device::DeviceScene;
use crate::analyze::phases::StepPhase;
use crate::integer::{at, count};
use crate::model::Action;

#[derive(Clone, Copy, Debug, Serialize)]
pub struct StepReport {
    pub step: u64,
    pub first_event: u32,
    /// The event with the most active bytes.
    pub peak_event: u32,
    /// Active bytes then.
    pub peak_bytes: u64,
    /// The step's phase at that time.
    pub peak_phase: StepPhase,
    /// Active bytes when the next step begins.
    pub end_bytes: u64,
    /// Block bytes that it allocated.
    pub allocated_bytes: u64,
    /// Passes of backward that begin in it: one for each micro-batch.
    pub backward_passes: u64,
}

/// Every whole step of a device.
pub(crate) fn find(scene: &DeviceScene<'_>) -> Vec<StepReport> {
    let mut step_reports: Vec<StepReport> = Vec::with_capacity(scene.steps.marks.len());
    let mut marks = scene.steps.marks.iter().peekable();
    let (mut slot, mut before) = (0, scene.timeline.at_start.active);
    let levels = scene.timeline.levels(scene.events);
    for ((number, event), level) in (0..).zip(scene.events).zip(levels) {
        while marks.next_if(|mark| **mark <= number).is_some() {
            slot += 1;
            step_reports.push(begun(scene, slot, before));
        }
        if let Some(step_report) = step_reports.last_mut() {
            if event.action == Action::Alloc {
                step_report.allocated_bytes +=
                    scene.timeline.allocation_of(at(number)).map_or(0, |own| own.size);
            }
            step_report.end_bytes = level.active;
            if level.active > step_report.peak_bytes {
                step_report.peak_bytes = level.active;
                step_report.peak_event = number;
                step_report.peak_phase = scene.phases.of(at(number));
            }
        }
        before = level.active;
    }
    // The last mark may begin a step that is not whole.
    let n_whole = at(scene.last_whole_slot());
    step_reports.truncate(n_whole.max(1));
    step_reports
}

/// A step of which only its first event is known.
fn begun(scene: &DeviceScene<'_>, slot: u32, active: u64) -> StepReport {
    let (first, end) = scene.steps.events_of(slot, scene.events.len());
    StepReport {
        step: scene.steps.label(slot).unwrap_or(0),
        first_event: first,
        peak_event: first,
        peak_bytes: 0,
        peak_phase: scene.phases.of(at(first)),
        end_bytes: active,
        allocated_bytes: 0,
        backward_passes: count(scene.phases.passes_between(first, end).len()),
    }
}
