//! The movement of a series in one window, also when nothing is wrong with it.
//!
//! Its numbers, below, are not the detector's: they call a rise straight in a summary or a
//! status, whatever is left to grow into, and raise nothing.

use crate::slope_interval::slope_interval;
use crate::stats::count;
use crate::stats::quarters::deceleration_ratio;
use crate::stats::theil_sen::{POINTS_MAX, theil_sen};
use stepmem_types::units::{Interval, MEBIBYTE};

/// The increments of a window that rises in a straight line are worth this share of themselves
/// in equal ones.
const STRAIGHT_RATIO: f64 = 0.7;
/// The least gain of the last quarter of a straight line, as a share of what the first gains.
const STRAIGHT_GAIN_RATIO: f64 = 0.6;
/// Less growth in a window is not worth a word: a list of losses on the device takes 512 bytes
/// a step.
const STRAIGHT_BYTES_MIN: f64 = 4.0 * MEBIBYTE;

/// The movement of a series.
#[derive(Clone, Copy, Debug)]
pub struct Overview {
    /// The slope, in bytes per unit of the axis.
    pub slope: Interval,
    /// Set when it rises in a straight line, surely, and to its end.
    pub is_straight: bool,
}

impl Overview {
    /// Returns the movement through points, at most 32, by every other one; `None` for too few.
    pub fn of(points: &[(f64, f64)]) -> Option<Self> {
        let mut thinned = [(0.0, 0.0); POINTS_MAX.div_ceil(2)];
        let with_newest = points.iter().skip(1 - points.len() % 2).step_by(2);
        for (to, from) in thinned.iter_mut().zip(with_newest) {
            *to = *from;
        }
        let thinned = thinned.get(..points.len().div_ceil(2))?;
        let slope = slope_interval(thinned, theil_sen(thinned)?.slope)?;
        Some(Self { slope, is_straight: slope.lower > 0.0 && is_straight(points) })
    }
}

fn is_straight(points: &[(f64, f64)]) -> bool {
    let [(_, first), .., (_, last)] = points else { return false };
    let growth = last - first;
    let pairs = points.iter().zip(points.iter().skip(1));
    let squares: f64 = pairs.map(|((_, y), (_, next))| (next - y) * (next - y)).sum();
    let is_line = growth * growth >= STRAIGHT_RATIO * (count(points.len()) - 1.0) * squares;
    let is_steady = deceleration_ratio(points).is_some_and(|kept| kept >= STRAIGHT_GAIN_RATIO);
    is_line && is_steady && growth >= STRAIGHT_BYTES_MIN
}
