//! Judges one window: whether it shows growth that counts, and how fast.

use crate::analysis::creep::axis::Axis;
use crate::analysis::creep::climbs::Climbs;
use crate::analysis::creep::context::{Growing, PeakUse, SeriesContext, is_followed};
use crate::analysis::creep::course::PowerLaw;
use crate::analysis::creep::curve::Curve;
use crate::analysis::creep::gates::{Gate, GateFailure, NEW_HIGH_OF_GROWTH};
use crate::analysis::creep::pace::PackedPace;
use crate::analysis::creep::pyramid::{
    Block, Level, READINGS_PER_BLOCK, RECORDS_PER_BLOCK, count,
};
use crate::analysis::creep::rules::SignalRules;
use crate::analysis::creep::shape::{self, NetFloors, STEADY_GAIN_RATIO, Shape};
use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::slope::{AskedFor, GrowthRate};
use crate::analysis::creep::trend::{Stage, Trend};
use crate::analysis::creep::without::{Constant, Rule};
use crate::analysis::estimate::{self, Gains};
use crate::model::units::MEBIBYTE;

/// Minimum growth, whatever the headroom: a few segments of a caching allocator (2 to 20 MiB).
pub(super) const GROWTH_BYTES_MIN: f64 = 32.0 * MEBIBYTE;
/// Growth of host memory that is rising whatever the machine's size, over at least as many
/// records as a creep needs: 256 KiB a step in a window of 256.
const SMALL_GROWTH_BYTES: f64 = 64.0 * MEBIBYTE;
/// The path of such small growth must be worth this share of its moves: nearly a line.
const SMALL_STRAIGHT_RATIO: f64 = 0.8;
/// The ends of a window must differ by this share of the growth that the fit must show.
const RISE_OF_NEED: f64 = 0.8;
/// The rules of a process that does not push were tuned on a reading every so many seconds.
const TUNED_READING_SECONDS: f64 = 15.0;
/// Reserved memory creeps by fragmentation only if its slack (reserved minus peak) carries this
/// share of the slope.
const SLACK_OF_SLOPE: f64 = 0.8;
/// The same between the first and the last quarter, which is cheaper to compute.
const SLACK_OF_GAIN: f64 = 0.5;
/// The working set grows when the peaks' tau is above this and their slope above
/// [`WORKING_SET_OF_SLOPE`].
const WORKING_SET_TAU: f64 = 0.5;
/// See [`WORKING_SET_TAU`].
const WORKING_SET_OF_SLOPE: f64 = 0.01;

/// A window whose growth counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowTrend {
    /// The trend that it shows.
    pub trend: Trend,
    /// The gate that keeps a [`Stage::Rising`] trend from [`Stage::Creeping`].
    pub obstacle: Option<GateFailure>,
}

/// One window of a signal, and the outcome of its gates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowVerdict {
    pub signal: Signal,
    /// The axis of its positions.
    pub axis: Axis,
    /// The level: each one's blocks are twice as long as those of the one below.
    pub level_idx: usize,
    /// Records between its first and its last block.
    pub n_records: f64,
    /// Where its first block ends, in units of the axis.
    pub first_position: f64,
    /// Where its last block ends, in units of the axis.
    pub last_position: f64,
    /// Bytes left to grow into as this window sees it; of a stand-in while the capacity is
    /// unknown.
    pub headroom_bytes: f64,
    /// Whether records have it judged: windows below the one that raised a creep are skipped
    /// while it holds.
    pub is_asked: bool,
    /// The trend that it shows, or the gate that stopped it.
    pub outcome: Result<WindowTrend, GateFailure>,
}

/// Judges the windows of one signal.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowJudge<'a> {
    signal: Signal,
    rules: SignalRules,
    context: &'a SeriesContext,
}

impl<'a> WindowJudge<'a> {
    pub(super) fn new(signal: Signal, context: &'a SeriesContext) -> Self {
        let mut rules = *context.settings.rules(signal);
        if signal == Signal::Allocated {
            let (usual, without) = (rules.creeping_share_ratio, context.settings.without);
            rules.creeping_share_ratio = without.value(Constant::CreepingShare, usual);
        }
        Self { signal, rules, context }
    }

    /// Judges one window and describes it; `None` if it is empty.
    pub(super) fn verdict(
        &self,
        level_idx: usize,
        level: &Level,
        is_asked: bool,
    ) -> Option<WindowVerdict> {
        Some(WindowVerdict {
            signal: self.signal,
            axis: self.context.axis,
            level_idx,
            n_records: self.n_records(level_idx, level.blocks.len()),
            first_position: level.blocks.first()?.end.position,
            last_position: level.blocks.last()?.end.position,
            headroom_bytes: self.headroom(level),
            is_asked,
            outcome: self.judge(level_idx, level),
        })
    }

    /// Judges one window, the cheapest gates first.
    ///
    /// # Errors
    /// The first gate that stopped it: the window shows no growth that counts.
    pub(super) fn judge(
        &self,
        level_idx: usize,
        level: &Level,
    ) -> Result<WindowTrend, GateFailure> {
        let (rules, context, blocks) = (&self.rules, self.context, level.blocks.as_slice());
        let (n_blocks, n_min) = (count(blocks.len()), count(rules.blocks_min));
        Gate::Blocks.check(n_blocks, n_min)?;
        let n_known =
            || count(blocks.iter().filter(|block| block.value(self.signal).is_some()).count());
        let curve = Curve::of(blocks, |block| block.value(self.signal)).ok_or_else(|| {
            GateFailure { gate: Gate::Known, value: n_known(), limit: n_blocks }
        })?;
        let points = curve.points();
        let headroom = self.headroom(level);
        let n_records = self.n_records(level_idx, blocks.len());
        let need = self.need(headroom, n_records);
        let (shape, net) = self.shape(blocks, points, need)?;
        let straightness = shape.straightness;

        let unfit = GateFailure { gate: Gate::Growth, value: 0.0, limit: need };
        let slope = estimate::theil_sen(points).ok_or(unfit)?.slope;
        let ([(first_step, _), .., (last_step, last_value)], [first, ..]) = (points, blocks)
        else {
            return Err(unfit);
        };
        let span = last_step - first_step;
        let growth = slope * span;
        Gate::Growth.check(growth, need)?;
        if let Some(high) = level.high(self.signal) {
            let new_high = high + NEW_HIGH_OF_GROWTH * growth;
            Gate::NewHigh.check(*last_value, new_high)?;
        }
        self.slack_carries(blocks, slope)?;
        let growth = growth - self.batch_growth(blocks, context.batch_share) * span;
        Gate::BatchGrowth.check(growth, need)?;
        let climbs = self.climbs(blocks, points, shape.kept_ratio)?;

        let share_ratio = growth / (headroom + growth);
        let (n_counted, without) = (self.n_counted(n_records, span), context.settings.without);
        let of_points = GrowthRate::of(points, slope, without).ok_or(unfit)?;
        let middle = *last_value - NEW_HIGH_OF_GROWTH * growth;
        let shape = shape.since(of_points.onset_idx, points, without);
        let shape = shape.below(middle, self.signal, context);
        let is_line = straightness >= SMALL_STRAIGHT_RATIO * (n_blocks - 1.0);
        let progress = Progress {
            seconds_left: context.seconds_left(headroom, slope),
            share_ratio,
            creeping_share_ratio: self.creeping_share(n_counted, &shape, climbs),
            is_certain: is_line && self.counts_small(n_records) && growth >= SMALL_GROWTH_BYTES,
        };
        let (stage, obstacle) = self.stage(n_counted, progress)?;
        let of_net =
            net.as_ref().map(|net| self.rate(net.points()).ok_or(unfit)).transpose()?;
        let rate = of_net.as_ref().unwrap_or(&of_points);
        let asked_for = self.asked_for(rate, net.as_ref().map_or(points, Curve::points));
        let onset = blocks.get(rate.onset_idx).unwrap_or(first);
        let is_followed = is_followed(blocks.get(rate.onset_idx..).unwrap_or(blocks));
        let growing = Growing { signal: self.signal, bytes: growth, is_followed };
        let trend = Trend {
            signal: self.signal,
            axis: context.axis,
            stage,
            raised: context.at,
            onset: onset.end,
            slope_bytes_per_unit: asked_for.slope,
            unsplit_bytes: asked_for.unsplit_bytes,
            growth_bytes: growth,
            since_onset: asked_for.since(onset.end, context.at, *last_value),
            is_followed,
            room: context.room(PeakUse::of(level.newer_half()), &growing),
            stretch: 1.0,
            share_ratio,
            growth_chance: context.confidence(straightness, n_blocks - 1.0),
            pace: PackedPace::of(context.seconds_per_unit),
        };
        Ok(WindowTrend { trend, obstacle })
    }

    /// Returns the bytes by which a window must climb.
    fn need(&self, headroom: f64, n_records: f64) -> f64 {
        let need = (self.rules.rising_share_ratio * headroom).max(GROWTH_BYTES_MIN);
        if self.counts_small(n_records) { need.min(SMALL_GROWTH_BYTES) } else { need }
    }

    /// Returns whether growth counts however little of the capacity it has used.
    fn counts_small(&self, n_records: f64) -> bool {
        let is_live = self.signal == Signal::Allocated;
        is_live && self.context.is_host && n_records >= self.rules.records_min
    }

    /// Returns the bytes left to grow into, by the newer half of a window.
    fn headroom(&self, level: &Level) -> f64 {
        self.context.headroom(PeakUse::of(level.newer_half()), self.signal)
    }

    /// Returns the records between the first and the last block of a window.
    fn n_records(&self, level_idx: usize, n_blocks: usize) -> f64 {
        let records_per_block = f64::from(match self.signal {
            Signal::Allocated | Signal::Reserved => RECORDS_PER_BLOCK,
            Signal::OutsideAllocator | Signal::Process => READINGS_PER_BLOCK,
        });
        (count(n_blocks) - 1.0) * records_per_block * count(1 << level_idx)
    }

    /// Returns for how many records a window counts: readings that are seldom taken stand for as
    /// many as the rules were tuned on in the same time.
    fn n_counted(&self, n_records: f64, span: f64) -> f64 {
        let counts_time = self.signal == Signal::Process && !self.context.is_off(Rule::ByTime);
        if counts_time { n_records.max(span / TUNED_READING_SECONDS) } else { n_records }
    }

    /// Checks the gates that need no fit; returns the shape of a window that passes, and its points
    /// without what the batch leaves where those are straighter.
    fn shape(
        &self,
        blocks: &[Block],
        points: &[(f64, f64)],
        need: f64,
    ) -> Result<(Shape, Option<Curve>), GateFailure> {
        let still = GateFailure { gate: Gate::Rise, value: 0.0, limit: RISE_OF_NEED * need };
        let path = estimate::path(points).ok_or(still)?;
        Gate::Rise.check(path.rise, still.limit)?;
        let mut straightness = path.straightness().ok_or(still)?;
        let mut net = None;
        if self.signal == Signal::Allocated {
            net = self.net_floors(blocks).filter(|net| net.straightness > straightness);
            let of_net = net.as_ref().map_or(straightness, |net| net.straightness);
            straightness = of_net.max(self.net_straightness_of_records(blocks));
        }
        let net = net.map(|net| net.curve).filter(|_| !self.context.is_off(Rule::NetSlope));
        Gate::Straight.check(straightness, self.rules.straightness_min)?;
        let gains = estimate::quarter_gains(points).ok_or(still)?;
        let kept_ratio = estimate::kept_ratio(points).unwrap_or(0.0);
        self.steady(kept_ratio, &gains)?;
        if self.signal == Signal::Reserved {
            let slack_gain = Curve::of(blocks, Block::slack)
                .and_then(|curve| estimate::quarter_gains(curve.points()))
                .ok_or(still)?
                .whole;
            Gate::SlackGain.check_share(slack_gain, gains.whole, SLACK_OF_GAIN)?;
        }
        Ok((Shape::new(blocks.len(), straightness, kept_ratio), net))
    }

    /// Returns live memory without what the batch leaves of it, block by block.
    fn net_floors(&self, blocks: &[Block]) -> Option<NetFloors> {
        let is_off = self.context.is_off(Rule::BatchNoise);
        if is_off { None } else { NetFloors::of(blocks, self.context.batch_share) }
    }

    /// Returns how straight live memory is without what the batch leaves of it, record by record.
    fn net_straightness_of_records(&self, blocks: &[Block]) -> f64 {
        let is_off = self.context.is_off(Rule::RecordNoise);
        if is_off { 0.0 } else { shape::net_straightness_of_records(blocks) }
    }

    /// Returns how fast a window's points climb since their growth set in.
    fn rate(&self, points: &[(f64, f64)]) -> Option<GrowthRate> {
        let slope = estimate::theil_sen(points)?.slope;
        GrowthRate::of(points, slope, self.context.settings.without)
    }

    /// Returns what the program asks for of a rate at which memory becomes live.
    fn asked_for(&self, rate: &GrowthRate, points: &[(f64, f64)]) -> AskedFor {
        let GrowthRate { onset_idx, slope } = *rate;
        let is_cached = self.signal == Signal::Allocated && !self.context.is_host;
        if is_cached && !self.context.is_off(Rule::Unsplit) {
            AskedFor::of(slope, points.get(onset_idx..).unwrap_or(points))
        } else {
            AskedFor { slope, unsplit_bytes: 0.0 }
        }
    }

    /// Checks that the last quarter gains about as much as the first: a cache that fills up does
    /// not. Of a process that does not push per block, since the last two quarters may be a block
    /// farther apart than the first two.
    fn steady(&self, kept_ratio: f64, gains: &Gains) -> Result<(), GateFailure> {
        let least =
            self.context.settings.without.value(Constant::SteadyGain, STEADY_GAIN_RATIO);
        if self.signal == Signal::Process && !self.context.is_off(Rule::Climbs) {
            return Gate::Steady.check(kept_ratio, least);
        }
        let is_steady = gains.last > 0.0 && gains.last >= least * gains.first;
        let kept = if gains.first > 0.0 { gains.last / gains.first } else { 0.0 };
        Gate::Steady.require(is_steady, kept, least)
    }

    /// Returns the stage of a window's growth, and the gate that keeps it from a higher one;
    /// short windows need more.
    fn stage(
        &self,
        n_records: f64,
        progress: Progress,
    ) -> Result<(Stage, Option<GateFailure>), GateFailure> {
        let (rules, share) = (&self.rules, progress.share_ratio);
        let factor = shape::short_factor(rules.records_full, n_records);
        let is_long = n_records >= rules.records_min || share >= rules.urgent_share_ratio;
        let creeping = Gate::Share
            .check(share, progress.creeping_share_ratio)
            .and(Gate::Records.require(is_long, n_records, rules.records_min));
        if creeping.is_err() && !progress.is_certain {
            Gate::Share.check(share, rules.rising_share_ratio * factor)?;
        }
        let limit = self.context.settings.horizon_seconds;
        let horizon =
            progress.seconds_left.map_or(Ok(()), |seconds| Gate::Horizon.check(seconds, limit));
        Ok(match creeping.and(horizon) {
            Ok(()) => (Stage::Creeping, None),
            Err(failure) => (Stage::Rising, Some(failure)),
        })
    }

    /// Returns how a process that does not push climbed; `None` for other signals.
    ///
    /// # Errors
    /// It climbed as larger batches do.
    fn climbs(
        &self,
        blocks: &[Block],
        points: &[(f64, f64)],
        kept_ratio: f64,
    ) -> Result<Option<Climbs>, GateFailure> {
        if self.signal != Signal::Process || self.context.is_off(Rule::Climbs) {
            return Ok(None);
        }
        let climbs = Climbs::of(blocks, points, kept_ratio, self.context.settings.without);
        climbs.check()?;
        Ok(Some(climbs))
    }

    /// Returns the share that a window must have used to creep, by its length and shape; of a
    /// process that does not push, what its climbs need where that is less.
    fn creeping_share(&self, n_records: f64, shape: &Shape, climbs: Option<Climbs>) -> f64 {
        let rules = &self.rules;
        if self.signal != Signal::Process {
            return shape.share_of_rank(rules, n_records, self.context);
        }
        // What a caching allocator holds is a staircase, whose quarters say little.
        let by_length = shape::share(rules, rules.records_full, n_records);
        climbs.map_or(by_length, |climbs| climbs.share_ratio(by_length))
    }

    /// Returns the slope that larger batches explain: of live memory only, and never below 0.
    fn batch_growth(&self, blocks: &[Block], batch_share: f64) -> f64 {
        if self.signal != Signal::Allocated || batch_share <= 0.0 {
            return 0.0;
        }
        Curve::of(blocks, Block::transient)
            .and_then(|curve| estimate::theil_sen(curve.points()))
            .map_or(0.0, |fit| batch_share.min(1.0) * fit.slope.max(0.0))
    }

    /// Checks that slack carries the slope of reserved memory and that the working set does not
    /// grow; other signals pass.
    fn slack_carries(&self, blocks: &[Block], slope: f64) -> Result<(), GateFailure> {
        if self.signal != Signal::Reserved {
            return Ok(());
        }
        let fit = |value: fn(&Block) -> Option<f64>| {
            Curve::of(blocks, value).and_then(|curve| estimate::theil_sen(curve.points()))
        };
        let unfit = GateFailure { gate: Gate::SlackSlope, value: 0.0, limit: SLACK_OF_SLOPE };
        let slack_slope = fit(Block::slack).ok_or(unfit)?.slope;
        Gate::SlackSlope.check_share(slack_slope, slope, SLACK_OF_SLOPE)?;
        let Some(peaks) = fit(|block| block.peak_max.get()) else { return Ok(()) };
        let grows = peaks.tau > WORKING_SET_TAU && peaks.slope > WORKING_SET_OF_SLOPE * slope;
        Gate::WorkingSet.require(!grows, peaks.slope / slope, WORKING_SET_OF_SLOPE)
    }
}

/// Returns the course of a signal over the blocks of a whole life; `None` when a line does as well.
pub(super) fn course(signal: Signal, blocks: &[Block]) -> Option<PowerLaw> {
    PowerLaw::of(Curve::of(blocks, |block| block.value(signal))?.points())
}

/// How close growth has come to the end.
#[derive(Clone, Copy)]
struct Progress {
    /// Until the headroom is gone at this slope; `None` while the pace is unknown.
    seconds_left: Option<f64>,
    /// The growth as a share of growth and headroom.
    share_ratio: f64,
    /// The share that is enough for a creep.
    creeping_share_ratio: f64,
    /// Whether it rises whatever its share.
    is_certain: bool,
}

#[cfg(test)]
mod tests {
    use crate::analysis::creep::gates::Gate;
    use crate::analysis::creep::record::MemoryRecord;
    use crate::analysis::creep::signal::Signal;
    use crate::analysis::creep::simulation::{
        CAPACITY, Simulation, assert_within, at, noise, record,
    };
    use crate::analysis::creep::trend::{Slope, Stage};
    use crate::model::units::{GIBIBYTE, Interval, MEBIBYTE};

    #[test]
    fn noise_sawtooth_and_saturating_cache_raise_no_creep() {
        let noisy = |step| record(step, GIBIBYTE * noise(step + 0.5));
        let sawtooth = |step: f64| record(step, 8.0 * MEBIBYTE * (step % 700.0));
        let saturating =
            |step: f64| record(step, 4.0 * GIBIBYTE * (1.0 - (-step / 3000.0).exp()));
        let healthy: [&dyn Fn(f64) -> MemoryRecord; 3] = [&noisy, &sawtooth, &saturating];
        for of_step in healthy {
            let mut rank = Simulation::new();
            rank.run(30_000, of_step);
            assert!(rank.stage(Signal::Allocated) < Some(Stage::Creeping));
            assert_eq!(rank.stage(Signal::Reserved), None);
        }
    }

    #[test]
    fn growth_that_the_batch_explains_is_no_leak() {
        let mut rank = Simulation::new();
        let longer = |step: f64| {
            let batch = 2.0 * MEBIBYTE * step + GIBIBYTE * noise(step);
            let mut longer = record(step, 0.0);
            longer.allocated += 0.3 * batch;
            longer.peak = Some(longer.allocated + 8.0 * GIBIBYTE + batch);
            longer.peak_bound = longer.peak;
            longer
        };
        rank.run(6000, longer);
        assert_eq!(rank.trend(Signal::Allocated), None);
    }

    #[test]
    fn onset_is_where_the_growth_sets_in() {
        let mut rank = Simulation::new();
        rank.run(4000, |step| record(step, 0.0));
        let late = |step: f64| record(step, 3.0 * MEBIBYTE * (step - 4000.0).max(0.0));
        assert!(rank.run_until_change(4000, late));
        let trend = rank.trend(Signal::Allocated).unwrap();
        assert_within(trend.onset.position, 4000.0, 200.0);
    }

    #[test]
    fn fragmentation_is_told_from_a_growing_working_set() {
        let fragmenting = |step: f64| MemoryRecord {
            reserved: Some(32.0 * GIBIBYTE + 0.5 * MEBIBYTE * step),
            ..record(step, 0.0)
        };
        let mut rank = Simulation::new();
        rank.run(20_000, fragmenting);
        assert_eq!(rank.stage(Signal::Reserved), Some(Stage::Creeping));
        assert_eq!(rank.stage(Signal::Allocated), None);
        let trend = rank.trend(Signal::Reserved).unwrap();
        assert_within(trend.slope_bytes_per_unit.value, 0.5 * MEBIBYTE, 0.01 * MEBIBYTE);

        let mut rank = Simulation::new();
        rank.run(20_000, |step| record(step, 0.5 * MEBIBYTE * step));
        assert_eq!(rank.stage(Signal::Reserved), None);
        assert_eq!(rank.stage(Signal::Allocated), Some(Stage::Creeping));
    }

    #[test]
    fn slope_is_shown_also_when_nothing_is_wrong() {
        let mut rank = Simulation::new();
        assert_eq!(rank.estimator.slope(Signal::Allocated), None);
        rank.run(2000, |step| record(step, 1024.0 * step));
        assert_eq!(rank.trend(Signal::Allocated), None);
        let Slope { bytes_per_step, bytes_per_second, is_straight: _ } =
            rank.estimator.slope(Signal::Allocated).unwrap();
        let Interval { value, lower, upper } = bytes_per_step.unwrap();
        assert_within(value, 1024.0, 1.0);
        assert!(lower < 1024.0 && upper > 1024.0);
        assert_within(bytes_per_second.unwrap().value, 1024.0, 1.0);
        assert_eq!(rank.estimator.slope(Signal::OutsideAllocator), None);
    }

    #[test]
    fn slope_of_a_trend_is_the_one_that_is_shown() {
        let mut rank = Simulation::new();
        rank.run(4000, |step| record(step, 2.0 * MEBIBYTE * step));
        let shown = rank.estimator.slope(Signal::Allocated).unwrap().bytes_per_step;
        let trend = rank.trend(Signal::Allocated).unwrap().slope_bytes_per_unit;
        assert_eq!(shown, Some(trend));
    }

    /// Returns the gates that stopped the windows of live memory, the shortest window first.
    fn stops(n_records: u32, of_step: impl Fn(f64) -> MemoryRecord) -> Vec<Option<Gate>> {
        let mut rank = Simulation::new();
        rank.run(n_records, of_step);
        let windows = rank.estimator.windows(Signal::Allocated, CAPACITY);
        windows.map(|window| window.outcome.err().map(|stop| stop.gate)).collect()
    }

    #[test]
    fn every_window_says_what_stopped_it() {
        let flat = stops(96 + 16 * 24, |step| record(step, 0.0));
        assert_eq!(
            flat,
            [Gate::Rise, Gate::Rise, Gate::Blocks, Gate::Blocks, Gate::Blocks].map(Some)
        );
        let noisy = |step: f64| record(step, 8.0 * GIBIBYTE * noise(step) * (step / 2000.0));
        assert!(!stops(3000, noisy).contains(&None));
        let filling = |step: f64| record(step, 8.0 * GIBIBYTE * (1.0 - (-step / 900.0).exp()));
        assert!(stops(3000, filling).contains(&Some(Gate::Steady)));
        let leak = stops(3000, |step| record(step, 3.0 * MEBIBYTE * step));
        assert!(leak.contains(&None));
    }

    #[test]
    fn trend_that_only_rises_says_what_it_lacks() {
        let mut rank = Simulation::new();
        let leak = |step| record(step, 2.0 * MEBIBYTE * step);
        while rank.stage(Signal::Allocated) != Some(Stage::Rising) {
            assert!(rank.run_until_change(4000, leak));
        }
        let windows = rank.estimator.windows(Signal::Allocated, CAPACITY);
        let passed: Vec<_> = windows.filter_map(|window| window.outcome.ok()).collect();
        assert!(!passed.is_empty());
        for passed in passed {
            assert_eq!(passed.trend.stage, Stage::Rising);
            assert_eq!(passed.obstacle.map(|stop| stop.gate), Some(Gate::Share));
        }
    }

    #[test]
    fn unknown_pace_does_not_hold_a_creep_back() {
        let mut rank = Simulation::new();
        rank.run(4000, |step| MemoryRecord {
            at: at(step, 1e9),
            ..record(step, 2.0 * MEBIBYTE * step)
        });
        let trend = rank.trend(Signal::Allocated).unwrap();
        assert_eq!(trend.stage, Stage::Creeping);
        assert_eq!(trend.seconds_per_unit(), None);
    }
}
