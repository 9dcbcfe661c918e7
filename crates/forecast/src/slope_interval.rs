//! The 95 % interval of a slope.

use serde::{Deserialize, Serialize};

use crate::stats::count;
use crate::stats::slope_error::{errors_of_interval, slope_error};
use crate::stats::student;
use crate::stats::theil_sen::theil_sen;
use stepmem_types::units::Interval;

/// The place of a minimum within its block is unknown: half a block at both ends of a line.
const ENDS_BLOCKS: f64 = 1.0;
/// A changepoint may be a block off.
const CHANGEPOINT_BLOCKS: f64 = 1.0;
/// Half a 95 % interval in standard deviations of a random walk with the same increments. It
/// serves for points too few to show how they scatter around a line.
const WALK_SPREADS: f64 = 1.96;

/// The fewest points since an onset that show a slope.
const SINCE_ONSET_POINTS_MIN: usize = 8;
/// Growth is bent when the slopes of its halves differ by more than this many standard errors of the
/// whole…
const BENT_ERRORS: f64 = 3.0;
/// …or by this many of their own: a bend by itself scatters the points around one line.
const BENT_HALVES_ERRORS: f64 = 2.0;

/// …and called so when they differ by this share of the whole slope. Those of growth whose rate
/// rises from 0 in a straight line differ by all of it.
const BENT_RATIO: f64 = 0.5;
const BENT_RATIO_SLOWER: f64 = -BENT_RATIO;

/// The change of the rate of growth since its onset.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum Bend {
    /// Growth along a line, as far as its halves tell.
    #[default]
    Straight,
    /// Growth that becomes faster and faster: its slope is the average.
    Faster,
    /// Growth that slows down: its slope is the average.
    Slower,
}

/// Growth since an onset.
pub struct SinceOnset {
    /// The slope, with an interval for growth that has just been raised: its points were chosen
    /// for how much they look like growth, and where it begins is uncertain.
    pub slope: Interval,
    /// The slope of growth that has gone on since: where it is straight, the interval has the
    /// scatter of its points alone.
    pub(crate) settled: Interval,
    /// The slope with an interval that covers the slopes that come next: the difference between
    /// those of both halves.
    pub ahead: Interval,
    /// The change of the rate.
    pub bend: Bend,
    /// The rise of the rate with each unit, where it surely rises; else 0.
    pub gain: f64,
}

impl SinceOnset {
    /// Returns the slope of growth that the bytes do not show: it may be twice as much, or none.
    pub fn unsure(slope: f64) -> Self {
        let slope = Interval { lower: 0.0, value: slope, upper: 2.0 * slope };
        Self { slope, settled: slope, ahead: slope, bend: Bend::Straight, gain: 0.0 }
    }
}

/// Half the 95 % interval around the growth of a window, as a share of it, by the test that no
/// random walk grows like that.
#[derive(Clone, Copy, Debug)]
pub struct Spread(f64);

impl Spread {
    /// Returns the spread of a window whose growth is `t` standard deviations of a walk of as
    /// many increments.
    pub fn of_test(t: f64, n_increments: u32) -> Self {
        Self(student::quantile(WALK_SPREADS, n_increments.saturating_sub(1).max(1)) / t)
    }

    /// Returns the spread of points by their increments, the largest included.
    fn of_points(points: &[(f64, f64)]) -> Option<Self> {
        let ((_, first), (_, last)) = (points.first()?, points.last()?);
        let n_increments = u32::try_from(points.len()).ok()?.saturating_sub(1);
        let (growth, k) = (last - first, f64::from(n_increments));
        let variance = (squared_increments(points) - growth * growth / k) / (k - 1.0);
        let t = growth / (variance.max(0.0) * k).sqrt();
        (k > 1.0 && t > 0.0).then(|| Self::of_test(t, n_increments))
    }
}

/// A line through points.
struct Line {
    slope: f64,
    /// The standard error of the slope; `None` for too few points.
    error: Option<f64>,
    /// The slope of the later half less that of the earlier one.
    bend: f64,
    /// The standard error of the bend, from how far the points of each half lie from its own line;
    /// `None` for too few points.
    bend_error: Option<f64>,
}

/// Half the width of the 95 % interval around the slope of a line.
struct Width {
    /// The part that comes of the unknown ends of the line.
    ends: f64,
    /// The part that comes of the scatter of the points and of the bend.
    scatter: f64,
}

impl Line {
    /// Returns the line of this slope.
    fn through(points: &[(f64, f64)], slope: f64) -> Self {
        let error = slope_error(points, slope);
        let (early, late) = points.split_at(points.len() / 2);
        let Some((early_slope, late_slope)) = theil_sen(early).zip(theil_sen(late)) else {
            return Self { slope, error, bend: 0.0, bend_error: None };
        };
        let (early_slope, late_slope) = (early_slope.slope, late_slope.slope);
        let errors = slope_error(early, early_slope).zip(slope_error(late, late_slope));
        let bend_error = errors.map(|(early, late)| early.hypot(late));
        Self { slope, error, bend: late_slope - early_slope, bend_error }
    }

    fn is_bent(&self) -> bool {
        let exceeds = |errors: f64, error: Option<f64>| {
            error.is_some_and(|error| self.bend.abs() > errors * error)
        };
        exceeds(BENT_ERRORS, self.error) || exceeds(BENT_HALVES_ERRORS, self.bend_error)
    }

    /// Returns the width of its interval; the first end may be a changepoint. `None` when the
    /// points do not span anything.
    fn width(&self, points: &[(f64, f64)], is_since_changepoint: bool) -> Option<Width> {
        let ((first, _), (last, _)) = (points.first()?, points.last()?);
        let span = Some(last - first).filter(|span| *span > 0.0)?;
        let n_points = count(points.len());
        let blocks =
            if is_since_changepoint { ENDS_BLOCKS + CHANGEPOINT_BLOCKS } else { ENDS_BLOCKS };
        let scatter = match self.error {
            Some(error) => self.bend.abs() + errors_of_interval(n_points) * error,
            None => WALK_SPREADS * squared_increments(points).sqrt() / span,
        };
        Some(Width { ends: blocks / (n_points - 1.0) * self.slope.abs(), scatter })
    }
}

impl Width {
    /// Returns the interval around a slope. Where it would reach 0, it is no wider than the
    /// `spread` of the growth, if that is given: a test has shown that it grows.
    fn around(&self, slope: f64, spread: Option<Spread>) -> Interval {
        let spread = spread.filter(|_| self.ends + self.scatter >= slope.abs());
        let within = spread.map(|spread| self.scatter.min(spread.0 * slope.abs()));
        Interval::around(slope, self.ends + within.unwrap_or(self.scatter))
    }
}

/// Returns the 95 % interval around the slope of a line. `None` when the points do not span
/// anything.
pub(crate) fn slope_interval(points: &[(f64, f64)], slope: f64) -> Option<Interval> {
    Some(Line::through(points, slope).width(points, false)?.around(slope, None))
}

/// Returns the slope of growth since its onset with its interval: that of a line where the
/// growth is straight, else the average. `None` for fewer than eight points, and where the interval
/// has slopes that are no growth.
pub fn slope_since_onset(
    points: &[(f64, f64)],
    is_since_changepoint: bool,
) -> Option<SinceOnset> {
    if points.len() < SINCE_ONSET_POINTS_MIN {
        return None;
    }
    let ((first, base), (last, top)) = (points.first()?, points.last()?);
    let slope = theil_sen(points)?.slope;
    let straight = Line::through(points, slope);
    let (rise, error, is_bent) = (straight.bend, straight.error?, straight.is_bent());
    let line = if is_bent {
        let average = (top - base) / (last - first);
        Line { slope: average, error: slope_error(points, average), ..straight }
    } else {
        straight
    };
    let width = line.width(points, is_since_changepoint)?;
    let ahead = width.around(line.slope, None);
    let interval = width.around(line.slope, Spread::of_points(points));
    let bend = match rise / slope {
        _ if !is_bent => Bend::Straight,
        BENT_RATIO.. => Bend::Faster,
        ..=BENT_RATIO_SLOWER => Bend::Slower,
        _ => Bend::Straight,
    };
    let gain = if is_bent { rise.max(0.0) / (0.5 * (last - first)) } else { 0.0 };
    let scatter = errors_of_interval(count(points.len())) * error;
    let is_narrower = !is_bent && scatter < interval.upper - interval.value;
    let settled = if is_narrower { Interval::around(slope, scatter) } else { interval };
    (interval.lower > 0.0).then_some(SinceOnset { slope: interval, settled, ahead, bend, gain })
}

/// Returns a line's `slope` with its intervals where the points are too few for
/// [`slope_since_onset`], but a test has shown that they grow.
pub fn slope_of_test(
    points: &[(f64, f64)],
    slope: f64,
    is_since_changepoint: bool,
    spread: Spread,
) -> Option<SinceOnset> {
    let width = Line::through(points, slope).width(points, is_since_changepoint)?;
    let (ahead, slope) = (width.around(slope, None), width.around(slope, Some(spread)));
    Some(SinceOnset { slope, settled: slope, ahead, bend: Bend::Straight, gain: 0.0 })
}

fn squared_increments(points: &[(f64, f64)]) -> f64 {
    let pairs = points.iter().zip(points.iter().skip(1));
    pairs.map(|((_, y), (_, next))| (next - y) * (next - y)).sum()
}
