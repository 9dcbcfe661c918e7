//! The line through the median of all pairs' slopes.

use crate::stats::median::median;

/// The most points that [`theil_sen`] takes: it compares all pairs, so that its cost grows with
/// the square.
pub const POINTS_MAX: usize = 32;

/// Number of pairs that [`POINTS_MAX`] points make.
const PAIRS_MAX: usize = POINTS_MAX * (POINTS_MAX - 1) / 2;

/// A line through points by the median of the slopes of all pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TheilSen {
    /// The median of the pairs' slopes: y per x.
    pub slope: f64,
    /// Kendall's tau-a, -1 to 1: the share of pairs that rise less the share of those that
    /// fall.
    pub tau: f64,
}

/// Fits the median of all pairwise slopes, which up to 29 % of wild points do not move.
///
/// `points`: (x, y), at most [`POINTS_MAX`] of them. A pair whose x does not rise has no slope
/// and is left out of the median, but not out of tau. `None` when no pair is left, or for more
/// points than the limit.
///
/// Sources: Theil, "A rank-invariant method of linear and polynomial regression analysis"
/// (1950); Sen, "Estimates of the regression coefficient based on Kendall's tau", JASA 63
/// (1968), who also treats equal x.
pub fn theil_sen(points: &[(f64, f64)]) -> Option<TheilSen> {
    if points.len() > POINTS_MAX {
        return None;
    }
    let mut slopes = [0.0; PAIRS_MAX];
    let mut n_slopes = 0;
    let (mut n_pairs, mut n_rising, mut n_falling) = (0_u32, 0_u32, 0_u32);
    let mut rest = points;
    while let [(x, y), later @ ..] = rest {
        for (later_x, later_y) in later {
            n_pairs += 1;
            n_rising += u32::from(later_y > y);
            n_falling += u32::from(later_y < y);
            let width = later_x - x;
            if width > 0.0
                && let Some(slope) = slopes.get_mut(n_slopes)
            {
                *slope = (later_y - y) / width;
                n_slopes += 1;
            }
        }
        rest = later;
    }
    let slope = median(slopes.get_mut(..n_slopes)?)?;
    let tau = (f64::from(n_rising) - f64::from(n_falling)) / f64::from(n_pairs);
    Some(TheilSen { slope, tau })
}
