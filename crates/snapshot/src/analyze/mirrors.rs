//! Memory that backward made without a stack: the steps that made it, and the lines whose tensors
//! it has the size of. A gradient is as large as the tensor that it belongs to.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::analyze::device::DeviceScene;
use crate::analyze::phases::StepPhase;
use crate::analyze::sites::{SiteKind, Sum};
use crate::integer::at;
use crate::model::{Action, NO_STACK};
use crate::replay::{Allocation, NEVER};

impl DeviceScene<'_> {
    /// Returns the line that an allocation without a stack mirrors, by its number: the only line
    /// with a tensor of its size over its whole lifetime.
    pub fn mirrored_line(&self, allocation: u32) -> Option<u32> {
        self.mirrors.get_or_init(|| MirrorSearch::run(self)).get(&allocation).copied()
    }
}

/// Tensors of one size that are alive: the first state of each by line, and the earliest of each
/// line.
#[derive(Default)]
struct SameSize {
    of_line: HashMap<u32, BTreeSet<u32>>,
    earliest: BTreeSet<(u32, u32)>,
}

impl SameSize {
    fn change(&mut self, line: u32, change: impl FnOnce(&mut BTreeSet<u32>) -> bool) {
        let states = self.of_line.entry(line).or_default();
        let before = states.first().copied();
        if change(states) && before != states.first().copied() {
            if let Some(state) = before {
                self.earliest.remove(&(state, line));
            }
            self.earliest.extend(states.first().map(|state| (*state, line)));
        }
    }

    /// The only line with a tensor from before a state.
    fn only(&self, state: u32) -> Option<u32> {
        let mut lines = self.earliest.iter().take_while(|(from, _)| *from < state);
        let (_, line) = lines.next()?;
        lines.next().is_none().then_some(*line)
    }
}

struct MirrorSearch<'a> {
    scene: &'a DeviceScene<'a>,
    /// Live tensors of Python lines, by rounded size.
    alive: HashMap<u64, SameSize>,
    found: HashMap<u32, u32>,
}

impl<'a> MirrorSearch<'a> {
    /// Searches the window of a device.
    fn run(scene: &'a DeviceScene<'a>) -> HashMap<u32, u32> {
        let mut search = Self { scene, alive: HashMap::new(), found: HashMap::new() };
        let allocations = &scene.timeline.allocations;
        for allocation in allocations.iter().filter(|allocation| allocation.is_older()) {
            search.begin(allocation);
        }
        let events = (0..).zip(scene.events).zip(&scene.timeline.of_event);
        for ((number, event), own) in events {
            let Some(allocation) = allocations.get(at(*own)) else { continue };
            match event.action {
                Action::Alloc => {
                    if let Some(displaced) = scene.timeline.displaced_by(number) {
                        search.end(displaced);
                    }
                    search.begin(allocation);
                }
                Action::FreeCompleted => search.end(*own),
                _ => {}
            }
        }
        for (number, allocation) in (0..).zip(allocations).filter(|(_, a)| a.until == NEVER) {
            search.settle(number, allocation);
        }
        search.found
    }

    fn begin(&mut self, allocation: &Allocation) {
        if let Some(line) = line(self.scene, allocation) {
            let same_size = self.alive.entry(size(self.scene, allocation)).or_default();
            same_size.change(line, |states| states.insert(allocation.from));
        }
    }

    fn end(&mut self, number: u32) {
        let Some(allocation) = self.scene.timeline.allocations.get(at(number)) else { return };
        self.settle(number, allocation);
        if let Some(line) = line(self.scene, allocation)
            && let Some(same_size) = self.alive.get_mut(&size(self.scene, allocation))
        {
            same_size.change(line, |states| states.remove(&allocation.from));
        }
    }

    /// Finds the line that an allocation mirrors, at its end.
    fn settle(&mut self, number: u32, allocation: &Allocation) {
        if is_of_backward(self.scene, allocation)
            && let Some(same_size) = self.alive.get(&size(self.scene, allocation))
            && let Some(line) = same_size.only(allocation.from)
        {
            self.found.insert(number, line);
        }
    }
}

fn size(scene: &DeviceScene<'_>, allocation: &Allocation) -> u64 {
    scene.snapshot.rounding.round(allocation.requested)
}

/// The line of an allocation that others can mirror; what the optimizer made mirrors weights
/// itself.
pub(crate) fn line(scene: &DeviceScene<'_>, allocation: &Allocation) -> Option<u32> {
    let is_line = scene.sites.kind(allocation) == SiteKind::Python
        && !scene.sites.is_optimizer(allocation.stack);
    is_line.then(|| scene.sites.of(allocation))
}

/// Returns whether an allocation of the window has no stack.
fn is_unnamed(allocation: &Allocation) -> bool {
    allocation.stack == NO_STACK && !allocation.is_older() && !allocation.is_workspace
}

/// Returns whether an allocation was made in backward and has no stack.
pub(crate) fn is_of_backward(scene: &DeviceScene<'_>, allocation: &Allocation) -> bool {
    let event = at(allocation.from.saturating_sub(1));
    scene.sites.has_stacks
        && is_unnamed(allocation)
        && scene.phases.of(event) == StepPhase::Backward
}

/// Memory that backward made without stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mirrored {
    /// The first and the last step that made any of it.
    pub steps: Option<(u64, u64)>,
    /// Lines that it mirrors, the one of most bytes first.
    pub lines: Vec<(u32, Sum)>,
}

/// Looks at the allocations of some that have no stack: `None` unless backward made them all.
pub(crate) fn find(
    scene: &DeviceScene<'_>,
    is_meant: impl Fn(&Allocation) -> bool,
) -> Option<Mirrored> {
    let unnamed = || {
        let all = (0..).zip(&scene.timeline.allocations);
        all.filter(|(_, allocation)| is_unnamed(allocation) && is_meant(allocation))
    };
    if unnamed().any(|(_, allocation)| !is_of_backward(scene, allocation)) {
        return None;
    }
    let mut sums: BTreeMap<u32, Sum> = BTreeMap::new();
    let mut steps: Option<(u64, u64)> = None;
    for (number, allocation) in unnamed() {
        if let Some(step) = scene.steps.of_event(at(allocation.from.saturating_sub(1))) {
            let (first, last) = steps.unwrap_or((step, step));
            steps = Some((first.min(step), last.max(step)));
        }
        if let Some(line) = scene.mirrored_line(number) {
            sums.entry(line).or_default().add(allocation);
        }
    }
    let mut lines: Vec<(u32, Sum)> = sums.into_iter().collect();
    lines.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.bytes));
    Some(Mirrored { steps, lines })
}
