//! The tests that a window of block minima must pass before its growth counts: one for each
//! innocent explanation.

use crate::config::Config;
use crate::headroom::{headroom, usage_of_newer_half};
use crate::heights::Heights;
use crate::ladder::{BLOCKS_MAX, Block, Window, points_of};
use crate::surroundings::Surroundings;
use stepmem_forecast::stats::changepoint::changepoint;
use stepmem_forecast::stats::count;
use stepmem_forecast::stats::quarters::deceleration_ratio;
use stepmem_forecast::stats::student;
use stepmem_forecast::stats::theil_sen::theil_sen;
use stepmem_forecast::{Signal, Stage};

/// The fewest blocks whose quarters and changepoint are asked for.
const QUARTERS_BLOCKS_MIN: usize = 8;
/// The largest t that is reported: of growth whose increments are all equal.
pub const LARGEST_T: f64 = 1000.0;
/// Increments of less than this share of the largest one are not compared with it.
const COMPARED_OF_LARGEST: f64 = 0.1;
/// Growth worth this share of its increments in equal ones is no matter of a few large
/// segments.
const MANY_OF_INCREMENTS: f64 = 0.5;
/// The intervals between event markers that growth must have ended for.
const ENDED_INTERVALS: usize = 2;

/// The side of its limit on which a value passes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bound {
    /// Passes at the limit or above it.
    AtLeast,
    /// Passes at the limit or below it.
    AtMost,
}

/// A test, in the order of asking. Its documentation names the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Test {
    /// There are enough blocks: how many there are.
    Blocks,
    /// The memory grew: by how many bytes, without its largest increment.
    Growth,
    /// No random walk grows like that: t, the growth by the spread of as many increments.
    RandomWalk,
    /// The end is near: how many seconds are left.
    FarOff,
    /// The memory still grows: the newest gain as a share of what the slope gives.
    Ended,
    /// The memory was never as high before: how many bytes at the end.
    SeenBefore,
    /// Few increments of a process do not become larger: Kendall's tau of their heights.
    EverLarger,
    /// The growth does not come and go: the growth as a share of growth and headroom.
    ComesAndGoes,
    /// No cache that fills: the same share.
    Cache,
}

/// The test that stopped a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stopped {
    /// The test that asked.
    pub test: Test,
    /// The value, in the unit of the test.
    pub value: f64,
    /// The limit that the value had to keep.
    pub limit: f64,
}

impl Test {
    /// Returns on which side of its limit a value passes.
    pub fn bound(self) -> Bound {
        match self {
            Self::FarOff | Self::EverLarger => Bound::AtMost,
            _ => Bound::AtLeast,
        }
    }

    /// Passes a value on the right side of its limit.
    fn check(self, value: f64, limit: f64) -> Result<(), Stopped> {
        let is_passed = match self.bound() {
            Bound::AtLeast => value >= limit,
            Bound::AtMost => value <= limit,
        };
        if is_passed { Ok(()) } else { Err(Stopped { test: self, value, limit }) }
    }
}

/// Growth that passed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shown {
    /// The urgency of the growth.
    pub stage: Stage,
    /// The test that keeps it from creeping.
    pub obstacle: Option<Stopped>,
    /// The block from which it grows; 0 unless the growth begins within the window.
    pub(super) onset_idx: usize,
    /// Bytes per unit of the axis since then.
    pub slope: f64,
    /// Growth of the window without its largest increment, as a share of itself and the
    /// headroom.
    pub share_ratio: f64,
    /// Growth of the window without its largest increment.
    pub growth_bytes: f64,
    /// The headroom that it is weighed against; of a stand-in where the capacity is unknown.
    pub headroom_bytes: f64,
    /// The growth by the spread of as many increments of a random walk.
    pub t: f64,
    /// Number of increments.
    pub n_increments: u32,
    /// Set where the number of live blocks shows it.
    pub is_by_number: bool,
}

/// Judges one window. Costs a few comparisons for one that hardly grew, and 500 pairs of points
/// for one that no random walk explains.
pub(super) fn judge(window: &Window<'_>, around: &Surroundings<'_>) -> Result<Shown, Stopped> {
    let config = around.config;
    let (blocks_min, rising_min) = match window.creeping_min {
        Some(creeping_min) => (creeping_min, config.intervals_min - 1),
        None => (config.blocks_min, config.blocks_min),
    };
    let n_blocks = count(window.blocks.len());
    Test::Blocks.check(n_blocks, count(rising_min))?;
    let none = Stopped { test: Test::Blocks, value: 0.0, limit: 1.0 };
    let (first, last) = window.ends().ok_or(none)?;
    Test::Growth.check(last.minimum - first.minimum, config.growth_min)?;

    let growth = Growth::of(window);
    Test::Growth.check(growth.bytes, config.growth_min)?;
    Test::RandomWalk.check(growth.t(), growth.t_min(config))?;

    let headroom = headroom(&usage_of_newer_half(window.blocks), around);
    let (onset_idx, slope) = window
        .line()
        .filter(|(_, slope)| *slope > 0.0)
        .ok_or(Stopped { test: Test::Growth, value: 0.0, limit: config.growth_min })?;
    let seconds = last.at.time.since(first.at.time) / window.span();
    let seconds_left = headroom / slope * seconds;
    Test::FarOff.check(seconds_left, window.horizon_seconds(config))?;
    window.check_going_on(onset_idx, slope, config)?;

    window.check_new(&growth, config)?;
    growth.check_larger(around)?;

    let share_ratio = growth.bytes / (growth.bytes + headroom);
    let deceleration = growth.deceleration();
    let required = growth.share_required(window, around);
    let explained = |factor: f64| {
        Test::ComesAndGoes.check(share_ratio, factor * required)?;
        let kept = deceleration.unwrap_or(1.0).clamp(0.0, 1.0);
        Test::Cache.check(share_ratio, factor * config.cache_ratio * (1.0 - kept * kept))
    };
    let (t, n_increments) = (growth.t(), growth.n_increments);
    let shown = |stage, obstacle| Shown {
        stage,
        obstacle,
        onset_idx,
        slope,
        share_ratio,
        growth_bytes: growth.bytes,
        headroom_bytes: headroom,
        t,
        n_increments,
        is_by_number: false,
    };
    let has_enough = Test::Blocks.check(n_blocks, count(blocks_min));
    // Of single readings, while the process starts.
    let pages_within = window.pages_within.unwrap_or(f64::INFINITY);
    let may_page = || Test::FarOff.check(seconds_left, pages_within);
    let Err(obstacle) = has_enough.and_then(|()| may_page()).and_then(|()| explained(1.0))
    else {
        return Ok(shown(Stage::Creeping, None));
    };
    let is_line = deceleration.is_some_and(|kept| kept >= config.rising_line_ratio);
    if is_line || window.pages_within.is_some() || explained(config.rising_ratio).is_ok() {
        window.check_above(window.before.warmup_bytes, &growth, config)?;
        return Ok(shown(Stage::Rising, Some(obstacle)));
    }
    Err(obstacle)
}

/// Returns whether a window that was stopped as too small shows `ratio` of the growth that
/// counts, which no random walk explains.
pub(super) fn is_suspected(
    window: &Window<'_>,
    stopped: &Stopped,
    ratio: f64,
    around: &Surroundings<'_>,
) -> bool {
    if stopped.test != Test::Growth || stopped.value < ratio * stopped.limit {
        return false;
    }
    let growth = Growth::of(window);
    growth.bytes >= ratio * stopped.limit && growth.t() >= growth.t_min(around.config)
}

impl Window<'_> {
    /// Returns the index where the window's growth begins and the slope since then, by the
    /// median of all pairs' slopes.
    pub(super) fn line(&self) -> Option<(usize, f64)> {
        let mut points = [(0.0, 0.0); BLOCKS_MAX];
        let points = points_of(self.blocks, &mut points);
        let enough = Some(points).filter(|points| points.len() >= QUARTERS_BLOCKS_MIN);
        let onset_idx = enough.and_then(changepoint).unwrap_or(0);
        Some((onset_idx, theil_sen(points.get(onset_idx..)?)?.slope))
    }

    /// Returns, of single readings, the factor that makes an increment one over the usual time
    /// between two; `None` of other windows.
    fn evened(&self, block: &Block, next: &Block) -> Option<f64> {
        self.pages_within?;
        let (first, last) = self.ends()?;
        let usual = last.at.time.since(first.at.time) / count(self.blocks.len() - 1);
        Some(usual / next.at.time.since(block.at.time)).filter(|factor| factor.is_finite())
    }

    /// Returns the time left that counts: of single readings a short one.
    fn horizon_seconds(&self, config: &Config) -> f64 {
        match self.pages_within {
            Some(_) => config.rapid_horizon_seconds,
            None => config.horizon_seconds,
        }
    }

    /// Checks that its growth ends higher than everything before it.
    pub(super) fn check_new(&self, growth: &Growth, config: &Config) -> Result<(), Stopped> {
        let Some(first) = self.blocks.first() else { return Ok(()) };
        let high = first.minimum.max(self.before.bytes.unwrap_or(first.minimum));
        self.check_above(Some(high), growth, config)
    }

    /// Checks that its growth ends higher than what was seen before, if anything was.
    fn check_above(
        &self,
        high: Option<f64>,
        growth: &Growth,
        config: &Config,
    ) -> Result<(), Stopped> {
        let Some((last, high)) = self.blocks.last().zip(high) else { return Ok(()) };
        Test::SeenBefore.check(last.minimum, high + config.new_high_ratio * growth.bytes)
    }

    /// Checks that the growth since its onset goes on. It must reach new heights at its slope,
    /// over as many units as an end takes to be known.
    pub(super) fn check_going_on(
        &self,
        onset_idx: usize,
        slope: f64,
        config: &Config,
    ) -> Result<(), Stopped> {
        let blocks = self.blocks.get(onset_idx..).unwrap_or_default();
        let Some(last) = blocks.last() else { return Ok(()) };
        let position = last.at.position;
        let ended_blocks =
            self.samples_per_block.map_or(ENDED_INTERVALS, |n| config.ended_blocks(n));
        let newest = self.blocks.iter().rev().nth(ended_blocks).or(self.blocks.first());
        let sampled = newest.map_or(0.0, |newest| position - newest.at.position);
        let recent = Heights::of(blocks, self.creeping_min.is_some()).and_then(|heights| {
            heights.recent_slope(position, heights.ended_after(sampled, config))
        });
        recent.map_or(Ok(()), |recent| Test::Ended.check(recent / slope, config.ended_ratio))
    }
}

/// The growth of a window without its largest increment, which is a level shift. Between event
/// markers each increment may be one, so that none is left out.
pub(super) struct Growth {
    pub(super) bytes: f64,
    pub(super) n_increments: u32,
    /// Σ d² of the increments d.
    squares: f64,
    /// Points without the largest increment.
    points: [(f64, f64); BLOCKS_MAX],
    n_points: usize,
}

impl Growth {
    pub(super) fn of(window: &Window<'_>) -> Self {
        let increments = || {
            let pairs = window.blocks.iter().zip(window.blocks.iter().skip(1));
            pairs.map(|(block, next)| {
                (next.minimum - block.minimum) * window.evened(block, next).unwrap_or(1.0)
            })
        };
        let largest = increments().enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
        let (shift_idx, shift) = largest
            .filter(|(_, height)| window.creeping_min.is_none() && *height > 0.0)
            .unwrap_or((BLOCKS_MAX, 0.0));
        let mut points = [(0.0, 0.0); BLOCKS_MAX];
        let n_points = points_of(window.blocks, &mut points).len();
        points.iter_mut().skip(shift_idx + 1).for_each(|(_, bytes)| *bytes -= shift);
        let left_out = if window.creeping_min.is_some() { 1 } else { 2 };
        Self {
            bytes: increments().sum::<f64>() - shift,
            n_increments: u32::try_from(window.blocks.len().saturating_sub(left_out))
                .unwrap_or(u32::MAX),
            squares: increments().map(|height| height * height).sum::<f64>() - shift * shift,
            points,
            n_points,
        }
    }

    /// Returns the growth in standard deviations of a walk with as many increments of the same
    /// spread.
    pub(super) fn t(&self) -> f64 {
        let k = f64::from(self.n_increments);
        let variance = ((self.squares - self.bytes * self.bytes / k) / (k - 1.0)).max(0.0);
        (self.bytes / (variance * k).sqrt()).min(LARGEST_T)
    }

    /// Returns the t that a random walk reaches by chance.
    pub(super) fn t_min(&self, config: &Config) -> f64 {
        student::quantile(config.walk_z, self.n_increments.saturating_sub(1).max(1))
    }

    /// Returns the points without the largest increment.
    fn points(&self) -> &[(f64, f64)] {
        self.points.get(..self.n_points).unwrap_or_default()
    }

    /// Returns the last quarter's gain by the first's; `None` for too few blocks.
    pub(super) fn deceleration(&self) -> Option<f64> {
        let points = self.points();
        Some(points).filter(|points| points.len() >= QUARTERS_BLOCKS_MIN)?;
        deceleration_ratio(points)
    }

    /// Returns the share that growth over the window must have used: more of a short window and
    /// of few increments.
    fn share_required(&self, window: &Window<'_>, around: &Surroundings<'_>) -> f64 {
        let config = around.config;
        let n_steps = around.steps_per_unit * window.span();
        let short = (config.share_full_span / n_steps).sqrt().max(1.0);
        let few = (config.share_full_increments / f64::from(self.n_increments)).sqrt().max(1.0);
        (config.share_ratio(around.signal) * short).min(1.0) * few
    }

    /// Checks, of a process, that few increments do not become larger. A batch that grows takes
    /// larger segments each time; a leak takes the same ones again.
    fn check_larger(&self, around: &Surroundings<'_>) -> Result<(), Stopped> {
        let n_equal = self.bytes * self.bytes / self.squares;
        let is_many = n_equal >= MANY_OF_INCREMENTS * f64::from(self.n_increments);
        if around.signal != Signal::Process || is_many {
            return Ok(());
        }
        let pairs = self.points().iter().zip(self.points().iter().skip(1));
        let increments = pairs.map(|((_, y), (x, next))| (*x, next - y));
        let largest = increments.clone().map(|(_, height)| height).fold(0.0, f64::max);
        let mut compared = [(0.0, 0.0); BLOCKS_MAX];
        let tall = increments.filter(|(_, height)| *height > COMPARED_OF_LARGEST * largest);
        let n_compared =
            compared.iter_mut().zip(tall).map(|(slot, point)| *slot = point).count();
        let tau = compared.get(..n_compared).and_then(theil_sen).map_or(0.0, |fit| fit.tau);
        Test::EverLarger.check(tau, around.config.larger_tau_max)
    }
}
