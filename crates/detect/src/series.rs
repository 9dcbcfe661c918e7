//! One series of a signal: its blocks in windows, and its trend.

use serde::{Deserialize, Deserializer, Serialize};

use crate::config::Config;
use crate::forecast::overview::Overviews;
use crate::intervals::{Intervals, Newest};
use crate::ladder::{Before, Counted, Ladder, count};
use crate::rapid::Rapid;
use crate::sample::AxisPoint;
use crate::shifts::Shifts;
use crate::surroundings::Surroundings;
use crate::tests::{self, Shown, Stopped, Window};
use crate::tracker::{ShownBy, Tracked, Tracker};
use crate::trend::{EndedGrowth, Stage};
use stepmem_types::saved;

/// The share of the growth that counts from which growth is suspected.
const SUSPECTED_RATIO: f64 = 0.5;

/// The most samples that make a block of the lowest level.
const SAMPLES_PER_BLOCK_MAX: u64 = 2;

/// Intervals that are judged.
#[derive(Clone, Copy)]
pub(super) enum Between<'a> {
    Shifts(&'a Shifts),
    Events(&'a Intervals),
}

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

    /// Judges the newest intervals: the fewest that show growth.
    pub(super) fn judge_between(&mut self, between: Between<'_>, around: &Surroundings<'_>) {
        let (by, intervals) = match between {
            Between::Shifts(shifts) => (ShownBy::Shifts, shifts.intervals()),
            Between::Events(intervals) => (ShownBy::Intervals, intervals),
        };
        if !self.tracker.asks(by) {
            return;
        }
        for newest in intervals.windows(around.config.intervals_min) {
            let window = newest.window(between.creeping_min(&newest, around.config));
            if let Ok(shown) = tests::judge(&window, around) {
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
            let Ok(shown) = tests::judge(&window, around) else { continue };
            let found = Tracked::of(&shown, ShownBy::Rapid, &window, around);
            self.tracker.take(found, around);
            if shown.stage == Stage::Creeping {
                return;
            }
        }
    }

    /// Returns the outcome of a level's window; `None` where there is no such level.
    pub(super) fn outcome(
        &self,
        level_idx: usize,
        around: &Surroundings<'_>,
    ) -> Option<Result<Shown, Stopped>> {
        Some(tests::judge(&self.window(level_idx)?, around))
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
        if !self.tracker.asks(by) {
            return;
        }
        let Some(window) = self.window(level_idx) else { return };
        match tests::judge(&window, around) {
            Ok(shown) => {
                let found = Tracked::of(&shown, by, &window, around);
                self.tracker.take(found, around);
                self.suspected.get_or_insert(around.now);
            }
            Err(stopped) => {
                let is_suspected = self.suspected.is_none()
                    && tests::is_suspected(&window, &stopped, SUSPECTED_RATIO, around);
                if is_suspected {
                    self.suspected = Some(around.now);
                }
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
            blocks: newest.blocks,
            live_blocks: newest.live_blocks,
            before: Before { warmup_bytes: self.warmup_high, ..newest.before },
            creeping_min: None,
            samples_per_block: Some(self.samples_per_block << level_idx),
            pages_within: None,
        })
    }

    /// Returns the units of the axis that bring as many samples.
    pub(super) fn sampled(&self, around: &Surroundings<'_>) -> f64 {
        let Some(level) = self.ladder.levels().first() else { return 0.0 };
        let blocks = level.blocks();
        let n_before = around.config.ended_blocks(self.samples_per_block);
        let from = blocks.iter().rev().nth(n_before).or(blocks.first());
        let span = from.zip(blocks.last());
        span.map_or(0.0, |(from, last)| last.at.position - from.at.position)
    }
}

impl Between<'_> {
    /// Returns the number of intervals from which growth creeps.
    fn creeping_min(self, newest: &Newest, config: &Config) -> usize {
        match self {
            Between::Shifts(shifts) => shifts.creeping_min(newest, config),
            Between::Events(_) => config.intervals_min,
        }
    }
}

/// Reads how many samples make a block: lengths of blocks are divided by it.
fn samples_per_block<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    match saved::at_most::<_, _, SAMPLES_PER_BLOCK_MAX>(deserializer)? {
        0 => Err(stepmem_types::refused::refused("a block without a sample")),
        n_samples => Ok(n_samples),
    }
}
