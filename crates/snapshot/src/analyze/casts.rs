//! Copies in another precision: what autocast makes of inputs and weights, and of half
//! gradients for whole weights.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use serde::Serialize;

use crate::analyze::categories::Category;
use crate::analyze::device::DeviceScene;
use crate::analyze::gradients::line_of;
use crate::analyze::note::{NOTED_BYTES_MIN, Note, NoteKind, in_steps, steps_in_words};
use crate::analyze::phases::StepPhase;
use crate::analyze::roles::StackRole;
use crate::analyze::sites::{FrameKind, Site, SiteKind};
use crate::integer::{at, count, id, real};
use crate::model::{Action, Event};
use crate::replay::NO_ALLOCATION;

/// Smaller weights and inputs may have a half by chance.
const SOURCE_BYTES_MIN: u64 = 64 << 10;
/// The least part of weights and of gradients that has a copy, without other evidence.
const COPIED_RATIO_MIN: f64 = 0.8;

/// Steps that are tried before the search is given up.
const STEPS_TRIED: u32 = 8;

/// The original of a copy in another precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CastSource {
    Input,
    Weight,
    Gradient,
}

/// Copies of one kind.
#[derive(Default)]
struct Copies {
    of_slot: BTreeMap<u32, u64>,
    made_by: HashMap<u32, u64>,
}

/// A note for each kind of copy.
pub(crate) fn find(scene: &DeviceScene<'_>, categories: &[Category]) -> Vec<Note> {
    let Some(search) = CastSearch::of_window(scene, categories) else { return Vec::new() };
    search.found.iter().filter_map(|(source, copies)| note(scene, *source, copies)).collect()
}

/// The allocations that are copies in another precision, with their originals.
pub(crate) fn copies(
    scene: &DeviceScene<'_>,
    categories: &[Category],
) -> HashMap<u32, CastSource> {
    let search = CastSearch::of_window(scene, categories);
    search.map(|search| search.copies.into_iter().collect()).unwrap_or_default()
}

/// Goes through the steps, and matches sizes.
struct CastSearch<'a> {
    scene: &'a DeviceScene<'a>,
    categories: &'a [Category],
    /// Set for each stack that copies, by its C++ frames; `None` if the file has no C++.
    is_copying: Option<Vec<bool>>,
    /// Number of weights by size.
    weights: HashMap<u64, u32>,
    /// Inputs and weights of this step without a copy.
    open: [HashMap<u64, u32>; 2],
    found: BTreeMap<CastSource, Copies>,
    /// The allocations that are copies.
    copies: Vec<(u32, CastSource)>,
    /// Bytes copied since the loop came to its first line.
    micro_batch: BTreeMap<CastSource, u64>,
    /// Bytes of gradients, and bytes of weights in all steps.
    gradient_bytes: u64,
    weight_bytes: u64,
}

impl<'a> CastSearch<'a> {
    /// `None` where no stack copies anything, as C++ shows.
    fn new(scene: &'a DeviceScene<'a>, categories: &'a [Category]) -> Option<Self> {
        let is_copying = copying_stacks(scene);
        if is_copying.as_ref().is_some_and(|stacks| !stacks.contains(&true)) {
            return None;
        }
        let mut weights: HashMap<u64, u32> = HashMap::new();
        for (allocation, category) in scene.timeline.allocations.iter().zip(categories) {
            let is_weight = *category == Category::Parameter
                || *category == Category::Unknown && allocation.is_older();
            if is_weight && allocation.is_at_end() && allocation.requested >= SOURCE_BYTES_MIN {
                *weights.entry(allocation.requested).or_default() += 1;
            }
        }
        // Optimizer state that is older than the window has sizes of weights too.
        let gradients = gradients_a_step(scene, categories);
        for (size, n) in weights.iter_mut().filter(|_| !gradients.is_empty()) {
            *n = (*n).min(gradients.get(size).copied().unwrap_or(0));
        }
        Some(Self {
            scene,
            categories,
            is_copying,
            weights,
            open: [HashMap::new(), HashMap::new()],
            found: BTreeMap::new(),
            copies: Vec::new(),
            micro_batch: BTreeMap::new(),
            gradient_bytes: 0,
            weight_bytes: 0,
        })
    }

    /// Searches the whole window; `None` if no copies are believed.
    fn of_window(scene: &'a DeviceScene<'a>, categories: &'a [Category]) -> Option<Self> {
        let last = scene.last_whole_slot();
        let mut search = Self::new(scene, categories)?;
        // A program that copies does so in every step.
        search.run(1..=last.min(STEPS_TRIED));
        if search.found.is_empty() || !search.is_believed() {
            return None;
        }
        search.run(STEPS_TRIED + 1..=last);
        search.is_believed().then_some(search)
    }

    fn run(&mut self, slots: RangeInclusive<u32>) {
        let found = self.scene.steps.training_loop.as_ref();
        let arrivals = found.map_or(&[][..], |found| &found.arrivals);
        for slot in slots {
            self.micro_batch.clear();
            let (first, end) = self.scene.steps.events_of(slot, self.scene.events.len());
            let weights = &self.weights;
            self.weight_bytes +=
                weights.iter().map(|(size, n)| size * u64::from(*n)).sum::<u64>();
            self.open = [HashMap::new(), weights.clone()];
            for number in first..end {
                if arrivals.binary_search(&number).is_ok() {
                    self.open = [HashMap::new(), self.weights.clone()];
                    self.micro_batch.clear();
                }
                if let Some(event) = self
                    .scene
                    .events
                    .get(at(number))
                    .filter(|event| event.action == Action::Alloc)
                {
                    self.add(slot, number, event);
                }
            }
        }
    }

    fn add(&mut self, slot: u32, number: u32, event: &Event) {
        let own =
            self.scene.timeline.of_event.get(at(number)).copied().unwrap_or(NO_ALLOCATION);
        let category = self.categories.get(at(own)).copied().unwrap_or_default();
        let role = self.scene.roles.of(event.stack);
        let is_copying = |search: &Self| {
            let stacks = search.is_copying.as_ref();
            stacks.is_none_or(|stacks| stacks.get(at(event.stack)) == Some(&true))
        };
        let source = match (role, category) {
            (StackRole::Forward, Category::Input) if event.size >= SOURCE_BYTES_MIN => {
                let [inputs, _] = &mut self.open;
                *inputs.entry(event.size).or_default() += 1;
                return;
            }
            (StackRole::Forward, _) if is_copying(self) => self.source_of(event.size),
            (StackRole::Backward, Category::Gradient) => {
                self.gradient_bytes += event.size;
                let is_copy = self.is_of_half(number, event.size) && is_copying(self);
                is_copy.then_some(CastSource::Gradient)
            }
            _ => None,
        };
        if let Some(source) = source {
            self.copies.push((own, source));
            let copies = self.found.entry(source).or_default();
            let now = self.micro_batch.entry(source).or_default();
            *now += event.size;
            let most = copies.of_slot.entry(slot).or_default();
            *most = (*now).max(*most);
            *copies.made_by.entry(event.stack).or_default() += event.size;
        }
    }

    /// The input or weight of twice a size that has no copy yet.
    fn source_of(&mut self, size: u64) -> Option<CastSource> {
        let whole = size.checked_mul(2)?;
        let [inputs, weights] = &mut self.open;
        for (sources, source) in [(inputs, CastSource::Input), (weights, CastSource::Weight)] {
            if let Some(left) = sources.get_mut(&whole).filter(|left| **left > 0) {
                *left -= 1;
                return Some(source);
            }
        }
        None
    }

    /// Returns whether the first free after an allocation in backward is of a block of half the
    /// size that backward made.
    fn is_of_half(&self, number: u32, size: u64) -> bool {
        let rest = self.scene.events.get(at(number) + 1..).unwrap_or(&[]);
        let next = rest.iter().zip(number + 1..).find(|(event, _)| {
            matches!(
                event.action,
                Action::Alloc | Action::FreeRequested | Action::FreeCompleted
            )
        });
        let Some((event, next)) = next.filter(|(event, _)| event.action != Action::Alloc)
        else {
            return false;
        };
        let freed = self.scene.timeline.allocation_of(at(next));
        let born = freed.and_then(|freed| freed.from.checked_sub(1));
        event.size.checked_mul(2) == Some(size)
            && born.is_some_and(|born| self.scene.phases.of(at(born)) == StepPhase::Backward)
    }

    /// C++ that copies, a gradient scaler, or a copy of nearly every weight and gradient.
    fn is_believed(&self) -> bool {
        let bytes = |source: CastSource| -> u64 {
            self.found.get(&source).map_or(0, |copies| copies.of_slot.values().sum())
        };
        let part = |copied: u64, of: u64| of > 0 && real(copied) >= COPIED_RATIO_MIN * real(of);
        let scales = || {
            let stacks = 0..id(self.scene.snapshot.stacks.len());
            stacks.into_iter().any(|stack| self.scene.roles.of(stack) == StackRole::Scaling)
        };
        self.is_copying.is_some()
            || scales()
            || part(2 * bytes(CastSource::Weight), self.weight_bytes)
                && part(bytes(CastSource::Gradient), self.gradient_bytes)
    }
}

/// Returns the number of gradients of a size that a step makes, at most.
fn gradients_a_step(scene: &DeviceScene<'_>, categories: &[Category]) -> HashMap<u64, u32> {
    let mut most: HashMap<u64, u32> = HashMap::new();
    let mut now: HashMap<(u32, u64), u32> = HashMap::new();
    for (lifetime, category) in scene.lifetimes().zip(categories) {
        if *category == Category::Gradient
            && lifetime.from > 0
            && !lifetime.allocation.is_older()
        {
            let size = lifetime.allocation.requested;
            let n = now.entry((lifetime.from, size)).or_default();
            *n += 1;
            let most = most.entry(size).or_default();
            *most = (*most).max(*n);
        }
    }
    most
}

/// Stacks whose C++ copies a tensor; `None` if no stack has C++.
fn copying_stacks(scene: &DeviceScene<'_>) -> Option<Vec<bool>> {
    let frames = scene.snapshot.frames.iter().zip(&scene.sites.frame_kinds);
    let mut names: HashMap<u32, bool> = HashMap::new();
    let mut has_cpp = false;
    let is_copying: Vec<bool> = frames
        .map(|(frame, kind)| {
            let is_python = matches!(kind, FrameKind::User | FrameKind::Library);
            has_cpp |= matches!(kind, FrameKind::Node(..) | FrameKind::Engine);
            !is_python
                && *names.entry(frame.name).or_insert_with(|| {
                    scene.snapshot.text(frame.name).contains("at::_ops::_to_copy::")
                })
        })
        .collect();
    let stacks = 0..id(scene.snapshot.stacks.len());
    has_cpp.then(|| {
        let copies = |stack: u32| {
            let mut frames = scene.snapshot.stacks.get(stack).iter();
            frames.any(|frame| is_copying.get(at(*frame)) == Some(&true))
        };
        stacks.map(copies).collect()
    })
}

fn note(scene: &DeviceScene<'_>, source: CastSource, copies: &Copies) -> Option<Note> {
    let bytes = copies.of_slot.values().max().copied()?;
    if bytes < NOTED_BYTES_MIN {
        return None;
    }
    let slots: Vec<u32> = copies.of_slot.keys().copied().collect();
    let line = line_of(scene, copies.made_by.clone());
    let line = line.filter(|site| site.kind == SiteKind::Python);
    let place = line.map_or_else(String::new, |line| format!(" at {}", line.short()));
    let steps = steps_in_words(scene, &slots);
    let what = match source {
        CastSource::Input => format!(
            "The forward pass copies inputs to half precision{place} in {steps}: both are alive until backward"
        ),
        CastSource::Weight => format!(
            "The forward pass copies weights to half precision{place} in {steps}: the copies live until backward is over"
        ),
        CastSource::Gradient => format!(
            "Backward makes gradients in half precision in {steps} and copies each to the precision of its weight"
        ),
    };
    Some(Note {
        text: format!("{what}."),
        bytes: Some(bytes),
        steps: Some(count(slots.len())),
        in_steps: in_steps(scene, &slots),
        location: line.and_then(Site::location),
        ..Note::of(NoteKind::Casts)
    })
}
