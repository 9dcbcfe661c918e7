//! What each step did: its peak and in which phase, what it left, what it allocated.

use serde::Serialize;

use crate::snapshot::categories::{StepPhase, phase};
use crate::snapshot::model::Action;
use crate::snapshot::num::at;
use crate::snapshot::scene::DeviceScene;

#[derive(Clone, Copy, Debug, Serialize)]
pub struct StepReport {
    pub step: u64,
    pub first_event: u32,
    /// The event with the most active bytes.
    pub peak_event: u32,
    /// Active bytes then.
    pub peak_bytes: u64,
    /// What the step was doing then.
    pub peak_phase: StepPhase,
    /// Active bytes when the next step begins.
    pub end_bytes: u64,
    /// Block bytes that it allocated.
    pub allocated_bytes: u64,
}

/// Every whole step of a device.
pub fn find(scene: &DeviceScene<'_>) -> Vec<StepReport> {
    let mut stages: Vec<StepReport> = Vec::with_capacity(scene.steps.marks.len());
    let mut marks = scene.steps.marks.iter().peekable();
    let (mut slot, mut now, mut before) =
        (0, StepPhase::Forward, scene.timeline.active_at_start());
    let levels = scene.timeline.levels(scene.events);
    for ((number, event), level) in (0..).zip(scene.events).zip(levels) {
        while let Some(mark) = marks.next_if(|mark| **mark <= number) {
            slot += 1;
            stages.push(StepReport {
                step: scene.steps.label(slot).unwrap_or(0),
                first_event: *mark,
                peak_event: *mark,
                peak_bytes: 0,
                peak_phase: now,
                end_bytes: before,
                allocated_bytes: 0,
            });
        }
        let allocated = if event.action == Action::Alloc {
            now = phase(scene, event.stack);
            let own = scene.timeline.of_event.get(at(number));
            own.and_then(|own| scene.timeline.allocations.get(at(*own))).map_or(0, |a| a.size)
        } else {
            0
        };
        if let Some(stage) = stages.last_mut() {
            stage.allocated_bytes += allocated;
            stage.end_bytes = level.active;
            if level.active > stage.peak_bytes {
                stage.peak_bytes = level.active;
                stage.peak_event = number;
                stage.peak_phase = now;
            }
        }
        before = level.active;
    }
    // The last mark begins a step that is not whole.
    if stages.len() > 1 {
        stages.pop();
    }
    stages
}
