//! A note: what it is about, its bytes, its steps, its line.

use std::collections::HashMap;

use serde::Serialize;

use crate::analyze::device::{DeviceScene, Lifetime};
use crate::analyze::sites::CodeLocation;
use crate::integer::real;

/// Smaller ones are not worth a note.
pub(crate) const NOTED_BYTES_MIN: u64 = 1 << 20;
/// A group is born in one step if at least this part of it is.
const ONE_STEP_RATIO_MIN: f64 = 0.9;
/// Runs of steps that a sentence names.
const RUNS_NAMED_MAX: usize = 4;

/// The subject of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoteKind {
    /// The optimizer made its state in one step.
    LazyOptimizerState,
    /// A value of one step lives until the next has made its own.
    LingeringOutput,
    /// Buffers that live only around the optimizer's update.
    OptimizerBuffers,
    /// `optimizer.step()` was not called.
    OptimizerSkipped,
    /// Gradients stay between steps.
    GradientsKept,
    /// Gradients of a step live through the forward pass of the next.
    GradientsThroughForward,
    /// Gradients of a step whose update was skipped.
    StaleGradient,
    /// Copies in another precision.
    Casts,
    /// A line grows up to the end, in too few steps to say that it leaks.
    PossibleLeak,
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
    /// The note's subject.
    pub kind: NoteKind,
    pub text: String,
    /// Bytes that it is about.
    pub bytes: Option<u64>,
    /// Bytes by which the window's peak would be lower without it; `None` where nothing is
    /// advised.
    pub saved_bytes: Option<u64>,
    /// Number of steps that it is about.
    pub steps: Option<u64>,
    /// The steps in which that memory is made, by number.
    pub in_steps: Option<Vec<u64>>,
    /// The line that it is about.
    pub location: Option<CodeLocation>,
}

impl Note {
    /// A note of a kind, empty.
    pub fn of(kind: NoteKind) -> Self {
        let text = String::new();
        Self {
            kind,
            text,
            bytes: None,
            saved_bytes: None,
            steps: None,
            in_steps: None,
            location: None,
        }
    }

    /// A note that has a text only.
    pub fn saying(kind: NoteKind, text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::of(kind) }
    }
}

/// The slot in which most of some allocations were made, if it is nearly all, and their bytes.
/// `None` if any of them is older than the window.
pub(crate) fn one_slot<'a>(lives: impl Iterator<Item = Lifetime<'a>>) -> Option<(u32, u64)> {
    let mut by_slot: HashMap<u32, u64> = HashMap::new();
    for Lifetime { allocation, from, .. } in lives {
        if allocation.is_older() {
            return None;
        }
        *by_slot.entry(from).or_default() += allocation.size;
    }
    let all: u64 = by_slot.values().sum();
    let (slot, most) = by_slot.into_iter().max_by_key(|(slot, bytes)| (*bytes, *slot))?;
    (real(most) >= ONE_STEP_RATIO_MIN * real(all)).then_some((slot, all))
}

/// Numbers of the steps of some slots; `None` if none has one.
pub(crate) fn in_steps(scene: &DeviceScene<'_>, slots: &[u32]) -> Option<Vec<u64>> {
    let steps: Vec<u64> = slots.iter().filter_map(|slot| scene.steps.label(*slot)).collect();
    (!steps.is_empty()).then_some(steps)
}

/// Names the steps of some slots, which rise.
pub(crate) fn steps_in_words(scene: &DeviceScene<'_>, slots: &[u32]) -> String {
    match in_steps(scene, slots) {
        Some(steps) => named(&steps),
        None => "the time before the first step".to_owned(),
    }
}

fn named(steps: &[u64]) -> String {
    if let [step] = steps {
        return format!("step {step}");
    }
    let runs: Vec<&[u64]> = steps.chunk_by(|a, b| a + 1 == *b).collect();
    if runs.len() > RUNS_NAMED_MAX {
        let (first, last) = (steps.first().unwrap_or(&0), steps.last().unwrap_or(&0));
        return format!("{} steps from {first} to {last}", steps.len());
    }
    let mut names: Vec<String> = Vec::new();
    for run in runs {
        match run {
            [first, .., last] if run.len() > 2 => names.push(format!("{first} to {last}")),
            few => names.extend(few.iter().map(u64::to_string)),
        }
    }
    let last = names.pop().unwrap_or_default();
    if names.is_empty() {
        format!("steps {last}")
    } else {
        format!("steps {} and {last}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_named_in_runs() {
        assert_eq!(named(&[0]), "step 0");
        assert_eq!(named(&[1, 2]), "steps 1 and 2");
        assert_eq!(named(&[0, 1, 2, 3]), "steps 0 to 3");
        assert_eq!(named(&[0, 1, 2, 7]), "steps 0 to 2 and 7");
        assert_eq!(named(&[0, 2, 4, 6, 8]), "5 steps from 0 to 8");
    }
}
