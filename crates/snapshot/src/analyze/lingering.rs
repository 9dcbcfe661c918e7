//! Values that a variable holds until it is assigned again: two are alive at once in every
//! step.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::analyze::device::DeviceScene;
use crate::analyze::gradients::{forward_begins, free_stack, line_of};
use crate::analyze::heads::LoopWindow;
use crate::analyze::leak::Leak;
use crate::analyze::note::{NOTED_BYTES_MIN, Note, NoteKind, in_steps, steps_in_words};
use crate::analyze::sites::{Site, SiteKind};
use crate::analyze::what_if::Absences;
use crate::integer::{at, count};
use crate::model::{Action, NO_STACK};
use stepmem_types::format::units::whole_bytes;

/// Lines for which the window is replayed; for further ones nothing is advised.
const REPLAYED_MAX: usize = 16;

/// The values that a line makes and the next step still holds.
#[derive(Default)]
struct Held {
    slots: BTreeSet<u32>,
    bytes: u64,
    /// The states in which the next step still holds them.
    absences: Absences,
    /// A stack that makes it.
    stack: u32,
    freed_by: HashMap<u32, u64>,
}

/// Finds lines whose value of step n dies in step n + 1, after the line has made the next one.
/// A buffer that is made again and larger each time is a leak instead: nothing could be deleted
/// earlier.
pub(crate) fn find(scene: &DeviceScene<'_>, leak: &Leak) -> Vec<Note> {
    let enough = count(scene.steps.n_whole()).div_ceil(2).max(2);
    let mut found: Vec<(&Site, Held)> = held(scene)
        .into_iter()
        .filter(|(_, held)| count(held.slots.len()) >= enough)
        .filter(|(site, _)| leak.suspects.iter().all(|suspect| suspect.row.site != *site))
        .filter_map(|(site, held)| {
            let line = scene.sites.site(site).filter(|site| site.kind == SiteKind::Python)?;
            Some((line, held))
        })
        .collect();
    found.sort_by(|a, b| b.1.bytes.cmp(&a.1.bytes).then_with(|| a.0.cmp(b.0)));
    let lines = found.into_iter().enumerate();
    lines.map(|(number, (line, held))| note(scene, line, held, number < REPLAYED_MAX)).collect()
}

fn held(scene: &DeviceScene<'_>) -> BTreeMap<u32, Held> {
    let begins = forward_begins(scene);
    let mut last_made = vec![u32::MAX; scene.sites.sites.len()];
    let mut found: BTreeMap<u32, Held> = BTreeMap::new();
    for (event, number) in scene.events.iter().zip(&scene.timeline.of_event) {
        let Some(allocation) = scene.timeline.allocations.get(at(*number)) else { continue };
        let site = scene.sites.of(allocation);
        let [from, until] = scene.slots_of(*number);
        match event.action {
            Action::Alloc => {
                if let Some(last) = last_made.get_mut(at(site)) {
                    *last = from;
                }
            }
            Action::FreeCompleted
                if allocation.size >= NOTED_BYTES_MIN
                    && !allocation.is_older()
                    && until == from + 1
                    && last_made.get(at(site)) == Some(&until) =>
            {
                let held = found.entry(site).or_default();
                held.slots.insert(from);
                held.bytes = held.bytes.max(allocation.size);
                let end = begins.get(at(until)).copied().unwrap_or(u32::MAX);
                held.absences.add(end..allocation.until, allocation.size);
                held.stack = allocation.stack;
                *held.freed_by.entry(free_stack(scene, allocation)).or_default() +=
                    allocation.size;
            }
            _ => {}
        }
    }
    found
}

fn note(scene: &DeviceScene<'_>, line: &Site, held: Held, is_replayed: bool) -> Note {
    let freed_by = held.freed_by.into_iter().filter(|(stack, _)| *stack != NO_STACK);
    let replaced = line_of(scene, freed_by).cloned().or_else(|| in_loop(scene, held.stack));
    let by = match replaced.filter(|site| site.line != line.line || site.file != line.file) {
        Some(site) => format!("{} replaces it", site.short()),
        None => "the line makes the next".to_owned(),
    };
    let slots: Vec<u32> = held.slots.into_iter().collect();
    let saved_bytes = is_replayed.then(|| held.absences.saved(scene));
    let saved_bytes = saved_bytes.filter(|saved| *saved >= NOTED_BYTES_MIN);
    let advice = saved_bytes.map_or_else(String::new, |saved| {
        format!(
            " With `del` at the end of the step the peak would be {} lower.",
            whole_bytes(saved)
        )
    });
    Note {
        text: format!(
            "What {} makes in a step lives in the next until {by}: two are alive at once ({} and the \
             step after each).{advice}",
            line.short(),
            steps_in_words(scene, &slots)
        ),
        saved_bytes,
        bytes: Some(held.bytes),
        steps: Some(count(slots.len())),
        in_steps: in_steps(scene, &slots),
        location: line.location(),
        ..Note::of(NoteKind::LingeringOutput)
    }
}

/// The line of the training loop that a stack goes through: it assigns the variable.
fn in_loop(scene: &DeviceScene<'_>, stack: u32) -> Option<Site> {
    let found = scene.steps.training_loop.as_ref()?;
    let DeviceScene { snapshot, sites, roles, events, .. } = scene;
    let window = LoopWindow { snapshot, sites, roles, events };
    let frame = window.frame_in_loop(found.line, stack)?;
    Some(Site::of_frame(snapshot, frame))
}
