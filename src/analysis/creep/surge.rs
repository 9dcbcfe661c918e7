//! Growth so fast that waiting for a long window wastes most of the time left: judged in blocks of a few records, from the
//! first records of a life on. Live memory of a rank is judged like that for as long as it lives: counting begins anew
//! whenever it is no higher than it was before.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::axis::{Axis, AxisPoint};
use crate::analysis::creep::context::{Growing, PeakUse, SeriesContext};
use crate::analysis::creep::gates::{Gate, GateFailure, NEW_HIGH_OF_GROWTH};
use crate::analysis::creep::pace::PackedPace;
use crate::analysis::creep::pyramid::PackedBytes;
use crate::analysis::creep::pyramid::count;
use crate::analysis::creep::record::MemoryRecord;
use crate::analysis::creep::rules::{SurgeRules, SurgeShare, WARMUP_PUSHES};
use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::slope::interval;
use crate::analysis::creep::trend::{SinceOnset, Stage, Trend};
use crate::analysis::creep::watch::SignalWatch;
use crate::analysis::creep::window::{GROWTH_BYTES_MIN, WindowTrend};
use crate::analysis::creep::without::{Constant, Rule};
use crate::analysis::estimate;

/// Blocks of a surge; two become one when there are as many.
const SURGE_BLOCKS_MAX: usize = 24;
/// One move that carries more than this share of all growth is a jump, such as an optimizer's
/// first step; the growth is counted from its top.
const JUMP_OF_GROWTH: f64 = 0.5;
/// A jump takes at least this share of what was left.
const JUMP_OF_LEFT: f64 = 0.02;
/// Fewest moves of which one may be a jump.
const JUMP_MOVES_MIN: usize = 3;
/// The last blocks of a stale surge grew less than this share of its rate.
const STALE_RATE_RATIO: f64 = 0.25;
/// How many blocks are compared with the rate.
const STALE_BLOCKS: usize = 4;
/// A surge is cleared after this many stale blocks in a row.
const STALE_TIMES: u8 = 3;

/// The growth of one series since the first records of a life.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Surge {
    signal: Signal,
    n_records: u32,
    /// Records of this life before counting began anew; 0 for the first.
    n_before: u32,
    /// The most memory in use in this life.
    most: PeakUse,
    /// The highest value before the start, in bytes.
    high: f64,
    /// The highest value since the warm-up, without what the batch leaves, in bytes.
    net_high: f64,
    /// Whether the first records are over.
    is_later: bool,
    start: Option<SurgeStart>,
    // Invariant: fewer than SURGE_BLOCKS_MAX, oldest first.
    blocks: Vec<SmallBlock>,
    open: Option<SmallBlock>,
    n_open: u32,
    /// Records per block; doubles when blocks are joined.
    records_per_block: u32,
    trend: Option<Trend>,
    /// Bytes left to grow into at the last judgement.
    headroom_bytes: f64,
    n_stale: u8,
    /// Whether it is judged no longer in this life.
    is_over: bool,
    /// The gate that stopped it last.
    #[serde(skip)]
    failure: Option<GateFailure>,
}

/// Where the growth is counted from.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct SurgeStart {
    at: AxisPoint,
    bytes: f64,
    /// The most memory in use until then.
    most: PeakUse,
}

/// A summary of a few consecutive records.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct SmallBlock {
    /// Where it ends.
    end: AxisPoint,
    /// The lowest value, in bytes.
    floor: f64,
    /// The lowest transient bytes of a step, beyond its live bytes, of the records that know them.
    transient_floor: PackedBytes,
}

impl SmallBlock {
    /// Joins this block with the one after it.
    fn joined(&self, later: &Self) -> Self {
        Self {
            end: later.end,
            floor: self.floor.min(later.floor),
            transient_floor: self.transient_floor.lowest(later.transient_floor),
        }
    }
}

/// What the first records of a life show, or growth that set in later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SurgeEvidence {
    pub signal: Signal,
    /// The axis of its positions.
    pub axis: Axis,
    /// Whether it set in after the first records.
    pub is_later: bool,
    /// Where its growth is counted from, in units of the axis.
    pub first_position: f64,
    /// Where its last block ends, in units of the axis.
    pub last_position: f64,
    /// Bytes left to grow into; of a stand-in while the capacity is unknown.
    pub headroom_bytes: f64,
    /// The trend that it shows; `None` when it shows none.
    pub trend: Option<Trend>,
    /// The gate that stopped it last.
    pub failure: Option<GateFailure>,
}

impl Surge {
    /// Upper bound on its memory on the heap, in bytes.
    pub(super) const BYTES_MAX: usize = SURGE_BLOCKS_MAX * size_of::<SmallBlock>();

    pub(super) fn new(signal: Signal) -> Self {
        Self {
            signal,
            n_records: 0,
            n_before: 0,
            most: PeakUse::NONE,
            high: 0.0,
            net_high: 0.0,
            is_later: false,
            start: None,
            blocks: Vec::new(),
            open: None,
            n_open: 0,
            records_per_block: SurgeRules::of(signal).records_per_block,
            trend: None,
            headroom_bytes: 0.0,
            n_stale: 0,
            is_over: false,
            failure: None,
        }
    }

    /// Begins anew with the next life.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.signal);
    }

    /// Returns the trend that holds.
    pub(super) fn trend(&self) -> Option<&Trend> {
        self.trend.as_ref()
    }

    /// Ends it for this life: a longer window shows as much.
    pub(super) fn end(&mut self) {
        self.trend = None;
        self.release();
    }

    /// Frees the blocks of a life that has ended; a trend stays.
    pub(super) fn release(&mut self) {
        self.is_over = true;
        self.blocks = Vec::new();
    }

    /// Returns the bytes that the blocks take on the heap.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<SmallBlock>()
    }

    /// Gives way to a window that shows as much; the window's trend keeps when the surge was
    /// raised and where it began.
    pub(super) fn hand_over(&mut self, watch: &mut SignalWatch) {
        let Some(late) = &mut watch.trend else { return };
        if let Some(early) = self.trend.filter(|early| early.stage <= late.stage) {
            let is_earlier = early.raised.time < late.raised.time;
            if is_earlier && early.stage == late.stage {
                late.raised = early.raised;
            }
            if is_earlier {
                late.begin_with(&early);
            }
            self.trend = None;
        }
        if late.stage == Stage::Creeping {
            self.end();
        }
    }

    /// Adds a record: `peak` the most known bytes of any phase since the last one, `net` its bytes without what its batch
    /// leaves, `None` until the warm-up is over. Returns whether [`Self::judge`] has something to judge.
    pub(super) fn add(
        &mut self,
        record: &MemoryRecord,
        peak: PackedBytes,
        net: Option<f64>,
    ) -> bool {
        if self.is_over {
            return false;
        }
        let rules = SurgeRules::of(self.signal);
        self.n_records = self.n_records.saturating_add(1);
        self.most.include(record, peak);
        if self.n_records <= rules.first_record {
            self.high = self.high.max(record.allocated);
        }
        if self.n_records < rules.first_record {
            return false;
        }
        let bytes = match net {
            Some(net) if self.is_later => net,
            _ => record.allocated,
        };
        let Some(_) = self.start else {
            self.begin(record.at, bytes);
            return false;
        };
        // Until the warm-up is over growth is expected.
        if self.is_later && net.is_none() {
            self.high = self.high.max(bytes);
            self.begin(record.at, bytes);
            return false;
        }
        if !self.is_later {
            self.net_high = self.net_high.max(net.unwrap_or(0.0));
        }
        // What larger batches leave is off already.
        let transient =
            record.peak.filter(|_| !self.is_later).map(|peak| peak - record.allocated);
        let single = SmallBlock {
            end: record.at,
            floor: bytes,
            transient_floor: PackedBytes::of(transient),
        };
        let block = self.open.map_or(single, |open| open.joined(&single));
        self.n_open = self.n_open.saturating_add(1);
        if self.n_open < self.records_per_block {
            self.open = Some(block);
            return false;
        }
        self.open = None;
        self.n_open = 0;
        if self.is_later && self.trend.is_none() && block.floor <= self.high {
            self.begin_anew(&block);
            return false;
        }
        self.push(block);
        true
    }

    /// Counts the growth from here.
    fn begin(&mut self, at: AxisPoint, bytes: f64) {
        self.n_before = if self.is_later { self.n_records } else { 0 };
        self.start = Some(SurgeStart { at, bytes, most: self.most });
        self.blocks.clear();
        self.records_per_block = SurgeRules::of(self.signal).records_per_block;
        self.open = None;
        self.n_open = 0;
    }

    /// Counts the growth from a block that is no higher than before, or after which it was not fast.
    fn begin_anew(&mut self, block: &SmallBlock) {
        let floors = self.blocks.iter().map(|block| block.floor);
        self.high = floors.fold(self.high.max(block.floor), f64::max);
        self.begin(block.end, block.floor);
    }

    /// Ends the first records, which showed nothing; growth is without what the batch leaves from here on.
    fn begin_later(&mut self, at: AxisPoint) {
        self.is_later = true;
        self.high = self.net_high;
        self.begin(at, self.net_high);
    }

    /// Appends a block; joins all in pairs when there is no room for more.
    fn push(&mut self, block: SmallBlock) {
        self.blocks.reserve_exact(SURGE_BLOCKS_MAX.saturating_sub(self.blocks.len()));
        self.blocks.push(block);
        if self.blocks.len() < SURGE_BLOCKS_MAX {
            return;
        }
        for idx in 0..SURGE_BLOCKS_MAX / 2 {
            let pair = match self.blocks.get(2 * idx..2 * idx + 2) {
                Some([earlier, later]) => earlier.joined(later),
                _ => break,
            };
            if let Some(slot) = self.blocks.get_mut(idx) {
                *slot = pair;
            }
        }
        self.blocks.truncate(SURGE_BLOCKS_MAX / 2);
        self.records_per_block = self.records_per_block.saturating_mul(2);
    }

    /// Judges the growth up to `newest`, the record that completed a block.
    pub(super) fn judge(&mut self, newest: &MemoryRecord, context: &SeriesContext) {
        self.skip_jump(context);
        let Some(start) = self.start else { return };
        let paced = SeriesContext { seconds_per_unit: pace(&start, newest), ..*context };
        self.headroom_bytes = context.headroom(self.most, self.signal);
        match self.measure(&start, &paced) {
            Ok(found) => {
                self.failure = found.obstacle;
                self.take(found.trend);
            }
            Err(failure) => {
                self.failure = Some(failure);
                if let Some(trend) = &mut self.trend {
                    trend.refresh(self.most, &paced);
                }
            }
        }
        self.age();
        let rules = SurgeRules::of(self.signal);
        let span = newest.at.position - start.at.position;
        let n_records = self.n_records.saturating_sub(self.n_before);
        let is_late = n_records >= rules.records_max || span >= rules.span_max;
        if self.trend.is_some() || !is_late {
            return;
        }
        if self.signal != Signal::Allocated || context.is_off(Rule::LaterSteps) {
            self.end();
        } else if !self.is_later {
            self.begin_later(newest.at);
        } else if let Some(last) = self.blocks.last().copied() {
            self.begin_anew(&last);
        }
    }

    /// Returns what the first records show; `None` before there are enough of them.
    pub(super) fn evidence(&self) -> Option<SurgeEvidence> {
        let start = self.start.filter(|_| self.is_judged())?;
        Some(SurgeEvidence {
            signal: self.signal,
            axis: self.signal.axis(),
            is_later: self.is_later,
            first_position: start.at.position,
            last_position: self.blocks.last()?.end.position,
            headroom_bytes: self.headroom_bytes,
            trend: self.trend,
            failure: self.failure,
        })
    }

    /// Counts the growth from the top of a jump that carries most of it.
    fn skip_jump(&mut self, context: &SeriesContext) {
        let is_off = context.is_off(Rule::FirstJump);
        let is_held = |trend: Trend| is_off || trend.stage == Stage::Creeping;
        let Some(start) = self.start.filter(|_| !self.trend.is_some_and(is_held)) else {
            return;
        };
        let floors = self.blocks.iter().map(|block| block.floor);
        let before = std::iter::once(start.bytes).chain(floors.clone());
        let moves = before.zip(floors).map(|(before, floor)| floor - before);
        let moves = moves.enumerate().skip(usize::from(is_off));
        let risen: f64 = moves.clone().map(|(_, height)| height.max(0.0)).sum();
        let Some((idx, height)) = moves.max_by(|a, b| a.1.total_cmp(&b.1)) else {
            return;
        };
        let left = context.headroom(start.most, self.signal);
        let is_jump = height > JUMP_OF_GROWTH * risen && height > JUMP_OF_LEFT * left;
        if self.blocks.len() <= JUMP_MOVES_MIN || !is_jump {
            return;
        }
        let below = self.blocks.drain(..idx).map(|block| block.floor);
        self.high = below.fold(self.high.max(start.bytes), f64::max);
        if let Some(top) = self.blocks.first() {
            self.high = self.high.max(top.floor);
            let (at, bytes) = (top.end, top.floor);
            self.start = Some(SurgeStart { at, bytes, most: self.most });
        }
    }

    /// Checks the gates of growth up to the newest block.
    fn measure(
        &self,
        start: &SurgeStart,
        context: &SeriesContext,
    ) -> Result<WindowTrend, GateFailure> {
        let rules = SurgeRules::of(self.signal);
        let n_blocks = count(self.blocks.len());
        Gate::Blocks.check(n_blocks, count(rules.blocks_min))?;
        let mut points = [(0.0, 0.0); SURGE_BLOCKS_MAX];
        let points = self.curve(&mut points, |block| Some(block.floor));
        let left = context.headroom(start.most, self.signal);
        let need = (rules.rising.least * left).max(GROWTH_BYTES_MIN);
        let still = GateFailure { gate: Gate::Rise, value: 0.0, limit: need };
        let (last_position, last_bytes) = *points.last().ok_or(still)?;
        let risen = last_bytes - start.bytes;
        Gate::Rise.check(risen, need)?;
        let straightness =
            estimate::path(points).and_then(|path| path.straightness()).ok_or(still)?;
        let straightness_min =
            if self.is_later { rules.later_straightness_min } else { rules.straightness_min };
        Gate::Straight.check(straightness, straightness_min)?;
        let kept = estimate::kept_ratio(points).ok_or(still)?;
        Gate::Steady.check(kept, rules.steady_ratio)?;
        let slope = estimate::theil_sen(points).ok_or(still)?.slope;
        let span = last_position - start.at.position;
        Gate::NewHigh.check(last_bytes, self.high + NEW_HIGH_OF_GROWTH * slope * span)?;
        let net_slope = slope - self.batch_growth(context);
        let taken = (net_slope * span).min(risen);
        Gate::BatchGrowth.check(taken, need)?;
        Gate::Loading.check_share(taken, start.bytes, rules.growth_of_held_max)?;
        let headroom = self.headroom_bytes;
        Gate::Soon.check_share(headroom / net_slope, span, rules.left_of_seen_max)?;
        let seconds_left = context.seconds_left(headroom, net_slope);
        let (stage, obstacle) = self.stage(taken / left, seconds_left, context)?;
        let growing = Growing { signal: self.signal, bytes: taken, is_followed: false };
        let rate = interval(points, slope, context.settings.without).ok_or(still)?;
        let since_onset = SinceOnset::at_rate(rate.value, start.at, context.at, last_bytes);
        let trend = Trend {
            signal: self.signal,
            axis: context.axis,
            stage,
            raised: context.at,
            onset: start.at,
            slope_bytes_per_unit: rate,
            growth_bytes: taken,
            since_onset,
            unsplit_bytes: 0.0,
            is_followed: false,
            room: context.room(self.most, &growing),
            stretch: 1.0,
            share_ratio: taken / (headroom + taken),
            growth_chance: context.confidence(straightness, n_blocks - 1.0),
            pace: PackedPace::of(context.seconds_per_unit),
        };
        Ok(WindowTrend { trend, obstacle })
    }

    /// Returns the stage of a share that has been taken, and what keeps it from a higher one;
    /// few records need more.
    fn stage(
        &self,
        share_ratio: f64,
        seconds_left: Option<f64>,
        context: &SeriesContext,
    ) -> Result<(Stage, Option<GateFailure>), GateFailure> {
        let rules = SurgeRules::of(self.signal);
        let n_seen = count(self.blocks.len()) * f64::from(self.records_per_block);
        // A warm-up that was declared expects growth: the share does not fall within it.
        let warmup = WARMUP_PUSHES..context.settings.warmup_pushes;
        let n_counted = if warmup.contains(&self.n_records) { 0.0 } else { n_seen };
        Gate::Share.check(share_ratio, rules.rising.of(n_seen))?;
        let horizon = context.settings.horizon_seconds;
        let creeping = self.creeping(context);
        let creeping = Gate::Share
            .check(share_ratio, creeping.of(n_counted))
            .and(seconds_left.map_or(Ok(()), |left| Gate::Horizon.check(left, horizon)));
        Ok(match creeping {
            Ok(()) => (Stage::Creeping, None),
            Err(failure) => (Stage::Rising, Some(failure)),
        })
    }

    /// Returns the share at which it creeps.
    fn creeping(&self, context: &SeriesContext) -> SurgeShare {
        let usual = SurgeRules::of(self.signal).creeping;
        if self.signal != Signal::Allocated {
            return usual;
        }
        let least = context.settings.without.value(Constant::FirstShare, usual.least);
        SurgeShare { least, ..usual }
    }

    /// Returns the slope that larger batches explain: of live memory only, and never below 0.
    fn batch_growth(&self, context: &SeriesContext) -> f64 {
        let share = context.batch_share.min(1.0);
        if self.signal != Signal::Allocated || share <= 0.0 {
            return 0.0;
        }
        let mut points = [(0.0, 0.0); SURGE_BLOCKS_MAX];
        let points = self.curve(&mut points, |block| block.transient_floor.get());
        estimate::theil_sen(points).map_or(0.0, |fit| share * fit.slope.max(0.0))
    }

    /// Fills `points` with the value of each block that knows it; returns those that are in use.
    fn curve<'p>(
        &self,
        points: &'p mut [(f64, f64); SURGE_BLOCKS_MAX],
        value: impl Fn(&SmallBlock) -> Option<f64>,
    ) -> &'p [(f64, f64)] {
        let known =
            self.blocks.iter().filter_map(|block| Some((block.end.position, value(block)?)));
        let mut n_known = 0;
        for (slot, point) in points.iter_mut().zip(known) {
            *slot = point;
            n_known += 1;
        }
        points.get(..n_known).unwrap_or(&[])
    }

    fn is_judged(&self) -> bool {
        self.blocks.len() >= SurgeRules::of(self.signal).blocks_min
    }

    /// Raises a trend or a higher stage; updates the one that holds.
    fn take(&mut self, found: Trend) {
        match &mut self.trend {
            Some(held) if found.stage <= held.stage => held.follow(&found),
            _ => self.trend = Some(found),
        }
    }

    /// Ends the surge when it stops growing.
    fn age(&mut self) {
        let Some(trend) = &self.trend else { return };
        let Some([before, .., last]) = self.blocks.last_chunk::<{ STALE_BLOCKS + 1 }>() else {
            return;
        };
        let rate = trend.slope_bytes_per_unit.value * (last.end.position - before.end.position);
        let is_stale = last.floor - before.floor < STALE_RATE_RATIO * rate;
        self.n_stale = if is_stale { self.n_stale.saturating_add(1) } else { 0 };
        if self.n_stale >= STALE_TIMES {
            self.end();
        }
    }
}

/// Returns the seconds per unit of the axis since the start; `None` while no time passed.
fn pace(start: &SurgeStart, newest: &MemoryRecord) -> Option<f64> {
    let pace = newest.at.time.since(start.at.time) / (newest.at.position - start.at.position);
    Some(pace).filter(|seconds| *seconds > 0.0 && seconds.is_finite())
}
