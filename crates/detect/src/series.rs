//! One series of a signal: its blocks in windows, and its trend.

use serde::{Deserialize, Deserializer, Serialize};

use crate::explanations;
use crate::intervals::{Intervals, windows};
use crate::ladder::{Before, Counted, Ladder, Window};
use crate::overview::Overviews;
use crate::rapid::Rapid;
use crate::shifts::Shifts;
use crate::surroundings::Surroundings;
use crate::tracker::{ShownBy, Tracked, Tracker};
use stepmem_forecast::stats::count;
use stepmem_forecast::{AxisPoint, EndedGrowth, Stage};
use stepmem_types::saved;

/// The most samples that make a block of the lowest level.
const SAMPLES_PER_BLOCK_MAX: u64 = 2;

/// A block of the lowest level that a series has got.
pub(super) struct Grown {
    pub(super) block: Counted,
    /// The number of levels that have got a block with it.
    pub(super) n_levels: usize,
}

/// A series of block minima.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Series {
    /// Samples that make a block of the lowest level.
    #[serde(deserialize_with = "samples_per_block")]
    samples_per_block: u32,
    open: Option<Counted>,
    #[serde(deserialize_with = "saved::at_most::<_, _, { SAMPLES_PER_BLOCK_MAX - 1 }>")]
    n_open: u32,
    /// The highest block minimum of the warm-up.
    #[serde(deserialize_with = "saved::figures")]
    warmup_high: Option<f64>,
    pub(super) ladder: Ladder,
    #[serde(skip)]
    pub(super) overviews: Overviews,
    pub(super) tracker: Tracker,
    /// The point where growth was first suspected.
    pub(super) suspected: Option<AxisPoint>,
}

impl Series {
    /// Upper bound on its memory on the heap, in bytes.
    pub(super) const HEAP_BYTES_MAX: usize = Ladder::HEAP_BYTES_MAX + Tracker::HEAP_BYTES_MAX;
    /// The part of that which stays when the windows are freed.
    pub(super) const RELEASED_BYTES_MAX: usize = Tracker::RELEASED_BYTES_MAX;

    pub(super) fn new(samples_per_block: u32) -> Self {
        Self {
            samples_per_block,
            open: None,
            n_open: 0,
            warmup_high: None,
            ladder: Ladder::default(),
            overviews: Overviews::default(),
            tracker: Tracker::default(),
            suspected: None,
        }
    }

    /// Takes one sample of the warm-up, as a block; `is_last` of the last one.
    pub(super) fn warm_up(&mut self, sample: Counted, is_last: bool) {
        let open = self.open.replace(sample);
        if let Some(open) = open {
            let minimum = open.join(sample).block.minimum;
            self.warmup_high = Some(self.warmup_high.map_or(minimum, |high| high.max(minimum)));
        }
        if is_last {
            self.open = None;
        }
    }

    /// Takes one sample, as a block; judges the windows that it completes. Returns the block of
    /// the lowest level that it completes.
    pub(super) fn add(&mut self, sample: Counted, around: &Surroundings<'_>) -> Option<Grown> {
        let block = self.open.take().map_or(sample, |open| open.join(sample));
        self.n_open = self.n_open.saturating_add(1);
        if self.n_open < self.samples_per_block {
            self.open = Some(block);
            self.tracker.extend(&sample.block);
            return None;
        }
        self.n_open = 0;
        let n_grown = self.ladder.push(block, sample.block.at.position);
        self.overviews.forget(n_grown);
        if self.tracker.trend().is_some() && !self.tracker.is_rapid() {
            let sampled = self.sampled(around);
            self.tracker.advance(&block.block, sampled, around);
        }
        for level_idx in 0..n_grown {
            self.judge_level(level_idx, around);
        }
        self.tracker.refresh(&self.ladder, around.now);
        self.tracker.measure(&self.ladder, n_grown, around);
        self.tracker.extend(&sample.block);
        Some(Grown { block, n_levels: n_grown })
    }

    /// Judges the newest intervals between event markers, or between level `shifts` if those are
    /// given: the fewest that show growth.
    pub(super) fn judge_between(
        &mut self,
        intervals: &Intervals,
        shifts: Option<&Shifts>,
        around: &Surroundings<'_>,
    ) {
        let by = if shifts.is_some() { ShownBy::Shifts } else { ShownBy::Intervals };
        if !self.tracker.asks(by) {
            return;
        }
        let Some(row) = intervals.row() else { return };
        let fewest = around.config.intervals_min;
        for newest in windows(&row, fewest) {
            let creeping_min =
                shifts.map_or(fewest, |shifts| shifts.creeping_min(&newest, around.config));
            let window = Window { creeping_min: Some(creeping_min), ..newest };
            if let Ok(shown) = explanations::judge(&window, around) {
                self.tracker.take(Tracked::of(&shown, by, &window, around), around);
                return;
            }
        }
    }

    /// Takes a reading that is one of the newest: judges those, the fewest first, until some show
    /// creep. Growth that they alone show ends by them, too.
    pub(super) fn judge_rapid(&mut self, rapid: &Rapid, around: &Surroundings<'_>) {
        if self.tracker.is_rapid()
            && let Some(newest) = rapid.newest()
        {
            self.tracker.advance(newest, rapid.sampled(around.config), around);
        }
        if !self.tracker.asks(ShownBy::Rapid) {
            return;
        }
        for window in rapid.windows(around.config) {
            let Ok(shown) = explanations::judge(&window, around) else { continue };
            let found = Tracked::of(&shown, ShownBy::Rapid, &window, around);
            self.tracker.take(found, around);
            if shown.stage == Stage::Creeping {
                return;
            }
        }
    }

    /// Returns the number of samples in a level's window.
    pub(super) fn n_samples(&self, level_idx: usize) -> f64 {
        let n_blocks =
            self.ladder.levels().get(level_idx).map_or(0, |level| level.blocks().len());
        count(n_blocks << level_idx) * f64::from(self.samples_per_block)
    }

    /// Frees the windows; the trend stays.
    pub(super) fn release(&mut self) {
        self.ladder.clear();
        self.overviews = Overviews::default();
        self.tracker.release();
    }

    fn judge_level(&mut self, level_idx: usize, around: &Surroundings<'_>) {
        let by = ShownBy::Window(level_idx);
        let least = around.config.suspected_ratio * around.config.growth_min;
        let level = self.ladder.levels().get(level_idx);
        let is_flat =
            self.tracker.ended().is_none() && level.is_some_and(|of| of.gained_less(least));
        if is_flat || !self.tracker.asks(by) {
            return;
        }
        let Some(window) = self.window(level_idx) else { return };
        match explanations::judge(&window, around) {
            Ok(shown) => {
                let found = Tracked::of(&shown, by, &window, around);
                self.tracker.take(found, around);
                self.suspected.get_or_insert(around.now);
            }
            Err(stopped) => {
                let is_suspected = || window.is_suspected(&stopped, around);
                self.suspected =
                    self.suspected.or_else(|| is_suspected().then_some(around.now));
            }
        }
    }

    /// Returns the window of a level, since the last growth ended if it did; `None` where there
    /// is no such level.
    pub(super) fn window(&self, level_idx: usize) -> Option<Window<'_>> {
        let level = self.ladder.levels().get(level_idx)?;
        let from_idx = self.tracker.ended().map_or(0, |EndedGrowth { until, .. }| {
            level.blocks().partition_point(|block| block.at.position < until.position)
        });
        let newest = level.row.since(from_idx)?;
        Some(Window {
            before: Before { warmup_bytes: self.warmup_high, ..newest.before },
            samples_per_block: Some(self.samples_per_block << level_idx),
            ..newest
        })
    }

    /// Returns the units of the axis that bring as many samples.
    pub(super) fn sampled(&self, around: &Surroundings<'_>) -> f64 {
        let n_blocks = around.config.ended_blocks(self.samples_per_block).saturating_add(1);
        let lowest = self.ladder.levels().first();
        lowest.and_then(|level| level.row.newest(n_blocks)).map_or(0.0, |newest| newest.span())
    }
}

/// Reads how many samples make a block: lengths of blocks are divided by it.
fn samples_per_block<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    match saved::at_most::<_, _, SAMPLES_PER_BLOCK_MAX>(deserializer)? {
        0 => Err(stepmem_types::refused::refused("a block without a sample")),
        n_samples => Ok(n_samples),
    }
}
