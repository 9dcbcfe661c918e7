//! The online estimator of memory creep of one rank: bounded windows of blocks over its whole
//! run, and the trends they show. Accepting records, detecting restarts and wording findings
//! happen elsewhere.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::axis::{Axis, AxisPoint};
use crate::analysis::creep::batch::BatchShare;
use crate::analysis::creep::context::SeriesContext;
use crate::analysis::creep::pace::Pace;
use crate::analysis::creep::pyramid::{
    BLOCKS_MAX, Block, LEVELS_MAX, Level, OpenBlock, PackedBytes, Pyramid, RECORDS_PER_BLOCK,
};
use crate::analysis::creep::readings::Readings;
use crate::analysis::creep::record::{DeviceReading, MemoryRecord};
use crate::analysis::creep::rules::CreepSettings;
use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::slope::{Overview, overview};
use crate::analysis::creep::stairs::{Stairs, StairsEvidence};
use crate::analysis::creep::surge::{Surge, SurgeEvidence};
use crate::analysis::creep::trend::{ShownBy, Slope, Stage, Trend, TrendFigures};
use crate::analysis::creep::watch::SignalWatch;
use crate::analysis::creep::window::WindowVerdict;
use crate::analysis::creep::without::Rule;

/// Stairs are detected on this level, whose blocks span 128 records.
const STAIRS_LEVEL_IDX: usize = 3;
/// A record that comes later than its step takes by this many paces, and by this many seconds,
/// follows a pause: a checkpoint is written, or an evaluation runs that does not push.
const PAUSE_PACES: f64 = 2.0;
/// See [`PAUSE_PACES`].
const PAUSE_SECONDS: f64 = 2.0;

/// The estimator of one rank, or of one process that does not push.
///
/// It holds at most [`Self::BYTES_MAX`] bytes (about 63 KiB) however long the run is; a level
/// is allocated when its first block comes, and nothing after that. A record costs a few
/// comparisons, and every 16th a few judged windows.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct CreepEstimator {
    pub(super) settings: CreepSettings,
    /// The axis of its records.
    pub(super) axis: Axis,
    /// Whether its bytes are host memory.
    is_host: bool,
    pub(super) newest: Option<MemoryRecord>,
    /// Train records of this life.
    n_train_records: u32,
    batch: BatchShare,
    /// The highest known peak since the last block, in any phase.
    peak: PackedBytes,
    open_block: OpenBlock,
    pace: Pace,
    pub(super) pyramid: Pyramid,
    allocated: SignalWatch,
    reserved: SignalWatch,
    pub(super) stairs: Stairs,
    /// Of live memory, or of a process that does not push.
    surge: Surge,
    pub(super) readings: Readings,
    /// The highest live memory of an earlier life that grew no more when it ended.
    settled: PackedBytes,
    /// The slopes of a life that has ended, whose windows are freed.
    last_slopes: Option<Box<LastSlopes>>,
}

/// A slope for each of [`Signal::ALL`].
type LastSlopes = [Option<Slope>; Signal::ALL.len()];

impl CreepEstimator {
    /// Upper bound on the memory of one estimator, in bytes: itself, two pyramids of 14 levels
    /// of 32 blocks of 64 bytes, the stairs and the surge.
    pub const BYTES_MAX: usize = size_of::<Self>()
        + 2 * LEVELS_MAX * (size_of::<Level>() + BLOCKS_MAX * size_of::<Block>())
        + Stairs::BYTES_MAX
        + Surge::BYTES_MAX;

    /// Upper bound on the memory of one whose windows are freed, in bytes.
    pub const RELEASED_BYTES_MAX: usize =
        size_of::<Self>() + size_of::<LastSlopes>() + Stairs::BYTES_MAX;

    /// Creates the estimator of a rank that pushes.
    pub fn new(settings: CreepSettings) -> Self {
        Self {
            settings,
            axis: Axis::Steps,
            is_host: false,
            newest: None,
            n_train_records: 0,
            batch: BatchShare::default(),
            peak: PackedBytes::UNKNOWN,
            open_block: OpenBlock::default(),
            pace: Pace::default(),
            pyramid: Pyramid::default(),
            allocated: SignalWatch::new(Signal::Allocated),
            reserved: SignalWatch::new(Signal::Reserved),
            stairs: Stairs::default(),
            surge: Surge::new(Signal::Allocated),
            readings: Readings::new(Signal::OutsideAllocator),
            settled: PackedBytes::UNKNOWN,
            last_slopes: None,
        }
    }

    /// Creates the estimator of a process that does not push; it takes readings only.
    pub fn of_process(settings: CreepSettings) -> Self {
        let (readings, surge) = (Readings::new(Signal::Process), Surge::new(Signal::Process));
        Self { surge, readings, axis: Axis::Seconds, ..Self::new(settings) }
    }

    /// Replaces the settings, as after a restart of the exporter.
    pub fn configure(&mut self, settings: CreepSettings) {
        self.settings = settings;
    }

    /// Sets whether its bytes are host memory: small growth counts there, see `rules`.
    pub fn set_host(&mut self, is_host: bool) {
        self.is_host = is_host;
    }

    /// Takes a train record that comes after all others; `capacity` in bytes, if known.
    ///
    /// Returns true when a trend was raised, changed its stage or was cleared.
    pub fn train(&mut self, record: &MemoryRecord, capacity: Option<f64>) -> bool {
        if self.is_after_pause(record) {
            self.stairs.mark();
        }
        self.newest = Some(*record);
        self.n_train_records = self.n_train_records.saturating_add(1);
        self.batch.learn(record);
        self.peak = self.peak.highest(PackedBytes::of(record.peak_bound));
        let is_warm = self.n_train_records > self.settings.warmup_pushes;
        let net = is_warm.then(|| self.batch.net(record));
        let net_bytes = net.map(|net| net.get().unwrap_or(record.allocated));
        let is_surge_due =
            self.judges_first_steps() && self.surge.add(record, self.peak, net_bytes);
        let block = net.and_then(|net| self.finished_block(record, net));
        if !is_surge_due && block.is_none() {
            return false;
        }
        let before = self.keys();
        let context = self.context(record, capacity);
        if is_surge_due {
            self.surge.judge(record, &context);
        }
        if let Some(block) = block {
            self.take_block(block, &context);
        }
        self.surge.hand_over(&mut self.allocated);
        self.keys() != before
    }

    fn judges_first_steps(&self) -> bool {
        !self.settings.without.is_off(Rule::FirstSteps)
    }

    /// Returns whether the time since the newest record is more than its steps take.
    fn is_after_pause(&self, record: &MemoryRecord) -> bool {
        let Some((newest, pace)) = self.newest.zip(self.pace.seconds_per_unit()) else {
            return false;
        };
        let n_steps = (record.at.position - newest.at.position).max(1.0);
        let pause = record.at.time.since(newest.at.time) - n_steps * pace;
        pause >= PAUSE_SECONDS && pause >= PAUSE_PACES * pace
    }

    /// Adds a train record to the open block, with its bytes without what its batch leaves; returns the block that this
    /// completes.
    fn finished_block(&mut self, record: &MemoryRecord, net: PackedBytes) -> Option<Block> {
        let mut single = Block::of_record(record);
        single.net_floor = net;
        let mut block = self.open_block.add(single, RECORDS_PER_BLOCK)?;
        block.peak_max = self.peak;
        if let (None, Some(peak)) = (record.reserved, self.peak.get()) {
            block.reserved_max = block.reserved_max.max(peak);
        }
        self.peak = PackedBytes::UNKNOWN;
        self.pace.advance(record.at);
        Some(block)
    }

    /// Returns how many more train records this life needs before live memory is judged: the
    /// warm-up, and the shortest window that a gate lets pass. 0 once it is judged.
    pub fn records_until_judged(&self) -> u32 {
        let shortest = u32::try_from(self.settings.allocated.blocks_min).unwrap_or(u32::MAX);
        let needed = shortest.saturating_mul(RECORDS_PER_BLOCK);
        needed.saturating_add(self.settings.warmup_pushes).saturating_sub(self.n_train_records)
    }

    /// Takes a record of an evaluation or a checkpoint: only its peak counts, and later
    /// readings are compared with it.
    pub fn other_phase(&mut self, record: &MemoryRecord) {
        self.newest = Some(*record);
        self.stairs.mark();
        self.peak = self.peak.highest(PackedBytes::of(record.peak_bound));
    }

    /// Takes a reading of the rank's device that comes after all others; `capacity` in bytes,
    /// if known.
    ///
    /// Ignores a reading before the first record, and of a rank whose reserved bytes are
    /// unknown. Returns true when a trend was raised, changed its stage or was cleared.
    pub fn device(&mut self, reading: &DeviceReading, capacity: Option<f64>) -> bool {
        let Some(record) = self.newest else { return false };
        self.read(reading, &record, capacity)
    }

    /// Takes a reading of a process that does not push, as [`Self::device`] does of a rank.
    pub fn process(&mut self, reading: &DeviceReading, capacity: Option<f64>) -> bool {
        let Some(used) = reading.process_used else { return false };
        let record = MemoryRecord {
            at: AxisPoint {
                position: self.readings.seconds_since_first(reading.time),
                time: reading.time,
            },
            allocated: used,
            peak: Some(used),
            peak_bound: Some(used),
            reserved: Some(used),
            peak_reserved: Some(used),
        };
        self.newest = Some(record);
        let before = self.keys();
        let peak = PackedBytes::of(Some(used));
        if self.judges_first_steps() && self.surge.add(&record, peak, None) {
            let outside_bytes = (reading.device_used - used).max(0.0);
            let context =
                SeriesContext { outside_bytes, ..self.reading_context(&record, capacity) };
            self.surge.judge(&record, &context);
        }
        if record.at.position >= self.settings.process_warmup_seconds {
            self.read(reading, &record, capacity);
        }
        self.surge.hand_over(&mut self.readings.watch);
        self.keys() != before
    }

    /// Forgets the previous life of a restarted rank; the memory that others use on its device
    /// stays known.
    pub fn new_life(&mut self) {
        self.settle();
        self.newest = None;
        self.last_slopes = None;
        self.n_train_records = 0;
        self.batch = BatchShare::default();
        self.peak = PackedBytes::UNKNOWN;
        self.open_block = OpenBlock::default();
        self.pace = Pace::default();
        self.pyramid.clear();
        self.allocated.clear();
        self.reserved.clear();
        self.stairs.clear();
        self.surge.clear();
        self.readings.forget_process();
    }

    /// Frees the windows of a life that has ended; trends and slopes stay until the next.
    pub fn release(&mut self) {
        self.settle();
        self.last_slopes = Some(Box::new(Signal::ALL.map(|signal| self.slope(signal))));
        self.surge.release();
        self.pyramid = Pyramid::default();
        self.readings.pyramid = Pyramid::default();
    }

    /// Keeps how high a life was that was long enough to be judged, and grew no more when it ended.
    fn settle(&mut self) {
        let is_long = f64::from(self.n_train_records) >= self.settings.allocated.records_full;
        if is_long && self.trend(Signal::Allocated).is_none() {
            self.settled = self.settled.highest(self.pyramid.top());
        }
    }

    /// Returns the figures of one of its trends, as of the newest record.
    pub fn figures(&self, trend: &Trend) -> TrendFigures {
        self.newest.map_or(*trend, |newest| trend.as_of(&newest)).figures()
    }

    /// Returns the trends that hold now, at most one per signal.
    pub fn trends(&self) -> impl Iterator<Item = &Trend> {
        Signal::ALL.into_iter().filter_map(|signal| self.trend(signal))
    }

    /// Returns how fast a signal changes, also when nothing is wrong with it.
    ///
    /// That of its trend, else of every other block of its longest window; `None` until a
    /// window holds enough blocks. Costs at most 120 pairs.
    pub fn slope(&self, signal: Signal) -> Option<Slope> {
        if let Some(slopes) = &self.last_slopes {
            let known = Signal::ALL.iter().zip(slopes.iter()).find(|(of, _)| **of == signal);
            return known.and_then(|(_, slope)| *slope);
        }
        let (_, pyramid, pace) = self.series(signal)?;
        if let Some(trend) = self.trend(signal) {
            let (slope, pace) = (trend.slope_bytes_per_unit, trend.seconds_per_unit());
            return Some(Slope::along(self.axis, slope, pace));
        }
        let Overview { slope, is_straight } = overview(signal, &self.settings, pyramid)?;
        let slope = Slope::along(self.axis, slope, pace.seconds_per_unit());
        Some(Slope { is_straight, ..slope })
    }

    /// Returns the smoothed seconds per train step; `None` until two blocks show it, and of a
    /// rank that takes no steps.
    pub fn seconds_per_step(&self) -> Option<f64> {
        self.pace.seconds_per_unit().filter(|_| self.axis == Axis::Steps)
    }

    /// Returns the bytes in use on the device outside this rank's caching allocator, as the
    /// median of five readings; `None` before the first.
    pub fn outside_bytes(&self) -> Option<f64> {
        self.readings.outside_bytes
    }

    /// Returns what every window of a signal shows now, the shortest first; `capacity` in
    /// bytes, if known.
    ///
    /// Costs as much as the most expensive record.
    pub fn windows(
        &self,
        signal: Signal,
        capacity: Option<f64>,
    ) -> impl Iterator<Item = WindowVerdict> {
        let context = self.newest.map(|record| match signal {
            Signal::Allocated | Signal::Reserved => self.context(&record, capacity),
            Signal::OutsideAllocator | Signal::Process => {
                self.reading_context(&record, capacity)
            }
        });
        let levels = self.series(signal).into_iter().flat_map(|(watch, pyramid, _)| {
            pyramid.levels.iter().enumerate().map(move |(idx, level)| (watch, idx, level))
        });
        levels
            .zip(context.into_iter().cycle())
            .filter_map(|((watch, idx, level), context)| watch.verdict(idx, level, &context))
    }

    /// Returns the stairs of live memory remembered so far.
    pub fn stairs(&self) -> StairsEvidence {
        self.stairs.evidence()
    }

    /// Returns what the first records of this life show; `None` before there are enough.
    pub fn surge(&self) -> Option<SurgeEvidence> {
        self.surge.evidence().map(|evidence| SurgeEvidence { axis: self.axis, ..evidence })
    }

    /// Returns what shows a signal's trend.
    pub fn shown_by(&self, signal: Signal) -> Option<ShownBy> {
        self.shown(signal).map(|(by, _)| by)
    }

    fn trend(&self, signal: Signal) -> Option<&Trend> {
        self.shown(signal).map(|(_, trend)| trend)
    }

    /// Returns a signal's trend of the highest stage: that of the windows, unless only the
    /// stairs or the first records show as much.
    fn shown(&self, signal: Signal) -> Option<(ShownBy, &Trend)> {
        let watch = match signal {
            Signal::Allocated => &self.allocated,
            Signal::Reserved => &self.reserved,
            Signal::OutsideAllocator | Signal::Process => &self.readings.watch,
        };
        let stairs = self.stairs.trend().map(|trend| (ShownBy::Stairs, trend));
        let surge = self.surge.trend().map(|trend| (ShownBy::Surge, trend));
        let window = watch.trend.as_ref();
        let window = window.map(|trend| (ShownBy::Window(watch.level_idx), trend));
        [stairs, surge, window]
            .into_iter()
            .flatten()
            .filter(|(_, trend)| trend.signal == signal)
            .max_by_key(|(_, trend)| trend.stage)
    }

    /// Returns the state of a signal; `None` for [`Signal::Process`] of a rank, and for
    /// readings of memory outside the allocator of a process that does not push.
    fn series(&self, signal: Signal) -> Option<(&SignalWatch, &Pyramid, &Pace)> {
        let (watch, pyramid, pace) = match signal {
            Signal::Allocated => (&self.allocated, &self.pyramid, &self.pace),
            Signal::Reserved => (&self.reserved, &self.pyramid, &self.pace),
            Signal::OutsideAllocator | Signal::Process => {
                (&self.readings.watch, &self.readings.pyramid, &self.readings.pace)
            }
        };
        (watch.signal == signal).then_some((watch, pyramid, pace))
    }

    /// Compares a reading with `record`; returns true when the trend changed.
    fn read(
        &mut self,
        reading: &DeviceReading,
        record: &MemoryRecord,
        capacity: Option<f64>,
    ) -> bool {
        let before = key(self.readings.watch.trend.as_ref());
        if let Some(block) = self.readings.take(reading, record) {
            let at = AxisPoint { time: reading.time, ..record.at };
            let context = self.reading_context(&MemoryRecord { at, ..*record }, capacity);
            self.readings.take_block(block, &context);
        }
        key(self.readings.watch.trend.as_ref()) != before
    }

    /// Returns the context of the block that ends with `record`.
    fn context(&self, record: &MemoryRecord, capacity: Option<f64>) -> SeriesContext {
        SeriesContext {
            axis: self.axis,
            capacity: self.settings.capacity(capacity),
            is_host: self.is_host,
            outside_bytes: self.readings.outside_bytes.unwrap_or(0.0),
            n_lived: f64::from(
                self.n_train_records.saturating_sub(self.settings.warmup_pushes),
            ),
            settled: self.settled.get(),
            batch_share: self.batch.ratio(),
            seconds_per_unit: self.pace.seconds_per_unit(),
            settings: self.settings,
            at: record.at,
        }
    }

    /// Returns the context of the block of readings that ends with `record`.
    fn reading_context(&self, record: &MemoryRecord, capacity: Option<f64>) -> SeriesContext {
        SeriesContext {
            n_lived: self.readings.n_lived(),
            batch_share: 0.0,
            seconds_per_unit: self.readings.pace.seconds_per_unit(),
            ..self.context(record, capacity)
        }
    }

    /// Adds a finished block and judges every window that it changed.
    fn take_block(&mut self, block: Block, context: &SeriesContext) {
        let n_grown = self.pyramid.add(block);
        let above_stairs = usize::from(context.is_off(Rule::MarkedStairs));
        for (idx, level) in self.pyramid.levels.iter().enumerate().take(n_grown) {
            self.allocated.look(idx, level, context);
            self.reserved.look(idx, level, context);
            if idx == STAIRS_LEVEL_IDX + above_stairs
                && let Some(newest) = level.blocks.last()
            {
                self.stairs.add(newest, context);
            }
        }
        self.allocated.refresh(&self.pyramid, context);
        self.reserved.refresh(&self.pyramid, context);
        self.stairs.refresh(&block, context);
        self.readings.notice_silence(context.at.time);
    }

    fn keys(&self) -> [Option<(Stage, u64)>; 4] {
        Signal::ALL.map(|signal| key(self.trend(signal)))
    }
}

/// Identifies one raised stage of a trend.
fn key(trend: Option<&Trend>) -> Option<(Stage, u64)> {
    trend.map(|trend| (trend.stage, trend.raised.time.get().to_bits()))
}

#[cfg(test)]
mod tests {
    use crate::analysis::creep::estimator::CreepEstimator;
    use crate::analysis::creep::pyramid::{BLOCKS_MAX, Block, LEVELS_MAX};
    use crate::analysis::creep::record::{DeviceReading, MemoryRecord};
    use crate::analysis::creep::rules::CreepSettings;
    use crate::analysis::creep::signal::Signal;
    use crate::analysis::creep::simulation::{
        CAPACITY, Simulation, assert_finite, assert_within, at, record,
    };
    use crate::analysis::creep::trend::Stage;
    use crate::model::units::{GIBIBYTE, Interval, MEBIBYTE};

    #[test]
    fn leak_is_found_and_measured() {
        let mut rank = Simulation::new();
        let leak = |step| record(step, 2.0 * MEBIBYTE * step);
        rank.run(4000, leak);
        assert_eq!(rank.n_changes, 2, "rising, then creeping");
        let trend = rank.trend(Signal::Allocated).unwrap();
        assert_eq!(trend.stage, Stage::Creeping);
        assert_within(trend.slope_bytes_per_unit.value, 2.0 * MEBIBYTE, 0.01 * MEBIBYTE);
        assert!(trend.slope_bytes_per_unit.lower < 2.0 * MEBIBYTE);
        assert!(trend.slope_bytes_per_unit.upper > 2.0 * MEBIBYTE);
        // 40.2 GiB are not reserved, and the peak leaves 41.7.
        assert_within(trend.headroom_bytes().unwrap(), 40.95 * GIBIBYTE, 0.5 * GIBIBYTE);
        let eta = trend.eta_steps().unwrap();
        let likely = eta.likely;
        assert_within(likely, 21_000.0, 500.0);
        assert!(eta.lower < likely && likely < eta.upper.unwrap());
        assert_within(trend.onset.time.get(), 1e9 + trend.onset.position, 1e-3);
        assert_within(trend.eta_seconds().unwrap().likely, likely, 1e-3);
        assert!(trend.confidence_ratio() > 0.9);
        assert!(trend.onset.position < trend.raised.position && trend.raised.position < 2500.0);
        assert_finite(&trend);
    }

    #[test]
    fn asking_before_the_first_push_returns_nothing() {
        let rank = Simulation::new();
        for signal in Signal::ALL {
            assert_eq!(rank.estimator.windows(signal, CAPACITY).count(), 0);
        }
        let stairs = rank.estimator.stairs();
        assert_eq!((stairs.n_stairs, stairs.failure), (0, None));
    }

    #[test]
    fn restart_forgets_everything_but_the_device() {
        let mut rank = Simulation::new();
        rank.run(3000, |step| record(step, 4.0 * MEBIBYTE * step));
        let reading = DeviceReading {
            time: at(0.0, 1e9).time,
            device_used: 50.0 * GIBIBYTE,
            process_used: None,
        };
        rank.estimator.device(&reading, CAPACITY);
        assert!(rank.estimator.slope(Signal::Allocated).is_some());
        rank.estimator.new_life();
        assert_eq!(rank.estimator.trends().count(), 0);
        assert_eq!(rank.estimator.slope(Signal::Allocated), None);
        assert_eq!(rank.estimator.seconds_per_step(), None);
        assert!(rank.estimator.outside_bytes().is_some());

        let mut fresh = Simulation::new();
        fresh.estimator.readings.outside_bytes = rank.estimator.outside_bytes();
        for rank in [&mut rank, &mut fresh] {
            rank.step = 100.0;
            rank.run(3000, |step| record(step, 3.0 * MEBIBYTE * step));
        }
        assert_eq!(rank.trend(Signal::Allocated), fresh.trend(Signal::Allocated));
    }

    #[test]
    fn everything_full_fits_the_memory_of_a_rank() {
        let mut rank = Simulation::new();
        let block = Block::of_record(&record(0.0, 0.0));
        // As many blocks as fill the highest level.
        for _ in 0..(BLOCKS_MAX + 1) << (LEVELS_MAX - 1) {
            rank.estimator.pyramid.add(block);
        }
        rank.estimator.readings.pyramid = rank.estimator.pyramid.clone();
        assert!(
            rank.estimator.pyramid.levels.iter().all(|level| level.blocks.len() == BLOCKS_MAX)
        );
        assert_eq!(rank.estimator.pyramid.levels.len(), LEVELS_MAX);
        rank.run(60, |step| record(step, 0.0));
        let bytes = size_of::<CreepEstimator>()
            + 2 * rank.estimator.pyramid.heap_bytes()
            + rank.estimator.stairs.heap_bytes()
            + rank.estimator.surge.heap_bytes();
        assert_eq!(bytes, CreepEstimator::BYTES_MAX);
        assert!(bytes <= 64 * 1024, "{bytes}");
    }

    #[test]
    fn extremes_do_not_panic_and_stay_finite() {
        let top = 9_007_199_254_740_992.0;
        let wild: [&dyn Fn(f64) -> MemoryRecord; 5] = [
            &|i| MemoryRecord { at: at(i * top, 1e9 + i), ..record(i, i * MEBIBYTE * 8.0) },
            &|i| MemoryRecord { at: at(7.0, 7.0), ..record(i, i * MEBIBYTE * 8.0) },
            &|i| record(i, top * (i % 2.0)),
            &|i| record(i, i * top / 4000.0),
            &|i| MemoryRecord {
                peak: Some(0.0),
                peak_bound: Some(0.0),
                reserved: Some(0.0),
                ..record(i, i * MEBIBYTE * 8.0)
            },
        ];
        for of_step in wild {
            for capacity in [None, Some(0.0), Some(1.0), Some(top)] {
                check_finite(of_step, capacity);
            }
        }
    }

    fn check_finite(of_step: &dyn Fn(f64) -> MemoryRecord, capacity: Option<f64>) {
        let mut estimator = CreepEstimator::new(CreepSettings::default());
        for i in 0..3000 {
            let record = of_step(f64::from(i));
            estimator.train(&record, capacity);
            let process_used = Some(record.allocated);
            let device_used = if i % 3 == 0 { 9_007_199_254_740_992.0 } else { 0.0 };
            estimator.device(
                &DeviceReading { time: record.at.time, device_used, process_used },
                capacity,
            );
            estimator.trends().for_each(assert_finite);
        }
        for slope in Signal::ALL.into_iter().filter_map(|signal| estimator.slope(signal)) {
            let Interval { value, lower, upper } = slope.bytes_per_step.unwrap();
            assert!([value, lower, upper].iter().all(|bytes| bytes.is_finite()));
        }
    }
}
