//! Intervals between level shifts that have no event marker. A leak in level shifts of one
//! height is a line here. So are a gradual unfreezing and a cache whose entries are large. They
//! therefore creep only if an object of the process grew with them.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::intervals::Intervals;
use crate::ladder::{BLOCKS_MAX, Block, Window};
use stepmem_forecast::stats::count;
use stepmem_types::saved;

/// The newest intervals between level shifts of an incarnation.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Shifts {
    pub(super) intervals: Intervals,
    // Invariant: at most as many as an interval needs.
    /// The newest block minima, the last one first.
    #[serde(deserialize_with = "saved::figure_list::<_, _, BLOCKS_MAX>")]
    recent: VecDeque<f64>,
    spanning: Option<HolderGrowth>,
}

/// Growth of an object of the process from one heap scan that saw it to the last.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct HolderGrowth {
    /// The position of the first heap scan on the axis.
    #[serde(deserialize_with = "saved::figures")]
    pub from: f64,
    /// The position of the last.
    #[serde(deserialize_with = "saved::figures")]
    pub to: f64,
    /// Bytes that the object gained between them.
    #[serde(deserialize_with = "saved::figures")]
    pub bytes: f64,
}

impl Shifts {
    /// Upper bound on its memory on the heap, in bytes.
    pub(super) const HEAP_BYTES_MAX: usize =
        Intervals::HEAP_BYTES_MAX + BLOCKS_MAX * size_of::<f64>();

    /// Takes a block of the lowest level; returns whether the open interval has just got
    /// `blocks_min` of them.
    ///
    /// A block is a shift under two conditions. It is higher by one part in as many as a level
    /// of the ladder has. It is also higher by far more than the blocks before it vary.
    pub(super) fn add(&mut self, block: Block, blocks_min: u32, config: &Config) -> bool {
        let least = config.growth_min / count(BLOCKS_MAX);
        let low = self.recent.iter().copied().fold(f64::INFINITY, f64::min);
        let high = self.recent.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if block.minimum - high > least.max(config.shift_variations * (high - low)) {
            self.intervals.mark();
        }
        self.recent.push_front(block.minimum);
        self.recent.truncate(usize::try_from(blocks_min).unwrap_or(BLOCKS_MAX).min(BLOCKS_MAX));
        self.intervals.add(block.into(), blocks_min)
    }

    /// Takes growth of an object of the process.
    pub(super) fn spanned_by(&mut self, growth: HolderGrowth) {
        self.spanning = Some(growth);
    }

    /// Returns the number of intervals from which growth creeps. It is that between event
    /// markers if an object of the process grew with one of their shifts at least. Else it is
    /// more than there are.
    pub(super) fn creeping_min(&self, window: &Window<'_>, config: &Config) -> usize {
        let is_spanned = self.spanning.is_some_and(|growth| {
            let between = rise(window, growth.from, growth.to);
            between > 0.0 && growth.bytes >= config.shift_spanned_ratio * between
        });
        if is_spanned { config.intervals_min } else { BLOCKS_MAX + 1 }
    }

    /// Forgets the incarnation.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Returns by how much the intervals of a window that begin from one place to another rise.
fn rise(window: &Window<'_>, from: f64, to: f64) -> f64 {
    let pairs = window.blocks.iter().zip(window.blocks.iter().skip(1));
    let between = pairs.filter(|(_, next)| from < next.at.position && next.at.position <= to);
    between.map(|(block, next)| next.minimum - block.minimum).sum()
}
