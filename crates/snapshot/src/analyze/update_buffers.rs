//! Buffers that live only around the optimizer's update: of the optimizer itself, and of the
//! ranks' exchange of gradients and weights.

use std::collections::{BTreeMap, HashMap};

use crate::analyze::device::{DeviceScene, Lifetime};
use crate::analyze::note::{NOTED_BYTES_MIN, Note, NoteKind, in_steps, steps_in_words};
use crate::analyze::phases::StepPhase;
use crate::analyze::sites::{Site, SiteKind};
use crate::integer::{at, count};

/// Buffers are noted if they are made in at least one of so many steps.
const STEPS_PART_MAX: u64 = 2;
/// Lines that a sentence names.
const LINES_NAMED_MAX: usize = 3;

/// Finds what is made in the update of a step and freed in the same step.
pub(crate) fn find(scene: &DeviceScene<'_>) -> Option<Note> {
    let mut changes: Vec<(u32, u32, bool, u64)> = Vec::new();
    let mut of_site: HashMap<u32, u64> = HashMap::new();
    for Lifetime { allocation, from, until } in scene.lifetimes() {
        let is_of_update = || {
            let event = allocation.from.checked_sub(1);
            event.is_some_and(|event| {
                matches!(
                    scene.phases.of(at(event)),
                    StepPhase::Collective | StepPhase::Optimizer
                )
            })
        };
        if from > 0 && from == until && !allocation.is_at_end() && is_of_update() {
            changes.push((from, allocation.from, true, allocation.size));
            changes.push((from, allocation.until, false, allocation.size));
            *of_site.entry(scene.sites.of(allocation)).or_default() += allocation.size;
        }
    }
    changes.sort_unstable();
    let (mut now, mut most): (u64, BTreeMap<u32, u64>) = (0, BTreeMap::new());
    for (slot, _, is_made, size) in changes {
        now = if is_made { now.saturating_add(size) } else { now.saturating_sub(size) };
        let most = most.entry(slot).or_default();
        *most = now.max(*most);
    }
    most.retain(|_, bytes| *bytes >= NOTED_BYTES_MIN);
    let bytes = most.values().max().copied()?;
    let slots: Vec<u32> = most.into_keys().collect();
    if count(slots.len()) * STEPS_PART_MAX < count(scene.steps.n_whole()) {
        return None;
    }
    let lines = lines(scene, of_site);
    let named: Vec<String> = lines.iter().map(|line| line.short()).collect();
    let place =
        if named.is_empty() { String::new() } else { format!(" at {}", named.join(", ")) };
    Some(Note {
        text: format!(
            "The optimizer's update makes buffers{place} in {}, and frees them in the same step: they \
             come on top of what stays.",
            steps_in_words(scene, &slots)
        ),
        bytes: Some(bytes),
        steps: Some(count(slots.len())),
        in_steps: in_steps(scene, &slots),
        location: lines.first().and_then(|line| line.location()),
        ..Note::of(NoteKind::OptimizerBuffers)
    })
}

/// The lines of most bytes.
fn lines<'a>(scene: &'a DeviceScene<'_>, of_site: HashMap<u32, u64>) -> Vec<&'a Site> {
    let mut rows: Vec<(u64, &Site)> = of_site
        .into_iter()
        .filter_map(|(site, bytes)| Some((bytes, scene.sites.site(site)?)))
        .filter(|(bytes, site)| *bytes >= NOTED_BYTES_MIN && site.kind == SiteKind::Python)
        .collect();
    rows.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    rows.into_iter().take(LINES_NAMED_MAX).map(|(_, site)| site).collect()
}
