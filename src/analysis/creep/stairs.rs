//! Detects leaks that occur once per evaluation or checkpoint: equal, evenly spaced, never
//! reverted steps of live memory, whose windows are not straight. An evaluation, a checkpoint or
//! a pause that comes with a step marks it.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::axis::AxisPoint;
use crate::analysis::creep::context::{Growing, PeakUse, SeriesContext};
use crate::analysis::creep::gates::{Gate, GateFailure, NEW_HIGH_OF_GROWTH};
use crate::analysis::creep::marks::{
    self, Marks, STAIRS_FEW, STAIRS_MAX, STAIRS_PAIR, StairMarks,
};
use crate::analysis::creep::pace::PackedPace;
use crate::analysis::creep::pyramid::{Block, count};
use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::trend::{SinceOnset, Stage, Trend};
use crate::analysis::creep::without::{Constant, Rule};
use crate::model::units::Interval;

/// Many stairs suffice when they have used this share of headroom and growth.
const STAIRS_SHARE_RATIO: f64 = 0.10;
/// The same of a few stairs that came with marks.
const STAIRS_MARKED_SHARE_RATIO: f64 = 0.05;
/// Minimum height of a stair as a share of the headroom: more than the batch's noise in a
/// floor.
const STAIR_OF_HEADROOM: f64 = 0.015;
/// A rise of which a larger batch explains more than this is caused by the batch.
const STAIR_BATCH_RATIO: f64 = 0.5;
/// Tolerance of heights and distances around their means.
const STAIR_TOLERANCE: f64 = 0.3;
/// Tolerance of the heights of a pair.
const PAIR_TOLERANCE: f64 = 0.1;
/// Tolerance of a stair's foot around the top of the one before, in heights.
const LANDING_TOLERANCE: f64 = 0.4;
/// How many stairs a flight's first and last moment may be off: half of one at either end.
const ENDS_STAIRS: f64 = 0.5;
/// Tolerance of the whole climb around the sum of the stairs.
const CLIMB_TOLERANCE: f64 = 0.2;
/// Stairs are at least this many blocks apart; closer ones are a ramp, which windows detect.
const STAIR_BLOCKS_MIN: f64 = 3.0;
/// A fall by this share of the last stair ends the flight.
const STAIR_FALL_RATIO: f64 = 0.5;
/// The flight ends after this many distances without a stair. Evaluations keep their rhythm to
/// a third, and lost pushes hide one or two of them; raising it again takes three new stairs.
const STAIRS_QUIET_DISTANCES: f64 = 4.0;

/// The stairs of live memory remembered so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StairsEvidence {
    /// Their number, at most eight.
    pub n_stairs: usize,
    /// Their mean; `None` for fewer than two.
    pub mean: Option<MeanStair>,
    /// The gate that kept the newest of them from raising a trend.
    pub failure: Option<GateFailure>,
}

/// The mean of some stairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanStair {
    /// How high they are.
    pub height_bytes: f64,
    /// How far apart they are.
    pub distance_steps: f64,
}

/// One step up of the floor.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Stair {
    at: AxisPoint,
    /// The floor before it.
    foot: f64,
    height: f64,
    /// The highest floor of this life before it.
    high: f64,
}

impl Stair {
    /// The floor on top of it.
    fn top(&self) -> f64 {
        self.foot + self.height
    }
}

/// The block before the current one.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Landing {
    block: Block,
    /// The highest floor of this life; includes the block unless it may be half of a stair.
    high: f64,
}

/// A flight that raised a trend.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct TrendFlight {
    trend: Trend,
    /// How many stairs raised it.
    n_stairs: usize,
    /// The floor before its first stair.
    foot: f64,
}

/// The part of a stair that one block shows; the next block shows the rest.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct HalfStair {
    height: f64,
    transient_height: f64,
    foot: f64,
}

/// The stairs of one rank's live memory, and the trend they raise.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Stairs {
    // Invariant: at most STAIRS_MAX, oldest first.
    recent: Vec<Stair>,
    landing: Option<Landing>,
    half: Option<HalfStair>,
    marks: Marks,
    flight: Option<TrendFlight>,
    /// The gate that kept the newest stair from raising a trend.
    #[serde(skip)]
    failure: Option<GateFailure>,
}

impl Default for Stairs {
    fn default() -> Self {
        Self {
            recent: Vec::with_capacity(STAIRS_MAX),
            landing: None,
            half: None,
            marks: Marks::default(),
            flight: None,
            failure: None,
        }
    }
}

/// The means and extremes of consecutive stairs.
#[derive(Clone, Copy, Debug)]
struct Flight {
    first: Stair,
    last: Stair,
    n_stairs: f64,
    height: f64,
    distance_steps: f64,
    distance_seconds: f64,
    lower_bytes_per_step: f64,
    upper_bytes_per_step: f64,
}

impl Flight {
    /// Summarises consecutive stairs; `None` for fewer than two or when their steps do not
    /// rise.
    fn of(stairs: &[Stair]) -> Option<Self> {
        let [first, .., last] = stairs else { return None };
        let n_stairs = count(stairs.len());
        let n_distances = n_stairs - 1.0;
        let distance_steps = (last.at.position - first.at.position) / n_distances;
        if distance_steps <= 0.0 {
            return None;
        }
        let heights = || stairs.iter().map(|stair| stair.height);
        let lowest = heights().reduce(f64::min)?;
        let highest = heights().reduce(f64::max)?;
        let distances =
            || pairs(stairs).map(|(before, stair)| stair.at.position - before.at.position);
        let nearest = distances().reduce(f64::min)?.max(1.0);
        let farthest = distances().reduce(f64::max)?.max(1.0);
        Some(Self {
            first: *first,
            last: *last,
            n_stairs,
            height: heights().map(|height| height / n_stairs).sum(),
            distance_steps,
            distance_seconds: last.at.time.since(first.at.time) / n_distances,
            lower_bytes_per_step: lowest / farthest,
            upper_bytes_per_step: highest / nearest,
        })
    }

    /// Summarises the last `n_stairs`, or as many as there are.
    fn newest(stairs: &[Stair], n_stairs: usize) -> Option<Self> {
        stairs.get(stairs.len().saturating_sub(n_stairs)..).and_then(Self::of)
    }

    /// Checks that `stairs`, which this summarises, are equal, evenly spaced and as high as the
    /// climb to `floor`.
    fn is_even(
        &self,
        stairs: &[Stair],
        floor: f64,
        block_steps: f64,
    ) -> Result<(), GateFailure> {
        let (height, distance) = (self.height, self.distance_steps);
        let climb = self.n_stairs * height;
        let worst =
            |offs: &mut dyn Iterator<Item = f64>| offs.map(f64::abs).fold(0.0, f64::max);
        let off_climb = (floor - self.first.foot - climb).abs();
        let off_height = worst(&mut stairs.iter().map(|stair| stair.height - height));
        let off_distance = worst(
            &mut pairs(stairs)
                .map(|(before, stair)| stair.at.position - before.at.position - distance),
        );
        let off_landing = worst(
            &mut pairs(stairs).map(|(before, stair)| stair.foot - before.foot - before.height),
        );
        let is_pair = stairs.len() == STAIRS_PAIR;
        let alike = if is_pair { PAIR_TOLERANCE } else { STAIR_TOLERANCE };
        Gate::StairHeights.check_share(off_height, height, alike)?;
        Gate::StairDistances.check_share(off_distance, distance, STAIR_TOLERANCE)?;
        Gate::StairLandings.check_share(off_landing, height, LANDING_TOLERANCE)?;
        Gate::StairClimb.check_share(off_climb, climb, CLIMB_TOLERANCE)?;
        Gate::NewHigh.check(floor, self.first.high + NEW_HIGH_OF_GROWTH * climb)?;
        Gate::StairsApart.check(distance, STAIR_BLOCKS_MIN * block_steps)
    }

    /// Returns the flight's trend if it leads to the end: few stairs when they are marked or no
    /// more fits, a pair when they are marked and few more fit, many when they have used enough.
    fn judge(
        &self,
        marks: &[StairMarks],
        block: &Block,
        context: &SeriesContext,
    ) -> Result<Trend, GateFailure> {
        let trend = self.trend(self.n_stairs * self.height, block, context);
        let headroom = context.headroom(PeakUse::of([block]), Signal::Allocated);
        let n_left = headroom / self.height;
        let (without, is_off) = (context.settings.without, context.is_off(Rule::MarkedStairs));
        let left_max = marks::left_max(marks.len(), without);
        let has_marks = !is_off && marks.iter().any(|stair| stair.is_marked);
        if marks.len() == STAIRS_PAIR {
            marks::check(marks)?;
            Gate::StairsLeft.check(n_left, left_max)?;
        } else if marks.len() != STAIRS_FEW {
            Gate::Share.check(trend.share_ratio, STAIRS_SHARE_RATIO)?;
        } else if has_marks && n_left > left_max {
            marks::check(marks)?;
            let share = without.value(Constant::MarkedShare, STAIRS_MARKED_SHARE_RATIO);
            Gate::Share.check(trend.share_ratio, share)?;
        } else {
            Gate::StairsLeft.check(n_left, left_max)?;
        }
        Gate::Horizon
            .check(n_left * self.distance_seconds, context.settings.horizon_seconds)?;
        Ok(trend)
    }

    /// Returns the climb since the top of the first stair by the steps since then.
    fn slope(&self, block: &Block, context: &SeriesContext) -> f64 {
        let n_steps = block.end.position - self.first.at.position;
        let climb = (self.last.top() - self.first.top()) / n_steps;
        if context.is_off(Rule::StairsSlope) {
            self.height / self.distance_steps
        } else {
            climb
        }
    }

    /// Returns the flight's trend; its interval spans the flattest and the steepest stairs, and half
    /// a stair more or less.
    fn trend(&self, growth: f64, block: &Block, context: &SeriesContext) -> Trend {
        let headroom = context.headroom(PeakUse::of([block]), Signal::Allocated);
        let slope = self.slope(block, context);
        let n_ends = if context.is_off(Rule::Scatter) { 0.0 } else { ENDS_STAIRS };
        let ends = Interval::around(slope, n_ends / self.n_stairs * slope);
        let growing = Growing { signal: Signal::Allocated, bytes: growth, is_followed: false };
        Trend {
            signal: Signal::Allocated,
            axis: context.axis,
            stage: Stage::Creeping,
            raised: context.at,
            onset: self.first.at,
            slope_bytes_per_unit: Interval {
                value: slope,
                lower: self.lower_bytes_per_step.min(ends.lower),
                upper: self.upper_bytes_per_step.max(ends.upper),
            },
            growth_bytes: growth,
            since_onset: SinceOnset::measured(growth, block.end, block.floor),
            unsplit_bytes: 0.0,
            is_followed: false,
            room: context.room(PeakUse::of([block]), &growing),
            // Time left goes by the pace of the stairs: the next is a distance away.
            stretch: slope * self.distance_steps / self.height,
            share_ratio: growth / (headroom + growth),
            growth_chance: context.confidence(self.n_stairs, self.n_stairs),
            pace: PackedPace::of(context.seconds_per_unit),
        }
    }
}

/// Pairs every stair but the first with the one before it.
fn pairs(stairs: &[Stair]) -> impl Iterator<Item = (&Stair, &Stair)> {
    stairs.iter().zip(stairs.iter().skip(1))
}

impl Stairs {
    /// Upper bound on their memory on the heap, in bytes.
    pub(super) const BYTES_MAX: usize = STAIRS_MAX * size_of::<Stair>();

    pub(super) fn clear(&mut self) {
        self.recent.clear();
        self.landing = None;
        self.half = None;
        self.marks = Marks::default();
        self.flight = None;
        self.failure = None;
    }

    /// Returns the trend that holds.
    pub(super) fn trend(&self) -> Option<&Trend> {
        self.flight.as_ref().map(|flight| &flight.trend)
    }

    /// Returns the bytes that the stairs take on the heap.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.recent.capacity() * size_of::<Stair>()
    }

    /// Takes a block of the level on which stairs are detected.
    pub(super) fn add(&mut self, block: &Block, context: &SeriesContext) {
        let block = if context.is_off(Rule::NetStairs) { block } else { &block.net() };
        if let Some(landing) = self.landing {
            if let Some(stair) = self.climb(&landing, block, context) {
                if self.recent.len() == STAIRS_MAX {
                    self.recent.remove(0);
                }
                self.recent.push(stair);
                self.marks.take_stair();
                let block_steps = block.end.position - landing.block.end.position;
                self.judge(block, block_steps, context);
            }
            self.end(block);
        }
        let high = match self.landing {
            None => block.floor,
            Some(landing) if self.half.is_none() => landing.high.max(block.floor),
            Some(landing) => landing.high,
        };
        self.landing = Some(Landing { block: *block, high });
        self.marks.take_block();
    }

    /// Notes an evaluation, a checkpoint or a pause since the last block.
    pub(super) fn mark(&mut self) {
        self.marks.note();
    }

    /// Returns the stair that this block completes; a stair inside a block shows in two.
    fn climb(
        &mut self,
        landing: &Landing,
        block: &Block,
        context: &SeriesContext,
    ) -> Option<Stair> {
        let before = &landing.block;
        let headroom = context.headroom(PeakUse::of([block]), Signal::Allocated);
        let half = self.half.take();
        let begun = half.unwrap_or(HalfStair {
            height: 0.0,
            transient_height: 0.0,
            foot: before.floor,
        });
        // Where peaks are unknown, no larger batch is known that would explain the stair.
        let transients = block.transient().zip(before.transient());
        let sum = HalfStair {
            height: begun.height + block.floor - before.floor,
            transient_height: begun.transient_height
                + transients.map_or(0.0, |(now, before)| now - before),
            foot: begun.foot,
        };
        if sum.height <= STAIR_OF_HEADROOM * headroom {
            return None;
        }
        if half.is_none() {
            self.half = Some(sum);
            return None;
        }
        let is_off = context.is_off(Rule::MarkedStairs);
        let share = if is_off { 1.0 } else { context.batch_share.clamp(0.0, 1.0) };
        let of_batch = share * sum.transient_height;
        (of_batch < STAIR_BATCH_RATIO * sum.height).then_some(Stair {
            at: before.end,
            foot: sum.foot,
            height: sum.height,
            high: landing.high,
        })
    }

    /// Raises a trend when a flight is even and leads to the end, or updates the one that
    /// holds.
    fn judge(&mut self, block: &Block, block_steps: f64, context: &SeriesContext) {
        if let Some(held) = &mut self.flight {
            if let Some(newest) = Flight::newest(&self.recent, held.n_stairs) {
                let growth = (block.floor - held.foot).max(newest.height);
                let latest = newest.trend(growth, block, context);
                held.trend.follow(&latest);
                held.trend.since_onset = latest.since_onset;
            }
            return;
        }
        for n_stairs in marks::enough(context.settings.without) {
            let Some(first_idx) = self.recent.len().checked_sub(n_stairs) else { continue };
            let Some(stairs) = self.recent.get(first_idx..) else { continue };
            let Some(flight) = Flight::of(stairs) else { continue };
            let marks = self.marks.newest(n_stairs);
            let even = flight.is_even(stairs, block.floor, block_steps);
            match even.and_then(|()| flight.judge(marks, block, context)) {
                Ok(trend) => {
                    self.flight =
                        Some(TrendFlight { trend, n_stairs, foot: flight.first.foot });
                    self.failure = None;
                    return;
                }
                Err(failure) => self.failure = Some(failure),
            }
        }
    }

    /// Returns the stairs remembered so far.
    pub(super) fn evidence(&self) -> StairsEvidence {
        StairsEvidence {
            n_stairs: self.recent.len(),
            mean: Flight::of(&self.recent).map(|flight| MeanStair {
                height_bytes: flight.height,
                distance_steps: flight.distance_steps,
            }),
            failure: self.failure,
        }
    }

    /// Ends the flight when the floor falls below the newest stair or no further one follows.
    fn end(&mut self, block: &Block) {
        let Some(last) = self.recent.last() else { return };
        let has_fallen = block.floor < last.top() - STAIR_FALL_RATIO * last.height;
        let is_quiet = self.flight.is_some_and(|held| {
            Flight::newest(&self.recent, held.n_stairs).is_none_or(|newest| {
                let quiet_steps = block.end.position - last.at.position;
                quiet_steps > STAIRS_QUIET_DISTANCES * newest.distance_steps
            })
        });
        if has_fallen || is_quiet {
            self.recent.clear();
            self.flight = None;
        }
    }

    /// Updates headroom and pace of the trend with the newest block of the pyramid.
    pub(super) fn refresh(&mut self, newest: &Block, context: &SeriesContext) {
        let landing = self.landing.as_ref().map(|landing| &landing.block);
        let most = PeakUse::of(landing.into_iter().chain([newest]));
        if let Some(flight) = &mut self.flight {
            flight.trend.refresh(most, context);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::analysis::creep::gates::Gate;
    use crate::analysis::creep::record::MemoryRecord;
    use crate::analysis::creep::signal::Signal;
    use crate::analysis::creep::simulation::{
        Simulation, assert_finite, assert_within, at, record,
    };
    use crate::analysis::creep::stairs::{Flight, Stair};
    use crate::analysis::creep::trend::Stage;
    use crate::model::units::GIBIBYTE;

    /// One stair of 2 GiB every 2,000 pushes from the 4,000th on, up to a step.
    fn stairs(step: f64, last_step: f64) -> MemoryRecord {
        let n_stairs = (step.min(last_step) / 2000.0).floor() - 1.0;
        record(step, 32.0 * GIBIBYTE + 2.0 * GIBIBYTE * n_stairs.max(0.0))
    }

    #[test]
    fn even_stairs_creep_until_they_end() {
        let mut rank = Simulation::new();
        let climbing = |step| stairs(step, 16_500.0);
        assert!(!rank.run_until_change(15_500, climbing), "six stairs may be an unfreezing");
        assert!(rank.run_until_change(1000, climbing));
        let trend = rank.trend(Signal::Allocated).unwrap();
        assert_eq!(trend.stage, Stage::Creeping);
        assert_within(
            trend.slope_bytes_per_unit.value,
            GIBIBYTE / 1000.0,
            0.08 * GIBIBYTE / 1000.0,
        );
        let left_by_stairs = trend.headroom_bytes().unwrap() / GIBIBYTE * 1000.0;
        let likely = trend.eta_steps().unwrap().likely;
        assert_within(likely, left_by_stairs, 0.03 * left_by_stairs);
        assert!(trend.slope_bytes_per_unit.lower <= trend.slope_bytes_per_unit.value);
        assert!(trend.slope_bytes_per_unit.upper >= trend.slope_bytes_per_unit.value);
        assert_finite(&trend);
        assert!(rank.run_until_change(12_000, climbing), "no stair after the 16,000th record");
        assert_eq!(rank.trend(Signal::Allocated), None);
        assert_within(rank.step, 16_000.0 + 4.0 * 2000.0, 1000.0);
        assert!(!rank.run_until_change(20_000, climbing));
    }

    /// The stairs, one second a step, with a pause of some seconds before the first record of
    /// every so many.
    fn paused(step: f64, every: f64, seconds: f64) -> MemoryRecord {
        let time = 1e9 + step + seconds * (step / every).floor();
        MemoryRecord { at: at(step, time), ..stairs(step, 1e9) }
    }

    #[test]
    fn three_stairs_creep_when_each_comes_with_a_pause() {
        let mut rank = Simulation::new();
        assert!(rank.run_until_change(8500, |step| paused(step, 2000.0, 5.0)));
        assert_within(rank.step, 8000.0, 300.0);
        assert_eq!(rank.stage(Signal::Allocated), Some(Stage::Creeping));

        let n_changes = |every: f64, seconds: f64| {
            let mut rank = Simulation::new();
            rank.run(8500, |step| paused(step, every, seconds));
            (rank.n_changes, rank.estimator.stairs().failure.map(|failure| failure.gate))
        };
        assert_eq!(n_changes(2000.0, 1.0), (0, Some(Gate::StairsLeft)), "no pause");
        assert_eq!(n_changes(200.0, 5.0), (0, Some(Gate::MarkStairs)), "pauses all the time");
        assert_eq!(n_changes(6000.0, 5.0), (0, Some(Gate::StairMarks)), "one is not marked");
    }

    #[test]
    fn noise_of_a_batch_that_leaves_nothing_hides_no_stair() {
        // Every block's least transient memory differs by more than a stair.
        let noisy = |step: f64| {
            let plain = stairs(step, 1e9);
            let transient = GIBIBYTE * (8.0 + 5.0 * ((step / 128.0).floor() * 0.37 % 1.0));
            let peak = Some(plain.allocated + transient);
            MemoryRecord { peak, peak_bound: peak, ..plain }
        };
        let mut rank = Simulation::new();
        rank.run(13_000, noisy);
        assert_eq!(rank.estimator.stairs().n_stairs, 5);
    }

    #[test]
    fn stairs_that_fall_are_cleared_at_once() {
        let mut rank = Simulation::new();
        assert!(rank.run_until_change(16_500, |step| stairs(step, 16_500.0)));
        assert!(rank.run_until_change(600, |step| record(step, 32.0 * GIBIBYTE)));
        assert_eq!(rank.trend(Signal::Allocated), None);
    }

    #[test]
    fn uneven_stairs_raise_nothing() {
        let mut rank = Simulation::new();
        let uneven = |step: f64| {
            let n_stairs =
                [3000.0, 4500.0, 9000.0, 9900.0, 14_000.0].iter().filter(|at| step >= **at);
            record(step, GIBIBYTE * (34.0 + 2.0 * n_stairs.map(|_| 1.0).sum::<f64>()))
        };
        rank.run(16_000, uneven);
        assert_eq!(rank.n_changes, 0);
    }

    #[test]
    fn uneven_stairs_say_what_they_lack() {
        let mut rank = Simulation::new();
        rank.run(16_000, |step: f64| {
            let n_stairs =
                [3000.0, 4500.0, 9000.0, 9900.0, 14_000.0].iter().filter(|at| step >= **at);
            record(step, GIBIBYTE * (34.0 + 2.0 * n_stairs.map(|_| 1.0).sum::<f64>()))
        });
        let stairs = rank.estimator.stairs();
        assert_eq!(stairs.n_stairs, 5);
        assert!(stairs.failure.is_some(), "{stairs:?}");
    }

    /// Stairs 100 bytes high and 1,000 steps apart, each of whose feet has sunk by `drift` below
    /// the top of the one before.
    fn sinking(n_stairs: u32, drift: f64) -> Vec<Stair> {
        let stair = |i: u32| Stair {
            at: at(1000.0 * f64::from(i), 1000.0 * f64::from(i)),
            foot: (100.0 - drift) * f64::from(i),
            height: 100.0,
            high: 0.0,
        };
        (0..n_stairs).map(stair).collect()
    }

    #[test]
    fn flight_that_sinks_between_its_stairs_is_not_even() {
        let gate = |n_stairs: u32, drift: f64| {
            let stairs = sinking(n_stairs, drift);
            let floor = stairs.last().unwrap().top();
            let even = Flight::of(&stairs).unwrap().is_even(&stairs, floor, 128.0);
            even.err().map(|failure| failure.gate)
        };
        assert_eq!(gate(6, 0.0), None);
        assert_eq!(gate(6, 41.0), Some(Gate::StairLandings));
        // No landing is off by two fifths, and all together are by a fifth of the climb.
        assert_eq!(gate(6, 24.5), Some(Gate::StairClimb));
        assert_eq!(gate(3, 24.5), None);
    }
}
