//! How fast the points of a window climb, with a 95 % interval.

use crate::analysis::creep::axis::AxisPoint;
use crate::analysis::creep::curve::Curve;
use crate::analysis::creep::pyramid::{BLOCKS_MAX, Level, Pyramid, count};
use crate::analysis::creep::rules::CreepSettings;
use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::trend::SinceOnset;
use crate::analysis::creep::without::{Rule, Without};
use crate::analysis::estimate;
use crate::model::units::{Interval, MEBIBYTE};

/// The place of a floor within its block is not known: of both ends of a line, half a block each.
const ENDS_BLOCKS: f64 = 1.0;
/// Growth by at least as much per step may come in blocks that a caching allocator leaves whole.
const UNSPLIT_FROM_BYTES: f64 = MEBIBYTE;
/// What that adds to a step's growth may be as much as this: 0.1 MiB at the mean, measured on
/// leaks of 1 to 6 MiB a step.
const UNSPLIT_BYTES: f64 = 0.15 * MEBIBYTE;
/// Growth that scatters less than this share of its slope is the same at every step: nothing that
/// differs from block to block is in it.
const EXACT_RATIO: f64 = 1e-6;
/// Half the width of a 95 % interval, in standard deviations of a random walk with the same
/// moves: of points too few to show how they scatter around a line.
const WALK_SPREADS: f64 = 1.96;

/// The path of a window that rises in a straight line is worth this share of its moves.
const STRAIGHT_RATIO: f64 = 0.7;
/// Its last quarter gains at least this share of what its first does.
const STRAIGHT_GAIN_RATIO: f64 = 0.6;
/// Less growth in a window is not worth a word: a list of losses on the device takes 512 bytes a step.
const STRAIGHT_BYTES_MIN: f64 = 4.0 * MEBIBYTE;

/// How the longest window of a signal moves.
pub(super) struct Overview {
    pub(super) slope: Interval,
    /// Whether it rises in a straight line.
    pub(super) is_straight: bool,
}

/// Returns the slope of the longest window, by every other block of it; `None` until a window
/// holds enough blocks.
pub(super) fn overview(
    signal: Signal,
    settings: &CreepSettings,
    pyramid: &Pyramid,
) -> Option<Overview> {
    let has_enough = |level: &&Level| level.blocks.len() >= settings.rules(signal).blocks_min;
    let level = pyramid.levels.iter().rev().find(has_enough)?;
    let curve = Curve::of(&level.blocks, |block| block.value(signal))?;
    let mut thinned = [(0.0, 0.0); BLOCKS_MAX.div_ceil(2)];
    let n_thinned = curve.n_points.div_ceil(2);
    for (to, from) in thinned.iter_mut().zip(curve.points().iter().rev().step_by(2)) {
        *to = *from;
    }
    let points = thinned.get_mut(..n_thinned)?;
    points.reverse();
    let slope = estimate::theil_sen(points)?.slope;
    let slope = interval(points, slope, settings.without)?;
    Some(Overview { slope, is_straight: is_straight(curve.points(), &slope) })
}

/// Returns whether a window rises in a straight line, surely, and to its end.
fn is_straight(points: &[(f64, f64)], slope: &Interval) -> bool {
    let Some(path) = estimate::path(points) else { return false };
    let n_moves = count(points.len()) - 1.0;
    let is_line = path.straightness().is_some_and(|moves| moves >= STRAIGHT_RATIO * n_moves);
    let is_steady =
        estimate::kept_ratio(points).is_some_and(|kept| kept >= STRAIGHT_GAIN_RATIO);
    is_line && is_steady && slope.lower > 0.0 && path.rise >= STRAIGHT_BYTES_MIN
}

/// The slope of a window since its growth set in.
pub(super) struct GrowthRate {
    /// The block from which it grows; 0 unless the growth sets in within the window.
    pub(super) onset_idx: usize,
    pub(super) slope: Interval,
}

impl GrowthRate {
    /// Fits the whole window, or only the rest if its first part is level.
    pub(super) fn of(points: &[(f64, f64)], slope: f64, without: Without) -> Option<Self> {
        Self::since_bend(points, without)
            .or_else(|| Some(Self { onset_idx: 0, slope: interval(points, slope, without)? }))
    }

    fn since_bend(points: &[(f64, f64)], without: Without) -> Option<Self> {
        let onset_idx = estimate::bend(points).filter(|idx| *idx > 0)?;
        let rest = points.get(onset_idx..)?;
        let slope =
            estimate::theil_sen(rest).map(|fit| fit.slope).filter(|slope| *slope > 0.0)?;
        Some(Self { onset_idx, slope: interval(rest, slope, without)? })
    }
}

/// Returns the 95 % interval of a line's slope: by how the points scatter around it, by how much
/// the slopes of its halves differ, and by what is not known of its ends.
///
/// `None` when the points do not span anything.
pub(super) fn interval(
    points: &[(f64, f64)],
    slope: f64,
    without: Without,
) -> Option<Interval> {
    let ((first, _), (last, _)) = (points.first()?, points.last()?);
    let span = Some(last - first).filter(|span| *span > 0.0)?;
    let walk = || Some(WALK_SPREADS * estimate::path(points)?.squared_moves.sqrt() / span);
    if without.is_off(Rule::Scatter) {
        return Some(Interval::around(slope, walk()?));
    }
    let n_points = count(points.len());
    let ends = ENDS_BLOCKS / (n_points - 1.0) * slope.abs();
    let spread = match estimate::slope_error(points, slope) {
        Some(error) => bow(points) + estimate::errors_of_interval(n_points) * error,
        None => walk()?,
    };
    Some(Interval::around(slope, ends + spread))
}

/// Growth of live memory, told apart into what the program asks for and what a caching allocator
/// adds: from a block above 1 MiB it splits no remainder of up to 1 MiB off.
pub(super) struct AskedFor {
    /// In the middle of what the program may have asked for; the interval reaches from the least of
    /// that to what has become live.
    pub(super) slope: Interval,
    /// What becomes live beyond that slope.
    pub(super) unsplit_bytes: f64,
}

impl AskedFor {
    /// `points`: those that the slope is of.
    pub(super) fn of(slope: Interval, points: &[(f64, f64)]) -> Self {
        let is_exact = || {
            let error = estimate::slope_error(points, slope.value);
            error.is_some_and(|error| error < EXACT_RATIO * slope.value)
        };
        let is_unsplit = slope.value >= UNSPLIT_FROM_BYTES && !is_exact();
        let most = if is_unsplit { UNSPLIT_BYTES } else { 0.0 };
        let unsplit_bytes = 0.5 * most;
        let slope =
            Interval { value: slope.value - unsplit_bytes, lower: slope.lower - most, ..slope };
        Self { slope, unsplit_bytes }
    }

    /// Returns the growth since `onset` at this rate, near whose end `until` the series was at `level`.
    pub(super) fn since(&self, onset: AxisPoint, until: AxisPoint, level: f64) -> SinceOnset {
        SinceOnset::at_rate(self.slope.value, onset, until, level)
    }
}

/// Returns by how much the slopes of a line's halves differ; 0 where a half has none.
fn bow(points: &[(f64, f64)]) -> f64 {
    let (older, newer) = points.split_at(points.len() / 2);
    let slope = |half| estimate::theil_sen(half).map(|fit| fit.slope);
    slope(older).zip(slope(newer)).map_or(0.0, |(older, newer)| (newer - older).abs())
}

#[cfg(test)]
mod tests {
    use crate::analysis::creep::slope::AskedFor;
    use crate::model::units::{Interval, MEBIBYTE};

    #[test]
    fn allocator_may_have_added_to_large_blocks_only() {
        let fast = Interval::around(2.0 * MEBIBYTE, 0.1 * MEBIBYTE);
        let scattered: Vec<_> = (0..12_u8).map(f64::from).map(|x| (x, x * x)).collect();
        let AskedFor { slope, unsplit_bytes } = AskedFor::of(fast, &scattered);
        assert_eq!((slope.value + unsplit_bytes, slope.upper), (fast.value, fast.upper));
        assert!((slope.value - 1.925 * MEBIBYTE).abs() < 1.0, "{slope:?}");
        assert!((slope.lower - 1.75 * MEBIBYTE).abs() < 1.0, "{slope:?}");
        let slow = Interval::around(0.9 * MEBIBYTE, 0.1 * MEBIBYTE);
        assert_eq!(AskedFor::of(slow, &scattered).slope, slow);
        let even: Vec<_> = scattered.iter().map(|(x, _)| (*x, fast.value * x)).collect();
        assert_eq!(AskedFor::of(fast, &even).slope, fast, "the same at every step");
    }
}
