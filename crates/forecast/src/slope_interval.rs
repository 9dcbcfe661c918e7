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
/// Growth is bent when the slopes of its halves differ by more than this many standard errors.
const BENT_ERRORS: f64 = 3.0;

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

/// Returns the 95 % interval around the slope of a line. It covers the scatter of the points,
/// the difference between the slopes of the two halves, and the unknown of its ends. The first
/// end may be a changepoint. Where it would reach 0, it is no wider than the `spread` of its
/// growth, if that is given: a test has shown that it grows.
///
/// `None` when the points do not span anything.
pub(crate) fn slope_interval(
    points: &[(f64, f64)],
    slope: f64,
    is_since_changepoint: bool,
    spread: Option<Spread>,
) -> Option<Interval> {
    let ((first, _), (last, _)) = (points.first()?, points.last()?);
    let span = Some(last - first).filter(|span| *span > 0.0)?;
    let n_points = count(points.len());
    let blocks =
        if is_since_changepoint { ENDS_BLOCKS + CHANGEPOINT_BLOCKS } else { ENDS_BLOCKS };
    let ends = blocks / (n_points - 1.0) * slope.abs();
    let scatter = match slope_error(points, slope) {
        Some(error) => slope_bend(points).abs() + errors_of_interval(n_points) * error,
        None => WALK_SPREADS * squared_increments(points).sqrt() / span,
    };
    let spread = spread.filter(|_| ends + scatter >= slope.abs());
    let within = spread.map_or(scatter, |spread| scatter.min(spread.0 * slope.abs()));
    Some(Interval::around(slope, ends + within))
}

/// Returns the slope of growth since its onset with its interval: that of a line where the
/// growth is straight, else the average. `None` for fewer than eight points, and where the interval
/// has slopes that are no growth.
pub fn slope_since_onset(
    points: &[(f64, f64)],
    is_since_changepoint: bool,
) -> Option<SinceOnset> {
    let ((first, base), (last, top)) = (points.first()?, points.last()?);
    let line = theil_sen(points).filter(|_| points.len() >= SINCE_ONSET_POINTS_MIN)?.slope;
    let rise = slope_bend(points);
    let error = slope_error(points, line)?;
    let is_bent = rise.abs() > BENT_ERRORS * error;
    let slope = if is_bent { (top - base) / (last - first) } else { line };
    let spread = Spread::of_points(points);
    let ahead = slope_interval(points, slope, is_since_changepoint, None)?;
    let slope = slope_interval(points, slope, is_since_changepoint, spread)?;
    let bend = match rise / line {
        _ if !is_bent => Bend::Straight,
        BENT_RATIO.. => Bend::Faster,
        ..=BENT_RATIO_SLOWER => Bend::Slower,
        _ => Bend::Straight,
    };
    let gain = if is_bent { rise.max(0.0) / (0.5 * (last - first)) } else { 0.0 };
    let scatter = errors_of_interval(count(points.len())) * error;
    let is_narrower = !is_bent && scatter < slope.upper - slope.value;
    let settled = if is_narrower { Interval::around(slope.value, scatter) } else { slope };
    (slope.lower > 0.0).then_some(SinceOnset { slope, settled, ahead, bend, gain })
}

/// Returns a line's `slope` with its intervals where the points are too few for
/// [`slope_since_onset`], but a test has shown that they grow.
pub fn slope_of_test(
    points: &[(f64, f64)],
    slope: f64,
    is_since_changepoint: bool,
    spread: Spread,
) -> Option<SinceOnset> {
    let ahead = slope_interval(points, slope, is_since_changepoint, None)?;
    let slope = slope_interval(points, slope, is_since_changepoint, Some(spread))?;
    Some(SinceOnset { slope, settled: slope, ahead, bend: Bend::Straight, gain: 0.0 })
}

/// Returns by how much the slope of the later half exceeds that of the earlier one; 0 where one
/// has none.
fn slope_bend(points: &[(f64, f64)]) -> f64 {
    let (early, late) = points.split_at(points.len() / 2);
    let slopes = theil_sen(early).zip(theil_sen(late));
    slopes.map_or(0.0, |(early, late)| late.slope - early.slope)
}

fn squared_increments(points: &[(f64, f64)]) -> f64 {
    let pairs = points.iter().zip(points.iter().skip(1));
    pairs.map(|((_, y), (_, next))| (next - y) * (next - y)).sum()
}
