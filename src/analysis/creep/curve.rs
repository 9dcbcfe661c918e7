//! The points of a window, as gates and fits take them.

use crate::analysis::creep::pyramid::{BLOCKS_MAX, Block, count};
use crate::analysis::estimate;

/// The points of one window: (position, bytes), oldest first.
pub(super) struct Curve {
    points: [(f64, f64); BLOCKS_MAX],
    pub(super) n_points: usize,
}

impl Curve {
    /// Collects one value per block; `None` if any is unknown.
    pub(super) fn of(blocks: &[Block], value: impl Fn(&Block) -> Option<f64>) -> Option<Self> {
        let mut curve = Self { points: [(0.0, 0.0); BLOCKS_MAX], n_points: 0 };
        for (point, block) in curve.points.iter_mut().zip(blocks) {
            *point = (block.end.position, value(block)?);
            curve.n_points += 1;
        }
        Some(curve)
    }

    pub(super) fn points(&self) -> &[(f64, f64)] {
        self.points.get(..self.n_points).unwrap_or(&[])
    }
}

/// Returns the last quarter's gain per block as a share of the first quarter's: 1 for a line and
/// for growth that sets in later. `None` for fewer than four points.
pub(super) fn kept_ratio(points: &[(f64, f64)]) -> Option<f64> {
    let gains = estimate::quarter_gains(points)?;
    // The quarters are spread over the points; the last two may be a block farther apart.
    let room = points.len() - points.len() / 4;
    let (first, last) = (count(room / 3), count(room - 2 * room / 3));
    Some(if gains.first > 0.0 {
        gains.last * first / (last * gains.first)
    } else if gains.last > 0.0 {
        1.0
    } else {
        0.0
    })
}
