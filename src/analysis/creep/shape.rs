//! The shape of a window's growth: how straight it is, whether it slows down and whether it was
//! level before; and how much of the headroom growth of that shape must have used.

use crate::analysis::creep::context::SeriesContext;
use crate::analysis::creep::curve::Curve;
use crate::analysis::creep::pyramid::{Block, count};
use crate::analysis::creep::rules::SignalRules;
use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::without::{Constant, Rule, Without};
use crate::analysis::estimate;

/// The last quarter must gain this share of the first quarter's gain; a cache that fills up
/// does not.
pub(super) const STEADY_GAIN_RATIO: f64 = 0.8;
/// Growth hardly slows when its last quarter gains this share of its first: a cache that fills
/// exponentially passes until it holds 1 - 0.93² = 13.5 % of its size, and passes 80 % until 36 %.
const HARDLY_SLOWS_RATIO: f64 = 0.93;
/// Such growth of a rank creeps at this part of the share.
const STEADY_OF_SHARE: f64 = 0.7;
/// A window is late in a life this many times as long: garbage of that time would be known.
const LATE_LIFE_RATIO: f64 = 2.0;
/// A window lasts when it is late, or its blocks hold this share of a full window's records.
const LASTS_OF_FULL: f64 = 0.5;
/// Windows shorter than full length must show more, by the root of what they lack: at most this
/// many times.
const SHORT_WINDOW_FACTOR_MAX: f64 = 3.0;

/// How straight a window's growth is, and how it goes on.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    n_blocks: f64,
    /// How many equal moves its path is worth.
    pub(super) straightness: f64,
    /// The last quarter's gain per block as a share of the first's.
    pub(super) kept_ratio: f64,
    /// Whether it was level before it grew, and has not slowed down since.
    sets_in: bool,
    /// Whether an earlier life settled as high.
    is_known: bool,
}

impl Shape {
    pub(super) fn new(n_blocks: usize, straightness: f64, kept_ratio: f64) -> Self {
        Self {
            n_blocks: count(n_blocks),
            straightness,
            kept_ratio,
            sets_in: false,
            is_known: false,
        }
    }

    /// Learns that the points are level until the one at `onset_idx`; 0 when they are not.
    pub(super) fn since(
        self,
        onset_idx: usize,
        points: &[(f64, f64)],
        without: Without,
    ) -> Self {
        let is_level = onset_idx > 0 && !without.is_off(Rule::LevelFirst);
        let rest = points.get(onset_idx..).filter(|_| is_level);
        let kept_ratio = rest.and_then(estimate::kept_ratio);
        let least = without.value(Constant::SteadyGain, STEADY_GAIN_RATIO);
        Self { sets_in: kept_ratio.is_some_and(|kept| kept >= least), ..self }
    }

    /// Learns whether live memory settled as high as `high` in an earlier life; of other signals that is not known.
    pub(super) fn below(self, high: f64, signal: Signal, context: &SeriesContext) -> Self {
        let settled = context.settled.filter(|_| signal == Signal::Allocated);
        let is_known = settled.is_some_and(|settled| high < settled);
        Self { is_known: is_known && !context.is_off(Rule::KnownLevel), ..self }
    }

    /// Returns the share that a rank's window of so many records must have used to creep: less
    /// where it lasts and hardly slows, unless an earlier life settled as high, more
    /// where it is short.
    pub(super) fn share_of_rank(
        &self,
        rules: &SignalRules,
        n_records: f64,
        context: &SeriesContext,
    ) -> f64 {
        // Garbage and caches grow from the first step of a life: what was level first is neither.
        let is_late = self.sets_in || context.n_lived >= LATE_LIFE_RATIO * n_records;
        let holds_ends = !context.is_off(Rule::LevelFirst);
        let of_records = if holds_ends { self.n_blocks / (self.n_blocks - 1.0) } else { 1.0 };
        let n_held = n_records * of_records;
        let lasts = is_late || n_held >= LASTS_OF_FULL * rules.records_full;
        let without = context.settings.without;
        let hardly_slows = without.value(Constant::HardlySlows, HARDLY_SLOWS_RATIO);
        let is_asked = lasts && !self.is_known && !without.is_off(Rule::SteadyLine);
        if !is_asked || self.kept_ratio < hardly_slows {
            return share(rules, rules.records_full, n_records);
        }
        let full = if is_late { LASTS_OF_FULL } else { 1.0 } * rules.records_full;
        without.value(Constant::LineOfShare, STEADY_OF_SHARE) * share(rules, full, n_records)
    }
}

/// Returns the share that a window of so many records must have used to creep, more where it has
/// fewer than `n_full`.
pub(super) fn share(rules: &SignalRules, n_full: f64, n_records: f64) -> f64 {
    rules.creeping_share_ratio * short_factor(n_full, n_records)
}

/// Returns how many times as much a window of so many records must show where `n_full` are enough.
pub(super) fn short_factor(n_full: f64, n_records: f64) -> f64 {
    (n_full / n_records.max(1.0)).sqrt().clamp(1.0, SHORT_WINDOW_FACTOR_MAX)
}

/// Live memory without the share of the batch that stays live, taken off the floor of each block.
pub(super) struct NetFloors {
    pub(super) curve: Curve,
    /// How many equal moves its path is worth.
    pub(super) straightness: f64,
}

impl NetFloors {
    /// Returns `None` where a block's transient memory is not known, or nothing rises.
    pub(super) fn of(blocks: &[Block], share: f64) -> Option<Self> {
        let share = share.clamp(0.0, 1.0);
        let curve = Curve::of(blocks, |block| Some(block.floor - share * block.transient()?))?;
        let straightness = estimate::path(curve.points())?.straightness()?;
        Some(Self { curve, straightness })
    }
}

/// Returns the straightness of live memory without the share of the batch that stays live, taken
/// off every record; 0 where that is not known.
///
/// It hears a line that [`NetFloors`] miss: a block's floors of live and of transient memory may be
/// of different steps, and the first blocks of a life know its share less well.
pub(super) fn net_straightness_of_records(blocks: &[Block]) -> f64 {
    Curve::of(blocks, |block| block.net_floor.get())
        .and_then(|curve| estimate::path(curve.points())?.straightness())
        .unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use crate::analysis::creep::record::MemoryRecord;
    use crate::analysis::creep::signal::Signal;
    use crate::analysis::creep::simulation::{Simulation, assert_within, noise, record};
    use crate::analysis::creep::trend::Stage;
    use crate::model::units::{GIBIBYTE, MEBIBYTE};

    /// Runs until live memory creeps; returns the step, and the share that it has used.
    fn creeps_at(of_step: impl Fn(f64) -> MemoryRecord) -> (f64, f64) {
        creeps_on(Simulation::new(), Signal::Allocated, of_step)
    }

    /// The same of any signal of a rank that ran before.
    fn creeps_on(
        mut rank: Simulation,
        signal: Signal,
        of_step: impl Fn(f64) -> MemoryRecord,
    ) -> (f64, f64) {
        while rank.stage(signal) != Some(Stage::Creeping) {
            assert!(rank.step < 40_000.0, "not found");
            rank.run(16, &of_step);
        }
        (rank.step, rank.trend(signal).unwrap().share_ratio)
    }

    #[test]
    fn line_needs_less_than_growth_that_slows() {
        let (_, of_line) = creeps_at(|step| record(step, 0.5 * MEBIBYTE * step));
        assert!((0.049..0.055).contains(&of_line), "{of_line}");
        let slowing =
            |step: f64| record(step, 10.0 * GIBIBYTE * (1.0 - (-step / 10_000.0).exp()));
        let (_, of_slowing) = creeps_at(slowing);
        assert!(of_slowing >= 0.07, "{of_slowing}");
    }

    /// The rank at the start of its next life.
    fn second_life(mut rank: Simulation) -> Simulation {
        rank.estimator.new_life();
        rank.step = 0.0;
        rank
    }

    /// A rank whose life has settled, so many bytes higher than [`record`] begins.
    fn settled(leak: f64) -> Simulation {
        let mut rank = Simulation::new();
        rank.run(6000, |step| record(step, leak));
        rank
    }

    #[test]
    fn line_up_to_where_an_earlier_life_settled_needs_the_usual_share() {
        for has_ended in [false, true] {
            let share_of = |leak: f64| {
                let mut first = settled(leak);
                if has_ended {
                    first.estimator.release();
                }
                let growing = |step: f64| record(step, 0.5 * MEBIBYTE * step);
                creeps_on(second_life(first), Signal::Allocated, growing).1
            };
            let (lower, higher) = (share_of(0.5 * GIBIBYTE), share_of(20.0 * GIBIBYTE));
            assert!((0.049..0.055).contains(&lower), "{lower}");
            assert!((0.065..0.075).contains(&higher), "{higher}");
        }
    }

    #[test]
    fn live_memory_that_settled_says_nothing_about_reserved_memory() {
        let share_of = |leak: f64| {
            let fragmented = |step: f64| {
                let reserved = record(step, 0.5 * MEBIBYTE * step).reserved;
                MemoryRecord { reserved, peak_reserved: reserved, ..record(step, 0.0) }
            };
            creeps_on(second_life(settled(leak)), Signal::Reserved, fragmented).1
        };
        assert_within(share_of(30.0 * GIBIBYTE), share_of(0.5 * GIBIBYTE), 1e-9);
    }

    #[test]
    fn life_that_ended_growing_settled_nowhere() {
        let growing = |step: f64| record(step, 0.5 * MEBIBYTE * step);
        let mut first = Simulation::new();
        first.run(12_000, growing);
        assert_eq!(first.stage(Signal::Allocated), Some(Stage::Creeping));
        let rank = second_life(first);
        let (_, share) = creeps_on(rank, Signal::Allocated, growing);
        assert!((0.049..0.055).contains(&share), "{share}");
    }

    #[test]
    fn line_lasts_once_its_blocks_hold_1024_records() {
        // 96 records are skipped; the share by its length would be enough only later.
        let (step, share) = creeps_at(|step| record(step, 3.5 * MEBIBYTE * step));
        assert!((1120.0..1152.0).contains(&step), "{step}");
        assert!(share < 0.09, "{share}");
    }

    #[test]
    fn late_leak_is_found_sooner_than_growth_of_the_first_steps() {
        let leak = 4.0 * MEBIBYTE;
        let (early, _) = creeps_at(|step| record(step, leak * (step - 96.0).max(0.0)));
        let (late, _) = creeps_at(|step| record(step, leak * (step - 4000.0).max(0.0)));
        assert!(late - 4000.0 < early - 96.0, "{late} {early}");
    }

    #[test]
    fn growth_after_a_level_start_needs_less_than_growth_from_the_start() {
        let leak = 8.0 * MEBIBYTE;
        let (_, from_start) = creeps_at(|step| record(step, leak * step));
        let (_, after_level) = creeps_at(|step| record(step, leak * (step - 300.0).max(0.0)));
        assert!(after_level < 0.7 * from_start, "{after_level} {from_start}");
        // A cache that begins to fill then has slowed down since.
        let cache =
            |step: f64| 8.0 * GIBIBYTE * (1.0 - (-(step - 300.0).max(0.0) / 300.0).exp());
        let mut rank = Simulation::new();
        rank.run(20_000, |step| record(step, cache(step)));
        assert!(rank.stage(Signal::Allocated) < Some(Stage::Creeping));
    }

    /// A step whose batch leaves half of itself.
    fn with_batch(step: f64, leak: f64, batch: f64) -> MemoryRecord {
        let mut noisy = record(step, leak);
        noisy.allocated += 0.5 * batch;
        noisy.peak = Some(noisy.allocated + 8.0 * GIBIBYTE + batch);
        noisy.peak_bound = noisy.peak;
        noisy
    }

    #[test]
    fn noise_that_the_batch_explains_hides_no_line() {
        let (step, _) = creeps_at(|step| {
            let batch = 4.0 * GIBIBYTE * ((step / 64.0).floor() * 0.618_034 % 1.0);
            with_batch(step, MEBIBYTE * step, batch)
        });
        assert!(step < 6000.0, "{step}");
    }

    #[test]
    fn noise_that_each_batch_explains_hides_no_line_either() {
        let (step, _) = creeps_at(|step| {
            let slow = (step / 64.0).floor() * 0.618_034 % 1.0;
            let batch = 4.0 * GIBIBYTE * (slow + noise(step) + 0.5);
            let mut noisy = with_batch(step, MEBIBYTE * step, batch);
            // Now and then a step takes less, and keeps as much.
            if step % 23.0 == 0.0 {
                let less = 2.0 * GIBIBYTE * (noise(step / 23.0 + 0.3) + 0.5);
                noisy.peak = noisy.peak.map(|peak| peak - less);
            }
            noisy
        });
        assert!(step < 5000.0, "{step}");
    }
}
