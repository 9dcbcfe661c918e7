//! The generations of a line: the steps in which what it keeps was born, and for how long it
//! kept what it freed. What is in use for a bounded time has one or two generations; the length
//! of a queue is how long its blocks live; a leak has one of nearly every step.

use crate::analyze::device::{DeviceScene, Lifetime};
use crate::analyze::leak_limits::{
    FREES_MIN, GAPS_RATIO, GAPS_STEPS, GENERATIONS_MIN, IN_FLIGHT_STEPS, STEPS_PER_GENERATION,
};
use crate::analyze::queues::Queues;
use crate::integer::at;

/// Returns whether an allocation lives for more than two steps.
pub(crate) fn is_long([from, until]: [u32; 2]) -> bool {
    until - from > IN_FLIGHT_STEPS
}

/// The blocks of every line that were allocated in the window and are kept.
pub(crate) struct KeptBlocks {
    of_site: Vec<Kept>,
}

/// The blocks that a line keeps of those that it allocated in the window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    /// Bytes of blocks that live for more than two steps.
    pub long_bytes: u64,
    /// Bytes of all.
    pub bytes: u64,
    pub generations: Generations,
}

/// The steps in which blocks were born that are kept and have outlived all that their line
/// freed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Generations {
    /// The number of different steps.
    pub count: u32,
    /// The first and the last of them.
    oldest: u32,
    newest: u32,
    /// The fewest and the most steps between two that follow each other.
    gaps: Option<[u32; 2]>,
    frees: Frees,
    /// The number of different steps that made what is kept, also what is in flight.
    births: u32,
    /// The last of these.
    pub last_birth: u32,
}

/// The blocks that a line freed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Frees {
    /// The most steps after which it freed a block.
    after: u32,
    /// The number of different steps in which it freed a block of the window that was not in
    /// flight.
    count: u32,
    /// The first of these.
    first: u32,
}

impl Frees {
    /// Notes the steps that a block lived for.
    pub(crate) fn note_life(&mut self, n_steps: u32) {
        self.after = self.after.max(n_steps);
    }

    /// Adds a step in which the line freed a block that was not in flight; steps rise.
    pub(crate) fn add(&mut self, step: u32) {
        if self.count == 0 {
            self.first = step;
        }
        self.count += 1;
    }
}

impl KeptBlocks {
    /// Finds them. A block that a queue made before the window counts to the queue's line.
    pub(crate) fn new(scene: &DeviceScene<'_>, queues: &Queues) -> Self {
        let mut of_site = vec![Kept::default(); scene.sites.sites.len()];
        let mut births: Vec<(u32, u32)> = Vec::new();
        let mut frees: Vec<(u32, u32)> = Vec::new();
        for (number, Lifetime { allocation, from, until }) in (0..).zip(scene.lifetimes()) {
            let is_kept = scene.is_kept(allocation);
            // Most live for less than a step.
            if from == until && !is_kept {
                continue;
            }
            let own = || Some(scene.sites.of(allocation));
            let site = if allocation.is_older() { queues.of_older(number) } else { own() };
            let Some(site) = site else { continue };
            let Some(kept) = of_site.get_mut(at(site)) else { continue };
            if !is_kept {
                kept.generations.frees.note_life(until - from);
                if !allocation.is_older() && is_long([from, until]) {
                    frees.push((site, until));
                }
            } else if !allocation.is_older() {
                kept.bytes += allocation.size;
                kept.long_bytes += if is_long([from, until]) { allocation.size } else { 0 };
                births.push((site, from));
            }
        }
        frees.sort_unstable();
        frees.dedup();
        for (site, until) in frees {
            if let Some(kept) = of_site.get_mut(at(site)) {
                kept.generations.frees.add(until);
            }
        }
        let last = scene.last_slot();
        for (site, from) in births {
            if let Some(kept) = of_site.get_mut(at(site)) {
                kept.generations.add(from, last - from);
            }
        }
        Self { of_site }
    }

    /// The blocks that a line keeps.
    pub(crate) fn of(&self, site: u32) -> Kept {
        self.of_site.get(at(site)).copied().unwrap_or_default()
    }
}

impl Generations {
    /// The generations of blocks that are kept, by the steps of their births, rising. `last`:
    /// the step after the last; `frees`: what their line freed.
    pub(crate) fn of_kept(births: impl Iterator<Item = u32>, last: u32, frees: Frees) -> Self {
        let mut generations = Self { frees, ..Self::default() };
        births.for_each(|from| generations.add(from, last.saturating_sub(from)));
        generations
    }

    /// Adds a block by the step of its birth and its age; births do not fall.
    fn add(&mut self, from: u32, age: u32) {
        if self.births == 0 || self.last_birth < from {
            self.births += 1;
            self.last_birth = from;
        }
        if age <= self.frees.after.max(IN_FLIGHT_STEPS)
            || (self.count > 0 && self.newest == from)
        {
            return;
        }
        if self.count > 0 {
            let gap = from - self.newest;
            let [least, most] = self.gaps.unwrap_or([gap; 2]);
            self.gaps = Some([least.min(gap), most.max(gap)]);
        }
        if self.count == 0 {
            self.oldest = from;
        }
        self.count += 1;
        self.newest = from;
    }

    /// The step from which on the line is known to free as it goes: it does not fill since then.
    pub(crate) fn freeing_since(self) -> Option<u32> {
        (self.frees.count >= FREES_MIN).then_some(self.frees.first)
    }

    /// Returns whether they are a leak's wherever it began: of nearly every step, or regular.
    /// Keys of a cache come rarely and by chance.
    pub(crate) fn are_many(self) -> bool {
        let is_dense = self.newest - self.oldest < STEPS_PER_GENERATION * self.count;
        self.count >= GENERATIONS_MIN && (is_dense || self.have_regular_gaps())
    }

    /// Returns whether the line freed nothing so far that was not in flight.
    pub(crate) fn are_all_kept(self) -> bool {
        self.frees.after <= IN_FLIGHT_STEPS
    }

    /// Returns whether the line keeps what it made last: one buffer that it makes again.
    pub(crate) fn are_of_one(self) -> bool {
        self.births <= 1
    }

    /// Returns whether they come as regularly as steps or evaluations do, and the line freed
    /// nothing that was not in flight.
    pub(crate) fn are_regular(self) -> bool {
        self.are_all_kept() && self.have_regular_gaps()
    }

    fn have_regular_gaps(self) -> bool {
        self.gaps.is_none_or(|[least, most]| {
            let least = f64::from(least);
            f64::from(most) <= (GAPS_RATIO * least).max(least + GAPS_STEPS)
        })
    }
}
