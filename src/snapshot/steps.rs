//! Where the steps of the training begin: by marks in the file, else by phases, else by what recurs.

use std::collections::HashMap;

use serde::Serialize;

use crate::snapshot::model::{Action, Annotation, Device, Event, NO_STACK, Snapshot};
use crate::snapshot::num::{at, count, id, real};
use crate::snapshot::sites::{SiteKind, Sites};

/// Bursts of the optimizer, passes of backward or recurrences that are believed.
const GUESSES_MIN: usize = 4;
/// Marks are preferred in their order if they span this much of what the widest span.
const SPAN_RATIO_MIN: f64 = 0.8;
/// The data loader's marks are taken where they are this much coarser than the optimizer's.
const COARSER_RATIO_MAX: f64 = 0.75;
/// How far the gaps between recurrences may deviate, in parts of their mean.
const DEVIATION_RATIO_MAX: f64 = 0.35;
/// Different stacks with sizes that are looked at for recurrence.
const RECURRING_MAX: usize = 1 << 20;

/// What says where a step begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Marker {
    /// `ProfilerStep#…`
    Profiler,
    /// `Optimizer.step#…`
    Optimizer,
    /// `Optimizer.zero_grad#…`
    ZeroGrad,
    /// `enumerate(DataLoader)#…`
    Dataloader,
    /// `user_metadata`
    Metadata,
    /// The optimizer's or backward's allocations.
    Phases,
    /// An allocation that recurs regularly.
    Recurrence,
    #[default]
    None,
}

impl Marker {
    /// Whether the file itself says where steps begin.
    pub fn is_marked(self) -> bool {
        !matches!(self, Self::Phases | Self::Recurrence | Self::None)
    }
}

/// The steps of a device's window.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    /// What says so.
    pub marker: Marker,
    /// The events that steps begin with, rising.
    pub marks: Vec<u32>,
    /// The numbers that the program gives its steps, where it does.
    pub labels: Vec<u64>,
}

impl Steps {
    /// Finds the steps of a device.
    pub fn find(snapshot: &Snapshot, device: &Device, sites: &Sites) -> Self {
        let events = snapshot.events_of(device);
        let marked = by_annotations(snapshot, device, events);
        if !marked.marks.is_empty() {
            return marked;
        }
        let metadata = by_metadata(snapshot, device);
        if !metadata.marks.is_empty() {
            return metadata;
        }
        let phases = by_phases(snapshot, events, sites);
        if !phases.is_empty() {
            return Self { marker: Marker::Phases, marks: phases, labels: Vec::new() };
        }
        let recurring = by_recurrence(events);
        if recurring.is_empty() {
            return Self::default();
        }
        Self { marker: Marker::Recurrence, marks: recurring, labels: Vec::new() }
    }

    /// How many steps are whole: from mark to mark.
    pub fn n_whole(&self) -> usize {
        self.marks.len().saturating_sub(1)
    }

    /// How many marks lie at or before an event: 0 before the first, 1 in the first step.
    pub fn slot(&self, event: usize) -> u32 {
        id(self.marks.partition_point(|mark| at(*mark) <= event))
    }

    /// The step of a slot as it is shown: by the program's number, else counted from 0.
    pub fn label(&self, slot: u32) -> Option<u64> {
        let index = at(slot).checked_sub(1)?;
        Some(self.labels.get(index).copied().unwrap_or(count(index)))
    }
}

/// What PyTorch's annotations begin with, in the order in which they are preferred.
const PREFIXES: [(&str, Marker); 4] = [
    ("ProfilerStep#", Marker::Profiler),
    ("Optimizer.step#", Marker::Optimizer),
    ("Optimizer.zero_grad#", Marker::ZeroGrad),
    ("enumerate(DataLoader)#", Marker::Dataloader),
];

/// Starts of marks of a kind in the window: on this device, or on any if it has none.
pub fn marks_of<'a>(
    snapshot: &'a Snapshot,
    device: &Device,
    events: &[Event],
    prefix: &str,
) -> Vec<&'a Annotation> {
    let (Some(first), Some(last)) = (events.first(), events.last()) else { return Vec::new() };
    if last.time_us == 0 {
        return Vec::new();
    }
    let mut names = HashMap::new();
    let all: Vec<&Annotation> = snapshot
        .annotations
        .iter()
        .filter(|mark| mark.is_start && (first.time_us..=last.time_us).contains(&mark.time_us))
        .filter(|mark| {
            *names.entry(mark.name).or_insert_with(|| {
                snapshot.strings.get(mark.name).starts_with(prefix.as_bytes())
            })
        })
        .collect();
    let own: Vec<&Annotation> = all
        .iter()
        .filter(|mark| mark.device.is_none_or(|of| of == device.index))
        .copied()
        .collect();
    if own.is_empty() { all } else { own }
}

fn by_annotations(snapshot: &Snapshot, device: &Device, events: &[Event]) -> Steps {
    let found =
        PREFIXES.map(|(prefix, marker)| (marks_of(snapshot, device, events, prefix), marker));
    let [profiler, optimizer, zero_grad, loader] = found;
    let widest = [&profiler, &optimizer, &zero_grad, &loader]
        .into_iter()
        .map(|(marks, _)| span(marks))
        .max()
        .unwrap_or(0);
    let is_wide = |marks: &[&Annotation]| real(span(marks)) >= SPAN_RATIO_MIN * real(widest);
    let updates =
        if zero_grad.0.len() >= optimizer.0.len() + 2 { &zero_grad } else { &optimizer };
    let is_coarser = !loader.0.is_empty()
        && is_wide(&loader.0)
        && real(count(loader.0.len())) <= COARSER_RATIO_MAX * real(count(updates.0.len()));
    let updates = if is_coarser { &loader } else { updates };
    let candidates = [&profiler, updates, &optimizer, &zero_grad, &loader];
    let chosen = candidates.into_iter().find(|(marks, _)| !marks.is_empty() && is_wide(marks));
    let Some((marks, marker)) = chosen else { return Steps::default() };
    let position =
        |mark: &&Annotation| id(events.partition_point(|event| event.time_us < mark.time_us));
    let mut labels = Vec::new();
    if *marker == Marker::Profiler {
        labels.extend(marks.iter().map_while(|mark| {
            let name = snapshot.text(mark.name);
            name.split_once('#').and_then(|(_, number)| number.parse::<u64>().ok())
        }));
        if labels.len() != marks.len() {
            labels.clear();
        }
    }
    Steps { marker: *marker, marks: marks.iter().map(position).collect(), labels }
}

fn span(marks: &[&Annotation]) -> u64 {
    match (marks.first(), marks.last()) {
        (Some(first), Some(last)) => last.time_us - first.time_us,
        _ => 0,
    }
}

/// Where `step=N` in `user_metadata` changes.
fn by_metadata(snapshot: &Snapshot, device: &Device) -> Steps {
    let mut numbers: HashMap<u32, Option<u64>> = HashMap::new();
    let mut steps = Steps { marker: Marker::Metadata, ..Steps::default() };
    let (first, end) = (id(device.events.0), id(device.events.1));
    let next = snapshot.metadata.partition_point(|run| run.end <= first);
    let runs = snapshot.metadata.iter().skip(next).take_while(|run| run.first < end);
    for run in runs {
        let step =
            *numbers.entry(run.text).or_insert_with(|| step_number(&snapshot.text(run.text)));
        if let Some(step) = step.filter(|step| steps.labels.last() != Some(step)) {
            steps.marks.push(run.first.max(first) - first);
            steps.labels.push(step);
        }
    }
    steps
}

/// The number after `step=`.
fn step_number(text: &str) -> Option<u64> {
    let (before, after) = text.split_once("step=")?;
    if before.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
        return None;
    }
    let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
    after.get(..digits)?.parse().ok()
}

/// Bursts of allocations under torch/optim, else passes of backward.
fn by_phases(snapshot: &Snapshot, events: &[Event], sites: &Sites) -> Vec<u32> {
    let allocations = || (0..).zip(events).filter(|(_, event)| event.action == Action::Alloc);
    let mut bursts = Vec::new();
    let mut was_optimizer = false;
    for (number, event) in allocations() {
        let is_optimizer = sites.is_optimizer(event.stack);
        if is_optimizer && !was_optimizer {
            bursts.push(number);
        }
        was_optimizer = is_optimizer;
    }
    if bursts.len() >= GUESSES_MIN {
        return bursts;
    }
    if !sites.has_stacks {
        return Vec::new();
    }
    let is_backward: Vec<bool> = backward_stacks(snapshot, sites);
    let mut passes: Vec<(u32, u32)> = Vec::new();
    let mut was_backward = false;
    for (number, event) in allocations() {
        let is_backward = is_backward.get(at(event.stack)).copied().unwrap_or(false);
        match passes.last_mut() {
            Some((_, length)) if is_backward && was_backward => *length += 1,
            _ if is_backward => passes.push((number, 1)),
            _ => {}
        }
        was_backward = is_backward;
    }
    let longest = passes.iter().map(|(_, length)| *length).max().unwrap_or(0);
    let passes: Vec<u32> = passes
        .into_iter()
        .filter(|(_, length)| length.saturating_mul(4) >= longest)
        .map(|(number, _)| number)
        .collect();
    if passes.len() >= GUESSES_MIN { passes } else { Vec::new() }
}

/// Whether a stack belongs to a pass of backward: recomputation by activation checkpointing does.
fn backward_stacks(snapshot: &Snapshot, sites: &Sites) -> Vec<bool> {
    let is_recomputation: Vec<bool> = {
        let mut files: HashMap<u32, bool> = HashMap::new();
        let of_file = |file| snapshot.text(file).replace('\\', "/").ends_with("/checkpoint.py");
        let frames = snapshot.frames.iter();
        frames
            .map(|frame| {
                *files.entry(frame.file).or_insert_with(|| of_file(frame.file))
                    && RECOMPUTING.contains(&snapshot.strings.get(frame.name))
            })
            .collect()
    };
    (0..id(snapshot.stacks.len()))
        .map(|stack| {
            let mut frames = snapshot.stacks.get(stack).iter();
            match sites.site(sites.of_origin(stack)).map(|site| site.kind) {
                Some(SiteKind::Backward | SiteKind::NoFrames) => true,
                _ => frames.any(|frame| is_recomputation.get(at(*frame)) == Some(&true)),
            }
        })
        .collect()
}

/// Functions of torch/utils/checkpoint.py that run the forward pass again, during backward.
const RECOMPUTING: [&[u8]; 3] = [b"backward", b"unpack_hook", b"recompute_fn"];

/// The regular recurrence of a stack, or of a stack with a size, whose gaps are the longest.
fn by_recurrence(events: &[Event]) -> Vec<u32> {
    let mut by_stack: HashMap<(u32, u64), Vec<u32>> = HashMap::new();
    for (number, event) in (0..).zip(events).filter(|(_, event)| event.action == Action::Alloc)
    {
        if by_stack.len() >= RECURRING_MAX {
            break;
        }
        if event.stack != NO_STACK {
            by_stack.entry((event.stack, u64::MAX)).or_default().push(number);
        }
        by_stack.entry((event.stack, event.size)).or_default().push(number);
    }
    let half = events.len() / 2;
    let regular = by_stack.into_values().filter(|marks| {
        let spans = marks.last().zip(marks.first()).map_or(0, |(last, first)| at(last - first));
        marks.len() >= GUESSES_MIN && spans >= half && is_regular(marks)
    });
    // The longest gaps are those of the fewest marks.
    regular.min_by_key(|marks| (marks.len(), marks.first().copied())).unwrap_or_default()
}

fn is_regular(marks: &[u32]) -> bool {
    let gaps: Vec<f64> = marks
        .windows(2)
        .map(|pair| pair.last().zip(pair.first()).map_or(0.0, |(b, a)| f64::from(b - a)))
        .collect();
    let n_gaps = real(count(gaps.len()));
    let mean = gaps.iter().sum::<f64>() / n_gaps;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / n_gaps;
    variance.sqrt() < DEVIATION_RATIO_MAX * mean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_number_stands_after_its_name() {
        assert_eq!(step_number("step=12"), Some(12));
        assert_eq!(step_number("phase=eval step=3;x"), Some(3));
        assert_eq!(step_number("substep=3"), None);
        assert_eq!(step_number("step=x"), None);
    }

    #[test]
    fn regular_gaps_are_told_from_bursts() {
        assert!(is_regular(&[10, 20, 31, 40]));
        assert!(!is_regular(&[10, 11, 12, 40]));
    }
}
