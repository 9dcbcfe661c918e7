//! Workspaces of cuBLAS in files without C++ frames, by their size and lifetime. PyTorch keeps
//! one for each thread and stream, from the first multiplication on: its stack is that of the
//! line that multiplies, or of autograd.

use std::collections::HashMap;

use crate::analyze::sites::Sites;
use crate::model::NO_STACK;
use crate::replay::{Allocation, Timeline};

/// The size for most GPUs (`:4096:2:16:8`). No tensor is likely to have it.
const USUAL_BYTES: u64 = (2 * 4096 + 8 * 16) << 10;
/// All sizes that `parseChosenWorkspaceSize` and `parseCUDABlasLtWorkspaceSize` of PyTorch have
/// for a GPU, in bytes: cuBLAS's usual one, from Hopper on, and on MI300; hipBLASLt's and
/// cuBLASLt's.
const SIZES: [u64; 5] = [USUAL_BYTES, 32 << 20, 128 << 20, 76 << 20, 1 << 20];
/// The allocations that its stack makes after it, at least: the line goes on.
const LATER_MIN: u32 = 2;
/// Half of what a line goes on making is freed, or this part of it is of one size: lines that
/// build a model keep tensors of many.
const ONE_SIZE_RATIO_MIN: f64 = 0.9;

/// Marks the workspaces of a device.
pub(crate) fn find(sites: &Sites, timeline: &mut Timeline) {
    let mut found = if sites.has_cpp {
        Vec::new()
    } else {
        WorkspaceSearch::new(sites, timeline).made_in_window()
    };
    let older = timeline.allocations.iter().enumerate().filter(|(_, own)| {
        own.is_older() && own.stack == NO_STACK && own.requested == USUAL_BYTES
    });
    found.extend(older.map(|(number, _)| number));
    for number in found {
        if let Some(allocation) = timeline.allocations.get_mut(number) {
            allocation.is_workspace = true;
        }
    }
}

/// Allocations of one stack and stream that have the size of a workspace.
#[derive(Clone, Copy, Debug, Default)]
struct SameSize {
    /// The longest lifetime of those that are freed, in states.
    longest: u32,
    n_freed: u32,
    /// The blocks that have outlived it by far: the first by number, and how many.
    first: usize,
    n_outlived: u32,
}

/// A candidate, and the other allocations of its stack.
#[derive(Clone, Debug, Default)]
struct OfStack {
    number: usize,
    /// The state in which the candidate begins.
    from: u32,
    n_before: u32,
    n_after: u32,
    n_freed: u32,
    /// The state in which the last one begins.
    last: u32,
    sizes: HashMap<u64, u32>,
}

impl OfStack {
    fn add(&mut self, own: &Allocation) {
        if own.from < self.from {
            self.n_before += 1;
        } else if own.from > self.from {
            self.n_after += 1;
            self.n_freed += u32::from(!own.is_at_end());
            self.last = own.from;
            *self.sizes.entry(own.requested).or_default() += 1;
        }
    }

    /// Returns whether the line goes on after its first run, and makes nothing of that kind
    /// again.
    fn goes_on(&self, end: u32) -> bool {
        let most = self.sizes.values().max().copied().unwrap_or(0);
        self.n_after >= LATER_MIN
            && self.n_before <= self.n_after
            && self.last >= end / 2
            && (2 * self.n_freed >= self.n_after
                || f64::from(most) >= ONE_SIZE_RATIO_MIN * f64::from(self.n_after))
    }
}

struct WorkspaceSearch<'a> {
    sites: &'a Sites,
    timeline: &'a Timeline,
    /// The blocks of each stack, stream and size.
    same_size: HashMap<(u32, u32, u64), SameSize>,
}

fn key(own: &Allocation) -> (u32, u32, u64) {
    (own.stack, own.place.stream(), own.requested)
}

impl<'a> WorkspaceSearch<'a> {
    fn new(sites: &'a Sites, timeline: &'a Timeline) -> Self {
        let mut same_size: HashMap<_, SameSize> = HashMap::new();
        let sized = || {
            let all = timeline.allocations.iter().enumerate();
            all.filter(|(_, own)| !own.is_older() && SIZES.contains(&own.requested))
        };
        for (_, own) in sized().filter(|(_, own)| !own.is_at_end()) {
            let same = same_size.entry(key(own)).or_default();
            same.longest = same.longest.max(own.until.saturating_sub(own.from));
            same.n_freed += 1;
        }
        let end = timeline.end();
        for (number, own) in sized().filter(|(_, own)| own.is_at_end()) {
            let same = same_size.entry(key(own)).or_default();
            if end - own.from > same.longest.saturating_mul(2) {
                same.first = if same.n_outlived == 0 { number } else { same.first };
                same.n_outlived += 1;
            }
        }
        Self { sites, timeline, same_size }
    }

    /// The workspaces that a line, or autograd, made once in its first run and keeps.
    fn made_in_window(&self) -> Vec<usize> {
        let candidates: Vec<(usize, &Allocation)> = self
            .same_size
            .iter()
            .filter(|((stack, _, size), same)| {
                let may_be = *stack != NO_STACK
                    || self.sites.has_stacks && (same.n_freed > 0 || !self.has_weight(*size));
                same.n_outlived == 1 && may_be
            })
            .filter_map(|(_, same)| {
                Some((same.first, self.timeline.allocations.get(same.first)?))
            })
            .collect();
        let mut of_stack: HashMap<u32, Vec<OfStack>> = HashMap::new();
        for (number, own) in candidates {
            let of_stack = of_stack.entry(own.stack).or_default();
            if of_stack.len() < SIZES.len() {
                of_stack.push(OfStack { number, from: own.from, ..OfStack::default() });
            }
        }
        for own in self.timeline.allocations.iter().filter(|own| !own.is_older()) {
            for candidate in of_stack.get_mut(&own.stack).into_iter().flatten() {
                candidate.add(own);
            }
        }
        let end = self.timeline.end();
        let candidates = of_stack.into_values().flatten();
        let found = candidates.filter(|candidate| candidate.goes_on(end));
        found.map(|candidate| candidate.number).collect()
    }

    /// Returns whether a tensor of some size stays that a gradient could be of. What its line
    /// made once may be a workspace itself.
    fn has_weight(&self, size: u64) -> bool {
        self.timeline.allocations.iter().any(|own| {
            let is_once =
                || self.same_size.get(&key(own)).is_some_and(|same| same.n_outlived == 1);
            own.requested == size
                && own.is_at_end()
                && (own.is_older() || own.stack != NO_STACK && !is_once())
        })
    }
}
