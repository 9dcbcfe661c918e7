//! Intervals between event markers: evaluations, checkpoints, pauses. A leak in each of those
//! is a line here.

use std::iter::successors;

use serde::{Deserialize, Serialize};

use crate::ladder::{Block, Counted, ROW_CAPACITY, Row, Window};
use stepmem_forecast::stats::count;

/// The newest intervals of an incarnation.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Intervals {
    closed: Row,
    open: Option<Counted>,
    n_open: u32,
    /// Set when an event came since the last sample.
    is_marked: bool,
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

    /// Returns the number of known ends of intervals, and their distance; `None` before the
    /// second.
    pub(super) fn apart(&self) -> Option<(usize, f64)> {
        let closed = self.closed.blocks();
        let (first, open) = closed.first().zip(self.open)?;
        Some((closed.len(), (open.block.at.position - first.at.position) / count(closed.len())))
    }

    /// Returns the intervals in a row, the open one as it stands.
    pub(super) fn row(&self) -> Option<Row> {
        let mut row = self.closed.clone();
        row.push(self.open?);
        Some(row)
    }

    /// Forgets the incarnation.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Returns the newest of a row of intervals as windows: first so many, then twice as many each
/// time, until all are among them.
pub(super) fn windows(row: &Row, n_intervals: usize) -> impl Iterator<Item = Window<'_>> {
    let n_all = row.blocks().len();
    let numbers = successors(Some(n_intervals), move |n| (*n < n_all).then_some(2 * n));
    numbers.map_while(|n| row.newest(n))
}
