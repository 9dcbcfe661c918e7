//! Answers to questions that people have about a snapshot: what kind of memory a jump is, and
//! in which step and line.

use std::collections::HashMap;

use crate::analyze::casts;
use crate::analyze::categories::Category;
use crate::analyze::device::{DeviceScene, Lifetime};
use crate::analyze::gradients::{self, line_of};
use crate::analyze::leak::{Leak, Suspect};
use crate::analyze::lingering;
use crate::analyze::note::{Note, NoteKind, in_steps, one_slot, steps_in_words};
use crate::analyze::sites::{Site, SiteKind};
use crate::analyze::skipped;
use crate::analyze::update_buffers;
use crate::integer::count;
use crate::model::NO_STACK;

/// All notes of a device. `overflowed`: whether older events are missing.
pub(crate) fn find(
    scene: &DeviceScene<'_>,
    leak: &Leak,
    categories: &[Category],
    overflowed: Option<bool>,
) -> Vec<Note> {
    let mut notes = Vec::new();
    if scene.steps.is_known() {
        let skipped = skipped::find(scene, overflowed);
        notes.extend(of_skipped(scene, &skipped));
        notes.extend(lazy_state(scene));
        notes.extend(update_buffers::find(scene));
        notes.extend(lingering::find(scene, leak));
        notes.extend(gradients::through_forward(scene, leak));
        notes.extend(gradients::stale(scene, leak, &skipped));
        notes.extend(gradients::kept(scene, leak, categories));
        notes.extend(casts::find(scene, categories));
    }
    notes.extend(leak.possible.iter().filter_map(|suspect| possible(scene, suspect)));
    notes.extend(cached(scene, leak));
    if overflowed == Some(true) {
        notes.push(Note::saying(
            NoteKind::Overflow,
            "Older events are missing: the ring was full or recording restarted. Record with a larger \
             max_entries, or for fewer steps.",
        ));
    }
    if !has_stacks(scene) {
        notes.push(Note::saying(
            NoteKind::NoStacks,
            "No allocation has a stack: nothing can be attributed to a line. Record with \
             stacks=\"python\" and context=\"alloc\".",
        ));
    }
    notes.push(Note::saying(
        NoteKind::OutsideSnapshot,
        "Not in any snapshot: the CUDA context with its kernels, NCCL's own memory, and other processes. \
         nvidia-smi shows them; PyTorch does not.",
    ));
    notes
}

fn has_stacks(scene: &DeviceScene<'_>) -> bool {
    scene.timeline.allocations.iter().any(|allocation| allocation.stack != NO_STACK)
        || scene.events.iter().any(|event| event.stack != NO_STACK)
}

fn of_skipped(scene: &DeviceScene<'_>, slots: &[u32]) -> Option<Note> {
    let line = skipped::line(scene, slots);
    (!slots.is_empty()).then(|| Note {
        text: format!(
            "optimizer.step() was not called in {}: a gradient scaler that saw an overflow skips it.",
            steps_in_words(scene, slots)
        ),
        steps: Some(count(slots.len())),
        in_steps: in_steps(scene, slots),
        location: line.and_then(Site::location),
        ..Note::of(NoteKind::OptimizerSkipped)
    })
}

fn lazy_state(scene: &DeviceScene<'_>) -> Option<Note> {
    let state = || {
        scene.lifetimes().filter(|Lifetime { allocation, .. }| {
            allocation.is_at_end()
                && scene.sites.is_optimizer(allocation.stack)
                && scene.sites.kind(allocation) != SiteKind::Workspace
        })
    };
    let (slot, bytes) = one_slot(state())?;
    let mut stacks: HashMap<u32, u64> = HashMap::new();
    for Lifetime { allocation, .. } in state() {
        *stacks.entry(allocation.stack).or_default() += allocation.size;
    }
    let line = line_of(scene, stacks);
    let place = line.map_or_else(String::new, |line| format!(" at {}", line.short()));
    let when = match scene.steps.label(slot) {
        Some(step) => format!("in step {step}{place}"),
        None => format!("before the first step{place}"),
    };
    Some(Note {
        text: format!(
            "The optimizer made its state {when}, on its first real step; it stays. This jump is not a leak."
        ),
        bytes: Some(bytes),
        in_steps: in_steps(scene, &[slot]),
        location: line.and_then(Site::location),
        ..Note::of(NoteKind::LazyOptimizerState)
    })
}

fn possible(scene: &DeviceScene<'_>, suspect: &Suspect) -> Option<Note> {
    let site = scene.sites.site(suspect.row.site)?;
    Some(Note {
        text: format!(
            "{} grows up to the end, in too few steps or too irregularly to tell a leak from a queue or cache that \
             is not full yet. Record longer.",
            site.short()
        ),
        bytes: Some(suspect.row.sum.bytes),
        steps: Some(u64::from(suspect.n_steps)),
        location: site.location(),
        ..Note::of(NoteKind::PossibleLeak)
    })
}

fn cached(scene: &DeviceScene<'_>, leak: &Leak) -> Vec<Note> {
    let mut bytes: HashMap<u32, u64> = leak.cached.iter().map(|site| (*site, 0)).collect();
    for allocation in scene.timeline.allocations.iter().filter(|a| a.is_at_end()) {
        if let Some(sum) = bytes.get_mut(&scene.sites.of(allocation)) {
            *sum += allocation.size;
        }
    }
    let mut found: Vec<(&Site, u64)> = bytes
        .into_iter()
        .filter_map(|(site, bytes)| Some((scene.sites.site(site)?, bytes)))
        .collect();
    found.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    found
        .into_iter()
        .map(|(site, bytes)| Note {
            text: format!(
                "{} grew for some steps and then slowed or stopped: a cache that filled, not a leak.",
                site.short()
            ),
            bytes: Some(bytes),
            location: site.location(),
            ..Note::of(NoteKind::Cached)
        })
        .collect()
}
