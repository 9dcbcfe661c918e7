//! Readings of a device: memory of a rank outside its caching allocator, or all memory of an
//! unmanaged process.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::ladder::{Block, narrow};
use crate::rapid::Rapid;
use crate::sample::{DeviceReading, Sample};
use crate::series::Series;
use crate::surroundings::Surroundings;
use stepmem_forecast::stats::median::RecentMedian;
use stepmem_forecast::{AxisPoint, Pace};
use stepmem_types::saved;
use stepmem_types::units::UnixTime;

/// Readings of memory outside the allocator that make a block: a reading and a record are never
/// of quite the same moment.
const READINGS_PER_BLOCK: u32 = 2;

/// The readings of one rank's device, or of an unmanaged process.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Readings {
    pub(super) is_of_process: bool,
    /// Bytes in use on the device outside the process.
    outside: RecentMedian,
    /// Bytes in use outside the process at the newest reading, not smoothed.
    #[serde(deserialize_with = "saved::figures")]
    pub(super) outside_newest: Option<f64>,
    /// Bytes of the process outside its allocator.
    own: RecentMedian,
    /// The newest readings of that.
    rapid: Rapid,
    n_taken: u32,
    first_time: Option<UnixTime>,
    last_time: Option<UnixTime>,
    /// The place where an unmanaged process last gained what counts as growth while it loads,
    /// and its bytes there; `None` once it has loaded.
    #[serde(deserialize_with = "saved::figures")]
    loading: Option<(f64, f64)>,
    pub(super) pace: Pace,
    pub(super) series: Series,
}

impl Readings {
    /// Creates the readings of a rank's device, or of an unmanaged process, whose memory one
    /// reading gives.
    pub(super) fn new(is_of_process: bool) -> Self {
        Self {
            is_of_process,
            outside: RecentMedian::default(),
            outside_newest: None,
            own: RecentMedian::default(),
            rapid: Rapid::default(),
            n_taken: 0,
            first_time: None,
            last_time: None,
            loading: Some((0.0, 0.0)),
            pace: Pace::default(),
            series: Series::new(if is_of_process { 1 } else { READINGS_PER_BLOCK }),
        }
    }

    /// Returns the bytes in use on the device outside the process; `None` before the first
    /// reading.
    pub(super) fn outside_bytes(&self) -> Option<f64> {
        self.outside.median()
    }

    /// Returns the seconds from the first reading to `time`, which is the first if there was
    /// none.
    pub(super) fn seconds_since_first(&mut self, time: UnixTime) -> f64 {
        time.since(*self.first_time.get_or_insert(time))
    }

    /// Takes a reading of a rank's device after `sample`, however soon after the last; judges
    /// growth by it.
    pub(super) fn take_newest(
        &mut self,
        reading: &DeviceReading,
        sample: &Sample,
        around: &Surroundings<'_>,
    ) {
        let Some(reserved) = sample.reserved else { return };
        let outside = reading.device_used - reserved;
        self.outside_newest = Some(outside);
        let Some(process_used) = reading.process_used else { return };
        let at = AxisPoint { position: sample.at.position, time: reading.time };
        let block = Block { minimum: process_used - reserved, ..block_of(sample, at) };
        let around = Surroundings { now: at, outside_bytes: outside, ..*around };
        if self.rapid.add(block, around.config) {
            self.series.judge_rapid(&self.rapid, &around);
        }
        self.series.tracker.read(&block);
    }

    /// Frees the windows; the trend stays.
    pub(super) fn release(&mut self) {
        self.rapid.release();
        self.series.release();
    }

    /// Takes a reading of a rank's device after `sample`; returns the bytes of its process
    /// outside the allocator, from the reading on that follows `warmup_readings`.
    pub(super) fn take(
        &mut self,
        reading: &DeviceReading,
        sample: &Sample,
        warmup_readings: u32,
    ) -> Option<Block> {
        let reserved = sample.reserved?;
        self.outside.add(reading.device_used - reserved);
        self.own.add(reading.process_used? - reserved);
        self.last_time = Some(reading.time);
        self.n_taken = self.n_taken.saturating_add(1);
        let at = AxisPoint { position: sample.at.position, time: reading.time };
        let block = Block { minimum: self.own.median()?, ..block_of(sample, at) };
        (self.n_taken > warmup_readings).then_some(block)
    }

    /// Takes a reading of an unmanaged process, whose memory is that of `sample`.
    pub(super) fn take_process(&mut self, reading: &DeviceReading, sample: &Sample) -> Block {
        // A process holds at most what is in use on the device; a reading that disagrees frees
        // no memory.
        self.outside.add((reading.device_used - sample.allocated).max(0.0));
        self.last_time = Some(reading.time);
        block_of(sample, sample.at)
    }

    /// Returns whether an unmanaged process has loaded its model: it was level for long enough,
    /// or its warm-up is over.
    pub(super) fn is_loaded(&mut self, sample: &Sample, config: &Config) -> bool {
        let Some((since, bytes)) = self.loading else { return true };
        let position = sample.at.position;
        let warmup = config.process_warmup_seconds;
        if position >= warmup || position - since >= config.process_level_ratio * warmup {
            self.loading = None;
            return true;
        }
        if sample.allocated >= bytes + config.growth_min {
            self.loading = Some((position, sample.allocated));
        }
        false
    }

    /// Forgets a trend that was not read for long; returns whether there was one.
    pub(super) fn notice_silence(&mut self, time: UnixTime, silence_seconds: f64) -> bool {
        let is_silent = self.last_time.is_some_and(|last| time.since(last) > silence_seconds);
        is_silent && self.series.tracker.clear()
    }

    /// Returns the readings of the next incarnation; the memory that others use on the device
    /// stays known.
    pub(super) fn restarted(&self) -> Self {
        let Self { outside, outside_newest, .. } = *self;
        Self { outside, outside_newest, ..Self::new(self.is_of_process) }
    }
}

/// Returns one sample as a block.
pub(super) fn block_of(sample: &Sample, at: AxisPoint) -> Block {
    let peak = peak_of(sample);
    let reserved = sample.peak_reserved.or(sample.reserved).unwrap_or(peak);
    Block { at, minimum: sample.allocated, peak: narrow(peak), reserved: narrow(reserved) }
}

/// Returns the peak of a sample; where it is unknown, live memory is the least that was in use.
pub(super) fn peak_of(sample: &Sample) -> f64 {
    sample.peak.or(sample.peak_bound).unwrap_or(sample.allocated)
}
