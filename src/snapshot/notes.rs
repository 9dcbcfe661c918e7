//! Answers to what people ask when they look at a snapshot: lazy optimizer state, outputs that linger, skipped steps.

use std::collections::HashMap;

use serde::Serialize;

use crate::snapshot::categories::{Category, phase};
use crate::snapshot::leak::Leak;
use crate::snapshot::model::{Action, NO_STACK};
use crate::snapshot::num::{at, count, real};
use crate::snapshot::phases::StepPhase;
use crate::snapshot::scene::{DeviceScene, Life};
use crate::snapshot::sites::{Site, SiteKind};
use crate::snapshot::steps::marks_of;

/// Smaller ones are not worth a note.
const NOTED_BYTES_MIN: u64 = 1 << 20;
/// What is born in one step: at least this part of it.
const ONE_STEP_RATIO_MIN: f64 = 0.9;
/// Skipped steps are believed without any step from this many calls of `zero_grad` on.
const ZERO_GRADS_MIN: usize = 3;

/// What a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoteKind {
    /// The optimizer made its state in one step.
    LazyOptimizerState,
    /// A value of one step lives until the next has made its own.
    LingeringOutput,
    /// `optimizer.step()` was not called.
    OptimizerSkipped,
    /// Gradients stay between steps.
    GradientsKept,
    /// A cache filled and stopped.
    Cached,
    /// Older events are missing.
    Overflow,
    /// Nothing has a stack.
    NoStacks,
    /// No snapshot shows some memory.
    OutsideSnapshot,
}

#[derive(Clone, Debug, Serialize)]
pub struct Note {
    /// What it is about.
    pub kind: NoteKind,
    pub text: String,
    /// Bytes that it is about.
    pub bytes: Option<u64>,
    /// Steps that it is about.
    pub steps: Option<u64>,
}

/// All notes of a device. `overflowed`: whether older events are missing.
pub fn find(
    scene: &DeviceScene<'_>,
    leak: &Leak,
    categories: &[Category],
    overflowed: Option<bool>,
) -> Vec<Note> {
    let mut notes = Vec::new();
    if scene.steps.marker.is_marked() {
        notes.extend(lazy_state(scene));
        notes.extend(lingering(scene, leak));
        notes.extend(gradients_kept(scene, leak, categories));
        // Where older events are missing, marks are too.
        if overflowed != Some(true) {
            notes.extend(skipped(scene));
        }
    }
    notes.extend(cached(scene, leak));
    if overflowed == Some(true) {
        notes.push(note(
            NoteKind::Overflow,
            "Older events are missing: the ring was full or recording restarted. Record with a larger \
             max_entries, or fewer steps.",
        ));
    }
    if !has_stacks(scene) {
        notes.push(note(
            NoteKind::NoStacks,
            "No allocation has a stack: nothing can be attributed to a line. Record with \
             stacks=\"python\" and context=\"alloc\".",
        ));
    }
    notes.push(note(
        NoteKind::OutsideSnapshot,
        "Not in any snapshot: the CUDA context, NCCL's and cuBLAS's own memory, and other processes. \
         nvidia-smi shows them; PyTorch does not.",
    ));
    notes
}

fn note(kind: NoteKind, text: &str) -> Note {
    Note { kind, text: text.to_owned(), bytes: None, steps: None }
}

fn has_stacks(scene: &DeviceScene<'_>) -> bool {
    scene.timeline.allocations.iter().any(|allocation| allocation.stack != NO_STACK)
        || scene.events.iter().any(|event| event.stack != NO_STACK)
}

/// The slot in which most of some allocations were made, if it is nearly all, and their bytes; `None` if any of them is
/// older than the window.
fn one_slot<'a>(lives: impl Iterator<Item = Life<'a>>) -> Option<(u32, u64)> {
    let mut by_slot: HashMap<u32, u64> = HashMap::new();
    for Life { allocation, from, .. } in lives {
        if allocation.is_older() {
            return None;
        }
        *by_slot.entry(from).or_default() += allocation.size;
    }
    let all: u64 = by_slot.values().sum();
    let (slot, most) = by_slot.into_iter().max_by_key(|(slot, bytes)| (*bytes, *slot))?;
    (real(most) >= ONE_STEP_RATIO_MIN * real(all)).then_some((slot, all))
}

fn lazy_state(scene: &DeviceScene<'_>) -> Option<Note> {
    let state = scene.lives().filter(|Life { allocation, .. }| {
        allocation.is_at_end() && scene.sites.is_optimizer(allocation.stack)
    });
    let (slot, bytes) = one_slot(state)?;
    let when = match scene.steps.label(slot) {
        Some(step) => format!("in step {step}"),
        None => "before the first mark".to_owned(),
    };
    Some(Note {
        kind: NoteKind::LazyOptimizerState,
        text: format!(
            "The optimizer made its state {when}, on its first real step; it stays. This jump is not a leak."
        ),
        bytes: Some(bytes),
        steps: None,
    })
}

/// A line whose value of step n dies in step n + 1, after the line has made the next one. A buffer that is made anew and
/// larger each time is a leak instead: nothing could be deleted earlier.
fn lingering(scene: &DeviceScene<'_>, leak: &Leak) -> Vec<Note> {
    let mut last_made = vec![u32::MAX; scene.sites.sites.len()];
    let mut found: HashMap<u32, (u64, u32, u64)> = HashMap::new();
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
                let (steps, last, bytes) = found.entry(site).or_insert((0, u32::MAX, 0));
                *steps += u64::from(*last != from);
                *last = from;
                *bytes = (*bytes).max(allocation.size);
            }
            _ => {}
        }
    }
    let enough = count(scene.steps.n_whole()).div_ceil(2).max(2);
    let mut found: Vec<_> = found
        .into_iter()
        .filter(|(_, (steps, ..))| *steps >= enough)
        .filter(|(site, _)| leak.suspects.iter().all(|suspect| suspect.row.site != *site))
        .filter_map(|(site, (steps, _, bytes))| {
            let line = scene.sites.site(site).filter(|site| site.kind == SiteKind::Python)?;
            Some((line, steps, bytes))
        })
        .collect();
    found.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(b.0)));
    found
        .into_iter()
        .map(|(line, steps, bytes)| Note {
            kind: NoteKind::LingeringOutput,
            text: format!(
                "What {} makes in a step lives until the next step has made its own: two are alive at \
                 once. `del` it at the end of the step to lower the peak.",
                place(line)
            ),
            bytes: Some(bytes),
            steps: Some(steps),
        })
        .collect()
}

fn gradients_kept(
    scene: &DeviceScene<'_>,
    leak: &Leak,
    categories: &[Category],
) -> Option<Note> {
    let last = scene.last_slot();
    let kept = scene
        .lives()
        .zip(categories)
        .filter(|(life, category)| {
            let (a, site) = (life.allocation, scene.sites.of(life.allocation));
            **category == Category::Gradient
                && a.is_at_end()
                && (a.is_older() || last - life.from > 2)
                && leak.suspects.iter().all(|suspect| suspect.row.site != site)
                && phase(scene, a.stack) == StepPhase::Backward
        })
        .map(|(life, _)| life);
    let (_, bytes) = one_slot(kept)?;
    (bytes >= NOTED_BYTES_MIN).then(|| Note {
        kind: NoteKind::GradientsKept,
        text: "Gradients stay between steps: zero_grad fills them with zeros. With set_to_none=True \
               they are free during forward."
            .to_owned(),
        bytes: Some(bytes),
        steps: None,
    })
}

/// Calls of `zero_grad` that no `Optimizer.step` follows before the next.
fn skipped(scene: &DeviceScene<'_>) -> Option<Note> {
    let marks = |prefix| marks_of(scene.snapshot, scene.device, scene.events, prefix);
    let (zero_grads, steps) = (marks("Optimizer.zero_grad#"), marks("Optimizer.step#"));
    if steps.is_empty() && zero_grads.len() < ZERO_GRADS_MIN {
        return None;
    }
    let first_after = |time: u64| scene.events.partition_point(|event| event.time_us < time);
    let n_skipped = zero_grads
        .iter()
        .zip(zero_grads.iter().skip(1))
        .filter(|(this, next)| {
            let between = first_after(this.time_us)..first_after(next.time_us);
            let events = scene.events.get(between).unwrap_or(&[]);
            let steps_before = |time| steps.partition_point(|step| step.time_us < time);
            events.iter().any(|event| event.action == Action::Alloc)
                && steps_before(this.time_us) == steps_before(next.time_us)
        })
        .count();
    (n_skipped > 0).then(|| Note {
        kind: NoteKind::OptimizerSkipped,
        text: "optimizer.step() was not called in some steps: a gradient scaler that saw an overflow \
               skips it."
            .to_owned(),
        bytes: None,
        steps: Some(count(n_skipped)),
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
            kind: NoteKind::Cached,
            text: format!(
                "{} grew for some steps and then slowed or stopped: a cache that filled, not a leak.",
                place(site)
            ),
            bytes: Some(bytes),
            steps: None,
        })
        .collect()
}

/// A site in a sentence.
fn place(site: &Site) -> String {
    match (&site.file, site.line, &site.node) {
        (Some(file), Some(line), _) => {
            let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
            format!("{name}:{line}")
        }
        (_, _, Some(node)) => format!("backward of {node}"),
        _ => site.function.clone().unwrap_or_else(|| "a line without a stack".to_owned()),
    }
}
