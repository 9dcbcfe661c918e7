//! The running total of active bytes, event by event, and its peak in each phase.

use serde::Serialize;

use crate::analyze::device::DeviceScene;
use crate::analyze::phases::StepPhase;
use crate::events::list::EventList;
use crate::integer::{at, id};

/// The active bytes after each event.
#[derive(Debug)]
pub(crate) struct RunningTotal {
    after: Vec<u64>,
}

/// The most that was active at one moment of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PhasePeak {
    pub phase: StepPhase,
    /// The event after which it was.
    pub event: u32,
    pub step: Option<u64>,
    pub active_bytes: u64,
}

impl RunningTotal {
    /// Adds up the events of a device.
    pub(crate) fn new(scene: &DeviceScene<'_>) -> Self {
        let levels = scene.timeline.levels(scene.events);
        Self { after: levels.map(|level| level.active).collect() }
    }

    /// The active bytes after an event of a list: a free includes its completion, where that
    /// follows directly.
    pub(crate) fn after(&self, scene: &DeviceScene<'_>, event: u32) -> u64 {
        let state = scene.timeline.state_after(event);
        let last = state.checked_sub(1).and_then(|event| self.after.get(at(event)));
        last.copied().unwrap_or(0)
    }

    /// The peak of each phase, in the steps, phases and events that are selected; the highest
    /// first.
    pub(crate) fn peaks(&self, list: &EventList<'_>) -> Vec<PhasePeak> {
        let mut most: Vec<PhasePeak> = Vec::new();
        for event in (0..id(self.after.len())).filter(|event| list.is_in_range(*event)) {
            let active_bytes = self.after(&list.report.scene, event);
            let phase = list.phase(event);
            let peak = PhasePeak { phase, event, step: list.step(event), active_bytes };
            match most.iter_mut().find(|other| other.phase == phase) {
                Some(other) if other.active_bytes < peak.active_bytes => *other = peak,
                Some(_) => {}
                None => most.push(peak),
            }
        }
        most.sort_by_key(|peak| (std::cmp::Reverse(peak.active_bytes), peak.event));
        most
    }
}
