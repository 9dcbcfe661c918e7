//! The fit of a larger batch: which part of a step's memory scales with the batch, and what
//! changes would save.

use std::collections::HashMap;

use serde::Serialize;

use crate::analyze::casts;
use crate::analyze::categories::Category;
use crate::analyze::device::DeviceScene;
use crate::analyze::gradients;
use crate::analyze::roles::StackRole;
use crate::analyze::sites::CodeLocation;
use crate::analyze::step_figures::StepReport;
use crate::integer::at;
use crate::model::Action;
use crate::replay::Allocation;

/// Smaller savings are not worth a change.
const SAVED_BYTES_MIN: u64 = 1 << 20;

/// The known facts of the batch and the device.
#[derive(Clone, Copy, Debug, Default)]
pub struct FitQuestion {
    /// Samples of the recorded batch.
    pub batch_size: Option<u64>,
    /// Bytes of the device that PyTorch may use.
    pub capacity: Option<u64>,
}

/// A figure that is known within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bounds {
    pub low: u64,
    pub high: u64,
}

/// The need of the step with the highest peak.
#[derive(Clone, Debug, Serialize)]
pub struct Fit {
    pub step: u64,
    /// The most that is active in it.
    pub peak_bytes: u64,
    /// The part of the peak that does not scale with the batch, at least: weights, gradients,
    /// optimizer state, buffers.
    pub fixed_bytes: u64,
    /// The part of the peak that scales with the batch: activations and inputs; at most also
    /// what backward makes and frees.
    pub scaling_bytes: Bounds,
    pub batch_size: Option<u64>,
    pub bytes_per_sample: Option<Bounds>,
    pub capacity_bytes: Option<u64>,
    /// Samples that fit, if the step scales as assumed.
    pub largest_batch_size: Option<Bounds>,
    /// The savings of the peak by changes.
    pub savings: Vec<Saving>,
}

/// A change, and what it would save.
#[derive(Clone, Debug, Serialize)]
pub struct Saving {
    pub kind: SavingKind,
    /// Bytes off the step's peak.
    pub bytes: u64,
    /// Bytes off the peak of its forward pass, where gradients of the step before are freed
    /// earlier.
    pub forward_bytes: Option<u64>,
    /// The function to checkpoint.
    pub location: Option<CodeLocation>,
}

/// A change that saves memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SavingKind {
    /// `zero_grad(set_to_none=True)` before the forward pass.
    ZeroGradBeforeForward,
    /// Activation checkpointing of a function that is called several times.
    Checkpoint,
}

/// The way in which an allocation scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scaling {
    Fixed,
    /// It may be of the batch or of weights.
    Unsure,
    Batch,
}

/// The active bytes in a state.
#[derive(Clone, Copy, Debug, Default)]
struct Need {
    fixed: u64,
    unsure: u64,
    batch: u64,
    /// Gradients of the step before, a part of what is fixed.
    old_gradients: u64,
}

impl Need {
    fn of(&mut self, scaling: Scaling) -> &mut u64 {
        match scaling {
            Scaling::Fixed => &mut self.fixed,
            Scaling::Unsure => &mut self.unsure,
            Scaling::Batch => &mut self.batch,
        }
    }

    fn active(self) -> u64 {
        self.fixed + self.unsure + self.batch
    }
}

/// Measures the whole step with the highest peak; `None` where steps or categories are not
/// known.
pub fn measure(
    scene: &DeviceScene<'_>,
    categories: &[Category],
    step_reports: &[StepReport],
    question: FitQuestion,
) -> Option<Fit> {
    let known = scene.steps.is_known() && scene.sites.has_stacks;
    let step_report = step_reports
        .iter()
        .rev()
        .max_by_key(|step_report| step_report.peak_bytes)
        .filter(|_| known)?;
    let needs = needs(scene, categories, step_report);
    let peak = needs.iter().max_by_key(|need| need.active()).copied()?;
    if peak.batch == 0 {
        return None;
    }
    let scaling = Bounds { low: peak.batch, high: peak.batch + peak.unsure };
    let batch_size = question.batch_size.filter(|size| *size > 0);
    let largest = batch_size.zip(question.capacity).map(|(size, capacity)| {
        largest_batch(&needs, size, capacity, overhead(scene, step_report))
    });
    let mut savings = Vec::new();
    let slot = scene.steps.slot(at(step_report.first_event));
    let forward = gradients::forward_end(scene, slot);
    let forward =
        forward.and_then(|end| needs.get(..=at(end.checked_sub(step_report.first_event)?)));
    savings.extend(forward.and_then(|forward| without_old_gradients(&needs, forward)));
    savings.extend(checkpointed(scene, categories, step_report));
    savings.retain(|saving| {
        saving.bytes.max(saving.forward_bytes.unwrap_or(0)) >= SAVED_BYTES_MIN
    });
    Some(Fit {
        step: step_report.step,
        peak_bytes: step_report.peak_bytes,
        fixed_bytes: peak.fixed,
        scaling_bytes: scaling,
        batch_size,
        bytes_per_sample: batch_size
            .map(|size| Bounds { low: scaling.low / size, high: scaling.high / size }),
        capacity_bytes: question.capacity,
        largest_batch_size: largest,
        savings,
    })
}

/// Returns the active bytes in each state of a step.
fn needs(
    scene: &DeviceScene<'_>,
    categories: &[Category],
    step_report: &StepReport,
) -> Vec<Need> {
    let slot = scene.steps.slot(at(step_report.first_event));
    let (first, end) = scene.steps.events_of(slot, scene.events.len());
    let copies = casts::weight_copies(scene, categories, slot);
    let scaling = |number: usize, own: &Allocation| {
        let category = categories.get(number).copied().unwrap_or_default();
        of_category(scene, category, own, copies.get(number) == Some(&true))
    };
    let is_old = |number: usize, own: &Allocation| {
        own.from <= first && categories.get(number) == Some(&Category::Gradient)
    };
    let mut need = Need::default();
    for (number, own) in scene.timeline.allocations.iter().enumerate() {
        if own.is_alive(first) {
            *need.of(scaling(number, own)) += own.size;
            need.old_gradients += if is_old(number, own) { own.size } else { 0 };
        }
    }
    let mut needs = vec![need];
    for event in at(first)..at(end) {
        let action = scene.events.get(event).map(|event| event.action);
        if let (Some(action), Some(number)) = (action, scene.timeline.of_event.get(event))
            && let Some(own) = scene.timeline.allocations.get(at(*number))
        {
            let sum = need.of(scaling(at(*number), own));
            match action {
                Action::Alloc => *sum += own.size,
                Action::FreeCompleted => {
                    *sum = sum.saturating_sub(own.size);
                    if is_old(at(*number), own) {
                        need.old_gradients = need.old_gradients.saturating_sub(own.size);
                    }
                }
                _ => {}
            }
        }
        needs.push(need);
    }
    needs
}

fn of_category(
    scene: &DeviceScene<'_>,
    category: Category,
    own: &Allocation,
    is_weight_copy: bool,
) -> Scaling {
    match category {
        Category::Activation if is_weight_copy => Scaling::Fixed,
        Category::Activation | Category::Input => Scaling::Batch,
        Category::Temporary => match scene.roles.of(own.stack) {
            StackRole::Forward | StackRole::Backward => Scaling::Unsure,
            _ => Scaling::Fixed,
        },
        _ => Scaling::Fixed,
    }
}

/// Returns the bytes that the allocator has reserved beyond the active ones, at the peak.
fn overhead(scene: &DeviceScene<'_>, step_report: &StepReport) -> u64 {
    let level = scene.timeline.levels(scene.events).nth(at(step_report.peak_event));
    level.map_or(0, |level| level.reserved.saturating_sub(level.active))
}

/// The most samples that fit in every state: at least with the allocator's overhead and all
/// that is unsure scaling, at most without.
fn largest_batch(needs: &[Need], size: u64, capacity: u64, overhead: u64) -> Bounds {
    let fits = |capacity: u64, fixed: u64, batch: u64| {
        let free = u128::from(capacity.saturating_sub(fixed));
        match u128::from(batch) {
            0 if fixed > capacity => 0,
            0 => u64::MAX,
            batch => u64::try_from(free * u128::from(size) / batch).unwrap_or(u64::MAX),
        }
    };
    let usable = capacity.saturating_sub(overhead);
    let low = needs.iter().map(|need| fits(usable, need.fixed, need.batch + need.unsure)).min();
    let high =
        needs.iter().map(|need| fits(capacity, need.fixed + need.unsure, need.batch)).min();
    let (low, high) = (low.unwrap_or(0), high.unwrap_or(0));
    Bounds { low: low.min(high), high: high.max(low) }
}

/// The peak without gradients of the step before; `None` if they are gone when the forward pass
/// ends.
fn without_old_gradients(needs: &[Need], forward: &[Need]) -> Option<Saving> {
    forward.last().filter(|need| need.old_gradients > 0)?;
    let saved = |needs: &[Need]| {
        let peak = needs.iter().map(|need| need.active()).max()?;
        let without = needs.iter().map(|need| need.active().saturating_sub(need.old_gradients));
        Some(peak.saturating_sub(without.max()?))
    };
    Some(Saving {
        kind: SavingKind::ZeroGradBeforeForward,
        bytes: saved(needs)?,
        forward_bytes: saved(forward),
        location: None,
    })
}

/// Activations that one function of the user makes, alive at the peak.
#[derive(Clone, Copy, Debug, Default)]
struct CheckpointedCalls {
    bytes: u64,
    n_calls: u64,
    /// Bytes of the last activation of each call: it is the next one's input, and stays.
    outputs: u64,
    last_line: u64,
    last_bytes: u64,
    frame: u32,
}

/// The function whose calls keep most activations at the peak; one call at a time is computed
/// again in backward.
fn checkpointed(
    scene: &DeviceScene<'_>,
    categories: &[Category],
    step_report: &StepReport,
) -> Option<Saving> {
    let slot = scene.steps.slot(at(step_report.first_event));
    let (first, _) = scene.steps.events_of(slot, scene.events.len());
    let mut blocks: HashMap<(u32, u32), CheckpointedCalls> = HashMap::new();
    for (own, category) in scene.timeline.allocations.iter().zip(categories) {
        let is_kept = *category == Category::Activation
            && own.from > first
            && own.is_alive(step_report.peak_event + 1)
            && scene.roles.of(own.stack) == StackRole::Forward;
        if !is_kept {
            continue;
        }
        let mut frames = scene.sites.user_frames(scene.snapshot, own.stack);
        let Some(number) = frames.next() else { continue };
        let frame = scene.snapshot.frame(number);
        let block = blocks.entry((frame.file, frame.name)).or_default();
        // A call ends where the function is at an earlier line again.
        if block.n_calls == 0 || frame.line < block.last_line {
            block.n_calls += 1;
            block.outputs += block.last_bytes;
            block.frame = number;
        }
        block.bytes += own.size;
        (block.last_line, block.last_bytes) = (frame.line, own.size);
    }
    let largest = blocks
        .into_values()
        .filter(|block| block.n_calls > 1)
        .max_by_key(|block| (block.bytes, block.frame))?;
    let inner = largest.bytes.saturating_sub(largest.outputs + largest.last_bytes);
    let frame = scene.snapshot.frame(largest.frame);
    Some(Saving {
        kind: SavingKind::Checkpoint,
        bytes: inner - inner / largest.n_calls,
        forward_bytes: None,
        location: Some(CodeLocation {
            file: scene.snapshot.text(frame.file),
            line: frame.line,
            function: Some(scene.snapshot.text(frame.name)),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_batch_that_fits_is_the_least_of_all_states() {
        let forward = Need { fixed: 2 * GIB, batch: 2 * GIB, ..Need::default() };
        let update = Need { fixed: 7 * GIB, ..Need::default() };
        let fits = largest_batch(&[forward, update], 8, 10 * GIB, 0);
        assert_eq!(fits, Bounds { low: 32, high: 32 });
        assert_eq!(largest_batch(&[forward], 8, GIB, 0), Bounds { low: 0, high: 0 });
    }

    #[test]
    fn what_is_unsure_and_reserved_widens_the_bounds() {
        let need = Need { fixed: GIB, unsure: GIB, batch: GIB, ..Need::default() };
        let fits = largest_batch(&[need], 4, 9 * GIB, GIB);
        assert_eq!(fits, Bounds { low: 14, high: 28 });
    }
}
