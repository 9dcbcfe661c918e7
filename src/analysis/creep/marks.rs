//! Marks of stairs: evaluations, checkpoints and pauses that come with them.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::gates::{Gate, GateFailure};
use crate::analysis::creep::pyramid::count;

/// Stairs to remember; the longest flight has seven.
pub(super) const STAIRS_MAX: usize = 7;
/// Marks that come more often than this without a stair do not explain one: stairs per mark.
const STAIRS_OF_MARKS: f64 = 0.5;
/// The blocks in which a stair's mark lies: the newest completes it, the floor rose in the one
/// before, and the mark came there or in the one before that.
const STAIR_BLOCKS: u8 = 0b110;

/// What came with one stair, and between it and the stair before.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct StairMarks {
    /// Blocks with marks since the stair before.
    n_before: u8,
    /// Whether a mark came with it.
    pub(super) is_marked: bool,
}

/// The marks of the recent blocks and stairs.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Marks {
    /// Newest first.
    stairs: [StairMarks; STAIRS_MAX],
    /// Blocks with marks since the last stair.
    n_since: u8,
    /// Whether each of the last eight blocks had a mark; the lowest bit is the one to come.
    blocks: u8,
}

impl Marks {
    /// Notes a mark since the last block.
    pub(super) fn note(&mut self) {
        self.blocks |= 1;
    }

    /// Begins the next block.
    pub(super) fn take_block(&mut self) {
        self.n_since = self.n_since.saturating_add(self.blocks & 1);
        self.blocks <<= 1;
    }

    /// Keeps the marks of the stair that the block to come completes.
    pub(super) fn take_stair(&mut self) {
        let is_marked = self.blocks & STAIR_BLOCKS != 0;
        self.stairs.rotate_right(1);
        let [newest, ..] = &mut self.stairs;
        *newest = StairMarks { n_before: self.n_since, is_marked };
        self.n_since = 0;
    }

    /// Returns the marks of the newest stairs, newest first; at most as many as are remembered.
    pub(super) fn newest(&self, n_stairs: usize) -> &[StairMarks] {
        self.stairs.get(..n_stairs).unwrap_or(&self.stairs)
    }
}

/// Checks that each stair came with a mark, and most marks with a stair; the newest stair first.
pub(super) fn check(stairs: &[StairMarks]) -> Result<(), GateFailure> {
    let n_stairs = count(stairs.len());
    let n_marked = count(stairs.iter().filter(|stair| stair.is_marked).count());
    Gate::StairMarks.check(n_marked, n_stairs)?;
    let since_first = stairs.iter().take(stairs.len().saturating_sub(1));
    let n_marks: f64 = since_first.map(|stair| f64::from(stair.n_before)).sum();
    Gate::MarkStairs.check(n_stairs / n_marks.max(n_stairs), STAIRS_OF_MARKS)
}
