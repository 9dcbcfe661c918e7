//! The points of a window, as gates and fits take them.

use crate::analysis::creep::pyramid::{BLOCKS_MAX, Block};

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
