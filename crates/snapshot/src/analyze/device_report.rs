//! Every question answered for one device.

use crate::analyze::categories::{self, Categories, Category};
use crate::analyze::causes;
use crate::analyze::device::DeviceScene;
use crate::analyze::fragmentation::{self, Fragmentation};
use crate::analyze::leak::{self, Leak};
use crate::analyze::note::Note;
use crate::analyze::notes;
use crate::analyze::oom::{self, OutOfMemory};
use crate::analyze::pools::{self, PoolSums, Totals};
use crate::analyze::sites::{SiteRow, Sites};
use crate::analyze::step_figures::{self, StepReport};
use crate::integer::{at, count};
use crate::model::{NO_STACK, Snapshot};

/// A device with all answers.
#[derive(Debug)]
pub struct DeviceReport<'a> {
    /// The device, replayed.
    pub scene: DeviceScene<'a>,
    /// Sums over its segments.
    pub totals: Totals,
    /// The same by memory pool.
    pub pools: Vec<PoolSums>,
    /// True if older events are missing; `None` if that is unknown.
    pub overflowed: Option<bool>,
    /// The lines that hold memory at the end.
    pub at_end: Vec<SiteRow>,
    /// The lines that held memory at the peak.
    pub at_peak: Vec<SiteRow>,
    /// The category of every allocation.
    pub categories: Vec<Category>,
    /// The categories' sums at the end.
    pub categories_at_end: Categories,
    /// The line that leaks.
    pub leak: Leak,
    /// Reserved bytes that are not used.
    pub fragmentation: Fragmentation,
    /// Failed allocations.
    pub oom: Vec<OutOfMemory>,
    /// The figures of each step.
    pub step_reports: Vec<StepReport>,
    /// Further notes for the user.
    pub notes: Vec<Note>,
}

impl<'a> DeviceReport<'a> {
    /// Answers everything for each device of a snapshot.
    pub fn of_devices(snapshot: &'a Snapshot, sites: &'a Sites) -> Vec<Self> {
        let scenes = snapshot.devices.iter();
        scenes.map(|device| Self::new(DeviceScene::new(snapshot, device, sites))).collect()
    }

    /// Answers everything.
    pub fn new(scene: DeviceScene<'a>) -> Self {
        let categories = categories::categorize(&scene);
        let leak = leak::find(&scene);
        let overflowed = overflowed(&scene);
        let step_reports = step_figures::find(&scene);
        let mut oom = oom::find(&scene);
        causes::explain(&scene, &leak, &step_reports, &mut oom);
        Self {
            totals: Totals::of(&scene.device.segments),
            pools: pools::sums(scene.snapshot, &scene.device.segments),
            overflowed,
            at_end: scene.sites.at_end(scene.snapshot, &scene.timeline),
            at_peak: scene.sites.at_state(
                scene.snapshot,
                &scene.timeline,
                scene.timeline.peak.state,
            ),
            categories_at_end: categories::sums(&scene, &categories, None),
            fragmentation: fragmentation::measure(&scene),
            oom,
            step_reports,
            notes: notes::find(&scene, &leak, &categories, overflowed),
            leak,
            categories,
            scene,
        }
    }

    /// The event that a state follows, its time and its step: `None` for the state before the
    /// window.
    pub fn moment(&self, state: u32) -> EventMoment {
        let event = state.checked_sub(1);
        let time_us = event
            .and_then(|event| self.scene.events.get(at(event)))
            .map(|event| event.time_us)
            .filter(|time| *time > 0);
        let step = event.and_then(|event| {
            let steps = &self.scene.steps;
            steps.label(steps.slot(at(event)))
        });
        EventMoment { event, time_us, step }
    }
}

/// A state in words that a user can find again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventMoment {
    /// Number of the event before it.
    pub event: Option<u32>,
    /// Unix time in µs.
    pub time_us: Option<u64>,
    pub step: Option<u64>,
}

/// Returns whether older events are missing: the file reports so, or a live block has a stack
/// and no allocation in the window.
fn overflowed(scene: &DeviceScene<'_>) -> Option<bool> {
    if scene.events.is_empty() {
        return None;
    }
    let ring = scene.snapshot.ring;
    let is_full = ring.entries_max.is_none_or(|max| count(scene.events.len()) >= max);
    let has_older = scene
        .timeline
        .allocations
        .iter()
        .any(|a| a.is_older() && a.is_at_end() && a.stack != NO_STACK);
    match ring.is_overflowed {
        Some(true) if is_full => Some(true),
        _ if has_older => Some(true),
        Some(false) => Some(false),
        _ => None,
    }
}
