//! The 95 % interval of a slope.

use crate::ladder::count;
use crate::stats::slope_error::{errors_of_interval, slope_error};
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

/// Returns the 95 % interval around the slope of a line. It covers the scatter of the points,
/// the difference between the slopes of the two halves, and the unknown of its ends. The first
/// end may be a changepoint.
///
/// `None` when the points do not span anything.
pub(crate) fn slope_interval(
    points: &[(f64, f64)],
    slope: f64,
    is_since_changepoint: bool,
) -> Option<Interval> {
    let ((first, _), (last, _)) = (points.first()?, points.last()?);
    let span = Some(last - first).filter(|span| *span > 0.0)?;
    let n_points = count(points.len());
    let blocks =
        if is_since_changepoint { ENDS_BLOCKS + CHANGEPOINT_BLOCKS } else { ENDS_BLOCKS };
    let ends = blocks / (n_points - 1.0) * slope.abs();
    let spread = match slope_error(points, slope) {
        Some(error) => half_slope_difference(points) + errors_of_interval(n_points) * error,
        None => WALK_SPREADS * squared_increments(points).sqrt() / span,
    };
    Some(Interval::around(slope, ends + spread))
}

/// Returns the slope of growth since its onset with its interval: that of a line where the
/// growth is straight, else the average. `None` for fewer than [`SINCE_ONSET_POINTS_MIN`]
/// points.
pub(crate) fn slope_since_onset(
    points: &[(f64, f64)],
    is_since_changepoint: bool,
) -> Option<Interval> {
    let ((first, base), (last, top)) = (points.first()?, points.last()?);
    let line = theil_sen(points).filter(|_| points.len() >= SINCE_ONSET_POINTS_MIN)?.slope;
    let is_bent = half_slope_difference(points) > BENT_ERRORS * slope_error(points, line)?;
    let slope = if is_bent { (top - base) / (last - first) } else { line };
    slope_interval(points, slope, is_since_changepoint)
}

/// Returns by how much the slopes of both halves differ; 0 where one has none.
fn half_slope_difference(points: &[(f64, f64)]) -> f64 {
    let (early, late) = points.split_at(points.len() / 2);
    let slopes = theil_sen(early).zip(theil_sen(late));
    slopes.map_or(0.0, |(early, late)| (late.slope - early.slope).abs())
}

fn squared_increments(points: &[(f64, f64)]) -> f64 {
    let pairs = points.iter().zip(points.iter().skip(1));
    pairs.map(|((_, y), (_, next))| (next - y) * (next - y)).sum()
}
