//! Memory that backward made without a stack: the steps that made it, and the lines whose tensors
//! it has the size of. A gradient is as large as the tensor that it belongs to.

use std::collections::{BTreeMap, HashMap};

use crate::analyze::device::DeviceScene;
use crate::analyze::phases::StepPhase;
use crate::analyze::sites::{SiteKind, Sum};
use crate::integer::at;
use crate::model::NO_STACK;
use crate::replay::Allocation;

/// Lines with tensors of each size, rounded; `None` where several have it.
#[derive(Debug)]
pub struct LinesBySize(HashMap<u64, Option<u32>>);

impl LinesBySize {
    /// The lines of some allocations; what the optimizer made mirrors weights itself.
    pub fn new<'a>(
        scene: &DeviceScene<'_>,
        allocations: impl Iterator<Item = &'a Allocation>,
    ) -> Self {
        let mut lines: HashMap<u64, Option<u32>> = HashMap::new();
        for allocation in allocations.filter(|a| !scene.sites.is_optimizer(a.stack)) {
            let site = scene.sites.of(allocation);
            if scene.sites.site(site).is_some_and(|site| site.kind == SiteKind::Python) {
                let bytes = scene.snapshot.rounding.round(allocation.requested);
                let only = lines.entry(bytes).or_insert(Some(site));
                *only = only.filter(|line| *line == site);
            }
        }
        Self(lines)
    }

    /// The only line with tensors of a rounded size.
    pub fn only(&self, size: u64) -> Option<u32> {
        self.0.get(&size).copied().flatten()
    }
}

/// Memory that backward made without stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirrored {
    /// The first and the last step that made any of it.
    pub steps: Option<(u64, u64)>,
    /// Lines that it has the sizes of, the one of most bytes first.
    pub lines: Vec<(u32, Sum)>,
}

/// Looks at what is alive in a state, or at the end: `None` unless all of it that has no stack
/// was made in backward.
pub fn find(scene: &DeviceScene<'_>, state: Option<u32>) -> Option<Mirrored> {
    if !scene.sites.has_stacks {
        return None;
    }
    let alive = || {
        scene.timeline.allocations.iter().filter(|allocation| match state {
            Some(state) => allocation.is_alive(state),
            None => allocation.is_at_end(),
        })
    };
    let unnamed = || alive().filter(|a| a.stack == NO_STACK && !a.is_older());
    let event = |allocation: &Allocation| at(allocation.from.saturating_sub(1));
    if unnamed().any(|allocation| scene.phases.of(event(allocation)) != StepPhase::Backward) {
        return None;
    }
    let by_size = LinesBySize::new(scene, alive());
    let mut sums: BTreeMap<u32, Sum> = BTreeMap::new();
    let mut steps: Option<(u64, u64)> = None;
    for allocation in unnamed() {
        if let Some(step) = scene.steps.of_event(event(allocation)) {
            let (first, last) = steps.unwrap_or((step, step));
            steps = Some((first.min(step), last.max(step)));
        }
        let size = scene.snapshot.rounding.round(allocation.requested);
        if let Some(line) = by_size.only(size) {
            sums.entry(line).or_default().add(allocation);
        }
    }
    let mut lines: Vec<(u32, Sum)> = sums.into_iter().collect();
    lines.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.bytes));
    Some(Mirrored { steps, lines })
}
