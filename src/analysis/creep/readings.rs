//! The state of a device's readings: memory of a rank outside its caching allocator, or all
//! memory of a process that does not push.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::axis::AxisPoint;
use crate::analysis::creep::context::SeriesContext;
use crate::analysis::creep::pace::Pace;
use crate::analysis::creep::pyramid::{Block, OpenBlock, Pyramid, READINGS_PER_BLOCK};
use crate::analysis::creep::record::{DeviceReading, MemoryRecord};
use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::watch::SignalWatch;
use crate::analysis::estimate;
use crate::model::units::UnixTime;

/// Readings to skip while libraries allocate their buffers at startup.
const WARMUP_READINGS: u32 = 8;
/// Clear the trend after this much time of pushes without a reading: by default, as long as a
/// silent rank stays in the outputs.
const SILENCE_SECONDS: f64 = 600.0;
/// Blocks of pushes that must also pass without a reading, for ranks with slow steps.
const SILENCE_BLOCKS: u32 = 2;
/// Readings in the running median.
const READINGS_SMOOTHED: usize = 5;

/// The state of a device's readings.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Readings {
    /// Bytes on the device outside the caching allocator.
    beside: RecentMedian,
    /// Bytes of the process outside the caching allocator, or all of a process that does not
    /// push.
    own: RecentMedian,
    /// The median of `beside`.
    pub(super) outside_bytes: Option<f64>,
    n_taken: u32,
    /// The time of the first reading.
    first_time: Option<UnixTime>,
    /// The time of the record that the last reading was compared with; `None` before the first
    /// reading.
    record_time: Option<UnixTime>,
    /// Blocks of pushes since then.
    n_silent_blocks: u32,
    open_block: OpenBlock,
    pub(super) pace: Pace,
    pub(super) pyramid: Pyramid,
    pub(super) watch: SignalWatch,
}

impl Readings {
    pub(super) fn new(signal: Signal) -> Self {
        Self {
            beside: RecentMedian::default(),
            own: RecentMedian::default(),
            outside_bytes: None,
            n_taken: 0,
            first_time: None,
            record_time: None,
            n_silent_blocks: 0,
            open_block: OpenBlock::default(),
            pace: Pace::default(),
            pyramid: Pyramid::default(),
            watch: SignalWatch::new(signal),
        }
    }

    /// Returns how many readings windows were made of.
    pub(super) fn n_lived(&self) -> f64 {
        f64::from(self.n_taken.saturating_sub(WARMUP_READINGS))
    }

    /// Returns the seconds since the first reading.
    pub(super) fn seconds_since_first(&mut self, time: UnixTime) -> f64 {
        time.since(*self.first_time.get_or_insert(time))
    }

    /// Compares a reading with `record`; returns a block when this completes one.
    pub(super) fn take(
        &mut self,
        reading: &DeviceReading,
        record: &MemoryRecord,
    ) -> Option<Block> {
        let is_process = self.watch.signal == Signal::Process;
        let reserved = record.reserved?;
        let beside = reading.device_used - reserved;
        // A process holds at most what is in use on the device; a reading that disagrees frees
        // no memory.
        self.outside_bytes = self.beside.add(if is_process { beside.max(0.0) } else { beside });
        let used = reading.process_used?;
        let before = self.own.median();
        let bytes = self.own.add(if is_process { used } else { used - reserved })?;
        self.record_time = Some(record.at.time);
        self.n_silent_blocks = 0;
        self.n_taken = self.n_taken.saturating_add(1);
        if self.n_taken <= WARMUP_READINGS {
            return None;
        }
        let climb = before.map_or(0.0, |before| (bytes - before).max(0.0));
        let block = Block::of_reading(record, bytes, climb);
        let block = self.open_block.add(block, READINGS_PER_BLOCK)?;
        self.pace.advance(AxisPoint { time: reading.time, ..record.at });
        Some(block)
    }

    /// Adds a finished block and judges every window that it changed.
    pub(super) fn take_block(&mut self, block: Block, context: &SeriesContext) {
        let n_grown = self.pyramid.add(block);
        for (idx, level) in self.pyramid.levels.iter().enumerate().take(n_grown) {
            self.watch.look(idx, level, context);
        }
        self.watch.refresh(&self.pyramid, context);
    }

    /// Clears the trend when records arrive but readings of the process do not.
    pub(super) fn notice_silence(&mut self, time: UnixTime) {
        self.n_silent_blocks = self.n_silent_blocks.saturating_add(1);
        let is_silent = self.record_time.is_some_and(|last| time.since(last) > SILENCE_SECONDS);
        if self.n_silent_blocks >= SILENCE_BLOCKS && is_silent {
            self.watch.clear();
        }
    }

    /// Forgets the rank's process and keeps the memory that others use on its device.
    pub(super) fn forget_process(&mut self) {
        self.own = RecentMedian::default();
        self.n_taken = 0;
        self.first_time = None;
        self.open_block = OpenBlock::default();
        self.pace = Pace::default();
        self.pyramid.clear();
        self.watch.clear();
    }
}

/// A running median.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct RecentMedian {
    values: [f64; READINGS_SMOOTHED],
    n_values: usize,
    next_idx: usize,
}

impl RecentMedian {
    /// Adds a value; returns the median of the last ones.
    fn add(&mut self, value: f64) -> Option<f64> {
        *self.values.get_mut(self.next_idx)? = value;
        self.next_idx = (self.next_idx + 1) % READINGS_SMOOTHED;
        self.n_values = READINGS_SMOOTHED.min(self.n_values + 1);
        self.median()
    }

    /// Returns the median of the last values; `None` before the first.
    fn median(&self) -> Option<f64> {
        let mut values = self.values;
        estimate::median(values.get_mut(..self.n_values)?)
    }
}

#[cfg(test)]
mod tests {
    use crate::analysis::creep::estimator::CreepEstimator;
    use crate::analysis::creep::record::{DeviceReading, MemoryRecord};
    use crate::analysis::creep::rules::CreepSettings;
    use crate::analysis::creep::signal::Signal;
    use crate::analysis::creep::simulation::{
        CAPACITY, Simulation, assert_finite, assert_within, at, record,
    };
    use crate::analysis::creep::trend::Stage;
    use crate::model::units::{GIBIBYTE, MEBIBYTE};

    #[test]
    fn growth_outside_the_allocator_is_found() {
        let mut rank = Simulation::new();
        for i in 0..400 {
            rank.run(10, |step| record(step, 0.0));
            let process = 34.0 * GIBIBYTE + 20.0 * MEBIBYTE * f64::from(i);
            let reading = DeviceReading {
                time: at(rank.step, 1e9 + rank.step).time,
                device_used: process + GIBIBYTE,
                process_used: Some(process),
            };
            rank.n_changes += u32::from(rank.estimator.device(&reading, CAPACITY));
        }
        let trend = rank.trend(Signal::OutsideAllocator).unwrap();
        assert_eq!(trend.stage, Stage::Creeping);
        assert_within(trend.slope_bytes_per_unit.value, 2.0 * MEBIBYTE, 0.02 * MEBIBYTE);
        assert_eq!(rank.estimator.trends().count(), 1);
        assert_within(
            rank.estimator.outside_bytes().unwrap(),
            3.0 * GIBIBYTE + 20.0 * MEBIBYTE * 397.0,
            1.0,
        );
        assert_finite(&trend);
    }

    #[test]
    fn seldom_read_process_creeps_after_the_same_time() {
        // A leak that would fill the device in three hours, in segments of an allocator.
        let seconds_to_creep = |every: f64| {
            let mut estimator = CreepEstimator::of_process(CreepSettings::default());
            for i in 0..1000 {
                let seconds = every * f64::from(i);
                let held = 20.0 * GIBIBYTE + (seconds / 3.7).floor() * 20.0 * MEBIBYTE;
                let time = at(seconds, 1e9 + seconds).time;
                let reading =
                    DeviceReading { time, device_used: held, process_used: Some(held) };
                estimator.process(&reading, CAPACITY);
                if estimator.trends().any(|trend| trend.stage == Stage::Creeping) {
                    return seconds;
                }
            }
            panic!("not found");
        };
        let (often, seldom) = (seconds_to_creep(15.0), seconds_to_creep(30.0));
        assert!(seldom <= often + 120.0, "{seldom} s, and {often} s when read twice as often");
    }

    #[test]
    fn reading_without_anything_to_hold_it_against_tells_nothing() {
        let reading = DeviceReading {
            time: at(0.0, 1.0).time,
            device_used: 1e9,
            process_used: Some(1e8),
        };
        let mut estimator = CreepEstimator::new(CreepSettings::default());
        assert!(!estimator.device(&reading, CAPACITY));
        estimator.train(&MemoryRecord { reserved: None, ..record(0.0, 0.0) }, CAPACITY);
        assert!(!estimator.device(&reading, CAPACITY));
        assert_eq!(estimator.outside_bytes(), None);
    }
}
