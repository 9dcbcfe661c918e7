//! Marks of stairs: evaluations, checkpoints and pauses that come with them.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::gates::{Gate, GateFailure};
use crate::analysis::creep::pyramid::count;
use crate::analysis::creep::without::{Rule, Without};

/// This many stairs suffice when each came with a mark, they are alike and few more fit.
pub(super) const STAIRS_PAIR: usize = 2;
/// This many more may fit after a pair: a third stair would leave room for one.
const PAIR_LEFT_MAX: f64 = 2.0;
/// This many suffice when each came with a mark, or when not even one more fits.
pub(super) const STAIRS_FEW: usize = 3;
/// Stairs to remember; the longest flight has seven.
pub(super) const STAIRS_MAX: usize = 7;
/// This many stairs suffice without marks when they have used enough: one more than a gradual
/// unfreezing usually has.
const STAIRS_MANY: usize = 7;
/// The same before there was a rule of marks.
const STAIRS_MANY_OFF: usize = 6;
/// Few stairs suffice without marks when at most so many more fit.
const STAIRS_LEFT_MAX: f64 = 1.0;
/// The same before there was a rule of marks.
const STAIRS_LEFT_MAX_OFF: f64 = 4.0;
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

/// Returns how many stairs may be enough, the fewest first.
pub(super) fn enough(without: Without) -> impl Iterator<Item = usize> {
    let pair = (!without.is_off(Rule::PairOfStairs)).then_some(STAIRS_PAIR);
    let is_off = without.is_off(Rule::MarkedStairs);
    let many = if is_off { STAIRS_MANY_OFF } else { STAIRS_MANY };
    pair.into_iter().chain([STAIRS_FEW, many])
}

/// Returns how many more stairs may fit where so few suffice: a pair with marks, a few without.
pub(super) fn left_max(n_stairs: usize, without: Without) -> f64 {
    if n_stairs == STAIRS_PAIR {
        return PAIR_LEFT_MAX;
    }
    if without.is_off(Rule::MarkedStairs) { STAIRS_LEFT_MAX_OFF } else { STAIRS_LEFT_MAX }
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

#[cfg(test)]
mod tests {
    use crate::analysis::creep::record::MemoryRecord;
    use crate::analysis::creep::signal::Signal;
    use crate::analysis::creep::simulation::{Simulation, assert_within, at, noise, record};
    use crate::analysis::creep::trend::Stage;
    use crate::model::units::GIBIBYTE;

    /// A stair of 2 GiB at steps 4000, 6000 and 8000, after a pause of 5 s; from a step on, the clock is so many seconds ahead.
    fn paused(step: f64, jump: f64, seconds: f64) -> MemoryRecord {
        let n_stairs = (step / 2000.0).floor();
        let ahead = if step < jump { 0.0 } else { seconds };
        let time = 1e9 + step + 5.0 * n_stairs + ahead;
        MemoryRecord {
            at: at(step, time),
            ..record(step, GIBIBYTE * (32.0 + 2.0 * (n_stairs - 1.0).max(0.0)))
        }
    }

    #[test]
    fn clock_that_changes_amid_marked_stairs_hides_and_adds_none() {
        // Where the clock goes back with a stair, its pause cannot be seen: three stairs of which one is not marked are too few.
        for (jump, seconds, expected) in [
            (0.0, 0.0, true),
            (5000.0, -3600.0, true),
            (5000.0, 3600.0, true),
            (6000.0, -3600.0, false),
        ] {
            let mut rank = Simulation::new();
            let is_found = rank.run_until_change(8500, |step| paused(step, jump, seconds));
            assert_eq!(is_found, expected, "{seconds} s at {jump}");
            let stage = rank.stage(Signal::Allocated);
            assert_eq!(stage == Some(Stage::Creeping), expected, "{seconds} s at {jump}");
        }
        // A jump ahead at each of three steps without a stair is no evidence of one.
        let mut level = Simulation::new();
        level.run(8500, |step| {
            let n_jumps = (step / 2000.0).floor();
            MemoryRecord { at: at(step, 1e9 + step + 3600.0 * n_jumps), ..record(step, 0.0) }
        });
        assert_eq!((level.n_changes, level.stage(Signal::Allocated)), (0, None));
    }

    #[test]
    fn three_stairs_creep_when_each_comes_with_an_evaluation() {
        let of_step = |step: f64| {
            record(step, GIBIBYTE * (32.0 + 2.0 * ((step / 2000.0).floor() - 1.0).max(0.0)))
        };
        let mut rank = Simulation::new();
        while rank.step < 8500.0 && rank.stage(Signal::Allocated).is_none() {
            if rank.step % 2000.0 == 0.0 {
                rank.estimator.other_phase(&of_step(rank.step));
            }
            rank.run(1, of_step);
        }
        assert_within(rank.step, 8000.0, 300.0);
    }

    /// Two stairs of so many GiB, at steps 4000 and 6000, each after a pause of so many seconds.
    fn pair(first: f64, second: f64, seconds: f64) -> Option<Stage> {
        let mut rank = Simulation::new();
        rank.run(7900, |step: f64| {
            let first = if step < 4000.0 { 0.0 } else { first };
            let second = if step < 6000.0 { 0.0 } else { second };
            let time = 1e9 + step + seconds * (step / 2000.0).floor();
            MemoryRecord {
                at: at(step, time),
                ..record(step, GIBIBYTE * (20.0 + first + second))
            }
        });
        rank.stage(Signal::Allocated)
    }

    #[test]
    fn pair_of_marked_stairs_creeps_when_it_is_alike_and_few_more_fit() {
        assert_eq!(pair(8.0, 8.0, 5.0), Some(Stage::Creeping));
        assert_eq!(pair(8.0, 6.0, 5.0), None, "one is lower");
        assert_eq!(pair(8.0, 8.0, 0.0), None, "not marked");
        assert_eq!(pair(6.0, 6.0, 5.0), None, "more than two more fit");
        assert_eq!(pair(8.0, -8.0, 5.0), None, "taken back");
    }

    #[test]
    fn batches_that_differ_by_more_than_a_stair_hide_none() {
        // Up to 3 GiB of a batch stay live in a step, other ones every 150 steps, and every stair is of 1 GiB.
        let of_step = |step: f64| {
            let n_stairs = ((step / 2000.0).floor() - 1.0).max(0.0);
            let of_batch = 3.0 * (0.5 + noise((step / 150.0).floor())) * GIBIBYTE;
            let live = GIBIBYTE * (50.0 + n_stairs) + of_batch;
            let peak = Some(live + 2.0 * of_batch);
            MemoryRecord {
                at: at(step, 1e9 + step + 5.0 * (step / 2000.0).floor()),
                allocated: live,
                peak,
                peak_bound: peak,
                reserved: Some(66.0 * GIBIBYTE),
                peak_reserved: Some(66.0 * GIBIBYTE),
            }
        };
        let mut rank = Simulation::new();
        assert!(rank.run_until_change(8500, of_step));
        let trend = rank.trend(Signal::Allocated).unwrap();
        assert_eq!(trend.stage, Stage::Creeping);
        assert_within(trend.growth_bytes, 3.0 * GIBIBYTE, 0.3 * GIBIBYTE);
    }
}
