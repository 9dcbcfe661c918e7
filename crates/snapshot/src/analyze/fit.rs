//! The fit of a larger batch: which part of a step's memory scales with the batch, and what
//! changes would save.

use std::collections::HashMap;

use serde::Serialize;

use crate::analyze::casts::{self, CastSource};
use crate::analyze::categories::Category;
use crate::analyze::device::DeviceScene;
use crate::analyze::gradients;
use crate::analyze::phases::StepPhase;
use crate::analyze::roles::StackRole;
use crate::analyze::sites::CodeLocation;
use crate::analyze::step_figures::StepReport;
use crate::analyze::what_if::Absences;
use crate::integer::at;
use crate::model::Action;
use crate::replay::{Allocation, NEVER};

/// The most that a block leaves unused of its segment, where it cannot be mapped in pieces: two
/// of a third of 20 MiB and a little more fill a segment of 20 MiB, and one of them may be free
/// at the time. It is half of the block where blocks are small.
const UNUSED_BYTES_MAX: u64 = (20 << 20) / 3;
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
pub(crate) struct Bounds {
    pub low: u64,
    pub high: u64,
}

/// The need of the step with the highest peak.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Fit {
    pub step: u64,
    /// The most that is active in it.
    pub peak_bytes: u64,
    /// The part of the peak that is known not to scale with the batch: weights, gradients,
    /// optimizer state, workspaces.
    pub fixed_bytes: u64,
    /// The part of the peak that scales with the batch: at least inputs, and what forward makes
    /// for backward; at most also all that may be of either kind.
    pub scaling_bytes: Bounds,
    pub batch_size: Option<u64>,
    pub bytes_per_sample: Option<Bounds>,
    pub capacity_bytes: Option<u64>,
    /// Samples that fit: at least, if all that may scale does, with the allocator's overhead; at
    /// most, if only that scales which is known to.
    pub largest_batch_size: Option<Bounds>,
    /// The savings of the peak by changes.
    pub savings: Vec<Saving>,
}

/// A change, and what it would save.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Saving {
    pub kind: SavingKind,
    /// Bytes off the step's peak.
    pub bytes: u64,
    /// The function to checkpoint.
    pub location: Option<CodeLocation>,
}

/// A change that saves memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SavingKind {
    /// `zero_grad(set_to_none=True)` before the forward pass.
    ZeroGradBeforeForward,
    /// Activation checkpointing of a function that is called several times.
    Checkpoint,
}

/// The way in which an allocation scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scaling {
    Fixed,
    /// Memory that may be of the batch or of weights.
    Unsure,
    Batch,
}

/// The active bytes in a state.
#[derive(Clone, Copy, Debug, Default)]
struct Need {
    fixed: u64,
    unsure: u64,
    batch: u64,
    /// Blocks that may scale.
    n_scaling: u64,
}

impl Need {
    /// The sums of what is alive in a state.
    fn of_state(scene: &DeviceScene<'_>, scalings: &[Scaling], state: u32) -> Self {
        let mut need = Self::default();
        for (own, scaling) in scene.timeline.allocations.iter().zip(scalings) {
            if own.is_alive(state) {
                need.add(*scaling, own.size);
            }
        }
        need
    }

    fn add(&mut self, scaling: Scaling, size: u64) {
        *self.of(scaling) += size;
        self.n_scaling += u64::from(scaling != Scaling::Fixed);
    }

    fn subtract(&mut self, scaling: Scaling, size: u64) {
        let sum = self.of(scaling);
        *sum = sum.saturating_sub(size);
        self.n_scaling = self.n_scaling.saturating_sub(u64::from(scaling != Scaling::Fixed));
    }

    fn of(&mut self, scaling: Scaling) -> &mut u64 {
        match scaling {
            Scaling::Fixed => &mut self.fixed,
            Scaling::Unsure => &mut self.unsure,
            Scaling::Batch => &mut self.batch,
        }
    }
}

/// Measures the whole step with the highest peak; `None` where steps or categories are not
/// known.
pub(crate) fn measure(
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
    let scalings = scalings(scene, categories);
    let state = step_report.peak_event + 1;
    let peak = Need::of_state(scene, &scalings, state);
    if !scalings.contains(&Scaling::Batch) {
        return None;
    }
    let scaling = Bounds { low: peak.batch, high: peak.batch + peak.unsure };
    let batch_size = question.batch_size.filter(|size| *size > 0);
    let largest = batch_size.zip(question.capacity).map(|(size, capacity)| {
        Limits::new(scene, size, capacity).of_window(scene, &scalings, state)
    });
    let mut savings = Vec::new();
    savings.extend(without_old_gradients(scene, categories, step_report));
    savings.extend(checkpointed(scene, categories, step_report));
    savings.retain(|saving| saving.bytes >= SAVED_BYTES_MIN);
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

/// Returns the way in which each allocation scales.
fn scalings(scene: &DeviceScene<'_>, categories: &[Category]) -> Vec<Scaling> {
    let copies = casts::copies(scene, categories);
    let for_backward = for_backward(scene);
    let all = (0..).zip(&scene.timeline.allocations).zip(categories);
    all.map(|((number, own), category)| match category {
        Category::Activation if copies.get(&number) == Some(&CastSource::Weight) => {
            Scaling::Fixed
        }
        Category::Activation if for_backward.get(at(scene.sites.of(own))) == Some(&true) => {
            Scaling::Batch
        }
        Category::Input => Scaling::Batch,
        Category::Activation | Category::Unknown => Scaling::Unsure,
        Category::Temporary => match scene.roles.of(own.stack) {
            StackRole::Forward | StackRole::Backward => Scaling::Unsure,
            _ => Scaling::Fixed,
        },
        Category::Parameter
        | Category::Gradient
        | Category::Optimizer
        | Category::Communication
        | Category::Workspace => Scaling::Fixed,
    })
    .collect()
}

/// Returns for each site whether backward frees most of what it makes in a pass.
fn for_backward(scene: &DeviceScene<'_>) -> Vec<bool> {
    let mut freed = vec![[0_u64; 2]; scene.sites.sites.len()];
    for own in scene.timeline.allocations.iter().filter(|own| !own.is_older()) {
        let Some(event) = own.freed.checked_sub(1).filter(|_| own.freed != NEVER) else {
            continue;
        };
        if let Some([in_backward, all]) = freed.get_mut(at(scene.sites.of(own))) {
            let is_in_backward = scene.phases.of(at(event)) == StepPhase::Backward;
            *in_backward += if is_in_backward { own.size } else { 0 };
            *all += own.size;
        }
    }
    freed.into_iter().map(|[in_backward, all]| all > 0 && 2 * in_backward >= all).collect()
}

/// The recorded batch, and the bytes that PyTorch may use.
struct Limits {
    size: u64,
    capacity: u64,
    /// Set when segments are mapped in pieces.
    is_expandable: bool,
}

impl Limits {
    fn new(scene: &DeviceScene<'_>, size: u64, capacity: u64) -> Self {
        let is_expandable = scene.device.segments.iter().any(|segment| segment.is_expandable);
        Self { size, capacity, is_expandable }
    }

    /// The most samples with which every moment of the window fits: at least, and at most. The
    /// allocator's overhead is that of the peak, and grows with it.
    fn of_window(&self, scene: &DeviceScene<'_>, scalings: &[Scaling], peak: u32) -> Bounds {
        let level = scene.timeline.levels(scene.events).nth(at(peak.saturating_sub(1)));
        let overhead = level.map_or(0, |level| level.reserved.saturating_sub(level.active));
        let mut need = Need::of_state(scene, scalings, 0);
        let mut found = self.of(need, overhead);
        for (event, number) in scene.events.iter().zip(&scene.timeline.of_event) {
            let Some(own) = scene.timeline.allocations.get(at(*number)) else { continue };
            let scaling = scalings.get(at(*number)).copied().unwrap_or(Scaling::Unsure);
            match event.action {
                Action::Alloc => {
                    need.add(scaling, own.size);
                    let limits = self.of(need, overhead);
                    found.low = found.low.min(limits.low);
                    found.high = found.high.min(limits.high);
                }
                Action::FreeCompleted => need.subtract(scaling, own.size),
                _ => {}
            }
        }
        found
    }

    /// The most samples with which one state fits. With fewer than the recorded ones, the most
    /// is needed if what is not known does not scale.
    fn of(&self, need: Need, overhead: u64) -> Bounds {
        let fits = |fixed: u64, scaling: u64| {
            let free = u128::from(self.capacity.saturating_sub(fixed));
            match u128::from(scaling) {
                0 if fixed > self.capacity => 0,
                0 => u64::MAX,
                scaling => {
                    u64::try_from(free * u128::from(self.size) / scaling).unwrap_or(u64::MAX)
                }
            }
        };
        let (unsure, reserved) = (need.unsure, need.unsure + overhead);
        let all_scale = fits(need.fixed, need.batch + unsure);
        let larger = if self.is_expandable {
            fits(need.fixed, need.batch + reserved)
        } else {
            let halves = fits(need.fixed, 3 * (need.batch + unsure) / 2 + overhead);
            let unused = need.n_scaling * UNUSED_BYTES_MAX + overhead;
            halves.max(fits(need.fixed + unused, need.batch + reserved))
        };
        let low = match larger {
            low if low >= self.size => low,
            _ => fits(need.fixed + reserved, need.batch).min(self.size - 1),
        };
        let high = match fits(need.fixed + unsure, need.batch) {
            high if high >= self.size => high,
            _ => all_scale,
        };
        Bounds { low: low.min(high), high }
    }
}

/// The step's peak without gradients of the step before, from its first allocation of forward
/// on; `None` if they are gone when the forward pass ends.
fn without_old_gradients(
    scene: &DeviceScene<'_>,
    categories: &[Category],
    step_report: &StepReport,
) -> Option<Saving> {
    let slot = scene.steps.slot(at(step_report.first_event));
    let (first, end) = scene.steps.events_of(slot, scene.events.len());
    let forward_end = gradients::forward_end(scene, slot)?;
    let begin = gradients::forward_begins(scene).get(at(slot)).copied()?;
    let mut absences = Absences::default();
    let mut is_through = false;
    for (own, category) in scene.timeline.allocations.iter().zip(categories) {
        if *category == Category::Gradient && own.from <= first && own.is_alive(begin) {
            is_through |= own.is_alive(forward_end);
            absences.add(begin..own.until, own.size);
        }
    }
    is_through.then(|| Saving {
        kind: SavingKind::ZeroGradBeforeForward,
        bytes: absences.saved_in(scene, first..end, step_report.peak_event + 1),
        location: None,
    })
}

/// A call of a function of the user, and what backward needs of it.
#[derive(Clone, Debug, Default)]
struct Call {
    /// The call's activations that are alive at the peak. The last is the next call's input,
    /// and stays.
    activations: Vec<Allocation>,
}

impl Call {
    /// All but the last.
    fn inner(&self) -> &[Allocation] {
        self.activations.split_last().map_or(&[], |(_, inner)| inner)
    }

    /// The state in which backward has freed all of it.
    fn end(&self) -> u32 {
        self.inner().iter().map(|own| own.until).max().unwrap_or(0)
    }
}

/// The calls of a function.
#[derive(Clone, Debug, Default)]
struct Calls {
    all: Vec<Call>,
    bytes: u64,
    last_line: u64,
    frame: u32,
}

impl Calls {
    fn add(&mut self, frame: u32, line: u64, own: Allocation) {
        // A call ends where the function is at an earlier line again.
        if self.all.is_empty() || line < self.last_line {
            self.all.push(Call::default());
            self.frame = frame;
        }
        if let Some(call) = self.all.last_mut() {
            call.activations.push(own);
        }
        self.bytes += own.size;
        self.last_line = line;
    }

    /// The memory that is away between each call and its backward, which begins when that of
    /// the call after it is over. `backward`: the first event of the pass of backward.
    fn absences(&self, backward: u32) -> Absences {
        let mut absences = Absences::default();
        let mut again = backward;
        for call in self.all.iter().rev() {
            let first_freed = call.inner().iter().map(|own| own.freed).min();
            let called = call.activations.last().map_or(0, |own| own.from);
            let again_here = again.min(first_freed.unwrap_or(u32::MAX));
            for own in call.inner() {
                absences.add(called..again_here, own.size);
            }
            again = call.end().max(backward);
        }
        absences
    }
}

/// The function whose calls keep most activations at the peak; each call is computed again when
/// backward comes to it.
fn checkpointed(
    scene: &DeviceScene<'_>,
    categories: &[Category],
    step_report: &StepReport,
) -> Option<Saving> {
    let slot = scene.steps.slot(at(step_report.first_event));
    let (first, end) = scene.steps.events_of(slot, scene.events.len());
    let backward = scene.phases.passes_between(first, end).first()?.first;
    let mut functions: HashMap<(u32, u32), Calls> = HashMap::new();
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
        functions.entry((frame.file, frame.name)).or_default().add(number, frame.line, *own);
    }
    let largest = functions
        .into_values()
        .filter(|calls| calls.all.len() > 1)
        .max_by_key(|calls| (calls.bytes, calls.frame))?;
    let frame = scene.snapshot.frame(largest.frame);
    Some(Saving {
        kind: SavingKind::Checkpoint,
        bytes: largest.absences(backward).saved_in(
            scene,
            first..end,
            step_report.peak_event + 1,
        ),
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

    fn limits(capacity: u64) -> Limits {
        Limits { size: 8, capacity, is_expandable: true }
    }

    #[test]
    fn what_does_not_scale_fits_any_batch_or_none() {
        let need = Need { fixed: 2 * GIB, ..Need::default() };
        let all = Bounds { low: u64::MAX, high: u64::MAX };
        assert_eq!(limits(10 * GIB).of(need, 0), all);
        assert_eq!(limits(GIB).of(need, 0), Bounds { low: 0, high: 0 });
    }

    #[test]
    fn what_is_unsure_and_reserved_widens_the_bounds() {
        let need = Need { fixed: GIB, unsure: GIB, batch: GIB, n_scaling: 2 };
        assert_eq!(limits(9 * GIB).of(need, GIB), Bounds { low: 21, high: 56 });
    }

    #[test]
    fn fewer_samples_than_recorded_need_no_less_than_what_does_not_scale() {
        let need = Need { fixed: GIB, unsure: 2 * GIB, batch: 4 * GIB, n_scaling: 2 };
        assert_eq!(limits(5 * GIB).of(need, GIB), Bounds { low: 2, high: 5 });
    }
}
