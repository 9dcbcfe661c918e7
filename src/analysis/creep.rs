//! The online estimator of creeping memory of one rank: bounded windows of blocks over its
//! whole run, and the trends that they hold. Which records count, what a restart is and how a
//! finding is worded is decided elsewhere.

use crate::analysis::estimate::{self, POINTS_MAX};

/// How many blocks a level keeps; a window is one level's blocks.
const BLOCKS_MAX: usize = POINTS_MAX;
/// How many levels there are: 16 × 2^16 × 32 pushes, 33 million, and half that of readings at
/// two a block.
const LEVELS_MAX: usize = 17;
/// How many train pushes make a block of the lowest level.
const PUSHES_PER_BLOCK: u32 = 16;
/// How many readings make a block of the lowest level; they come seconds apart, pushes faster.
const READINGS_PER_BLOCK: u32 = 2;
/// The level whose blocks span 256 pushes, on which stairs are looked for.
const STAIRS_LEVEL_IDX: usize = 4;

/// How many train pushes a life starts with that tell nothing: lazy optimizer state,
/// autotuning, skipped AMP steps.
const WARMUP_PUSHES: u32 = 96;
/// How many readings pass before libraries have loaded what they load at start.
const WARMUP_READINGS: u32 = 8;
/// After so much time of pushes without a reading nobody knows whether what grew outside the
/// allocator still does: as long as a silent rank stays in the outputs.
const SILENCE_SECONDS: f64 = 600.0;
/// How many blocks of pushes must be without a reading as well, for ranks with slow steps.
const SILENCE_BLOCKS: u32 = 2;
/// A leak that leaves more time than this is left to a later window: three days, a long
/// weekend.
const HORIZON_SECONDS: f64 = 72.0 * 3600.0;

const MEBIBYTE: f64 = 1024.0 * 1024.0;
const GIBIBYTE: f64 = 1024.0 * MEBIBYTE;

/// The least growth of any interest, whatever the headroom: a few segments of a caching
/// allocator (2 to 20 MiB).
const GROWTH_BYTES_MIN: f64 = 32.0 * MEBIBYTE;
/// Headroom never counts as less than this share of the capacity, lest noise on a full device
/// looks like the end.
const HEADROOM_RATIO_MIN: f64 = 0.01;
/// Stands in for a capacity that nobody told: 80 GiB, what most training GPUs have (A100,
/// H100). Doubled until what was seen in use fits.
const STAND_IN_CAPACITY_BYTES: f64 = 80.0 * GIBIBYTE;
/// What a confidence is worth when the headroom behind it is a guess.
const STAND_IN_CONFIDENCE_RATIO: f64 = 0.8;

/// First cheap gate: the ends of a window differ by nearly the growth that the fit must show.
const RISE_OF_NEED: f64 = 0.8;
/// The last quarter gains at least this share of what the first did; a cache that fills up does
/// not.
const STEADY_GAIN_RATIO: f64 = 0.8;
/// The end stands above all that left the window by this share of the growth; a sawtooth does
/// not.
const NEW_HIGH_OF_GROWTH: f64 = 0.5;
/// How many spreads of the random walk with the same moves the interval reaches to either side:
/// 95 %.
const INTERVAL_SPREADS: f64 = 1.96;
/// Windows shorter than full length must show more: by the root of what they lack, at most this
/// often.
const SHORT_WINDOW_FACTOR_MAX: f64 = 3.0;

/// Reserved memory creeps by fragmentation only if its slack (reserved less peak) carries this
/// share of the slope.
const SLACK_OF_SLOPE: f64 = 0.8;
/// The same, cheaply, between the first and the last quarter.
const SLACK_OF_GAIN: f64 = 0.5;
/// The working set grows when the peaks' tau is above this and their slope above
/// [`WORKING_SET_OF_SLOPE`].
const WORKING_SET_TAU: f64 = 0.5;
/// See [`WORKING_SET_TAU`]: the share of the reserved slope.
const WORKING_SET_OF_SLOPE: f64 = 0.01;

/// A trend is stale when its last eight blocks grew less than this share of its rate.
const STALE_RATE_RATIO: f64 = 0.25;
/// Over how many blocks growth is compared with the rate.
const STALE_BLOCKS: usize = 8;
/// How many blocks in a row must be stale before the trend is cleared: with the eight that are
/// compared, half a full window.
const STALE_TIMES: u32 = 8;

/// Half of a device's or process's last readings must agree before a figure moves.
const READINGS_SMOOTHED: usize = 5;

/// Which series grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Live tensor memory that survives every step.
    Allocated,
    /// What the caching allocator holds while the live set does not grow: fragmentation.
    Reserved,
    /// What the process holds beside its caching allocator: communication buffers, libraries.
    OutsideAllocator,
}

impl Signal {
    /// Every signal, in the order of declaration.
    pub const ALL: [Self; 3] = [Self::Allocated, Self::Reserved, Self::OutsideAllocator];

    /// The signal as a label's value.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Reserved => "reserved",
            Self::OutsideAllocator => "outside_allocator",
        }
    }
}

/// How sure and how pressing a trend is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Grows steadily, but has eaten little of the headroom or leaves more time than the
    /// horizon.
    Rising,
    /// Has eaten a notable share of the headroom and would eat the rest within the horizon.
    Creeping,
}

/// What one signal must show before it counts as a trend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SignalRules {
    /// The growth of a [`Stage::Rising`] trend as a share of headroom and growth, 0 to 1.
    pub rising_share_ratio: f64,
    /// The same of a [`Stage::Creeping`] trend.
    pub creeping_share_ratio: f64,
    /// The share from which a window shorter than `records_min` may call [`Stage::Creeping`];
    /// above 1: never.
    pub urgent_share_ratio: f64,
    /// The least number of equal moves that the path of the window must be worth: a random walk
    /// gets as far as its root in spreads, √10 = 3.2 once in 1,300 windows.
    pub straightness_min: f64,
    /// The fewest blocks in a window.
    pub blocks_min: usize,
    /// The fewest records between a window's first and last block for [`Stage::Creeping`].
    pub records_min: f64,
    /// From how many records on a window need not show more than its shares.
    pub records_full: f64,
    /// How much of what the peak leaves counts as headroom although the allocator holds it in
    /// its cache, 0 to 1.
    pub peak_weight: f64,
}

impl SignalRules {
    /// The rules of [`Signal::Allocated`], tuned on simulated jobs: 1 of 780 healthy ones
    /// paged.
    pub const ALLOCATED: Self = Self {
        rising_share_ratio: 0.02,
        creeping_share_ratio: 0.07,
        urgent_share_ratio: 0.40,
        straightness_min: 10.0,
        blocks_min: 12,
        records_min: 256.0,
        records_full: 2048.0,
        peak_weight: 0.5,
    };
    /// The rules of [`Signal::Reserved`]: caches settle for long, so that only long windows
    /// count.
    pub const RESERVED: Self = Self {
        rising_share_ratio: 0.03,
        creeping_share_ratio: 0.08,
        urgent_share_ratio: 9.0,
        blocks_min: 16,
        records_min: 2048.0,
        ..Self::ALLOCATED
    };
    /// The rules of [`Signal::OutsideAllocator`], whose records are readings: few and slow.
    pub const OUTSIDE_ALLOCATOR: Self = Self {
        rising_share_ratio: 0.03,
        creeping_share_ratio: 0.08,
        urgent_share_ratio: 9.0,
        straightness_min: 9.0,
        records_min: 20.0,
        records_full: 1.0,
        peak_weight: 0.0,
        ..Self::ALLOCATED
    };
}

/// The estimator's settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CreepSettings {
    /// How many train pushes at the start of a life are not used.
    pub warmup_pushes: u32,
    /// A leak that leaves more time than this does not become [`Stage::Creeping`].
    pub horizon_seconds: f64,
    /// What live memory must show.
    pub allocated: SignalRules,
    /// What reserved memory must show.
    pub reserved: SignalRules,
    /// What memory outside the allocator must show.
    pub outside_allocator: SignalRules,
}

impl Default for CreepSettings {
    fn default() -> Self {
        Self {
            warmup_pushes: WARMUP_PUSHES,
            horizon_seconds: HORIZON_SECONDS,
            allocated: SignalRules::ALLOCATED,
            reserved: SignalRules::RESERVED,
            outside_allocator: SignalRules::OUTSIDE_ALLOCATOR,
        }
    }
}

/// One accepted record of a rank; every figure is finite, bytes are 0 to 2^53.
#[derive(Clone, Copy, Debug, PartialEq)]
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
#[derive(Clone, Copy, Debug, PartialEq)]
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
    pub confidence_ratio: f64,
    /// The pace of the steps, smoothed; 0 while it is unknown.
    pub seconds_per_step: f64,
}

impl Trend {
    /// Returns how many steps are left at this rate; `None` when the headroom is unknown.
    pub fn eta_steps(&self) -> Option<f64> {
        self.headroom_bytes
            .filter(|_| self.slope_bytes_per_step > 0.0)
            .map(|headroom| headroom / self.slope_bytes_per_step)
    }

    /// Returns how many seconds are left at this rate; `None` when the headroom or the pace is
    /// unknown.
    pub fn eta_seconds(&self) -> Option<f64> {
        self.eta_steps()
            .filter(|_| self.seconds_per_step > 0.0)
            .map(|steps| steps * self.seconds_per_step)
    }

    /// Takes over what `latest` measured and keeps when and as what this was raised.
    fn follow(&mut self, latest: &Self) {
        *self = Self {
            stage: self.stage,
            raised_step: self.raised_step,
            raised_time: self.raised_time,
            onset_step: self.onset_step,
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

/// The estimator of one rank.
///
/// It holds at most [`Self::BYTES_MAX`] bytes (about 54 KiB) however long the run is; a level
/// is allocated when its first block comes, and nothing after that. A push costs a few
/// comparisons, and a few tests of windows at every 16th.
#[derive(Clone, Debug)]
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
    /// 32 blocks of 48 bytes, and the stairs.
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
            readings: Readings::new(settings.outside_allocator),
        }
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
        let room = Room {
            capacity: capacity.filter(|bytes| *bytes > 0.0),
            outside_bytes: self.readings.outside_bytes.unwrap_or(0.0),
            batch_share: self.batch.ratio(),
            seconds_per_step: self.pace.seconds_per_step,
            horizon_seconds: self.settings.horizon_seconds,
            step: push.step,
            time: push.time,
        };
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
        let Some((push, reserved)) = self.newest.and_then(|push| Some((push, push.reserved?)))
        else {
            return false;
        };
        let readings = &mut self.readings;
        let before = key(readings.watch.trend.as_ref());
        if let Some(block) = readings.take(reading, &push, reserved) {
            let room = Room {
                capacity: capacity.filter(|bytes| *bytes > 0.0),
                outside_bytes: readings.outside_bytes.unwrap_or(0.0),
                batch_share: 0.0,
                seconds_per_step: readings.pace.seconds_per_step,
                horizon_seconds: self.settings.horizon_seconds,
                step: push.step,
                time: reading.time,
            };
            readings.take_block(block, &room);
        }
        key(readings.watch.trend.as_ref()) != before
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
        let (pyramid, pace, watch) = match signal {
            Signal::Allocated => (&self.pyramid, &self.pace, &self.allocated),
            Signal::Reserved => (&self.pyramid, &self.pace, &self.reserved),
            Signal::OutsideAllocator => {
                (&self.readings.pyramid, &self.readings.pace, &self.readings.watch)
            }
        };
        let (per_step, lower, upper) = match self.trend(signal) {
            Some(trend) => (
                trend.slope_bytes_per_step,
                trend.slope_lower_bytes_per_step,
                trend.slope_upper_bytes_per_step,
            ),
            None => watch.overview(pyramid)?,
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
            Signal::OutsideAllocator => self.readings.watch.trend.as_ref(),
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

    fn keys(&self) -> [Option<(Stage, u64)>; 3] {
        Signal::ALL.map(|signal| key(self.trend(signal)))
    }
}

/// What tells one raised stage from another.
fn key(trend: Option<&Trend>) -> Option<(Stage, u64)> {
    trend.map(|trend| (trend.stage, trend.raised_time.to_bits()))
}

/// What is kept of the readings of the device.
#[derive(Clone, Debug)]
struct Readings {
    /// Bytes on the device that are not the caching allocator's.
    beside: Recent,
    /// Bytes of the process that are not the caching allocator's.
    own: Recent,
    /// The median of `beside`.
    outside_bytes: Option<f64>,
    n_taken: u32,
    /// The time of the push that the last reading was held against.
    push_time: f64,
    /// How many blocks of pushes came since.
    n_silent_blocks: u32,
    open_block: Open,
    pace: Pace,
    pyramid: Pyramid,
    watch: Watch,
}

impl Readings {
    fn new(rules: SignalRules) -> Self {
        Self {
            beside: Recent::default(),
            own: Recent::default(),
            outside_bytes: None,
            n_taken: 0,
            push_time: 0.0,
            n_silent_blocks: 0,
            open_block: Open::default(),
            pace: Pace::default(),
            pyramid: Pyramid::default(),
            watch: Watch::new(Signal::OutsideAllocator, rules),
        }
    }

    /// Takes a reading while the allocator holds `reserved` bytes; a block when it fills one.
    fn take(&mut self, reading: &DeviceReading, push: &Push, reserved: f64) -> Option<Block> {
        self.outside_bytes = self.beside.add(reading.device_used - reserved);
        let outside = self.own.add(reading.process_used? - reserved)?;
        self.push_time = push.time;
        self.n_silent_blocks = 0;
        self.n_taken = self.n_taken.saturating_add(1);
        if self.n_taken <= WARMUP_READINGS {
            return None;
        }
        let block =
            self.open_block.add(Block::of_reading(push, outside), READINGS_PER_BLOCK)?;
        self.pace.advance(push.step, reading.time);
        Some(block)
    }

    /// Adds a finished block and looks at every window that it changed.
    fn take_block(&mut self, block: Block, room: &Room) {
        let n_grown = self.pyramid.add(block);
        for (idx, level) in self.pyramid.levels.iter().enumerate().take(n_grown) {
            self.watch.look(idx, level, room);
        }
        self.watch.refresh(&self.pyramid, room);
    }

    /// Clears the trend when pushes go on and readings of the process don't.
    fn notice_silence(&mut self, time: f64) {
        self.n_silent_blocks = self.n_silent_blocks.saturating_add(1);
        if self.n_silent_blocks >= SILENCE_BLOCKS && time - self.push_time > SILENCE_SECONDS {
            self.watch.clear();
        }
    }

    /// Forgets what belonged to the rank's process and keeps what others use on its device.
    fn forget_process(&mut self) {
        self.own = Recent::default();
        self.n_taken = 0;
        self.open_block = Open::default();
        self.pace = Pace::default();
        self.pyramid.clear();
        self.watch.clear();
    }
}

/// What the tests of one block share: the device around the series and the moment.
#[derive(Clone, Copy, Debug)]
struct Room {
    capacity: Option<f64>,
    outside_bytes: f64,
    /// How much of a larger batch stays live between steps, 0 to 1 and a little around.
    batch_share: f64,
    seconds_per_step: f64,
    horizon_seconds: f64,
    step: f64,
    time: f64,
}

/// The most that some blocks had in use.
#[derive(Clone, Copy, Debug)]
struct Use {
    peak: f64,
    reserved: f64,
}

impl Use {
    fn of<'a>(blocks: impl IntoIterator<Item = &'a Block>) -> Self {
        let none = Self { peak: 0.0, reserved: 0.0 };
        blocks.into_iter().fold(none, |most, block| Self {
            peak: most.peak.max(block.peak_max),
            reserved: most.reserved.max(block.reserved_max),
        })
    }
}

impl Room {
    /// How many bytes are left to grow into, at least a hundredth of the capacity.
    fn headroom(&self, most: Use, peak_weight: f64) -> f64 {
        let capacity = self.capacity.unwrap_or_else(|| {
            let mut capacity = STAND_IN_CAPACITY_BYTES;
            while capacity < most.peak.max(most.reserved) + self.outside_bytes {
                capacity *= 2.0;
            }
            capacity
        });
        let free = capacity - self.outside_bytes;
        (free - most.reserved)
            .max(peak_weight * (free - most.peak))
            .max(HEADROOM_RATIO_MIN * capacity)
    }

    /// Whether the headroom is gone within the horizon at this slope.
    fn is_near(&self, headroom: f64, slope: f64) -> bool {
        headroom / slope * self.seconds_per_step <= self.horizon_seconds
    }

    /// The chance that growth worth `straightness` equal moves of `n_moves` is more than a
    /// random walk's.
    fn confidence(&self, straightness: f64, n_moves: f64) -> f64 {
        let chance = estimate::succession(estimate::normal_cdf(straightness.sqrt()), n_moves);
        if self.capacity.is_some() { chance } else { STAND_IN_CONFIDENCE_RATIO * chance }
    }
}

/// What is left of some consecutive records.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// The step at its end.
    step: f64,
    /// The least live bytes of pushes, the least bytes outside the allocator of readings.
    floor: f64,
    /// The least that a step needed on top of what was live; 0 for readings.
    transient_floor: f64,
    /// The least reserved bytes; infinite when no record told.
    reserved_floor: f64,
    /// The highest peak of any phase.
    peak_max: f64,
    /// The most reserved bytes; the peak where no record told.
    reserved_max: f64,
}

impl Block {
    fn of_push(push: &Push) -> Self {
        Self {
            step: push.step,
            floor: push.allocated,
            transient_floor: push.peak - push.allocated,
            reserved_floor: push.reserved.unwrap_or(f64::INFINITY),
            peak_max: push.peak,
            reserved_max: push.reserved.unwrap_or(push.peak),
        }
    }

    fn of_reading(push: &Push, outside: f64) -> Self {
        Self {
            step: push.step,
            floor: outside,
            transient_floor: 0.0,
            reserved_floor: f64::INFINITY,
            peak_max: push.peak,
            reserved_max: push.peak_reserved.or(push.reserved).unwrap_or(push.peak),
        }
    }

    /// This block and the one after it as one.
    fn joined(&self, later: &Self) -> Self {
        Self {
            step: later.step,
            floor: self.floor.min(later.floor),
            transient_floor: self.transient_floor.min(later.transient_floor),
            reserved_floor: self.reserved_floor.min(later.reserved_floor),
            peak_max: self.peak_max.max(later.peak_max),
            reserved_max: self.reserved_max.max(later.reserved_max),
        }
    }

    /// What the block says of a signal; of a block of readings only the floor has a meaning.
    fn value(&self, signal: Signal) -> f64 {
        match signal {
            Signal::Allocated | Signal::OutsideAllocator => self.floor,
            Signal::Reserved => self.reserved_floor,
        }
    }
}

/// A block that is not full yet.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    block: Option<Block>,
    n_records: u32,
}

impl Open {
    /// Adds a record; returns the block when it is the `n_full`-th.
    fn add(&mut self, record: Block, n_full: u32) -> Option<Block> {
        let block = self.block.map_or(record, |block| block.joined(&record));
        self.n_records += 1;
        if self.n_records < n_full {
            self.block = Some(block);
            return None;
        }
        *self = Self::default();
        Some(block)
    }
}

/// Windows of growing length over one sequence of blocks: a block of a level is two of the
/// level below.
#[derive(Clone, Debug, Default)]
struct Pyramid {
    levels: Vec<Level>,
}

impl Pyramid {
    /// Adds a block to the lowest level and returns how many levels got one.
    fn add(&mut self, block: Block) -> usize {
        self.levels.reserve_exact(LEVELS_MAX.saturating_sub(self.levels.len()));
        let mut carried = Some(block);
        let mut n_grown = 0;
        while let Some(block) = carried
            && n_grown < LEVELS_MAX
        {
            if self.levels.len() == n_grown {
                self.levels.push(Level::new());
            }
            carried = self.levels.get_mut(n_grown).and_then(|level| level.add(block));
            n_grown += 1;
        }
        n_grown
    }

    fn clear(&mut self) {
        for level in &mut self.levels {
            level.blocks.clear();
            level.is_half = false;
            level.high = [f64::NEG_INFINITY; 2];
        }
    }
}

/// One window of a pyramid.
#[derive(Clone, Debug)]
struct Level {
    // Invariant: at most BLOCKS_MAX, the oldest first, in room allocated once.
    blocks: Vec<Block>,
    /// Whether the newest block still waits for the one that it goes up with.
    is_half: bool,
    /// The highest values that ever left the window: of the floor, of the reserved floor.
    high: [f64; 2],
}

impl Level {
    fn new() -> Self {
        Self {
            blocks: Vec::with_capacity(BLOCKS_MAX),
            is_half: false,
            high: [f64::NEG_INFINITY; 2],
        }
    }

    /// Adds a block; returns two as one for the level above when it is the second.
    fn add(&mut self, block: Block) -> Option<Block> {
        let pair = self.blocks.last().filter(|_| self.is_half).map(|last| last.joined(&block));
        self.is_half = !self.is_half;
        if self.blocks.len() == BLOCKS_MAX {
            let left = self.blocks.remove(0);
            let [floor, reserved] = self.high;
            let left_reserved = Some(left.reserved_floor).filter(|bytes| bytes.is_finite());
            self.high =
                [floor.max(left.floor), reserved.max(left_reserved.unwrap_or(reserved))];
        }
        self.blocks.push(block);
        pair
    }

    /// The half of the blocks that says how much is in use now.
    fn newer_half(&self) -> &[Block] {
        self.blocks.get(self.blocks.len() / 2..).unwrap_or(&[])
    }

    fn high(&self, signal: Signal) -> f64 {
        let [floor, reserved] = self.high;
        match signal {
            Signal::Allocated | Signal::OutsideAllocator => floor,
            Signal::Reserved => reserved,
        }
    }
}

/// The points of one window, (step, bytes).
struct Curve {
    points: [(f64, f64); BLOCKS_MAX],
    n_points: usize,
}

impl Curve {
    /// Reads a value off every block; `None` when one of them is unknown.
    fn of(blocks: &[Block], value: impl Fn(&Block) -> f64) -> Option<Self> {
        let mut curve = Self { points: [(0.0, 0.0); BLOCKS_MAX], n_points: 0 };
        for (point, block) in curve.points.iter_mut().zip(blocks) {
            *point = (block.step, value(block));
            curve.n_points += 1;
        }
        curve.points().iter().all(|(_, y)| y.is_finite()).then_some(curve)
    }

    fn points(&self) -> &[(f64, f64)] {
        self.points.get(..self.n_points).unwrap_or(&[])
    }
}

/// How fast a window grows since it does.
struct Rate {
    /// Where the growth sets in within the window, if it does.
    onset_step: Option<f64>,
    slope: f64,
    /// Half the width of the interval around the slope.
    spread: f64,
}

impl Rate {
    /// The slope of a whole window unless its first part is level: then of the rest.
    fn of(points: &[(f64, f64)], slope: f64, straightness: f64) -> Self {
        Self::since_bend(points).unwrap_or(Self {
            onset_step: None,
            slope,
            spread: INTERVAL_SPREADS * slope / straightness.sqrt(),
        })
    }

    fn since_bend(points: &[(f64, f64)]) -> Option<Self> {
        let onset_idx = estimate::bend(points).filter(|idx| *idx > 0)?;
        let rest = points.get(onset_idx..)?;
        let slope =
            estimate::theil_sen(rest).map(|fit| fit.slope).filter(|slope| *slope > 0.0)?;
        let straightness = estimate::path(rest)?.straightness()?;
        let (onset_step, _) = rest.first()?;
        Some(Self {
            onset_step: Some(*onset_step),
            slope,
            spread: INTERVAL_SPREADS * slope / straightness.sqrt(),
        })
    }
}

/// One signal's windows under watch.
#[derive(Clone, Debug)]
struct Watch {
    signal: Signal,
    rules: SignalRules,
    trend: Option<Trend>,
    /// The level of the longest window that showed the trend.
    level_idx: usize,
    /// How many blocks in a row of that level were stale.
    n_stale: u32,
}

impl Watch {
    fn new(signal: Signal, rules: SignalRules) -> Self {
        Self { signal, rules, trend: None, level_idx: 0, n_stale: 0 }
    }

    fn clear(&mut self) {
        self.trend = None;
        self.n_stale = 0;
    }

    /// Looks at a level that just got a block, in rising order of levels.
    ///
    /// Windows below the one that called a creep have nothing to add while it holds.
    fn look(&mut self, level_idx: usize, level: &Level, room: &Room) {
        let is_creeping = self.trend.is_some_and(|trend| trend.stage == Stage::Creeping);
        if (level_idx >= self.level_idx || !is_creeping)
            && let Some(found) = self.judge(level_idx, level, room)
        {
            self.n_stale = 0;
            self.take(level_idx, found);
        }
        if level_idx == self.level_idx {
            self.age(&level.blocks);
        }
    }

    /// Raises a trend or a higher stage of it; follows the one that holds if the window is as
    /// long.
    fn take(&mut self, level_idx: usize, found: Trend) {
        match &mut self.trend {
            Some(held) if found.stage <= held.stage => {
                if level_idx >= self.level_idx {
                    held.follow(&found);
                    self.level_idx = level_idx;
                }
            }
            _ => {
                self.trend = Some(found);
                self.level_idx = level_idx;
            }
        }
    }

    /// Clears the trend when the window that showed it has stopped to grow.
    fn age(&mut self, blocks: &[Block]) {
        let Some(trend) = &self.trend else { return };
        let Some([before, .., last]) = blocks.last_chunk::<{ STALE_BLOCKS + 1 }>() else {
            return;
        };
        let growth = last.value(self.signal) - before.value(self.signal);
        let rate = trend.slope_bytes_per_step * (last.step - before.step);
        // Growth that is not known (NaN) is none.
        self.n_stale = if growth >= STALE_RATE_RATIO * rate { 0 } else { self.n_stale + 1 };
        if self.n_stale >= STALE_TIMES {
            self.clear();
        }
    }

    /// Brings headroom and pace of the trend up to date with the newest block.
    fn refresh(&mut self, pyramid: &Pyramid, room: &Room) {
        let Some(trend) = &mut self.trend else { return };
        let longest = pyramid.levels.get(self.level_idx).map_or(&[][..], Level::newer_half);
        let newest = pyramid.levels.first().and_then(|level| level.blocks.last());
        trend.refresh(Use::of(longest.iter().chain(newest)), self.rules.peak_weight, room);
    }

    /// Tests one window, the cheapest gates first; `None` when it shows no growth worth a word.
    fn judge(&self, level_idx: usize, level: &Level, room: &Room) -> Option<Trend> {
        let (rules, blocks) = (&self.rules, level.blocks.as_slice());
        if blocks.len() < rules.blocks_min {
            return None;
        }
        let curve = Curve::of(blocks, |block| block.value(self.signal))?;
        let points = curve.points();
        let headroom = room.headroom(Use::of(level.newer_half()), rules.peak_weight);
        let need = (rules.rising_share_ratio * headroom).max(GROWTH_BYTES_MIN);

        let path = estimate::path(points)?;
        let straightness = path.straightness()?;
        let gains = estimate::quarter_gains(points)?;
        let is_straight =
            path.rise >= RISE_OF_NEED * need && straightness >= rules.straightness_min;
        let is_steady = gains.last > 0.0 && gains.last >= STEADY_GAIN_RATIO * gains.first;
        if !is_straight || !is_steady || !self.may_be_slack(blocks, gains.whole) {
            return None;
        }

        let slope = estimate::theil_sen(points)?.slope;
        let ((first_step, _), (last_step, last_value)) = (points.first()?, points.last()?);
        let span = last_step - first_step;
        let growth = slope * span;
        let is_new_high = *last_value >= level.high(self.signal) + NEW_HIGH_OF_GROWTH * growth;
        if growth < need || !is_new_high || !self.is_slack(blocks, slope) {
            return None;
        }
        let growth = growth - self.batch_growth(blocks, room.batch_share) * span;
        if growth < need {
            return None;
        }

        let share_ratio = growth / (headroom + growth);
        let stage = self.stage(level_idx, blocks.len(), share_ratio)?;
        let rate = Rate::of(points, slope, straightness);
        Some(Trend {
            signal: self.signal,
            stage: if room.is_near(headroom, slope) { stage } else { Stage::Rising },
            raised_step: room.step,
            raised_time: room.time,
            onset_step: rate.onset_step.unwrap_or(*first_step),
            slope_bytes_per_step: rate.slope,
            slope_lower_bytes_per_step: rate.slope - rate.spread,
            slope_upper_bytes_per_step: rate.slope + rate.spread,
            growth_bytes: growth,
            headroom_bytes: room.capacity.map(|_| headroom),
            share_ratio,
            confidence_ratio: room.confidence(straightness, count(blocks.len()) - 1.0),
            seconds_per_step: room.seconds_per_step,
        })
    }

    /// What a share of the headroom amounts to in a window of a level; short windows need more.
    fn stage(&self, level_idx: usize, n_blocks: usize, share_ratio: f64) -> Option<Stage> {
        let records_per_block = f64::from(match self.signal {
            Signal::Allocated | Signal::Reserved => PUSHES_PER_BLOCK,
            Signal::OutsideAllocator => READINGS_PER_BLOCK,
        });
        let rules = &self.rules;
        let n_records = (count(n_blocks) - 1.0) * records_per_block * count(1 << level_idx);
        let lack = (rules.records_full / n_records.max(1.0)).sqrt();
        let factor = lack.clamp(1.0, SHORT_WINDOW_FACTOR_MAX);
        let is_long = n_records >= rules.records_min || share_ratio >= rules.urgent_share_ratio;
        if is_long && share_ratio >= rules.creeping_share_ratio * factor {
            Some(Stage::Creeping)
        } else {
            (share_ratio >= rules.rising_share_ratio * factor).then_some(Stage::Rising)
        }
    }

    /// The slope that larger batches explain: of live memory only, and only as far as it rises.
    fn batch_growth(&self, blocks: &[Block], batch_share: f64) -> f64 {
        if self.signal != Signal::Allocated || batch_share <= 0.0 {
            return 0.0;
        }
        Curve::of(blocks, |block| block.transient_floor)
            .and_then(|curve| estimate::theil_sen(curve.points()))
            .map_or(0.0, |fit| batch_share.min(1.0) * fit.slope.max(0.0))
    }

    /// Whether slack may carry the growth of reserved memory; always true of other signals.
    fn may_be_slack(&self, blocks: &[Block], gain: f64) -> bool {
        self.signal != Signal::Reserved
            || Curve::of(blocks, slack)
                .and_then(|curve| estimate::quarter_gains(curve.points()))
                .is_some_and(|gains| gains.whole >= SLACK_OF_GAIN * gain)
    }

    /// Whether slack carries the slope of reserved memory and the working set does not grow;
    /// always true of other signals.
    fn is_slack(&self, blocks: &[Block], slope: f64) -> bool {
        let fit = |value: fn(&Block) -> f64| {
            Curve::of(blocks, value).and_then(|curve| estimate::theil_sen(curve.points()))
        };
        let carries = || fit(slack).is_some_and(|slack| slack.slope >= SLACK_OF_SLOPE * slope);
        let grows = |peaks: estimate::TheilSen| {
            peaks.tau > WORKING_SET_TAU && peaks.slope > WORKING_SET_OF_SLOPE * slope
        };
        self.signal != Signal::Reserved
            || carries() && !fit(|block| block.peak_max).is_some_and(grows)
    }

    /// The slope of the longest window and the ends of its interval, from every other block of
    /// it.
    fn overview(&self, pyramid: &Pyramid) -> Option<(f64, f64, f64)> {
        let has_enough = |level: &&Level| level.blocks.len() >= self.rules.blocks_min;
        let level = pyramid.levels.iter().rev().find(has_enough)?;
        let curve = Curve::of(&level.blocks, |block| block.value(self.signal))?;
        let mut thinned = [(0.0, 0.0); BLOCKS_MAX.div_ceil(2)];
        let n_thinned = curve.n_points.div_ceil(2);
        for (to, from) in thinned.iter_mut().zip(curve.points().iter().rev().step_by(2)) {
            *to = *from;
        }
        let points = thinned.get_mut(..n_thinned)?;
        points.reverse();
        let slope = estimate::theil_sen(points)?.slope;
        let ((first_step, _), (last_step, _)) = (points.first()?, points.last()?);
        let spread = INTERVAL_SPREADS * estimate::path(points)?.squared_moves.sqrt()
            / (last_step - first_step);
        Some((slope, slope - spread, slope + spread))
    }
}

/// What the allocator holds at least beyond the most that was live: what a fragmented cache
/// cannot give.
fn slack(block: &Block) -> f64 {
    block.reserved_floor - block.peak_max
}

/// A small number as a float.
fn count(n: usize) -> f64 {
    u32::try_from(n).map_or(f64::MAX, f64::from)
}

/// How many steps of the floor are remembered; six make the longest flight.
const STAIRS_MAX: usize = 8;
/// How many stairs suffice when at most [`STAIRS_LEFT_MAX`] more fit.
const STAIRS_FEW: usize = 3;
/// How many stairs suffice when they have eaten [`STAIRS_SHARE_RATIO`].
const STAIRS_MANY: usize = 6;
/// See [`STAIRS_FEW`].
const STAIRS_LEFT_MAX: f64 = 4.0;
/// See [`STAIRS_MANY`]: a share of headroom and growth.
const STAIRS_SHARE_RATIO: f64 = 0.10;
/// The least height of a stair, as a share of the headroom: more than the batch's noise in a
/// floor.
const STAIR_OF_HEADROOM: f64 = 0.015;
/// A step that the transient bytes share by more than this is the batch's.
const STAIR_TRANSIENT_RATIO: f64 = 0.5;
/// How far heights and distances may be from their means.
const STAIR_TOLERANCE: f64 = 0.3;
/// How far a stair's foot may be from the top of the one before, in heights.
const LANDING_TOLERANCE: f64 = 0.25;
/// How far the whole climb may be from the sum of the stairs.
const CLIMB_TOLERANCE: f64 = 0.2;
/// Stairs are at least this many blocks apart: closer ones are a ramp, which windows see.
const STAIR_BLOCKS_MIN: f64 = 3.0;
/// A fall by this share of the last stair takes the flight back.
const STAIR_FALL_RATIO: f64 = 0.5;
/// After so many distances without a stair the flight has ended. Evaluations keep their rhythm
/// to a third, and pushes that got lost hide one or two of them; three new stairs are needed to
/// raise it again.
const STAIRS_QUIET_DISTANCES: f64 = 4.0;

/// One step of the floor.
#[derive(Clone, Copy, Debug)]
struct Stair {
    step: f64,
    time: f64,
    /// The floor before it.
    foot: f64,
    height: f64,
    /// The highest floor of this life before it.
    high: f64,
}

/// The last block before the current one.
#[derive(Clone, Copy, Debug)]
struct Landing {
    block: Block,
    /// When it ended.
    time: f64,
}

/// What a block showed of a stair within it; the next block shows the rest.
#[derive(Clone, Copy, Debug)]
struct HalfStair {
    height: f64,
    transient_height: f64,
    foot: f64,
}

/// Equal, evenly spaced, never reverted steps of live memory: leaks once per evaluation or
/// checkpoint, whose windows are not straight.
#[derive(Clone, Debug)]
struct Stairs {
    // Invariant: at most STAIRS_MAX, the oldest first.
    steps: Vec<Stair>,
    landing: Option<Landing>,
    half: Option<HalfStair>,
    /// The floor on top of the newest stair.
    top: f64,
    /// The highest floor of this life.
    high: f64,
    trend: Option<Trend>,
    /// How many stairs raised the trend.
    n_flight: usize,
    /// What the flight of the trend started from.
    foot: f64,
}

impl Default for Stairs {
    fn default() -> Self {
        Self {
            steps: Vec::with_capacity(STAIRS_MAX),
            landing: None,
            half: None,
            top: 0.0,
            high: f64::NEG_INFINITY,
            trend: None,
            n_flight: 0,
            foot: 0.0,
        }
    }
}

/// The means and extremes of some stairs in a row.
#[derive(Clone, Copy, Debug)]
struct Flight {
    first: Stair,
    n_stairs: f64,
    height: f64,
    distance_steps: f64,
    distance_seconds: f64,
    lower_bytes_per_step: f64,
    upper_bytes_per_step: f64,
}

impl Flight {
    /// Sums up stairs in a row; `None` for fewer than two or when their steps do not rise.
    fn of(stairs: &[Stair]) -> Option<Self> {
        let [first, .., last] = stairs else { return None };
        let n_stairs = count(stairs.len());
        let n_distances = n_stairs - 1.0;
        let distance_steps = (last.step - first.step) / n_distances;
        if distance_steps <= 0.0 {
            return None;
        }
        let heights = || stairs.iter().map(|stair| stair.height);
        let lowest = heights().fold(f64::INFINITY, f64::min);
        let highest = heights().fold(0.0, f64::max);
        let distances = || pairs(stairs).map(|(before, stair)| stair.step - before.step);
        let nearest = distances().fold(f64::INFINITY, f64::min).max(1.0);
        let farthest = distances().fold(1.0, f64::max);
        Some(Self {
            first: *first,
            n_stairs,
            height: heights().map(|height| height / n_stairs).sum(),
            distance_steps,
            distance_seconds: (last.time - first.time) / n_distances,
            lower_bytes_per_step: lowest / farthest,
            upper_bytes_per_step: highest / nearest,
        })
    }

    /// Whether `stairs`, which this sums up, are equal, evenly spaced and as high as the climb
    /// to `floor`.
    fn is_even(&self, stairs: &[Stair], floor: f64, block_steps: f64) -> bool {
        let (height, distance) = (self.height, self.distance_steps);
        let climb = self.n_stairs * height;
        let is_flat_between =
            (floor - self.first.foot - climb).abs() <= CLIMB_TOLERANCE * climb;
        let is_new_high = floor >= self.first.high + NEW_HIGH_OF_GROWTH * climb;
        let is_apart = distance >= STAIR_BLOCKS_MIN * block_steps;
        is_flat_between
            && is_new_high
            && is_apart
            && stairs
                .iter()
                .all(|stair| (stair.height - height).abs() <= STAIR_TOLERANCE * height)
            && pairs(stairs).all(|(before, stair)| {
                let off_distance = (stair.step - before.step - distance).abs();
                let off_landing = (stair.foot - before.foot - before.height).abs();
                off_distance <= STAIR_TOLERANCE * distance
                    && off_landing <= LANDING_TOLERANCE * height
            })
    }

    /// The trend that this flight is: its interval spans the least and the most favourable of
    /// its stairs.
    fn trend(&self, growth: f64, block: &Block, room: &Room) -> Trend {
        let headroom = room.headroom(Use::of([block]), SignalRules::ALLOCATED.peak_weight);
        Trend {
            signal: Signal::Allocated,
            stage: Stage::Creeping,
            raised_step: room.step,
            raised_time: room.time,
            onset_step: self.first.step,
            slope_bytes_per_step: self.height / self.distance_steps,
            slope_lower_bytes_per_step: self.lower_bytes_per_step,
            slope_upper_bytes_per_step: self.upper_bytes_per_step,
            growth_bytes: growth,
            headroom_bytes: room.capacity.map(|_| headroom),
            share_ratio: growth / (headroom + growth),
            confidence_ratio: room.confidence(self.n_stairs, self.n_stairs),
            seconds_per_step: room.seconds_per_step,
        }
    }
}

/// Every stair but the first with the one before it.
fn pairs(stairs: &[Stair]) -> impl Iterator<Item = (&Stair, &Stair)> {
    stairs.iter().zip(stairs.iter().skip(1))
}

impl Stairs {
    fn clear(&mut self) {
        self.steps.clear();
        self.landing = None;
        self.half = None;
        self.high = f64::NEG_INFINITY;
        self.trend = None;
    }

    /// Takes a block of [`STAIRS_LEVEL_IDX`].
    fn add(&mut self, block: &Block, room: &Room) {
        let headroom = room.headroom(Use::of([block]), SignalRules::ALLOCATED.peak_weight);
        if let Some(landing) = self.landing {
            if let Some(stair) = self.climb(&landing, block, STAIR_OF_HEADROOM * headroom) {
                if self.steps.len() == STAIRS_MAX {
                    self.steps.remove(0);
                }
                self.steps.push(stair);
                self.top = block.floor;
                self.judge(block, block.step - landing.block.step, room);
            }
            self.end(block);
        }
        if self.half.is_none() {
            self.high = self.high.max(block.floor);
        }
        self.landing = Some(Landing { block: *block, time: room.time });
    }

    /// A stair that is complete with this block: a stair inside a block shows in two.
    fn climb(&mut self, landing: &Landing, block: &Block, height_min: f64) -> Option<Stair> {
        let (before, half) = (&landing.block, self.half.take());
        let begun = half.unwrap_or(HalfStair {
            height: 0.0,
            transient_height: 0.0,
            foot: before.floor,
        });
        let sum = HalfStair {
            height: begun.height + block.floor - before.floor,
            transient_height: begun.transient_height + block.transient_floor
                - before.transient_floor,
            foot: begun.foot,
        };
        if sum.height <= height_min {
            return None;
        }
        if half.is_none() {
            self.half = Some(sum);
            return None;
        }
        (sum.transient_height < STAIR_TRANSIENT_RATIO * sum.height).then_some(Stair {
            step: before.step,
            time: landing.time,
            foot: sum.foot,
            height: sum.height,
            high: self.high,
        })
    }

    /// Raises a trend when a flight is even and leads to the end, or follows the one that
    /// holds.
    fn judge(&mut self, block: &Block, block_steps: f64, room: &Room) {
        if let Some(held) = &mut self.trend {
            let newest = self.steps.len().saturating_sub(self.n_flight);
            if let Some(flight) = self.steps.get(newest..).and_then(Flight::of) {
                let growth = (block.floor - self.foot).max(flight.height);
                held.follow(&flight.trend(growth, block, room));
            }
            return;
        }
        for n_flight in [STAIRS_FEW, STAIRS_MANY] {
            let Some(newest) = self.steps.len().checked_sub(n_flight) else { continue };
            let Some(stairs) = self.steps.get(newest..) else { continue };
            let Some(flight) = Flight::of(stairs) else { continue };
            let trend = flight.trend(flight.n_stairs * flight.height, block, room);
            let headroom = room.headroom(Use::of([block]), SignalRules::ALLOCATED.peak_weight);
            let n_left = headroom / flight.height;
            let is_big = if n_flight == STAIRS_FEW {
                n_left <= STAIRS_LEFT_MAX
            } else {
                trend.share_ratio >= STAIRS_SHARE_RATIO
            };
            let is_near = n_left * flight.distance_seconds <= room.horizon_seconds;
            if is_big && is_near && flight.is_even(stairs, block.floor, block_steps) {
                self.n_flight = n_flight;
                self.foot = flight.first.foot;
                self.trend = Some(trend);
                return;
            }
        }
    }

    /// Ends the flight when the floor falls below the newest stair or no further one comes.
    fn end(&mut self, block: &Block) {
        let Some(last) = self.steps.last() else { return };
        let has_fallen = block.floor < self.top - STAIR_FALL_RATIO * last.height;
        let newest = self.steps.len().saturating_sub(self.n_flight);
        let is_quiet = self.trend.is_some()
            && self.steps.get(newest..).and_then(Flight::of).is_none_or(|flight| {
                block.step - last.step > STAIRS_QUIET_DISTANCES * flight.distance_steps
            });
        if has_fallen || is_quiet {
            self.steps.clear();
            self.trend = None;
        }
    }

    /// Brings headroom and pace of the trend up to date with the newest block of the pyramid.
    fn refresh(&mut self, newest: &Block, room: &Room) {
        let most = Use::of(self.landing.iter().map(|landing| &landing.block).chain([newest]));
        if let Some(trend) = &mut self.trend {
            trend.refresh(most, SignalRules::ALLOCATED.peak_weight, room);
        }
    }
}

/// How much of a larger batch stays live from one step to the next: a regression of the moves
/// of live memory on the moves of what the steps need on top.
#[derive(Clone, Copy, Debug, Default)]
struct BatchShare {
    /// Live and transient bytes of the last push.
    last: Option<(f64, f64)>,
    /// Σ x² of the moves of the transient bytes, old ones decayed.
    xx: f64,
    /// Σ x·y with the moves of the live bytes.
    xy: f64,
}

impl BatchShare {
    /// How much of the sums a push keeps: they span the last thousand pushes.
    const KEEP_RATIO: f64 = 0.999;
    /// A move of live memory that is larger than this share of the transient move is not the
    /// batch's.
    const EXPLAINED_RATIO: f64 = 1.2;
    /// See [`Self::EXPLAINED_RATIO`]: what is always forgiven.
    const EXPLAINED_BYTES: f64 = MEBIBYTE;
    /// The share that is assumed of a batch that never moved.
    const PRIOR_RATIO: f64 = 0.5;
    /// How strongly: as much as one move of 10 MB, squared (Hoerl and Kennard, "Ridge
    /// Regression", 1970).
    const PRIOR_WEIGHT: f64 = 1e14;

    fn learn(&mut self, push: &Push) {
        let now = (push.allocated, push.peak - push.allocated);
        if let Some((allocated, transient)) = self.last.replace(now) {
            let (x, y) = (now.1 - transient, now.0 - allocated);
            if y.abs() <= Self::EXPLAINED_RATIO * x.abs() + Self::EXPLAINED_BYTES {
                self.xx = Self::KEEP_RATIO * self.xx + x * x;
                self.xy = Self::KEEP_RATIO * self.xy + x * y;
            }
        }
    }

    fn ratio(&self) -> f64 {
        (self.xy + Self::PRIOR_RATIO * Self::PRIOR_WEIGHT) / (self.xx + Self::PRIOR_WEIGHT)
    }
}

/// How long a step takes, smoothed.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// The step and the time of the last block.
    last: Option<(f64, f64)>,
    /// 0 while it is unknown.
    seconds_per_step: f64,
}

impl Pace {
    /// The weight of the newest block.
    const GAIN_RATIO: f64 = 0.05;
    /// How many times the pace a pause may count as.
    const PAUSE_MAX: f64 = 4.0;

    fn advance(&mut self, step: f64, time: f64) {
        let Some((last_step, last_time)) = self.last.replace((step, time)) else { return };
        if step <= last_step {
            return;
        }
        let latest = ((time - last_time) / (step - last_step)).max(0.0);
        let pace = self.seconds_per_step;
        self.seconds_per_step = if pace > 0.0 {
            pace + Self::GAIN_RATIO * (latest.min(Self::PAUSE_MAX * pace) - pace)
        } else {
            latest
        };
    }

    fn known(&self) -> Option<f64> {
        Some(self.seconds_per_step).filter(|seconds| *seconds > 0.0)
    }
}

/// The last few figures of a kind.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    values: [f64; READINGS_SMOOTHED],
    n_values: usize,
    next_idx: usize,
}

impl Recent {
    /// Adds a figure and returns the median of those that it keeps.
    fn add(&mut self, value: f64) -> Option<f64> {
        *self.values.get_mut(self.next_idx)? = value;
        self.next_idx = (self.next_idx + 1) % READINGS_SMOOTHED;
        self.n_values = READINGS_SMOOTHED.min(self.n_values + 1);
        let mut values = self.values;
        estimate::median(values.get_mut(..self.n_values)?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

    use crate::analysis::creep::{
        BLOCKS_MAX, Block, CreepEstimator, CreepSettings, DeviceReading, GIBIBYTE, LEVELS_MAX,
        Level, MEBIBYTE, Pace, Push, Pyramid, Signal, Slope, Stage, Stair, Trend,
    };

    const CAPACITY: Option<f64> = Some(80.0 * GIBIBYTE);

    /// Noise of -0.5 to 0.5 that is the same in every run.
    fn noise(step: f64) -> f64 {
        (step * 12.9898).sin() * 43_758.545_3 % 0.5
    }

    /// A push of one step a second with noise in the batch; `leak` of it is live and reserved.
    fn push(step: f64, leak: f64) -> Push {
        let allocated = 20.0 * GIBIBYTE + leak;
        let peak = allocated + GIBIBYTE * (10.0 + noise(step));
        let reserved = Some(32.0 * GIBIBYTE + leak);
        Push { step, time: 1e9 + step, allocated, peak, reserved, peak_reserved: reserved }
    }

    /// An estimator that took a leak's bytes at each step, and how often something changed.
    struct Job {
        estimator: CreepEstimator,
        step: f64,
        n_changes: u32,
    }

    impl Job {
        fn new() -> Self {
            let estimator = CreepEstimator::new(CreepSettings::default());
            Self { estimator, step: 0.0, n_changes: 0 }
        }

        fn run(&mut self, n_pushes: u32, of_step: impl Fn(f64) -> Push) {
            for _ in 0..n_pushes {
                self.n_changes +=
                    u32::from(self.estimator.train(&of_step(self.step), CAPACITY));
                self.step += 1.0;
            }
        }

        /// Runs until something changes, for at most a number of pushes.
        fn run_until_change(
            &mut self,
            n_pushes_max: u32,
            of_step: impl Fn(f64) -> Push,
        ) -> bool {
            (0..n_pushes_max).any(|_| {
                let is_changed = self.estimator.train(&of_step(self.step), CAPACITY);
                self.step += 1.0;
                is_changed
            })
        }

        fn trend(&self, signal: Signal) -> Option<Trend> {
            self.estimator.trends().find(|trend| trend.signal == signal).copied()
        }

        fn stage(&self, signal: Signal) -> Option<Stage> {
            self.trend(signal).map(|trend| trend.stage)
        }
    }

    fn assert_within(value: f64, expected: f64, tolerance: f64) {
        assert!(
            (value - expected).abs() <= tolerance,
            "{value} is not {expected} ± {tolerance}"
        );
    }

    fn assert_finite(trend: &Trend) {
        for value in [
            trend.slope_bytes_per_step,
            trend.slope_lower_bytes_per_step,
            trend.slope_upper_bytes_per_step,
            trend.growth_bytes,
            trend.headroom_bytes.unwrap_or(0.0),
            trend.share_ratio,
            trend.confidence_ratio,
            trend.seconds_per_step,
            trend.eta_steps().unwrap_or(0.0),
            trend.eta_seconds().unwrap_or(0.0),
        ] {
            assert!(value.is_finite(), "{trend:?}");
        }
        assert!((0.0..=1.0).contains(&trend.confidence_ratio), "{trend:?}");
        assert!((0.0..=1.0).contains(&trend.share_ratio), "{trend:?}");
    }

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
        assert_within(trend.eta_steps().unwrap(), 20_600.0, 500.0);
        assert_within(trend.eta_seconds().unwrap(), trend.eta_steps().unwrap(), 1e-3);
        assert!(trend.confidence_ratio > 0.9);
        assert!(trend.onset_step < trend.raised_step && trend.raised_step < 2500.0);
        assert_finite(&trend);
    }

    #[test]
    fn noise_sawtooth_and_saturating_cache_raise_no_creep() {
        let noisy = |step| push(step, GIBIBYTE * noise(step + 0.5));
        let sawtooth = |step: f64| push(step, 8.0 * MEBIBYTE * (step % 700.0));
        let saturating =
            |step: f64| push(step, 4.0 * GIBIBYTE * (1.0 - (-step / 3000.0).exp()));
        let healthy: [&dyn Fn(f64) -> Push; 3] = [&noisy, &sawtooth, &saturating];
        for of_step in healthy {
            let mut job = Job::new();
            job.run(30_000, of_step);
            assert!(job.stage(Signal::Allocated) < Some(Stage::Creeping));
            assert_eq!(job.stage(Signal::Reserved), None);
        }
    }

    #[test]
    fn growth_that_the_batch_explains_is_no_leak() {
        let mut job = Job::new();
        let longer = |step: f64| {
            let batch = 2.0 * MEBIBYTE * step + GIBIBYTE * noise(step);
            let mut longer = push(step, 0.0);
            longer.allocated += 0.3 * batch;
            longer.peak = longer.allocated + 8.0 * GIBIBYTE + batch;
            longer
        };
        job.run(6000, longer);
        assert_eq!(job.trend(Signal::Allocated), None);
    }

    #[test]
    fn onset_is_where_the_growth_sets_in() {
        let mut job = Job::new();
        job.run(4000, |step| push(step, 0.0));
        let late = |step: f64| push(step, 3.0 * MEBIBYTE * (step - 4000.0).max(0.0));
        assert!(job.run_until_change(4000, late));
        let trend = job.trend(Signal::Allocated).unwrap();
        assert_within(trend.onset_step, 4000.0, 200.0);
    }

    #[test]
    fn leak_that_stops_is_cleared_and_stays_cleared() {
        let mut job = Job::new();
        job.run(2000, |step| push(step, 4.0 * MEBIBYTE * step));
        assert_eq!(job.stage(Signal::Allocated), Some(Stage::Creeping));
        let stopped = |step| push(step, 8000.0 * MEBIBYTE);
        assert!(job.run_until_change(4000, stopped));
        assert_eq!(job.trend(Signal::Allocated), None);
        let n_changes = job.n_changes;
        job.run(30_000, stopped);
        assert_eq!(job.n_changes, n_changes);
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
    fn fragmentation_is_told_from_a_growing_working_set() {
        let fragmenting = |step: f64| Push {
            reserved: Some(32.0 * GIBIBYTE + 0.5 * MEBIBYTE * step),
            ..push(step, 0.0)
        };
        let mut job = Job::new();
        job.run(20_000, fragmenting);
        assert_eq!(job.stage(Signal::Reserved), Some(Stage::Creeping));
        assert_eq!(job.stage(Signal::Allocated), None);
        let trend = job.trend(Signal::Reserved).unwrap();
        assert_within(trend.slope_bytes_per_step, 0.5 * MEBIBYTE, 0.01 * MEBIBYTE);

        let mut job = Job::new();
        job.run(20_000, |step| push(step, 0.5 * MEBIBYTE * step));
        assert_eq!(job.stage(Signal::Reserved), None);
        assert_eq!(job.stage(Signal::Allocated), Some(Stage::Creeping));
    }

    #[test]
    fn growth_outside_the_allocator_is_found() {
        let mut job = Job::new();
        for i in 0..400 {
            job.run(10, |step| push(step, 0.0));
            let process = 34.0 * GIBIBYTE + 20.0 * MEBIBYTE * f64::from(i);
            let reading = DeviceReading {
                time: 1e9 + job.step,
                device_used: process + GIBIBYTE,
                process_used: Some(process),
            };
            job.n_changes += u32::from(job.estimator.device(&reading, CAPACITY));
        }
        let trend = job.trend(Signal::OutsideAllocator).unwrap();
        assert_eq!(trend.stage, Stage::Creeping);
        assert_within(trend.slope_bytes_per_step, 2.0 * MEBIBYTE, 0.02 * MEBIBYTE);
        assert_eq!(job.estimator.trends().count(), 1);
        assert_within(
            job.estimator.outside_bytes().unwrap(),
            3.0 * GIBIBYTE + 20.0 * MEBIBYTE * 397.0,
            1.0,
        );
        assert_finite(&trend);
    }

    #[test]
    fn trend_whose_figures_stop_to_come_is_cleared() {
        let mut job = Job::new();
        job.run(20_000, |step| Push {
            reserved: Some(32.0 * GIBIBYTE + 0.5 * MEBIBYTE * step),
            ..push(step, 0.0)
        });
        assert_eq!(job.stage(Signal::Reserved), Some(Stage::Creeping));
        assert!(
            job.run_until_change(20_000, |step| Push { reserved: None, ..push(step, 0.0) })
        );
        assert_eq!(job.stage(Signal::Reserved), None);

        let mut job = Job::new();
        for i in 0..400 {
            job.run(10, |step| push(step, 0.0));
            let used = 34.0 * GIBIBYTE + 20.0 * MEBIBYTE * f64::from(i);
            let time = 1e9 + job.step;
            let reading = DeviceReading { time, device_used: used, process_used: Some(used) };
            job.estimator.device(&reading, CAPACITY);
        }
        assert_eq!(job.stage(Signal::OutsideAllocator), Some(Stage::Creeping));
        assert!(job.run_until_change(700, |step| push(step, 0.0)));
        assert_eq!(job.stage(Signal::OutsideAllocator), None);
    }

    #[test]
    fn reading_without_anything_to_hold_it_against_tells_nothing() {
        let reading = DeviceReading { time: 1.0, device_used: 1e9, process_used: Some(1e8) };
        let mut estimator = CreepEstimator::new(CreepSettings::default());
        assert!(!estimator.device(&reading, CAPACITY));
        estimator.train(&Push { reserved: None, ..push(0.0, 0.0) }, CAPACITY);
        assert!(!estimator.device(&reading, CAPACITY));
        assert_eq!(estimator.outside_bytes(), None);
    }

    /// One stair of 2 GiB every 2,000 pushes from the 4,000th on, up to a step.
    fn stairs(step: f64, last_step: f64) -> Push {
        let n_stairs = (step.min(last_step) / 2000.0).floor() - 1.0;
        push(step, 32.0 * GIBIBYTE + 2.0 * GIBIBYTE * n_stairs.max(0.0))
    }

    #[test]
    fn even_stairs_creep_until_they_end() {
        let mut job = Job::new();
        let climbing = |step| stairs(step, 14_500.0);
        assert!(job.run_until_change(14_500, climbing));
        let trend = job.trend(Signal::Allocated).unwrap();
        assert_eq!(trend.stage, Stage::Creeping);
        assert_within(trend.slope_bytes_per_step, GIBIBYTE / 1000.0, 0.2 * GIBIBYTE / 1000.0);
        assert!(trend.slope_lower_bytes_per_step <= trend.slope_bytes_per_step);
        assert!(trend.slope_upper_bytes_per_step >= trend.slope_bytes_per_step);
        assert_finite(&trend);
        job.run(16_000 - 14_500, climbing);
        assert!(job.run_until_change(12_000, climbing), "no stair after the 14,000th push");
        assert_eq!(job.trend(Signal::Allocated), None);
        assert_within(job.step, 14_000.0 + 4.0 * 2000.0, 1000.0);
        assert!(!job.run_until_change(20_000, climbing));
    }

    #[test]
    fn stairs_that_fall_are_cleared_at_once() {
        let mut job = Job::new();
        assert!(job.run_until_change(14_500, |step| stairs(step, 14_500.0)));
        assert!(job.run_until_change(600, |step| push(step, 32.0 * GIBIBYTE)));
        assert_eq!(job.trend(Signal::Allocated), None);
    }

    #[test]
    fn uneven_stairs_raise_nothing() {
        let mut job = Job::new();
        let uneven = |step: f64| {
            let n_stairs =
                [3000.0, 4500.0, 9000.0, 9900.0, 14_000.0].iter().filter(|at| step >= **at);
            push(step, GIBIBYTE * (34.0 + 2.0 * n_stairs.map(|_| 1.0).sum::<f64>()))
        };
        job.run(16_000, uneven);
        assert_eq!(job.n_changes, 0);
    }

    #[test]
    fn leak_is_found_without_capacity_and_reserved_bytes() {
        let of = |capacity: Option<f64>| {
            let mut estimator = CreepEstimator::new(CreepSettings::default());
            for i in 0..4000 {
                let step = f64::from(i);
                let leak = push(step, 2.0 * MEBIBYTE * step);
                estimator
                    .train(&Push { reserved: None, peak_reserved: None, ..leak }, capacity);
            }
            assert_eq!(estimator.slope(Signal::Reserved), None);
            *estimator.trends().next().unwrap()
        };
        let (blind, seeing) = (of(None), of(CAPACITY));
        assert_eq!(blind.stage, Stage::Creeping);
        assert_eq!(
            (blind.headroom_bytes, blind.eta_steps(), blind.eta_seconds()),
            (None, None, None)
        );
        assert!(blind.confidence_ratio < seeing.confidence_ratio);
        // What the peak leaves: 80 - 20 - 10.5 - 7.8 GiB.
        assert_within(seeing.headroom_bytes.unwrap(), 41.7 * GIBIBYTE, 0.3 * GIBIBYTE);
        assert_finite(&blind);
    }

    #[test]
    fn slope_is_shown_also_when_nothing_is_wrong() {
        let mut job = Job::new();
        assert_eq!(job.estimator.slope(Signal::Allocated), None);
        job.run(2000, |step| push(step, 1024.0 * step));
        assert_eq!(job.trend(Signal::Allocated), None);
        let Slope { per_step, lower, upper, per_second } =
            job.estimator.slope(Signal::Allocated).unwrap();
        assert_within(per_step, 1024.0, 1.0);
        assert!(lower < 1024.0 && upper > 1024.0);
        assert_within(per_second.unwrap(), 1024.0, 1.0);
        assert_eq!(job.estimator.slope(Signal::OutsideAllocator), None);
    }

    #[test]
    fn slope_of_a_trend_is_the_one_that_is_shown() {
        let mut job = Job::new();
        job.run(4000, |step| push(step, 2.0 * MEBIBYTE * step));
        let shown = job.estimator.slope(Signal::Allocated).unwrap().per_step;
        let trend = job.trend(Signal::Allocated).unwrap().slope_bytes_per_step;
        assert_within(shown, trend, 0.0);
    }

    #[test]
    fn pace_is_not_moved_by_a_pause() {
        let mut pace = Pace::default();
        for i in 0..100 {
            pace.advance(16.0 * f64::from(i), 32.0 * f64::from(i));
        }
        pace.advance(1600.0, 1e6);
        assert_within(pace.seconds_per_step, 2.0, 0.31);
        pace.advance(1600.0, 2e6);
        pace.advance(1616.0, 1e3);
        assert!(pace.seconds_per_step > 0.0);
    }

    fn heap_bytes(pyramid: &Pyramid) -> usize {
        let blocks = pyramid.levels.iter().map(|level| level.blocks.capacity());
        pyramid.levels.capacity() * size_of::<Level>()
            + blocks.sum::<usize>() * size_of::<Block>()
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
            + 2 * heap_bytes(&job.estimator.pyramid)
            + job.estimator.stairs.steps.capacity() * size_of::<Stair>();
        assert_eq!(bytes, CreepEstimator::BYTES_MAX);
        assert!(bytes <= 64 * 1024, "{bytes}");
    }

    #[test]
    fn million_pushes_take_no_more_memory() {
        let mut job = Job::new();
        job.run(600_000, |step| push(step, 0.0));
        let before = heap_bytes(&job.estimator.pyramid);
        job.run(400_000, |step| push(step, 0.0));
        // 37,500 and 62,500 blocks: both less than the 2^16 that open the next level.
        assert_eq!(heap_bytes(&job.estimator.pyramid), before);
        assert_eq!(job.n_changes, 0);
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
