//! Intervals between event markers: evaluations, checkpoints, pauses. A leak in each of those
//! is a line here.

use std::iter::successors;

use serde::{Deserialize, Serialize};

use crate::ladder::{BLOCKS_MAX, Before, Block, Counted, ROW_CAPACITY, Row, count};
use crate::tests::Window;

/// The newest intervals of an incarnation.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Intervals {
    closed: Row,
    open: Option<Counted>,
    n_open: u32,
    /// Set when an event came since the last sample.
    is_marked: bool,
}

/// The newest intervals, the last of them as it stands.
pub(super) struct Newest {
    blocks: [Block; BLOCKS_MAX],
    live_blocks: [Option<f32>; BLOCKS_MAX],
    n_blocks: usize,
    before: Before,
}

impl Intervals {
    /// Upper bound on its memory on the heap, in bytes.
    pub(super) const HEAP_BYTES_MAX: usize = ROW_CAPACITY * size_of::<Block>();
    /// Upper bound on the memory of its numbers of live blocks on the heap, in bytes, where it
    /// gets those.
    pub(super) const NUMBERS_BYTES_MAX: usize = ROW_CAPACITY * size_of::<Option<f32>>();

    /// Notes an event after which memory may hold more.
    pub(super) fn mark(&mut self) {
        self.is_marked = true;
    }

    /// Takes a sample, as a block; returns whether the open interval has just got `samples_min`
    /// of them.
    pub(super) fn add(&mut self, sample: Counted, samples_min: u32) -> bool {
        let is_marked = std::mem::take(&mut self.is_marked);
        if is_marked && self.n_open >= samples_min {
            if let Some(closed) = self.open.take() {
                self.closed.push(closed);
            }
            self.n_open = 0;
        }
        self.open = Some(self.open.map_or(sample, |open| open.join(sample)));
        self.n_open = self.n_open.saturating_add(1);
        self.n_open == samples_min
    }

    /// Returns the number of intervals, with the open one.
    pub(super) fn count(&self) -> usize {
        (self.closed.blocks().len() + 1).min(BLOCKS_MAX)
    }

    /// Returns the number of known ends of intervals, and their distance; `None` before the
    /// second.
    pub(super) fn apart(&self) -> Option<(usize, f64)> {
        let closed = self.closed.blocks();
        let (first, open) = closed.first().zip(self.open)?;
        Some((closed.len(), (open.block.at.position - first.at.position) / count(closed.len())))
    }

    /// Returns the newest intervals: first so many, then twice as many each time, until all are
    /// among them.
    pub(super) fn windows(&self, n_intervals: usize) -> impl Iterator<Item = Newest> {
        let numbers = successors(Some(n_intervals), |n| (*n < self.count()).then_some(2 * n));
        numbers.map_while(|n| self.newest(n))
    }

    /// Returns the newest intervals, at most so many; `None` if there are fewer than that and
    /// none before them.
    fn newest(&self, n_intervals: usize) -> Option<Newest> {
        let open = self.open?;
        let n_blocks = n_intervals.min(self.count());
        let from_idx = (self.closed.blocks().len() + 1).checked_sub(n_blocks)?;
        let closed = self.closed.since(from_idx)?;
        let mut blocks = [open.block; BLOCKS_MAX];
        for (slot, block) in blocks.iter_mut().zip(closed.blocks) {
            *slot = *block;
        }
        let mut live_blocks = [None; BLOCKS_MAX];
        for (slot, number) in live_blocks.iter_mut().zip(closed.live_blocks) {
            *slot = *number;
        }
        if let Some(slot) = live_blocks.get_mut(closed.blocks.len()) {
            *slot = open.live_blocks;
        }
        Some(Newest { blocks, live_blocks, n_blocks, before: closed.before })
    }

    /// Forgets the incarnation.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Newest {
    /// Returns them as a window that creeps with `creeping_min` of them.
    pub(super) fn window(&self, creeping_min: usize) -> Window<'_> {
        Window {
            blocks: self.blocks(),
            live_blocks: self.live_blocks.get(..self.n_blocks).unwrap_or_default(),
            before: self.before,
            creeping_min: Some(creeping_min),
            samples_per_block: None,
            pages_within: None,
        }
    }

    /// Returns by how much the intervals that begin from one place to another rise.
    pub(super) fn rise(&self, from: f64, to: f64) -> f64 {
        let pairs = self.blocks().iter().zip(self.blocks().iter().skip(1));
        let between =
            pairs.filter(|(_, next)| from < next.at.position && next.at.position <= to);
        between.map(|(block, next)| next.minimum - block.minimum).sum()
    }

    fn blocks(&self) -> &[Block] {
        self.blocks.get(..self.n_blocks).unwrap_or_default()
    }
}
