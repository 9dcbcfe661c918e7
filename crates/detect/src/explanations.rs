//! The innocent explanations of growth. A window of block minima counts once it has disproved each
//! by a test.

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

/// The side of its limit on which a value passes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bound {
    /// Passes at the limit or above it.
    AtLeast,
    /// Passes at the limit or below it.
    AtMost,
}

/// An innocent explanation of growth, in the order of asking. Each is put to a test by one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Explanation {
    /// Nothing can be said yet: the number of blocks.
    TooShort,
    /// The memory hardly grew: bytes of growth without the largest increment.
    Small,
    /// A random walk goes as far: t, the growth by the spread of as many increments.
    RandomWalk,
    /// The end is too far off to matter: the seconds that are left.
    FarOff,
    /// The growth has ended: the newest gain as a share of what the slope gives.
    Ended,
    /// The memory was as high before: bytes at the end.
    SeenBefore,
    /// A process takes few increments, each larger than the last: Kendall's tau of their heights.
    EverLarger,
    /// Ramps so short come and go: the growth as a share of growth and headroom.
    ComesAndGoes,
    /// A cache fills, and will be full: the same share.
    Cache,
}

/// The explanation that stopped a window: growth has yet to disprove it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stopped {
    /// The explanation that holds.
    pub explanation: Explanation,
    /// The value that it was tested by, in the unit of the explanation.
    pub value: f64,
    /// The limit that the value had to keep.
    pub limit: f64,
}

impl Explanation {
    /// Returns on which side of its limit a value passes.
    pub fn bound(self) -> Bound {
        match self {
            Self::FarOff | Self::EverLarger => Bound::AtMost,
            _ => Bound::AtLeast,
        }
    }

    /// Passes growth whose value is on the right side of its limit: it disproves the explanation.
    fn check(self, value: f64, limit: f64) -> Result<(), Stopped> {
        let is_passed = match self.bound() {
            Bound::AtLeast => value >= limit,
            Bound::AtMost => value <= limit,
        };
        if is_passed { Ok(()) } else { Err(Stopped { explanation: self, value, limit }) }
    }
}

/// Growth that passed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shown {
    /// The urgency of the growth.
    pub stage: Stage,
    /// The explanation that keeps it from creeping.
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
    Explanation::TooShort.check(n_blocks, count(rising_min))?;
    let none = Stopped { explanation: Explanation::TooShort, value: 0.0, limit: 1.0 };
    let (first, last) = window.ends().ok_or(none)?;
    Explanation::Small.check(last.minimum - first.minimum, config.growth_min)?;

    let growth = Growth::of(window);
    Explanation::Small.check(growth.bytes, config.growth_min)?;
    Explanation::RandomWalk.check(growth.t(), growth.t_min(config))?;

    let headroom = headroom(&usage_of_newer_half(window.blocks), around);
    let level =
        Stopped { explanation: Explanation::Small, value: 0.0, limit: config.growth_min };
    let (onset_idx, slope) = window.line().filter(|(_, slope)| *slope > 0.0).ok_or(level)?;
    let seconds = last.at.time.since(first.at.time) / window.span();
    let seconds_left = headroom / slope * seconds;
    Explanation::FarOff.check(seconds_left, window.horizon_seconds(config))?;
    window.check_going_on(onset_idx, slope, config)?;

    window.check_new(&growth, config)?;
    growth.check_larger(around)?;

    let share_ratio = growth.bytes / (growth.bytes + headroom);
    let deceleration = growth.deceleration();
    let required = growth.share_required(window, around);
    let explained = |factor: f64| {
        Explanation::ComesAndGoes.check(share_ratio, factor * required)?;
        let kept = deceleration.unwrap_or(1.0).clamp(0.0, 1.0);
        Explanation::Cache.check(share_ratio, factor * config.cache_ratio * (1.0 - kept * kept))
    };
    let shown = |stage, obstacle| Shown {
        stage,
        obstacle,
        onset_idx,
        slope,
        share_ratio,
        growth_bytes: growth.bytes,
        headroom_bytes: headroom,
        t: growth.t(),
        n_increments: growth.n_increments,
        is_by_number: false,
    };
    let has_enough = Explanation::TooShort.check(n_blocks, count(blocks_min));
    // Of single readings, while the process starts.
    let pages_within = window.pages_within.unwrap_or(f64::INFINITY);
    let may_page = || Explanation::FarOff.check(seconds_left, pages_within);
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

impl Window<'_> {
    /// Returns whether, stopped as too small, it shows a share of the growth that counts, which
    /// no random walk explains.
    pub(super) fn is_suspected(&self, stopped: &Stopped, around: &Surroundings<'_>) -> bool {
        let least = around.config.suspected_ratio * stopped.limit;
        if stopped.explanation != Explanation::Small || stopped.value < least {
            return false;
        }
        let growth = Growth::of(self);
        growth.bytes >= least && growth.t() >= growth.t_min(around.config)
    }

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
        Explanation::SeenBefore.check(last.minimum, high + config.new_high_ratio * growth.bytes)
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
        let Some(position) = blocks.last().map(|last| last.at.position) else { return Ok(()) };
        let ended_blocks =
            self.samples_per_block.map_or(config.ended_intervals, |n| config.ended_blocks(n));
        let newest = self.blocks.iter().rev().nth(ended_blocks).or(self.blocks.first());
        let sampled = newest.map_or(0.0, |newest| position - newest.at.position);
        let recent = Heights::of(blocks, self.creeping_min.is_some()).and_then(|heights| {
            heights.recent_slope(position, heights.ended_after(sampled, config))
        });
        recent.map_or(Ok(()), |recent| {
            Explanation::Ended.check(recent / slope, config.ended_ratio)
        })
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
        let config = around.config;
        let n_equal = self.bytes * self.bytes / self.squares;
        let is_many = n_equal >= config.larger_many_ratio * f64::from(self.n_increments);
        if around.signal != Signal::Process || is_many {
            return Ok(());
        }
        let pairs = self.points().iter().zip(self.points().iter().skip(1));
        let increments = pairs.map(|((_, y), (x, next))| (*x, next - y));
        let largest = increments.clone().map(|(_, height)| height).fold(0.0, f64::max);
        let mut compared = [(0.0, 0.0); BLOCKS_MAX];
        let tall = increments.filter(|(_, y)| *y > config.larger_compared_ratio * largest);
        let n_compared =
            compared.iter_mut().zip(tall).map(|(slot, point)| *slot = point).count();
        let tau = compared.get(..n_compared).and_then(theil_sen).map_or(0.0, |fit| fit.tau);
        Explanation::EverLarger.check(tau, config.larger_tau_max)
    }
}
