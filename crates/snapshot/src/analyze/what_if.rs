//! The window again, without some blocks for some time: what a change would save.

use std::ops::Range;

use crate::analyze::device::DeviceScene;
use crate::integer::at;
use crate::model::Action;

/// Bytes that would not be there, by state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Absences {
    /// States from which on bytes are away, or back.
    changes: Vec<(u32, bool, u64)>,
}

impl Absences {
    /// Takes bytes away in some states.
    pub(crate) fn add(&mut self, states: Range<u32>, bytes: u64) {
        if states.start < states.end {
            self.changes.push((states.start, true, bytes));
            self.changes.push((states.end, false, bytes));
        }
    }

    /// Returns by how many bytes the most that is active in the window falls.
    pub(crate) fn saved(self, scene: &DeviceScene<'_>) -> u64 {
        self.saved_in(scene, 0..scene.timeline.end(), scene.timeline.peak.state)
    }

    /// The same of the states from one to another. `peak`: the state of them in which most is
    /// active.
    pub(crate) fn saved_in(
        mut self,
        scene: &DeviceScene<'_>,
        states: Range<u32>,
        peak: u32,
    ) -> u64 {
        let at_peak = self.changes.iter().filter(|(state, ..)| *state <= peak);
        let [away, back] = [true, false].map(|wanted| -> u64 {
            let wanted = at_peak.clone().filter(|(_, is_away, _)| *is_away == wanted);
            wanted.map(|(_, _, bytes)| bytes).sum()
        });
        if away <= back {
            return 0;
        }
        self.changes.sort_unstable_by_key(|(state, ..)| *state);
        let mut changes = self.changes.into_iter().peekable();
        let allocations = &scene.timeline.allocations;
        let alive = allocations.iter().filter(|own| own.is_alive(states.start));
        let mut active: u64 = alive.map(|own| own.size).sum();
        let (mut absent, mut most, mut lowered) = (0_u64, active, 0);
        for state in states.start..=states.end {
            while let Some((_, is_away, bytes)) = changes.next_if(|(from, ..)| *from <= state) {
                absent = if is_away {
                    absent.saturating_add(bytes)
                } else {
                    absent.saturating_sub(bytes)
                };
            }
            most = most.max(active);
            lowered = lowered.max(active.saturating_sub(absent));
            let action = scene.events.get(at(state)).map(|event| event.action);
            let size = scene.timeline.allocation_of(at(state)).map_or(0, |own| own.size);
            match action {
                Some(Action::Alloc) => active += size,
                Some(Action::FreeCompleted) => active = active.saturating_sub(size),
                _ => {}
            }
        }
        most - lowered
    }
}
