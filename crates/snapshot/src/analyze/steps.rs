//! The beginnings of the training's steps: by marks in the file, else by phases, else by what
//! recurs.

use std::collections::HashMap;

use serde::Serialize;

use crate::analyze::heads::{Anchor, Loop, LoopWindow};
use crate::analyze::phases::Phases;
use crate::integer::{at, count, id, real};
use crate::model::{Action, Annotation, Device, Event, NO_STACK, Snapshot};

/// Bursts of the optimizer, passes of backward or recurrences that are believed.
const GUESSES_MIN: usize = 4;
/// Updates that are believed where the loop's first line comes round again after them.
const UPDATES_MIN: usize = 2;
/// Marks are preferred in their order if they span this much of what the widest span.
const SPAN_RATIO_MIN: f64 = 0.8;
/// The data loader's marks are taken where they are this much coarser than the optimizer's.
const COARSER_RATIO_MAX: f64 = 0.75;
/// The largest deviation of the gaps between recurrences, in parts of their mean.
const DEVIATION_RATIO_MAX: f64 = 0.35;
/// The largest part of its allocations that a step keeps: what recurs and keeps more is the
/// layers of one pass.
const KEPT_RATIO_MAX: f64 = 1.0 / 3.0;
/// Different stacks with sizes that are checked for recurrence.
const RECURRING_MAX: usize = 1 << 20;

/// The kinds of markers that show where a step begins.
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
    /// Returns whether the file itself shows where steps begin.
    pub fn is_marked(self) -> bool {
        !matches!(self, Self::Phases | Self::Recurrence | Self::None)
    }
}

/// The steps of a device's window.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    /// The marker that shows it.
    pub marker: Marker,
    /// The events that steps begin with, rising.
    pub marks: Vec<u32>,
    /// The numbers that the program gives its steps, where it does.
    pub labels: Vec<u64>,
    /// Updates, rising, also those that a gradient scaler skipped.
    pub updates: Vec<Anchor>,
    /// The training loop, if marks are where it begins again and not at what a step does in its
    /// middle.
    pub training_loop: Option<Loop>,
}

impl Steps {
    /// Finds the steps of a device.
    pub fn find(window: LoopWindow<'_>, device: &Device, phases: &Phases) -> Self {
        let LoopWindow { snapshot, events, .. } = window;
        let updates = marks_of(snapshot, device, events, "Optimizer.step#");
        let updates = window.updates(&positions(events, &updates));
        let steps = by_annotations(snapshot, device, events)
            .map(|marked| marked.begun_at_the_loop(window, &updates))
            .or_else(|| by_metadata(snapshot, device))
            .or_else(|| by_updates(window, &updates))
            .or_else(|| by_phases(window, phases))
            .or_else(|| by_recurrence(window))
            .unwrap_or_default();
        Self { updates, ..steps }
    }

    /// The same steps from the first line of the loop on, where marks are of what a step does
    /// in its middle.
    fn begun_at_the_loop(self, window: LoopWindow<'_>, updates: &[Anchor]) -> Self {
        if !matches!(self.marker, Marker::Optimizer | Marker::ZeroGrad) {
            return self;
        }
        let n_marks = self.marks.len();
        let found = window.training_loop(updates);
        match found.filter(|found| found.heads.len().abs_diff(n_marks) <= 1) {
            Some(found) => {
                Self { marks: found.heads.clone(), training_loop: Some(found), ..self }
            }
            None => self,
        }
    }

    /// Returns whether it is known what a step is: by marks, or by a loop that begins again.
    pub fn is_known(&self) -> bool {
        self.marker.is_marked() || self.training_loop.is_some()
    }

    /// Returns the number of whole steps: from mark to mark.
    pub fn n_whole(&self) -> usize {
        self.marks.len().saturating_sub(1)
    }

    /// Returns the number of marks at or before an event: 0 before the first, 1 in the first
    /// step.
    pub fn slot(&self, event: usize) -> u32 {
        id(self.marks.partition_point(|mark| at(*mark) <= event))
    }

    /// The number of the step that an event is in; `None` before the first.
    pub fn of_event(&self, event: usize) -> Option<u64> {
        self.label(self.slot(event))
    }

    /// The first event of a slot and the one after its last; slot 0 is before the first mark.
    pub fn events_of(&self, slot: u32, n_events: usize) -> (u32, u32) {
        let mark = |slot: usize| self.marks.get(slot).copied();
        let first = at(slot).checked_sub(1).and_then(mark).unwrap_or(0);
        (first, mark(at(slot)).unwrap_or(id(n_events)))
    }

    /// The updates in a slot, also skipped ones.
    pub fn updates_in(&self, slot: u32, n_events: usize) -> &[Anchor] {
        let (first, end) = self.events_of(slot, n_events);
        let from = self.updates.partition_point(|update| update.event < first);
        let to = self.updates.partition_point(|update| update.event < end).max(from);
        self.updates.get(from..to).unwrap_or(&[])
    }

    /// The last slot that is a whole step. The slot after the last mark is one, if weights are
    /// updated in it. Where no update is seen in the window, it is one if it has as many passes
    /// of backward as the slot before.
    pub fn last_whole_slot(&self, events: &[Event], phases: &Phases) -> u32 {
        let last = id(self.marks.len());
        let n_passes = |slot| {
            let (first, end) = self.events_of(slot, events.len());
            phases.passes_between(first, end).len()
        };
        let (first, _) = self.events_of(last, events.len());
        let failed = || {
            let rest = events.get(at(first)..).unwrap_or(&[]);
            rest.iter().any(|event| event.action == Action::OutOfMemory)
        };
        let is_whole = self.training_loop.is_some()
            && if self.updates.is_empty() {
                n_passes(last) > 0
                    && n_passes(last) >= n_passes(last.saturating_sub(1))
                    && !failed()
            } else {
                !self.updates_in(last, events.len()).is_empty()
            };
        if is_whole { last } else { last.saturating_sub(1) }
    }

    /// The step of a slot as it is shown: by the program's number, else counted from 0.
    pub fn label(&self, slot: u32) -> Option<u64> {
        let index = at(slot).checked_sub(1)?;
        Some(self.labels.get(index).copied().unwrap_or(count(index)))
    }
}

/// The prefixes of PyTorch's annotations, in the order in which they are preferred.
const PREFIXES: [(&str, Marker); 4] = [
    ("ProfilerStep#", Marker::Profiler),
    ("Optimizer.step#", Marker::Optimizer),
    ("Optimizer.zero_grad#", Marker::ZeroGrad),
    ("enumerate(DataLoader)#", Marker::Dataloader),
];

/// Starts of marks of a kind from the window's first event on: on this device, or on any if it
/// has none.
pub(crate) fn marks_of<'a>(
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
        .filter(|mark| mark.is_start && mark.time_us >= first.time_us)
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

/// The events that marks lie before; the marks rise in time.
pub(crate) fn positions(events: &[Event], marks: &[&Annotation]) -> Vec<u32> {
    let mut seek = Seek { events, from: 0 };
    marks.iter().map(|mark| seek.first_since(mark.time_us)).collect()
}

/// Finds the events of times that rise: each is looked for near the one before.
struct Seek<'a> {
    events: &'a [Event],
    from: usize,
}

impl Seek<'_> {
    /// The first event at or after a time.
    fn first_since(&mut self, time_us: u64) -> u32 {
        let rest = self.events.get(self.from..).unwrap_or(&[]);
        let is_before = |event: &Event| event.time_us < time_us;
        let mut near = 1;
        while rest.get(near).is_some_and(is_before) {
            near *= 2;
        }
        self.from += rest.get(..near).unwrap_or(rest).partition_point(is_before);
        id(self.from)
    }
}

/// The spans between marks that begin so and their ends: the first event of each, and the one
/// after its last; rising.
pub(crate) fn spans_of(snapshot: &Snapshot, device: &Device, prefix: &str) -> Vec<(u32, u32)> {
    let events = snapshot.events_of(device);
    let mut spans = Vec::new();
    if events.last().is_none_or(|last| last.time_us == 0) {
        return spans;
    }
    let mut seek = Seek { events, from: 0 };
    let mut names: HashMap<u32, bool> = HashMap::new();
    let mut open: Option<u64> = None;
    for mark in &snapshot.annotations {
        let is_wanted = *names
            .entry(mark.name)
            .or_insert_with(|| snapshot.strings.get(mark.name).starts_with(prefix.as_bytes()));
        if !is_wanted || mark.device.is_some_and(|of| of != device.index) {
            continue;
        }
        match open {
            None if mark.is_start => open = Some(mark.time_us),
            Some(start) if !mark.is_start => {
                spans.push((seek.first_since(start), seek.first_since(mark.time_us)));
                open = None;
            }
            _ => {}
        }
    }
    spans
}

fn by_annotations(snapshot: &Snapshot, device: &Device, events: &[Event]) -> Option<Steps> {
    let end = events.last().map_or(0, |last| last.time_us);
    let found = PREFIXES.map(|(prefix, marker)| {
        let mut marks = marks_of(snapshot, device, events, prefix);
        marks.retain(|mark| mark.time_us <= end);
        (marks, marker)
    });
    let [profiler, optimizer, zero_grad, loader] = found;
    let widest = [&profiler, &optimizer, &zero_grad, &loader]
        .into_iter()
        .map(|(marks, _)| span(marks))
        .max()
        .unwrap_or(0);
    let is_wide = |marks: &[&Annotation]| real(span(marks)) >= SPAN_RATIO_MIN * real(widest);
    let updates = if is_skipping(&zero_grad.0, &optimizer.0) { &zero_grad } else { &optimizer };
    let is_coarser = !loader.0.is_empty()
        && is_wide(&loader.0)
        && real(count(loader.0.len())) <= COARSER_RATIO_MAX * real(count(updates.0.len()));
    let updates = if is_coarser { &loader } else { updates };
    let candidates = [&profiler, updates, &optimizer, &zero_grad, &loader];
    let chosen = candidates.into_iter().find(|(marks, _)| !marks.is_empty() && is_wide(marks));
    let (marks, marker) = chosen?;
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
    Some(Steps { marker: *marker, marks: positions(events, marks), labels, ..Steps::default() })
}

/// Returns whether an update is missing between two calls of `zero_grad`.
fn is_skipping(zero_grads: &[&Annotation], updates: &[&Annotation]) -> bool {
    zero_grads.len() > updates.len()
        && zero_grads.windows(2).any(|pair| {
            let [this, next] = pair else { return false };
            let before = |time: u64| updates.partition_point(|update| update.time_us < time);
            before(this.time_us) == before(next.time_us)
        })
}

fn span(marks: &[&Annotation]) -> u64 {
    match (marks.first(), marks.last()) {
        (Some(first), Some(last)) => last.time_us - first.time_us,
        _ => 0,
    }
}

/// The steps by `step=N` in `user_metadata`, where it changes.
fn by_metadata(snapshot: &Snapshot, device: &Device) -> Option<Steps> {
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
    (!steps.marks.is_empty()).then_some(steps)
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

/// Steps by phases, from the first line of the loop on where it comes round again.
fn guessed(window: LoopWindow<'_>, anchors: &[Anchor]) -> Option<Steps> {
    let found = window.training_loop(anchors).filter(|found| {
        found.heads.len() >= UPDATES_MIN && anchors.len() <= 2 * found.heads.len()
    });
    let marks = match &found {
        Some(found) => found.heads.clone(),
        None if anchors.len() >= GUESSES_MIN => {
            anchors.iter().map(|anchor| anchor.event).collect()
        }
        None => return None,
    };
    Some(Steps { marker: Marker::Phases, marks, training_loop: found, ..Steps::default() })
}

/// The optimizer's updates.
fn by_updates(window: LoopWindow<'_>, updates: &[Anchor]) -> Option<Steps> {
    if updates.len() < UPDATES_MIN {
        return None;
    }
    guessed(window, updates)
}

/// Passes of backward.
fn by_phases(window: LoopWindow<'_>, phases: &Phases) -> Option<Steps> {
    if !window.sites.has_stacks || phases.passes.len() < GUESSES_MIN {
        return None;
    }
    let passes: Vec<Anchor> = phases.passes.iter().map(|pass| Anchor::at(pass.first)).collect();
    guessed(window, &passes)
}

/// The regular recurrence of a stack, or of a stack with a size, whose gaps are the longest;
/// `None` if it is of the layers of one pass.
fn by_recurrence(window: LoopWindow<'_>) -> Option<Steps> {
    let events = window.events;
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
    let marks = regular.min_by_key(|marks| (marks.len(), marks.first().copied()))?;
    let first = at(marks.first().copied()?);
    let between = window.events.get(first..at(marks.last().copied()?)).unwrap_or(&[]);
    if keeps_its_work(between) || window.is_in_one_pass(between) {
        return None;
    }
    Some(Steps { marker: Marker::Recurrence, marks, ..Steps::default() })
}

/// Returns whether most of what is allocated is still there afterwards.
fn keeps_its_work(events: &[Event]) -> bool {
    let (mut allocated, mut freed) = (0_u64, 0_u64);
    for event in events {
        match event.action {
            Action::Alloc => allocated = allocated.saturating_add(event.size),
            Action::FreeCompleted => freed = freed.saturating_add(event.size),
            _ => {}
        }
    }
    real(allocated.saturating_sub(freed)) > KEPT_RATIO_MAX * real(allocated)
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
