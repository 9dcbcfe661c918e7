//! Gradients that live longer than they need to: through the next forward pass, unused, or
//! filled with zeros.

use std::collections::{BTreeMap, HashMap};

use crate::analyze::categories::Category;
use crate::analyze::device::{DeviceScene, Lifetime};
use crate::analyze::leak::Leak;
use crate::analyze::note::{
    NOTED_BYTES_MIN, Note, NoteKind, in_steps, one_slot, steps_in_words,
};
use crate::analyze::phases::StepPhase;
use crate::analyze::roles::StackRole;
use crate::analyze::sites::{Site, SiteKind};
use crate::analyze::what_if::Absences;
use crate::integer::{at, count};
use crate::model::{Action, NO_STACK};
use crate::replay::{Allocation, NEVER};
use stepmem_types::format::units::whole_bytes;

/// Gradients live through the next forward pass in at least this part of the steps.
const STEPS_PART_MAX: u64 = 2;

/// A gradient that outlives its step.
struct Outliving<'a> {
    gradient: &'a Allocation,
    /// The slot that it was made in.
    from: u32,
    /// The slot that it is freed in; `None` if it is there at the end.
    until: Option<u32>,
}

/// Allocations that backward made in one slot and a later one frees, or none does.
fn outliving<'a>(
    scene: &'a DeviceScene<'_>,
    leak: &'a Leak,
) -> impl Iterator<Item = Outliving<'a>> {
    scene.lifetimes().filter_map(move |Lifetime { allocation, from, until }| {
        let event = allocation.from.checked_sub(1)?;
        let is_freed = allocation.until != NEVER;
        let site = scene.sites.of(allocation);
        let is_gradient = scene.phases.of(at(event)) == StepPhase::Backward
            && scene.sites.kind(allocation) != SiteKind::Workspace
            && scene.roles.of(allocation.stack) == StackRole::Backward
            && leak.suspects.iter().all(|suspect| suspect.row.site != site);
        (is_gradient && from > 0 && (until > from || !is_freed)).then_some(Outliving {
            gradient: allocation,
            from,
            until: is_freed.then_some(until),
        })
    })
}

/// The state after the last allocation of a slot's forward pass; `None` without a pass of
/// backward.
pub(crate) fn forward_end(scene: &DeviceScene<'_>, slot: u32) -> Option<u32> {
    let (first, end) = scene.steps.events_of(slot, scene.events.len());
    let pass = scene.phases.passes_between(first, end).first()?;
    let last = (first..pass.first).rev().find(|number| {
        let event = scene.events.get(at(*number));
        event.is_some_and(|event| event.action == Action::Alloc)
            && scene.phases.of(at(*number)) == StepPhase::Forward
    })?;
    Some(last + 1)
}

/// The state before the first allocation of each slot's forward pass: the step before is over,
/// also where marks are in a step's middle.
pub(crate) fn forward_begins(scene: &DeviceScene<'_>) -> Vec<u32> {
    let slots = 0..=scene.last_slot();
    slots
        .map(|slot| {
            let (first, end) = scene.steps.events_of(slot, scene.events.len());
            let is_forward = |number: &u32| {
                let event = scene.events.get(at(*number));
                event.is_some_and(|event| event.action == Action::Alloc)
                    && scene.phases.of(at(*number)) == StepPhase::Forward
            };
            (first..end).find(is_forward).unwrap_or(end)
        })
        .collect()
}

/// The state after the last allocation of each slot's forward pass; slot 0 has none.
fn forward_ends(scene: &DeviceScene<'_>) -> Vec<Option<u32>> {
    let slots = 0..=scene.last_slot();
    slots.map(|slot| if slot == 0 { None } else { forward_end(scene, slot) }).collect()
}

/// Gradients of a step that live through the forward pass of the next.
pub(crate) fn through_forward(scene: &DeviceScene<'_>, leak: &Leak) -> Option<Note> {
    let (begins, ends) = (forward_begins(scene), forward_ends(scene));
    let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
    let mut absences = Absences::default();
    let mut freed_by: HashMap<u32, u64> = HashMap::new();
    for Outliving { gradient, from, until } in outliving(scene, leak) {
        let next = ends.get(at(from) + 1).copied().flatten();
        if until == Some(from + 1) && next.is_some_and(|state| gradient.is_alive(state)) {
            *bytes.entry(from).or_default() += gradient.size;
            let begin = begins.get(at(from) + 1).copied().unwrap_or(u32::MAX);
            absences.add(begin..gradient.until, gradient.size);
            *freed_by.entry(free_stack(scene, gradient)).or_default() += gradient.size;
        }
    }
    bytes.retain(|_, bytes| *bytes >= NOTED_BYTES_MIN);
    let n_steps = ends.iter().skip(2).flatten().count();
    if bytes.is_empty() || count(bytes.len()) * STEPS_PART_MAX < count(n_steps) {
        return None;
    }
    let slots: Vec<u32> = bytes.keys().copied().collect();
    let line = line_of(scene, freed_by);
    let until =
        line.map_or_else(String::new, |line| format!(", until {} frees them", line.short()));
    let (saved_bytes, advice) =
        saving(scene, absences, "zero_grad(set_to_none=True) before the forward pass");
    Some(Note {
        text: format!(
            "The gradients of {} live through the forward pass of the next step{until}.{advice}",
            steps_in_words(scene, &slots)
        ),
        bytes: bytes.values().max().copied(),
        saved_bytes,
        steps: Some(count(slots.len())),
        in_steps: in_steps(scene, &slots),
        location: line.and_then(Site::location),
        ..Note::of(NoteKind::GradientsThroughForward)
    })
}

/// The bytes that a change would take off the window's peak, and a sentence about it; nothing
/// if that is not worth it.
fn saving(scene: &DeviceScene<'_>, absences: Absences, change: &str) -> (Option<u64>, String) {
    let saved = Some(absences.saved(scene)).filter(|saved| *saved >= NOTED_BYTES_MIN);
    let sentence = saved.map_or_else(String::new, |saved| {
        format!(" With {change} the peak would be {} lower.", whole_bytes(saved))
    });
    (saved, sentence)
}

/// The gradients of steps whose update was skipped: freed unused, a note for each step.
pub(crate) fn stale(scene: &DeviceScene<'_>, leak: &Leak, skipped: &[u32]) -> Vec<Note> {
    struct Unused {
        bytes: u64,
        freed: Option<(u32, u32)>,
        freed_by: HashMap<u32, u64>,
    }
    let last = scene.last_whole_slot();
    let mut of_slot: BTreeMap<u32, Unused> = BTreeMap::new();
    for Outliving { gradient, from, until } in outliving(scene, leak) {
        let is_unused = until.map_or(from >= last, |until| until == from + 1);
        if !is_unused || skipped.binary_search(&from).is_err() {
            continue;
        }
        let unused = of_slot.entry(from).or_insert_with(|| Unused {
            bytes: 0,
            freed: None,
            freed_by: HashMap::new(),
        });
        unused.bytes += gradient.size;
        if let Some(slot) = until {
            unused.freed = unused.freed.max(Some((gradient.freed.saturating_sub(1), slot)));
            *unused.freed_by.entry(free_stack(scene, gradient)).or_default() += gradient.size;
        }
    }
    let ends = forward_ends(scene);
    let notes = of_slot.into_iter().filter(|(_, unused)| unused.bytes >= NOTED_BYTES_MIN);
    notes
        .map(|(slot, unused)| {
            let line = line_of(scene, unused.freed_by);
            let fate = match unused.freed {
                None => "they are still there at the end".to_owned(),
                Some((event, freed_in)) => {
                    let by =
                        line.map_or_else(String::new, |line| format!(" by {}", line.short()));
                    let after = ends.get(at(freed_in)).copied().flatten();
                    let after = match after {
                        Some(state) if event >= state => ", after its forward pass",
                        _ => "",
                    };
                    let step = steps_in_words(scene, &[freed_in]);
                    format!("they are freed{by} in {step} (event {event}){after}")
                }
            };
            Note {
                text: format!(
                    "The gradients of {} are never used, as its update was skipped: {fate}.",
                    steps_in_words(scene, &[slot])
                ),
                bytes: Some(unused.bytes),
                steps: Some(1),
                in_steps: in_steps(scene, &[slot]),
                location: line.and_then(Site::location),
                ..Note::of(NoteKind::StaleGradient)
            }
        })
        .collect()
}

/// Gradients that stay for the whole window.
pub(crate) fn kept(
    scene: &DeviceScene<'_>,
    leak: &Leak,
    categories: &[Category],
) -> Option<Note> {
    let last = scene.last_slot();
    let kept = scene
        .lifetimes()
        .zip(categories)
        .filter(|(lifetime, category)| {
            let (a, site) = (lifetime.allocation, scene.sites.of(lifetime.allocation));
            **category == Category::Gradient
                && a.is_at_end()
                && (a.is_older() || last - lifetime.from > 2)
                && leak.suspects.iter().all(|suspect| suspect.row.site != site)
                && scene.roles.of(a.stack) == StackRole::Backward
        })
        .map(|(lifetime, _)| lifetime);
    let (slot, bytes) = one_slot(kept)?;
    // Gradients that later steps make again were freed, so that this is none.
    let is_made_again = scene.lifetimes().zip(categories).any(|(lifetime, category)| {
        *category == Category::Gradient
            && lifetime.from > slot
            && !lifetime.allocation.is_at_end()
    });
    if bytes < NOTED_BYTES_MIN || is_made_again {
        return None;
    }
    let mut absences = Absences::default();
    let begins = forward_begins(scene);
    for step in slot + 1..=last {
        let (first, end) = scene.steps.events_of(step, scene.events.len());
        let pass = scene.phases.passes_between(first, end).first();
        if let (Some(pass), Some(begin)) = (pass, begins.get(at(step))) {
            absences.add(*begin..pass.first, bytes);
        }
    }
    let (saved_bytes, advice) = saving(scene, absences, "set_to_none=True");
    Some(Note {
        text: format!(
            "Gradients made in {} stay between steps: zero_grad is not called, or fills them with zeros.{advice}",
            steps_in_words(scene, &[slot])
        ),
        bytes: Some(bytes),
        saved_bytes,
        in_steps: in_steps(scene, &[slot]),
        ..Note::of(NoteKind::GradientsKept)
    })
}

/// The stack that frees an allocation; without frames if it is not known.
pub(crate) fn free_stack(scene: &DeviceScene<'_>, allocation: &Allocation) -> u32 {
    let event = allocation.freed.checked_sub(1).and_then(|event| scene.events.get(at(event)));
    // With context="alloc", a free shows the stack of the allocation.
    let stack = event.map(|event| event.stack).filter(|stack| *stack != allocation.stack);
    stack.unwrap_or(NO_STACK)
}

/// The user's line of most bytes by stack.
pub(crate) fn line_of<'a>(
    scene: &'a DeviceScene<'_>,
    stacks: impl IntoIterator<Item = (u32, u64)>,
) -> Option<&'a Site> {
    let mut of_site: BTreeMap<u32, u64> = BTreeMap::new();
    for (stack, bytes) in stacks {
        *of_site.entry(scene.sites.of_origin(stack)).or_default() += bytes;
    }
    let (most, _) = of_site.into_iter().max_by_key(|(_, bytes)| *bytes)?;
    scene.sites.site(most).filter(|site| site.kind == SiteKind::Python)
}
