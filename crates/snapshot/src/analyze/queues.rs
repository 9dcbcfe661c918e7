//! Blocks that are older than the window and freed in it, and the lines that they are of. They
//! come from queues, ring buffers and caches that turn over. Such a block has no allocation in
//! the window; the allocation that it is freed for shows whose it is.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use crate::analyze::device::{DeviceScene, Lifetime};
use crate::analyze::leak_limits::{KEPT_MIN, NOISE_RATIO, SIZE_FACTOR};
use crate::integer::{at, real};
use crate::model::{Action, NO_STACK};
use crate::replay::Allocation;

/// The lines that turn over.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    of_older: HashMap<u32, u32>,
    /// The bytes of a site's older blocks that are its own by likeness, not by the very size.
    alike: HashMap<u32, u64>,
    /// The sites that older blocks are of.
    pub sites: BTreeSet<u32>,
}

/// A line that keeps what it makes.
#[derive(Clone, Copy, Debug, Default)]
struct Keeper {
    n_blocks: u64,
    requested: u64,
}

impl Queues {
    /// Finds them. `is_long`: whether an allocation with these slots is not in flight; `first`:
    /// the slot from which on frees count.
    pub(crate) fn new(
        scene: &DeviceScene<'_>,
        is_long: impl Fn([u32; 2]) -> bool,
        first: u32,
    ) -> Self {
        let mut search = QueueSearch {
            scene,
            keepers: HashMap::new(),
            of_size: HashMap::new(),
            first,
            queues: Self::default(),
        };
        for Lifetime { allocation, from, until } in scene.lifetimes() {
            if !allocation.is_older() && scene.is_kept(allocation) && is_long([from, until]) {
                search.keep(allocation);
            }
        }
        search.run();
        search.queues
    }

    /// The line that an older block is of.
    pub(crate) fn of_older(&self, allocation: u32) -> Option<u32> {
        self.of_older.get(&allocation).copied()
    }

    /// Returns whether a rise by some bytes is within the difference in sizes of a line that
    /// turns over.
    pub(crate) fn is_noise(&self, site: u32, risen_bytes: f64) -> bool {
        let alike = self.alike.get(&site).copied().unwrap_or(0);
        risen_bytes < NOISE_RATIO * real(alike)
    }

    /// Returns whether an allocation is of a line that turns over.
    pub(crate) fn holds(
        &self,
        scene: &DeviceScene<'_>,
        number: u32,
        allocation: &Allocation,
    ) -> bool {
        if allocation.is_older() {
            self.of_older.contains_key(&number)
        } else {
            self.sites.contains(&scene.sites.of(allocation))
        }
    }
}

struct QueueSearch<'a> {
    scene: &'a DeviceScene<'a>,
    /// Lines that keep blocks of the window.
    keepers: HashMap<u32, Keeper>,
    /// The number of blocks of each size, by the line that keeps them.
    of_size: HashMap<u64, HashMap<u32, u64>>,
    first: u32,
    queues: Queues,
}

impl QueueSearch<'_> {
    fn keep(&mut self, allocation: &Allocation) {
        let site = self.scene.sites.of(allocation);
        let keeper = self.keepers.entry(site).or_default();
        keeper.n_blocks += 1;
        keeper.requested += allocation.requested;
        let of_size = self.of_size.entry(allocation.requested).or_default();
        *of_size.entry(site).or_default() += 1;
    }

    fn run(&mut self) {
        let (events, of_event) = (self.scene.events, &self.scene.timeline.of_event);
        let mut before: Option<u32> = None;
        let mut waiting: Vec<u32> = Vec::new();
        for (event, number) in events.iter().zip(of_event) {
            let Some(allocation) = self.scene.timeline.allocations.get(at(*number)) else {
                continue;
            };
            match event.action {
                Action::Alloc => {
                    let site = Some(self.scene.sites.of(allocation));
                    for number in waiting.drain(..) {
                        self.match_neighbors(number, [before, site]);
                    }
                    before = site;
                }
                Action::FreeCompleted if allocation.is_older() => {
                    let [_, until] = self.scene.slots_of(*number);
                    if until >= self.first && !self.match_size(*number, allocation, event.stack)
                    {
                        waiting.push(*number);
                    }
                }
                _ => {}
            }
        }
        for number in waiting {
            self.match_neighbors(number, [before, None]);
        }
    }

    /// Finds a block's line by its very size, or by the line that frees it.
    fn match_size(&mut self, number: u32, allocation: &Allocation, stack: u32) -> bool {
        let alike = self.of_size.get(&allocation.requested);
        let most = alike.and_then(|sites| {
            sites.iter().max_by_key(|(site, n)| (**n, Reverse(**site))).map(|(site, _)| *site)
        });
        let by_free = || {
            let site = (stack != NO_STACK).then(|| self.scene.sites.of_origin(stack))?;
            self.likeness(site, allocation).map(|_| site)
        };
        if let Some(site) = most {
            self.add(number, site);
            return true;
        }
        let found = by_free();
        if let Some(site) = found {
            self.add_alike(number, site, allocation);
        }
        found.is_some()
    }

    /// Finds a block's line by the allocations before and after: what is pushed replaces what
    /// is popped.
    fn match_neighbors(&mut self, number: u32, neighbors: [Option<u32>; 2]) {
        let Some(allocation) = self.scene.timeline.allocations.get(at(number)) else { return };
        let likely = neighbors.into_iter().flatten().filter_map(|site| {
            self.likeness(site, allocation).map(|likeness| (site, likeness))
        });
        if let Some((site, _)) = likely.min_by(|a, b| a.1.total_cmp(&b.1)) {
            self.add_alike(number, site, allocation);
        }
    }

    /// The factor by which a block is larger or smaller than those of a line that keeps some;
    /// `None` if too many.
    fn likeness(&self, site: u32, allocation: &Allocation) -> Option<f64> {
        let keeper = self.keepers.get(&site).filter(|keeper| keeper.n_blocks >= KEPT_MIN)?;
        let mean = real(keeper.requested) / real(keeper.n_blocks);
        let ratio = real(allocation.requested.max(1)) / mean.max(1.0);
        let factor = ratio.max(1.0 / ratio);
        (factor <= SIZE_FACTOR).then_some(factor)
    }

    fn add_alike(&mut self, number: u32, site: u32, allocation: &Allocation) {
        self.add(number, site);
        *self.queues.alike.entry(site).or_default() += allocation.requested;
    }

    fn add(&mut self, number: u32, site: u32) {
        self.queues.of_older.insert(number, site);
        self.queues.sites.insert(site);
    }
}
