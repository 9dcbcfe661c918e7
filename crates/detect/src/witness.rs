//! The number of the allocator's live blocks: a second witness beside their bytes.
//!
//! A step that keeps tensors keeps as many each time, however much their sizes vary. So the number
//! shows small growth in noise that bytes do not. A level number acquits nobody: the same tensors
//! may get larger.

use std::iter::repeat;

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::explanations::{Growth, Shown};
use crate::headroom::{headroom, usage_of_newer_half};
use crate::heights::Heights;
use crate::intervals::{Intervals, windows};
use crate::ladder::{BLOCKS_MAX, Before, Block, Counted, Level, Window};
use crate::series::{Grown, Series};
use crate::surroundings::Surroundings;
use crate::tracker::{ShownBy, Tracked};
use stepmem_forecast::stats::median::median;
use stepmem_forecast::{AxisPoint, Stage};
use stepmem_types::saved;

/// The fewest blocks of a level of the ladder, and the lowest level, that show that the number is
/// level: 128 samples. Growth of bytes that other blocks make has raised it by more…
const LEVEL_BLOCKS_MIN: usize = 8;
const LEVEL_IDX_MIN: usize = 3;
/// …than this.
const LEVEL_WITHIN: f32 = 1.0;
/// The size of a kept block is unknown where its quartile and its median differ by more than this
/// factor: noise of the bytes decides both.
const SIZE_WITHIN: f64 = 1.25;

/// The testimony of the number of live blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Testimony {
    /// Each step, or every few, keeps blocks.
    Accumulates(Accumulation),
    /// New blocks come ever more rarely, as in a cache that fills.
    Fades(Accumulation),
    /// The number is the same as ever.
    Level,
}

/// Blocks that are kept.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Accumulation {
    /// The point where the blocks begin to be kept.
    pub since: AxisPoint,
    /// The point where that was certain first.
    pub certain: AxisPoint,
    /// Blocks per unit of the axis, above 0.
    #[serde(deserialize_with = "saved::amounts")]
    pub blocks_per_unit: f64,
    /// Bytes of each; `None` where noise of the bytes hides that.
    #[serde(deserialize_with = "saved::amounts")]
    pub bytes_per_block: Option<f64>,
    /// The last quarter's gain of blocks as a share of the first quarter's, 0 to 1.
    #[serde(deserialize_with = "saved::ratios")]
    kept_ratio: f64,
}

/// The number of live blocks of a series.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Witness {
    held: Option<Box<Held>>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Held {
    growth: Accumulation,
    shown_by: ShownBy,
    /// The heights of the number.
    heights: Heights,
}

impl Witness {
    /// Upper bound on its memory on the heap, in bytes.
    pub(super) const HEAP_BYTES_MAX: usize = size_of::<Held>() + Heights::HEAP_BYTES_MAX;
    /// The part of that which stays when the windows are freed.
    pub(super) const RELEASED_BYTES_MAX: usize = size_of::<Held>();

    /// Returns the testimony of the number in a series; `None` while that is not known.
    pub(super) fn testimony(&self, series: &Series, config: &Config) -> Option<Testimony> {
        match &self.held {
            Some(held) if held.growth.kept_ratio < config.fades_below => {
                Some(Testimony::Fades(held.growth))
            }
            Some(held) => Some(Testimony::Accumulates(held.growth)),
            None => is_level(series).then_some(Testimony::Level),
        }
    }

    /// Takes what a series has got. Returns the growth of live memory that the blocks show, if they
    /// show one.
    pub(super) fn add(
        &mut self,
        grown: &Grown,
        series: &Series,
        around: &Surroundings<'_>,
    ) -> Option<Tracked> {
        if self.held.is_some() {
            self.advance(&grown.block, series.sampled(around), around.config);
        }
        let shown = (0..grown.n_levels).filter_map(|level_idx| {
            let by = ShownBy::Window(level_idx);
            let window = self.asks(by).then(|| series.window(level_idx))??;
            let kept = self.judge(&window, by, around)?;
            let shown = kept.shown(&window, around).filter(|_| series.tracker.asks_number())?;
            Tracked::of(&shown, by, &window, around)
        });
        shown.last()
    }

    /// Judges the newest intervals between event markers: the fewest that keep blocks.
    pub(super) fn judge_between(&mut self, intervals: &Intervals, around: &Surroundings<'_>) {
        let fewest = around.config.intervals_min;
        let row = intervals.row().filter(|_| self.asks(ShownBy::Intervals));
        row.iter().flat_map(|row| windows(row, fewest)).any(|newest| {
            let window = Window { creeping_min: Some(fewest), ..newest };
            self.judge(&window, ShownBy::Intervals, around).is_some()
        });
    }

    /// The rise may have ended; `sampled` units of the axis bring as many samples as that takes.
    fn advance(&mut self, next: &Counted, sampled: f64, config: &Config) {
        let Some((held, number)) = self.held.as_deref_mut().zip(next.live_blocks) else {
            return;
        };
        let at = next.block.at;
        held.heights.advance(at, number.into());
        let units = held.heights.ended_after(sampled, config);
        let ended = config.ended_ratio * held.growth.blocks_per_unit;
        let recent = held.heights.recent_slope(at.position, units);
        if recent.is_some_and(|slope| slope < ended) {
            self.held = None;
        }
    }

    /// Returns whether a window can change anything: none does that is shorter than the one that
    /// shows it.
    fn asks(&self, by: ShownBy) -> bool {
        self.held.as_ref().is_none_or(|held| by >= held.shown_by)
    }

    /// Judges a window by the number of its live blocks; returns what it keeps.
    fn judge(
        &mut self,
        window: &Window<'_>,
        by: ShownBy,
        around: &Surroundings<'_>,
    ) -> Option<Kept> {
        let kept = Kept::of(window, around)?;
        match self.held.as_deref_mut() {
            None => self.held = Held::of(&kept, window, by).map(Box::new),
            Some(held) => held.follow(kept.growth, by),
        }
        Some(kept)
    }

    /// Returns whether it rises.
    pub(super) fn is_rising(&self) -> bool {
        self.held.is_some()
    }

    /// Frees how it rose; what it said stays.
    pub(super) fn release(&mut self) {
        self.held.iter_mut().for_each(|held| held.heights.release());
    }
}

/// Returns whether the number hardly changes in the longest window of a series.
fn is_level(series: &Series) -> bool {
    let levels = series.ladder.levels().get(LEVEL_IDX_MIN..).unwrap_or_default();
    let longest = levels.iter().rev().find(|level| level.blocks().len() >= LEVEL_BLOCKS_MIN);
    let mut numbers = longest.map(Level::live_blocks).unwrap_or_default().iter().copied();
    let ends = numbers.next().flatten().and_then(|first| {
        numbers.try_fold((first, first), |(least, most), n| Some((least.min(n?), most.max(n?))))
    });
    ends.is_some_and(|(least, most)| most - least <= LEVEL_WITHIN)
}

impl Held {
    /// Returns the growth that begins with a window that keeps blocks, and its heights.
    fn of(kept: &Kept, window: &Window<'_>, by: ShownBy) -> Option<Self> {
        let numbers = numbers_of(window)?;
        let risen = numbers.get(kept.onset_idx..window.blocks.len())?;
        let heights = Heights::of(risen, window.creeping_min.is_some())?;
        Some(Self { growth: kept.growth, shown_by: by, heights })
    }

    /// Takes over what a later window keeps; the earlier onset stays, and where it was certain.
    fn follow(&mut self, found: Accumulation, by: ShownBy) {
        let Accumulation { since, certain, .. } = self.growth;
        let since = if since.position <= found.since.position { since } else { found.since };
        self.growth = Accumulation { since, certain, ..found };
        self.shown_by = by;
    }
}

/// Returns the blocks of a window with their numbers of live blocks in place of the bytes; `None` where one is
/// unknown.
fn numbers_of(window: &Window<'_>) -> Option<[Block; BLOCKS_MAX]> {
    let mut numbers = [*window.blocks.first()?; BLOCKS_MAX];
    let counts = window.live_blocks.iter().copied().chain(repeat(None));
    for ((slot, block), number) in numbers.iter_mut().zip(window.blocks).zip(counts) {
        *slot = Block { minimum: number?.into(), ..*block };
    }
    Some(numbers)
}

/// The blocks that a window keeps.
struct Kept {
    growth: Accumulation,
    onset_idx: usize,
    n_blocks: f64,
    /// The lower quartile of the bytes that each takes.
    bytes_least: f64,
    t: f64,
    n_increments: u32,
}

impl Kept {
    /// Returns the blocks that a window keeps: it gains enough of them, as no random walk does,
    /// more than ever before, and goes on to.
    fn of(window: &Window<'_>, around: &Surroundings<'_>) -> Option<Self> {
        let config = around.config;
        let (first, last) = window.live_blocks.first().zip(window.live_blocks.last())?;
        let blocks_min = window.creeping_min.unwrap_or(config.blocks_min);
        let gain = f64::from((*last)?) - f64::from((*first)?);
        if window.blocks.len() < blocks_min || gain < config.kept_blocks_min {
            return None;
        }
        let numbers = numbers_of(window)?;
        let before = Before { bytes: window.before.live_blocks, ..window.before };
        let numbers = Window { blocks: numbers.get(..window.blocks.len())?, before, ..*window };
        let growth = Growth::of(&numbers);
        if growth.bytes < config.kept_blocks_min || growth.t() < growth.t_min(config) {
            return None;
        }
        let (onset_idx, blocks_per_unit) = numbers.line().filter(|(_, slope)| *slope > 0.0)?;
        numbers.check_going_on(onset_idx, blocks_per_unit, config).ok()?;
        numbers.check_new(&growth, config).ok()?;
        let risen = numbers.blocks.get(onset_idx..)?;
        let (bytes_least, bytes_per_block) = sizes(window.blocks.get(onset_idx..)?, risen)?;
        Some(Self {
            growth: Accumulation {
                since: risen.first()?.at,
                certain: around.now,
                blocks_per_unit,
                bytes_per_block,
                kept_ratio: growth.deceleration().unwrap_or(1.0).clamp(0.0, 1.0),
            },
            onset_idx,
            n_blocks: risen.last()?.minimum - risen.first()?.minimum,
            bytes_least,
            t: growth.t(),
            n_increments: growth.n_increments,
        })
    }

    /// Returns growth of live memory that they make: where they do not fade, bytes rise with them by
    /// enough to count, and the end is near.
    fn shown(&self, window: &Window<'_>, around: &Surroundings<'_>) -> Option<Shown> {
        let config = around.config;
        let risen = window.blocks.get(self.onset_idx..)?;
        let (first, last) = risen.first().zip(risen.last())?;
        let bytes = (last.minimum - first.minimum).min(self.bytes_least * self.n_blocks);
        if bytes < config.growth_min || self.growth.kept_ratio < config.fades_below {
            return None;
        }
        let headroom = headroom(&usage_of_newer_half(window.blocks), around);
        let seconds = last.at.time.since(first.at.time);
        if headroom / bytes * seconds > config.horizon_seconds {
            return None;
        }
        Some(Shown {
            stage: Stage::Rising,
            obstacle: None,
            onset_idx: self.onset_idx,
            slope: bytes / (last.at.position - first.at.position),
            share_ratio: bytes / (bytes + headroom),
            growth_bytes: bytes,
            headroom_bytes: headroom,
            t: self.t,
            n_increments: self.n_increments,
            is_by_number: true,
        })
    }
}

/// Returns the bytes that each block more takes, by pairs of blocks half of them apart: the lower
/// quartile, and the median where both agree.
fn sizes(blocks: &[Block], numbers: &[Block]) -> Option<(f64, Option<f64>)> {
    let mut sizes = [0.0; BLOCKS_MAX];
    let both = blocks.iter().zip(numbers);
    let pairs = both.clone().zip(both.skip(blocks.len() / 2));
    let mut n_sizes = 0;
    for (slot, ((early, fewer), (late, more))) in sizes.iter_mut().zip(pairs) {
        let more = more.minimum - fewer.minimum;
        *slot = (late.minimum - early.minimum) / more.max(1.0);
        n_sizes += 1;
    }
    let sizes = sizes.get_mut(..n_sizes)?;
    sizes.sort_unstable_by(f64::total_cmp);
    let (quartile, median) = (*sizes.get(n_sizes / 4)?, median(sizes)?);
    let is_known = quartile > 0.0 && median <= SIZE_WITHIN * quartile;
    Some((quartile, Some(median).filter(|_| is_known)))
}
