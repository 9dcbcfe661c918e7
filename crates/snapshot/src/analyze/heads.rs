//! The beginnings of the training loop's iterations: at the line of the loop that comes round
//! again after the update.

use std::collections::HashMap;

use crate::analyze::roles::{MODULE_CALLS, StackRole, StackRoles};
use crate::analyze::sites::{FrameKind, Sites};
use crate::integer::{at, count, id, real};
use crate::model::{Action, Event, NO_STACK, Snapshot};

/// Updates that are tried before the search for the loop's first line is given up.
const TRIES_MAX: usize = 16;
/// The loop's first line is the one that this part of the updates is followed by, at least.
const AGREE_RATIO_MIN: f64 = 0.5;
/// Iterations that the search needs.
const HEADS_MIN: usize = 2;

/// Something that an iteration does once: the optimizer's update, else a pass of backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    pub event: u32,
    /// The event's stack, if it is an allocation that has one.
    pub stack: Option<u32>,
    /// Set when weights are updated; a gradient scaler may check gradients and skip that.
    pub is_update: bool,
}

impl Anchor {
    /// A moment without a stack.
    pub fn at(event: u32) -> Self {
        Self { event, stack: None, is_update: true }
    }
}

/// The iterations of the training loop.
#[derive(Clone, Debug, Default)]
pub struct Loop {
    /// The events that iterations begin with.
    pub heads: Vec<u32>,
    /// The events at which the program comes to the loop's first line: heads, and further
    /// micro-batches.
    pub arrivals: Vec<u32>,
    /// The frame of that line.
    pub line: u32,
}

/// One device's events with the roles of their stacks.
#[derive(Clone, Copy, Debug)]
pub struct LoopWindow<'a> {
    pub snapshot: &'a Snapshot,
    pub sites: &'a Sites,
    pub roles: &'a StackRoles,
    pub events: &'a [Event],
}

impl LoopWindow<'_> {
    fn allocations(&self) -> impl Iterator<Item = (u32, &Event)> {
        (0..).zip(self.events).filter(|(_, event)| event.action == Action::Alloc)
    }

    /// Updates: allocations of the optimizer or a gradient scaler, and marks in the file. What
    /// no forward or backward pass lies between is one update.
    pub fn updates(&self, marks: &[u32]) -> Vec<Anchor> {
        let mut marks = marks.iter().copied().peekable();
        let mut found: Vec<Anchor> = Vec::new();
        let mut is_open = false;
        let add = |found: &mut Vec<Anchor>, is_open: &mut bool, anchor: Anchor| {
            match found.last_mut().filter(|_| *is_open) {
                Some(last) => {
                    last.stack = last.stack.or(anchor.stack);
                    last.is_update |= anchor.is_update;
                }
                None => found.push(anchor),
            }
            *is_open = true;
        };
        for (number, event) in self.allocations() {
            while let Some(mark) = marks.next_if(|mark| *mark <= number) {
                add(&mut found, &mut is_open, Anchor::at(mark));
            }
            match self.roles.of(event.stack) {
                role @ (StackRole::Update | StackRole::Scaling) => {
                    let is_update = role == StackRole::Update;
                    let anchor = Anchor { event: number, stack: Some(event.stack), is_update };
                    add(&mut found, &mut is_open, anchor);
                }
                StackRole::ZeroGrad | StackRole::Collective | StackRole::Exchange => {}
                StackRole::Forward | StackRole::Backward => is_open = false,
            }
        }
        for mark in marks {
            add(&mut found, &mut is_open, Anchor::at(mark));
        }
        // A mark lies before the event that it names: what it marks belongs to the one before
        // that.
        for anchor in found.iter_mut().filter(|anchor| anchor.stack.is_none()) {
            anchor.event = anchor.event.saturating_sub(1);
        }
        found
    }

    /// The Python frames of a stack, outermost first.
    fn path(&self, stack: u32) -> impl Iterator<Item = u32> {
        let frames = self.snapshot.stacks.get(stack).iter().rev().copied();
        frames.filter(|frame| {
            let kind = self.sites.frame_kinds.get(at(*frame));
            matches!(kind, Some(FrameKind::User | FrameKind::Library))
        })
    }

    /// Returns whether all that some events allocate is allocated in one pass of backward, or
    /// within one call of a module: what comes round again are its layers.
    pub fn is_in_one_pass(&self, events: &[Event]) -> bool {
        let is_recorded = self.events.iter().any(|event| self.is_framed(event));
        let mut common: Option<Vec<u32>> = None;
        let mut last = NO_STACK;
        for event in events.iter().filter(|event| self.is_framed(event)) {
            if std::mem::replace(&mut last, event.stack) == event.stack {
                continue;
            }
            match &mut common {
                None => common = Some(self.path(event.stack).collect()),
                Some(common) => {
                    let shared = common.iter().zip(self.path(event.stack));
                    let n_shared = shared.take_while(|(a, b)| **a == *b).count();
                    common.truncate(n_shared);
                }
            }
        }
        let is_module = |frame: &u32| {
            let name = self.snapshot.strings.get(self.snapshot.frame(*frame).name);
            name == b"forward" || MODULE_CALLS.contains(&name)
        };
        is_recorded && common.is_none_or(|common| common.iter().any(is_module))
    }

    /// The frame by which one stack goes back from another: of one function, and above its
    /// line.
    fn back(&self, next: u32, before: u32) -> Option<u32> {
        let mut pairs = self.path(next).zip(self.path(before));
        let (next, before) = pairs.find(|(next, before)| next != before)?;
        let (to, from) = (self.snapshot.frame(next), self.snapshot.frame(before));
        let is_back = to.file == from.file && to.name == from.name && to.line < from.line;
        is_back.then_some(next)
    }

    /// The first allocation after an anchor that goes back from it, and the frame by which it
    /// does.
    fn next_head(&self, anchor: Anchor, end: usize) -> Option<(u32, u32)> {
        let first = at(anchor.event);
        let before = || {
            let earlier = self.events.get(..first)?;
            earlier.iter().rev().find(|event| self.is_framed(event)).map(|event| event.stack)
        };
        let base = anchor.stack.or_else(before)?;
        let mut last = NO_STACK;
        let later = self.events.get(first..end)?;
        (anchor.event..).zip(later).filter(|(_, event)| self.is_framed(event)).find_map(
            |(number, event)| {
                // Most allocations are from the stack of the one before.
                let is_known = std::mem::replace(&mut last, event.stack) == event.stack;
                let frame = if is_known { None } else { self.back(event.stack, base) };
                frame.map(|frame| (number, frame))
            },
        )
    }

    /// The loop that the anchors are in; `None` where no line comes round again.
    pub fn training_loop(&self, anchors: &[Anchor]) -> Option<Loop> {
        let mut after: Vec<(u32, u32)> = Vec::with_capacity(anchors.len());
        let ends = anchors.iter().skip(1).map(|next| at(next.event));
        for (n_tried, (anchor, end)) in
            anchors.iter().zip(ends.chain([self.events.len()])).enumerate()
        {
            if n_tried >= TRIES_MAX && after.is_empty() {
                return None;
            }
            after.extend(self.next_head(*anchor, end.min(self.events.len())));
        }
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for (_, frame) in &after {
            *counts.entry(*frame).or_default() += 1;
        }
        let (line, agreeing) =
            counts.into_iter().max_by_key(|(frame, n)| (*n, std::cmp::Reverse(*frame)))?;
        if agreeing < HEADS_MIN.min(anchors.len().saturating_sub(1)).max(1)
            || real(count(agreeing)) < AGREE_RATIO_MIN * real(count(after.len()))
        {
            return None;
        }
        let mut after: Vec<u32> = after
            .into_iter()
            .filter(|(_, frame)| *frame == line)
            .map(|(event, _)| event)
            .collect();
        after.dedup();
        let arrivals = self.arrivals(line);
        let heads = grouped(&arrivals, &after).into_iter().map(|head| self.begin(head));
        Some(Loop { heads: heads.collect(), arrivals, line })
    }

    /// The first event of an iteration, by its first allocation. Frees that go back before it,
    /// and requests to the driver for it, are of that iteration too.
    fn begin(&self, head: u32) -> u32 {
        let earlier =
            || (0..head).rev().map_while(|number| Some((number, self.events.get(at(number))?)));
        let base =
            earlier().find(|(_, event)| self.is_framed(event)).map(|(_, event)| event.stack);
        let between = earlier().take_while(|(_, event)| event.action != Action::Alloc);
        let begun = between.filter(|(number, event)| match event.action {
            Action::FreeRequested => {
                base.is_some_and(|base| self.back(event.stack, base).is_some())
            }
            Action::SegmentAlloc | Action::SegmentMap => number + 1 == head,
            _ => false,
        });
        begun.last().map_or(head, |(number, _)| number)
    }

    /// Returns whether an event allocates from a stack that is not autograd's.
    fn is_framed(&self, event: &Event) -> bool {
        event.action == Action::Alloc
            && event.stack != NO_STACK
            && self.roles.of(event.stack) != StackRole::Backward
    }

    /// The frame of a stack in the function that the loop is in.
    pub fn frame_in_loop(&self, line: u32, stack: u32) -> Option<u32> {
        let head = self.snapshot.frame(line);
        self.path(stack).find(|frame| {
            let frame = self.snapshot.frame(*frame);
            frame.file == head.file && frame.name == head.name
        })
    }

    /// The events at which the program comes to a line: its allocations under it that follow
    /// one elsewhere.
    fn arrivals(&self, head: u32) -> Vec<u32> {
        let stacks = 0..id(self.snapshot.stacks.len());
        let is_at: Vec<bool> =
            stacks.map(|stack| self.path(stack).any(|frame| frame == head)).collect();
        let mut was_at = false;
        let mut arrivals = Vec::new();
        for (number, event) in self.allocations() {
            let is_at = is_at.get(at(event.stack)).copied().unwrap_or(false);
            if is_at && !was_at {
                arrivals.push(number);
            }
            was_at = is_at;
        }
        arrivals
    }
}

/// The arrivals that begin an iteration: with micro-batches, the line comes round several times
/// between two updates. An iteration without an update has as many as the others.
fn grouped(arrivals: &[u32], after_updates: &[u32]) -> Vec<u32> {
    let places: Vec<usize> = after_updates
        .iter()
        .map(|event| arrivals.partition_point(|arrival| arrival < event))
        .collect();
    let mut gaps: Vec<usize> =
        places.iter().zip(places.iter().skip(1)).map(|(from, to)| to - from).collect();
    gaps.sort_unstable();
    let usual = most_frequent(&gaps).unwrap_or(1).max(1);
    let mut heads = Vec::with_capacity(arrivals.len() / usual + 1);
    let first = places.first().copied().unwrap_or(arrivals.len());
    // Before the first update the window may begin in the middle of an iteration.
    heads.extend((first % usual..first).step_by(usual));
    let ends = places.iter().skip(1).copied().chain([arrivals.len()]);
    for (from, to) in places.iter().copied().zip(ends) {
        let n_iterations = ((to - from + usual / 2) / usual).max(1);
        heads.extend((from..to).step_by(usual).take(n_iterations));
    }
    heads.iter().filter_map(|place| arrivals.get(*place).copied()).collect()
}

/// The most frequent of some numbers that are sorted; the least of several.
fn most_frequent(sorted: &[usize]) -> Option<usize> {
    let runs = sorted.chunk_by(|a, b| a == b);
    let longest =
        runs.max_by_key(|run| (run.len(), std::cmp::Reverse(run.first().copied())))?;
    longest.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_arrival_begins_an_iteration_with_or_without_an_update() {
        assert_eq!(grouped(&[2, 10, 20, 30, 40], &[20, 30, 40]), [2, 10, 20, 30, 40]);
        assert_eq!(grouped(&[2, 10, 20, 30, 40], &[10, 30, 40]), [2, 10, 20, 30, 40]);
    }

    #[test]
    fn micro_batches_are_one_iteration() {
        let arrivals: Vec<u32> = (0..12).map(|n| 10 * n).collect();
        assert_eq!(grouped(&arrivals, &[40, 80]), [0, 40, 80]);
        assert_eq!(grouped(&arrivals, &[20, 60, 100]), [20, 60, 100], "begun in the middle");
    }

    #[test]
    fn a_skipped_iteration_has_its_micro_batches_too() {
        let arrivals: Vec<u32> = (0..16).map(|n| 10 * n).collect();
        assert_eq!(
            grouped(&arrivals, &[20, 40, 80, 100, 120]),
            [0, 20, 40, 60, 80, 100, 120, 140]
        );
    }
}
