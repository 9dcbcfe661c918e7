//! The online estimator of creeping memory of one rank: bounded windows of blocks over its
//! whole run, and the trends that they hold. Which records count, what a restart is and how a
//! finding is worded is decided elsewhere.

mod batch;
pub mod gates;
#[cfg(test)]
mod job;
mod pace;
mod pyramid;
mod readings;
pub mod report;
mod room;
mod stairs;
mod watch;

use serde::{Deserialize, Serialize};

use crate::analysis::creep::batch::BatchShare;
use crate::analysis::creep::gates::SignalRules;
use crate::analysis::creep::pace::Pace;
use crate::analysis::creep::pyramid::{BLOCKS_MAX, Block, LEVELS_MAX, Level, Open, Pyramid};
use crate::analysis::creep::readings::Readings;
use crate::analysis::creep::room::{Room, Use};
use crate::analysis::creep::stairs::{STAIRS_MAX, Stair, Stairs};
use crate::analysis::creep::watch::Watch;

/// How many train pushes make a block of the lowest level.
const PUSHES_PER_BLOCK: u32 = 16;
/// How many readings make a block of the lowest level; they come seconds apart, pushes faster.
const READINGS_PER_BLOCK: u32 = 2;
/// The level whose blocks span 256 pushes, on which stairs are looked for.
const STAIRS_LEVEL_IDX: usize = 4;

/// How many train pushes a life starts with that tell nothing: lazy optimizer state,
/// autotuning, skipped AMP steps.
const WARMUP_PUSHES: u32 = 96;
/// How long a process that does not push is not looked at: it loads its model and its cache
/// settles.
const PROCESS_WARMUP_SECONDS: f64 = 600.0;
/// A leak that leaves more time than this is left to a later window: three days, a long
/// weekend.
const HORIZON_SECONDS: f64 = 72.0 * 3600.0;

/// What a confidence is worth while a trend only rises: of those that do, one in seven is a cache
/// that fills up.
const RISING_CONFIDENCE_RATIO: f64 = 0.9;

const MEBIBYTE: f64 = 1024.0 * 1024.0;
const GIBIBYTE: f64 = 1024.0 * MEBIBYTE;

/// Which series grows.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// Live tensor memory that survives every step.
    Allocated,
    /// What the caching allocator holds while the live set does not grow: fragmentation.
    Reserved,
    /// What the process holds beside its caching allocator: communication buffers, libraries.
    OutsideAllocator,
    /// All that a process holds that does not push, by the driver's word. Where records of the
    /// others count steps, its count seconds since the first reading.
    Process,
}

impl Signal {
    /// Every signal, in the order of declaration.
    pub const ALL: [Self; 4] =
        [Self::Allocated, Self::Reserved, Self::OutsideAllocator, Self::Process];

    /// The signal as a label's value.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Reserved => "reserved",
            Self::OutsideAllocator => "outside_allocator",
            Self::Process => "process",
        }
    }

    /// Whether its records count steps; else they count seconds.
    pub fn counts_steps(self) -> bool {
        self != Self::Process
    }
}

/// How sure and how pressing a trend is.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub enum Stage {
    /// Grows steadily, but has eaten little of the headroom or leaves more time than the
    /// horizon.
    Rising,
    /// Has eaten a notable share of the headroom and would eat the rest within the horizon.
    Creeping,
}

/// The estimator's settings.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct CreepSettings {
    /// How many train pushes at the start of a life are not used.
    pub warmup_pushes: u32,
    /// How long a process that does not push is not looked at after its first reading.
    pub process_warmup_seconds: f64,
    /// A leak that leaves more time than this does not become [`Stage::Creeping`].
    pub horizon_seconds: f64,
    /// What live memory must show.
    pub allocated: SignalRules,
    /// What reserved memory must show.
    pub reserved: SignalRules,
    /// What memory outside the allocator must show.
    pub outside_allocator: SignalRules,
    /// What a process that does not push must show.
    pub process: SignalRules,
}

impl Default for CreepSettings {
    fn default() -> Self {
        Self {
            warmup_pushes: WARMUP_PUSHES,
            process_warmup_seconds: PROCESS_WARMUP_SECONDS,
            horizon_seconds: HORIZON_SECONDS,
            allocated: SignalRules::ALLOCATED,
            reserved: SignalRules::RESERVED,
            outside_allocator: SignalRules::OUTSIDE_ALLOCATOR,
            process: SignalRules::PROCESS,
        }
    }
}

/// One accepted record of a rank; every figure is finite, bytes are 0 to 2^53.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Push {
    /// The global step just completed.
    pub step: f64,
    /// When it ended, in Unix seconds.
    pub time: f64,
    /// Bytes live at its end.
    pub allocated: f64,
    /// The most bytes that were live within it.
    pub peak: f64,
    /// Bytes that the caching allocator holds, if known.
    pub reserved: Option<f64>,
    /// The most that it held within the step, if known.
    pub peak_reserved: Option<f64>,
}

/// One reading of the device that the rank runs on; every figure is finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceReading {
    /// When it was taken, in Unix seconds.
    pub time: f64,
    /// Bytes in use on the device by whomever.
    pub device_used: f64,
    /// Bytes in use by the rank's process, if the driver tells.
    pub process_used: Option<f64>,
}

/// A rate of change with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slope {
    /// Bytes per step.
    pub per_step: f64,
    /// The interval's lower end, in bytes per step.
    pub lower: f64,
    /// The interval's upper end, in bytes per step.
    pub upper: f64,
    /// Bytes per second; `None` while the pace of the steps is unknown.
    pub per_second: Option<f64>,
}

/// Growth that holds now: steady, unreverted and not yet known to stop.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Trend {
    /// The series that grows.
    pub signal: Signal,
    /// How far it has come.
    pub stage: Stage,
    /// The step at which this stage was raised.
    pub raised_step: f64,
    /// When this stage was raised, in Unix seconds.
    pub raised_time: f64,
    /// The step from which the growth is seen; it stays as it was when the stage was raised.
    pub onset_step: f64,
    /// When that step ended, in Unix seconds.
    pub onset_time: f64,
    /// The rate by the latest window that shows it.
    pub slope_bytes_per_step: f64,
    /// The lower end of its 95 % interval.
    pub slope_lower_bytes_per_step: f64,
    /// The upper end of its 95 % interval.
    pub slope_upper_bytes_per_step: f64,
    /// The growth within that window, less what larger batches explain.
    pub growth_bytes: f64,
    /// What is left to grow into as of the latest block; `None` when the capacity is unknown.
    pub headroom_bytes: Option<f64>,
    /// The growth as a share of growth and headroom, 0 to 1.
    pub share_ratio: f64,
    /// The chance that the growth is more than a random walk's, 0 to 1: the normal tail of the
    /// window's rise in spreads of a walk with the same moves, drawn to one half by the rule of
    /// succession for its number of moves, and by a fifth lower when the capacity is unknown.
    growth_chance: f64,
    /// The pace of the steps, smoothed; 0 while it is unknown.
    pub seconds_per_step: f64,
}

impl Trend {
    /// Returns the chance that this is a leak, 0 to 1: that it grows, and while it only rises a
    /// tenth less.
    pub fn confidence_ratio(&self) -> f64 {
        match self.stage {
            Stage::Rising => RISING_CONFIDENCE_RATIO * self.growth_chance,
            Stage::Creeping => self.growth_chance,
        }
    }

    /// Returns how many steps are left at this rate; `None` when the headroom is unknown.
    pub fn eta(&self) -> Option<Eta> {
        let headroom = self.headroom_bytes?;
        let at = |slope: f64| {
            Some(headroom / slope).filter(|steps| slope > 0.0 && steps.is_finite())
        };
        Some(Eta {
            steps: at(self.slope_bytes_per_step)?,
            lower_steps: at(self.slope_upper_bytes_per_step)?,
            upper_steps: at(self.slope_lower_bytes_per_step),
        })
    }

    /// Returns how many seconds are left at this rate; `None` when the headroom or the pace is
    /// unknown.
    pub fn eta_seconds(&self) -> Option<f64> {
        let pace = Some(self.seconds_per_step).filter(|seconds| *seconds > 0.0)?;
        Some(self.eta()?.steps * pace)
    }

    /// Takes over what `latest` measured and keeps when and as what this was raised.
    fn follow(&mut self, latest: &Self) {
        *self = Self {
            stage: self.stage,
            raised_step: self.raised_step,
            raised_time: self.raised_time,
            onset_step: self.onset_step,
            onset_time: self.onset_time,
            ..*latest
        };
    }

    /// Brings the figures that do not depend on a window up to date.
    fn refresh(&mut self, use_: Use, peak_weight: f64, room: &Room) {
        let headroom = room.headroom(use_, peak_weight);
        self.headroom_bytes = room.capacity.map(|_| headroom);
        self.share_ratio = self.growth_bytes / (headroom + self.growth_bytes);
        self.seconds_per_step = room.seconds_per_step;
    }
}

/// How many steps are left until the headroom is used up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Eta {
    /// At the slope.
    pub steps: f64,
    /// At the upper end of its interval.
    pub lower_steps: f64,
    /// At the lower end of its interval; `None` when that is no growth.
    pub upper_steps: Option<f64>,
}

/// The estimator of one rank.
///
/// It holds at most [`Self::BYTES_MAX`] bytes (about 63 KiB) however long the run is; a level
/// is allocated when its first block comes, and nothing after that. A push costs a few
/// comparisons, and a few tests of windows at every 16th.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct CreepEstimator {
    settings: CreepSettings,
    newest: Option<Push>,
    /// How many train pushes this life has had.
    n_pushes: u32,
    batch: BatchShare,
    /// The highest peak since the last block, whatever the phase.
    peak: f64,
    open_block: Open,
    pace: Pace,
    pyramid: Pyramid,
    allocated: Watch,
    reserved: Watch,
    stairs: Stairs,
    readings: Readings,
}

impl CreepEstimator {
    /// The most memory that one estimator holds, in bytes: itself, two pyramids of 17 levels of
    /// 32 blocks of 56 bytes, and the stairs.
    pub const BYTES_MAX: usize = size_of::<Self>()
        + 2 * LEVELS_MAX * (size_of::<Level>() + BLOCKS_MAX * size_of::<Block>())
        + STAIRS_MAX * size_of::<Stair>();

    /// Starts without any memory of the rank.
    pub fn new(settings: CreepSettings) -> Self {
        Self {
            settings,
            newest: None,
            n_pushes: 0,
            batch: BatchShare::default(),
            peak: 0.0,
            open_block: Open::default(),
            pace: Pace::default(),
            pyramid: Pyramid::default(),
            allocated: Watch::new(Signal::Allocated, settings.allocated),
            reserved: Watch::new(Signal::Reserved, settings.reserved),
            stairs: Stairs::default(),
            readings: Readings::new(Signal::OutsideAllocator, settings.outside_allocator),
        }
    }

    /// Starts without any memory of a process that does not push: it takes readings only.
    pub fn of_process(settings: CreepSettings) -> Self {
        Self {
            readings: Readings::new(Signal::Process, settings.process),
            ..Self::new(settings)
        }
    }

    /// Goes on with other settings, as after a restart of the exporter.
    pub fn configure(&mut self, settings: CreepSettings) {
        self.settings = settings;
        self.allocated.gates.rules = settings.allocated;
        self.reserved.gates.rules = settings.reserved;
        self.readings.watch.gates.rules = match self.readings.watch.gates.signal {
            Signal::Process => settings.process,
            _ => settings.outside_allocator,
        };
    }

    /// Takes a train push that comes after all others; `capacity` in bytes, if known.
    ///
    /// Returns true when a trend was raised, changed its stage or was cleared.
    pub fn train(&mut self, push: &Push, capacity: Option<f64>) -> bool {
        self.newest = Some(*push);
        self.n_pushes = self.n_pushes.saturating_add(1);
        self.batch.learn(push);
        self.peak = self.peak.max(push.peak);
        if self.n_pushes <= self.settings.warmup_pushes {
            return false;
        }
        let Some(mut block) = self.open_block.add(Block::of_push(push), PUSHES_PER_BLOCK)
        else {
            return false;
        };
        block.peak_max = self.peak;
        if push.reserved.is_none() {
            block.reserved_max = block.reserved_max.max(self.peak);
        }
        self.peak = 0.0;
        self.pace.advance(push.step, push.time);
        let room = self.room(push, capacity);
        self.take_block(block, &room)
    }

    /// Takes a push of an evaluation or a checkpoint: only its peak counts, and what later
    /// readings are held against.
    pub fn other_phase(&mut self, push: &Push) {
        self.newest = Some(*push);
        self.peak = self.peak.max(push.peak);
    }

    /// Takes a reading of the rank's device that comes after all others; `capacity` in bytes,
    /// if known.
    ///
    /// A reading before the first push or of a rank whose reserved bytes are unknown tells
    /// nothing. Returns true when a trend was raised, changed its stage or was cleared.
    pub fn device(&mut self, reading: &DeviceReading, capacity: Option<f64>) -> bool {
        let Some(push) = self.newest else { return false };
        self.read(reading, &push, capacity)
    }

    /// Takes a reading of a process that does not push, as [`Self::device`] takes one of a rank
    /// that does.
    pub fn process(&mut self, reading: &DeviceReading, capacity: Option<f64>) -> bool {
        let Some(used) = reading.process_used else { return false };
        let push = Push {
            step: self.readings.seconds_since_first(reading.time),
            time: reading.time,
            allocated: used,
            peak: used,
            reserved: Some(used),
            peak_reserved: Some(used),
        };
        self.newest = Some(push);
        if push.step < self.settings.process_warmup_seconds {
            return false;
        }
        self.read(reading, &push, capacity)
    }

    /// Forgets the old life of a rank that restarted; what others use on its device stays
    /// known.
    pub fn new_life(&mut self) {
        self.newest = None;
        self.n_pushes = 0;
        self.batch = BatchShare::default();
        self.peak = 0.0;
        self.open_block = Open::default();
        self.pace = Pace::default();
        self.pyramid.clear();
        self.allocated.clear();
        self.reserved.clear();
        self.stairs.clear();
        self.readings.forget_process();
    }

    /// Returns the trends that hold now, at most one a signal.
    pub fn trends(&self) -> impl Iterator<Item = &Trend> {
        Signal::ALL.into_iter().filter_map(|signal| self.trend(signal))
    }

    /// Returns how fast a signal changes, also when nothing is wrong with it.
    ///
    /// That of its trend, else of every other block of its longest window; `None` until a
    /// window holds enough blocks. Costs at most 120 pairs.
    pub fn slope(&self, signal: Signal) -> Option<Slope> {
        let (watch, pyramid, pace) = self.series(signal)?;
        let (per_step, lower, upper) = match self.trend(signal) {
            Some(trend) => (
                trend.slope_bytes_per_step,
                trend.slope_lower_bytes_per_step,
                trend.slope_upper_bytes_per_step,
            ),
            None => watch.gates.overview(pyramid)?,
        };
        let per_second = pace.known().map(|seconds| per_step / seconds);
        Some(Slope { per_step, lower, upper, per_second })
    }

    /// Returns the pace of the train steps, smoothed; `None` until two blocks tell it.
    pub fn seconds_per_step(&self) -> Option<f64> {
        self.pace.known()
    }

    /// Returns the bytes in use on the device that are not this rank's caching allocator's, the
    /// median of five readings; `None` before the first.
    pub fn outside_bytes(&self) -> Option<f64> {
        self.readings.outside_bytes
    }

    /// The trend that a signal shows: of live memory the one of the windows unless only the
    /// stairs creep.
    fn trend(&self, signal: Signal) -> Option<&Trend> {
        match signal {
            Signal::Allocated => [&self.stairs.trend, &self.allocated.trend]
                .into_iter()
                .flatten()
                .max_by_key(|trend| trend.stage),
            Signal::Reserved => self.reserved.trend.as_ref(),
            Signal::OutsideAllocator | Signal::Process => {
                self.readings.watch.trend.as_ref().filter(|trend| trend.signal == signal)
            }
        }
    }

    /// What is kept of a signal; `None` of a process that pushes and of the rest of one that
    /// doesn't.
    fn series(&self, signal: Signal) -> Option<(&Watch, &Pyramid, &Pace)> {
        let (watch, pyramid, pace) = match signal {
            Signal::Allocated => (&self.allocated, &self.pyramid, &self.pace),
            Signal::Reserved => (&self.reserved, &self.pyramid, &self.pace),
            Signal::OutsideAllocator | Signal::Process => {
                (&self.readings.watch, &self.readings.pyramid, &self.readings.pace)
            }
        };
        (watch.gates.signal == signal).then_some((watch, pyramid, pace))
    }

    /// Takes a reading and holds it against `push`.
    fn read(&mut self, reading: &DeviceReading, push: &Push, capacity: Option<f64>) -> bool {
        let before = key(self.readings.watch.trend.as_ref());
        if let Some(block) = self.readings.take(reading, push) {
            let room = self.reading_room(&Push { time: reading.time, ..*push }, capacity);
            self.readings.take_block(block, &room);
        }
        key(self.readings.watch.trend.as_ref()) != before
    }

    /// What the tests of the block that ends with this push share.
    fn room(&self, push: &Push, capacity: Option<f64>) -> Room {
        Room {
            capacity: capacity.filter(|bytes| *bytes > 0.0),
            outside_bytes: self.readings.outside_bytes.unwrap_or(0.0),
            batch_share: self.batch.ratio(),
            seconds_per_step: self.pace.seconds_per_step,
            horizon_seconds: self.settings.horizon_seconds,
            step: push.step,
            time: push.time,
        }
    }

    /// The same of a block of readings.
    fn reading_room(&self, push: &Push, capacity: Option<f64>) -> Room {
        Room {
            batch_share: 0.0,
            seconds_per_step: self.readings.pace.seconds_per_step,
            ..self.room(push, capacity)
        }
    }

    /// Adds a finished block and looks at every window that it changed.
    fn take_block(&mut self, block: Block, room: &Room) -> bool {
        let before = self.keys();
        let n_grown = self.pyramid.add(block);
        for (idx, level) in self.pyramid.levels.iter().enumerate().take(n_grown) {
            self.allocated.look(idx, level, room);
            self.reserved.look(idx, level, room);
            if idx == STAIRS_LEVEL_IDX
                && let Some(newest) = level.blocks.last()
            {
                self.stairs.add(newest, room);
            }
        }
        self.allocated.refresh(&self.pyramid, room);
        self.reserved.refresh(&self.pyramid, room);
        self.stairs.refresh(&block, room);
        self.readings.notice_silence(room.time);
        self.keys() != before
    }

    fn keys(&self) -> [Option<(Stage, u64)>; 4] {
        Signal::ALL.map(|signal| key(self.trend(signal)))
    }
}

/// What tells one raised stage from another.
fn key(trend: Option<&Trend>) -> Option<(Stage, u64)> {
    trend.map(|trend| (trend.stage, trend.raised_time.to_bits()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

    use crate::analysis::creep::job::{CAPACITY, Job, assert_finite, assert_within, push};
    use crate::analysis::creep::pyramid::{BLOCKS_MAX, Block, LEVELS_MAX};
    use crate::analysis::creep::stairs::Stair;
    use crate::analysis::creep::{
        CreepEstimator, CreepSettings, DeviceReading, GIBIBYTE, MEBIBYTE, Push, Signal, Stage,
    };

    #[test]
    fn leak_is_found_and_measured() {
        let mut job = Job::new();
        let leak = |step| push(step, 2.0 * MEBIBYTE * step);
        job.run(4000, leak);
        assert_eq!(job.n_changes, 2, "rising, then creeping");
        let trend = job.trend(Signal::Allocated).unwrap();
        assert_eq!(trend.stage, Stage::Creeping);
        assert_within(trend.slope_bytes_per_step, 2.0 * MEBIBYTE, 0.01 * MEBIBYTE);
        assert!(trend.slope_lower_bytes_per_step < 2.0 * MEBIBYTE);
        assert!(trend.slope_upper_bytes_per_step > 2.0 * MEBIBYTE);
        assert_within(trend.headroom_bytes.unwrap(), 40.25 * GIBIBYTE, 0.5 * GIBIBYTE);
        let eta = trend.eta().unwrap();
        assert_within(eta.steps, 20_600.0, 500.0);
        assert!(eta.lower_steps < eta.steps && eta.steps < eta.upper_steps.unwrap());
        assert_within(trend.onset_time, 1e9 + trend.onset_step, 1e-3);
        assert_within(trend.eta_seconds().unwrap(), eta.steps, 1e-3);
        assert!(trend.confidence_ratio() > 0.9);
        assert!(trend.onset_step < trend.raised_step && trend.raised_step < 2500.0);
        assert_finite(&trend);
    }

    #[test]
    fn restart_forgets_everything_but_the_device() {
        let mut job = Job::new();
        job.run(3000, |step| push(step, 4.0 * MEBIBYTE * step));
        let reading =
            DeviceReading { time: 1e9, device_used: 50.0 * GIBIBYTE, process_used: None };
        job.estimator.device(&reading, CAPACITY);
        assert!(job.estimator.slope(Signal::Allocated).is_some());
        job.estimator.new_life();
        assert_eq!(job.estimator.trends().count(), 0);
        assert_eq!(job.estimator.slope(Signal::Allocated), None);
        assert_eq!(job.estimator.seconds_per_step(), None);
        assert!(job.estimator.outside_bytes().is_some());

        let mut fresh = Job::new();
        fresh.estimator.readings.outside_bytes = job.estimator.outside_bytes();
        for job in [&mut job, &mut fresh] {
            job.step = 100.0;
            job.run(3000, |step| push(step, 3.0 * MEBIBYTE * step));
        }
        assert_eq!(job.trend(Signal::Allocated), fresh.trend(Signal::Allocated));
    }

    #[test]
    fn warmup_is_not_growth() {
        let mut job = Job::new();
        job.run(30_000, |step: f64| push(step, 40.0 * MEBIBYTE * step.min(90.0)));
        assert_eq!(job.n_changes, 0);
        assert_within(job.estimator.slope(Signal::Allocated).unwrap().per_step, 0.0, 1.0);
    }

    #[test]
    fn evaluation_peak_takes_headroom() {
        let headroom = |extra: f64| {
            let mut job = Job::new();
            job.run(3000, |step| Push { reserved: None, ..push(step, 3.0 * MEBIBYTE * step) });
            let peak = push(job.step, 0.0).peak + extra;
            job.estimator.other_phase(&Push { peak, ..push(job.step, 0.0) });
            job.run(16, |step| Push { reserved: None, ..push(step, 3.0 * MEBIBYTE * step) });
            job.trend(Signal::Allocated).unwrap().headroom_bytes.unwrap()
        };
        assert!(headroom(20.0 * GIBIBYTE) < headroom(0.0) - 5.0 * GIBIBYTE);
    }

    #[test]
    fn ten_million_steps_take_no_more_memory_and_do_not_drift() {
        // 1 KiB a step takes 40 million steps to eat the headroom: more than the horizon.
        let slow = |step| push(step, 1024.0 * step);
        let mut job = Job::new();
        job.run(6_000_000, slow);
        let before = job.estimator.pyramid.heap_bytes();
        job.run(4_000_000, slow);
        // 375,000 and 625,000 blocks: both less than the 2^20 that open the next level.
        assert_eq!(job.estimator.pyramid.heap_bytes(), before);
        assert_eq!(job.stage(Signal::Allocated), Some(Stage::Rising));
        let trend = job.trend(Signal::Allocated).unwrap();
        assert_within(trend.slope_bytes_per_step, 1024.0, 0.1);
        assert_within(trend.seconds_per_step, 1.0, 1e-9);
        assert_finite(&trend);
    }

    #[test]
    fn everything_full_fits_the_memory_of_a_rank() {
        let mut job = Job::new();
        let block = Block::of_push(&push(0.0, 0.0));
        // As many blocks as fill the highest level.
        for _ in 0..(BLOCKS_MAX + 1) << (LEVELS_MAX - 1) {
            job.estimator.pyramid.add(block);
        }
        job.estimator.readings.pyramid = job.estimator.pyramid.clone();
        assert!(
            job.estimator.pyramid.levels.iter().all(|level| level.blocks.len() == BLOCKS_MAX)
        );
        assert_eq!(job.estimator.pyramid.levels.len(), LEVELS_MAX);
        let bytes = size_of::<CreepEstimator>()
            + 2 * job.estimator.pyramid.heap_bytes()
            + job.estimator.stairs.steps.capacity() * size_of::<Stair>();
        assert_eq!(bytes, CreepEstimator::BYTES_MAX);
        assert!(bytes <= 64 * 1024, "{bytes}");
    }

    #[test]
    fn extremes_do_not_panic_and_stay_finite() {
        let top = 9_007_199_254_740_992.0;
        let wild: [&dyn Fn(f64) -> Push; 5] = [
            &|i| Push { step: i * top, ..push(i, i * MEBIBYTE * 8.0) },
            &|i| Push { step: 7.0, time: 7.0, ..push(i, i * MEBIBYTE * 8.0) },
            &|i| push(i, top * (i % 2.0)),
            &|i| push(i, i * top / 4000.0),
            &|i| Push { peak: 0.0, reserved: Some(0.0), ..push(i, i * MEBIBYTE * 8.0) },
        ];
        for of_step in wild {
            for capacity in [None, Some(0.0), Some(1.0), Some(top)] {
                check_finite(of_step, capacity);
            }
        }
    }

    fn check_finite(of_step: &dyn Fn(f64) -> Push, capacity: Option<f64>) {
        let mut estimator = CreepEstimator::new(CreepSettings::default());
        for i in 0..3000 {
            let push = of_step(f64::from(i));
            estimator.train(&push, capacity);
            let process_used = Some(push.allocated);
            let device_used = if i % 3 == 0 { 9_007_199_254_740_992.0 } else { 0.0 };
            estimator.device(
                &DeviceReading { time: push.time, device_used, process_used },
                capacity,
            );
            estimator.trends().for_each(assert_finite);
        }
        for slope in Signal::ALL.into_iter().filter_map(|signal| estimator.slope(signal)) {
            assert!([slope.per_step, slope.lower, slope.upper].iter().all(|v| v.is_finite()));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn trend_ignores_where_steps_and_time_start(
            step_shift in 0_u32..1_000_000_000, time_shift in 0_u32..1_000_000_000
        ) {
            let (step_shift, time_shift) = (f64::from(step_shift), f64::from(time_shift));
            let (mut here, mut there) = (Job::new(), Job::new());
            here.run(2000, |step| push(step, 2.0 * MEBIBYTE * step));
            there.run(2000, |step| {
                let push = push(step, 2.0 * MEBIBYTE * step);
                Push { step: step + step_shift, time: push.time + time_shift, ..push }
            });
            let here = here.trend(Signal::Allocated).unwrap();
            let there = there.trend(Signal::Allocated).unwrap();
            prop_assert_eq!(there.stage, here.stage);
            prop_assert!((there.raised_step - here.raised_step - step_shift).abs() < 1e-6);
            let ratio = there.slope_bytes_per_step / here.slope_bytes_per_step;
            prop_assert!((ratio - 1.0).abs() < 1e-9);
            prop_assert!((there.share_ratio - here.share_ratio).abs() < 1e-9);
        }

        #[test]
        fn trend_scales_with_bytes_and_steps(
            bytes_factor in 1_u32..1000, step_factor in 1_u32..1000
        ) {
            let (bytes_factor, step_factor) = (f64::from(bytes_factor), f64::from(step_factor));
            let trend = |bytes_factor: f64, step_factor: f64| {
                let mut estimator = CreepEstimator::new(CreepSettings::default());
                for i in 0..2000 {
                    let Push { step, time, allocated, peak, reserved, .. } =
                        push(f64::from(i), 2.0 * MEBIBYTE * f64::from(i));
                    let reserved = reserved.map(|bytes| bytes * bytes_factor);
                    estimator.train(
                        &Push {
                            step: step * step_factor,
                            time,
                            allocated: allocated * bytes_factor,
                            peak: peak * bytes_factor,
                            reserved,
                            peak_reserved: reserved,
                        },
                        CAPACITY.map(|bytes| bytes * bytes_factor),
                    );
                }
                *estimator.trends().next().unwrap()
            };
            let (here, there) = (trend(1.0, 1.0), trend(bytes_factor, step_factor));
            prop_assert_eq!(there.stage, here.stage);
            prop_assert!((there.raised_time - here.raised_time).abs() < 1e-6);
            let ratio = there.slope_bytes_per_step / here.slope_bytes_per_step;
            prop_assert!((ratio * step_factor / bytes_factor - 1.0).abs() < 1e-9);
            prop_assert!((there.share_ratio - here.share_ratio).abs() < 1e-6);
        }

        #[test]
        fn order_within_a_block_does_not_matter(turn in 1_u32..16) {
            let of = |turn: u32| {
                let mut estimator = CreepEstimator::new(CreepSettings::default());
                for i in 0..2000_u32 {
                    let source = i - i % 16 + (i % 16 + turn) % 16;
                    let leak = push(f64::from(source), 2.0 * MEBIBYTE * f64::from(source));
                    let step = f64::from(i);
                    estimator.train(&Push { step, time: 1e9 + step, ..leak }, CAPACITY);
                }
                *estimator.trends().next().unwrap()
            };
            let (straight, turned) = (of(0), of(turn));
            prop_assert_eq!(turned.stage, straight.stage);
            prop_assert!((turned.raised_step - straight.raised_step).abs() < 1e-9);
            let ratio = turned.slope_bytes_per_step / straight.slope_bytes_per_step;
            prop_assert!((ratio - 1.0).abs() < 1e-12);
        }
    }
}
