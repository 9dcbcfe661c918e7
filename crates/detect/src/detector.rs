//! The detector of one rank or process: samples and readings in, trends out.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::batch::BatchShare;
use crate::config::Config;
use crate::explanations::{self, Shown, Stopped};
use crate::intervals::Intervals;
use crate::ladder::{Block, Counted, Ladder, narrow};
use crate::rapid::Rapid;
use crate::readings::{Readings, block_of, peak_of};
use crate::sample::{DeviceReading, Sample};
use crate::series::Series;
use crate::shifts::{HolderGrowth, Shifts};
use crate::slack::Slack;
use crate::surroundings::Surroundings;
use crate::tracker::ShownBy;
use crate::witness::{Testimony, Witness};
use stepmem_forecast::{
    Asked, Axis, AxisPoint, Basis, Capacity, EndedGrowth, Outlook, Pace, Signal, Slope, Trend,
};
use stepmem_types::saved;

/// Samples that make a block of the lowest level.
const SAMPLES_PER_BLOCK: u32 = 2;

/// The detector of one rank, or of one unmanaged process.
///
/// It holds at most [`Self::BYTES_MAX`] bytes however long the run is; a level is allocated
/// when its first block comes. A sample costs one judged window at the mean, most of which end
/// at their first comparison.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Detector {
    /// The numbers by the settings, also after a restart of the exporter; detectors share them.
    #[serde(skip)]
    config: Arc<Config>,
    axis: Axis,
    newest: Option<Sample>,
    /// Train samples of this incarnation.
    n_samples: u32,
    batch: BatchShare,
    /// The highest peak of other phases since the last train sample.
    #[serde(deserialize_with = "saved::places")]
    other_peak: Option<f64>,
    pace: Pace,
    live: Series,
    witness: Witness,
    slack: Slack,
    reserved: Series,
    intervals: Intervals,
    shifts: Shifts,
    readings: Readings,
    /// The figures of an incarnation that has ended, whose windows are freed.
    last: Option<Box<LastFigures>>,
    /// The signal of `live`.
    live_signal: Signal,
    /// Set when the last train sample follows a pause.
    follows_pause: bool,
}

/// The figures that stay of windows that are freed.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct LastFigures {
    /// The slope of each of [`Signal::ALL`].
    slopes: [Option<Slope>; Signal::ALL.len()],
    #[serde(deserialize_with = "saved::places")]
    steps_per_event: Option<f64>,
}

/// The result of one window of a ladder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowReport {
    /// The series that was judged.
    pub signal: Signal,
    /// The axis that its blocks are placed on.
    pub axis: Axis,
    /// The level of the window; each has blocks twice as long as the one below.
    pub level_idx: usize,
    /// Number of samples in it.
    pub n_samples: f64,
    /// The place of its first sample.
    pub from: f64,
    /// The place of its last sample.
    pub to: f64,
    /// The result of the tests.
    pub outcome: Result<Shown, Stopped>,
}

impl Detector {
    /// Upper bound on the memory of one detector, in bytes.
    pub const BYTES_MAX: usize = Self::HOST_BYTES_MAX
        + size_of::<Config>()
        + 2 * Series::HEAP_BYTES_MAX
        + Ladder::NUMBERS_BYTES_MAX
        + Rapid::HEAP_BYTES_MAX
        + Intervals::NUMBERS_BYTES_MAX
        + Witness::HEAP_BYTES_MAX;

    /// Upper bound on the memory of the detector of host memory, in bytes: it has one series, and
    /// shares the configuration of the rank's own.
    pub const HOST_BYTES_MAX: usize = size_of::<Self>()
        + Series::HEAP_BYTES_MAX
        + Intervals::HEAP_BYTES_MAX
        + Shifts::HEAP_BYTES_MAX;

    /// Upper bound on the memory of one whose windows are freed, in bytes.
    pub const RELEASED_BYTES_MAX: usize = Self::HOST_RELEASED_BYTES_MAX
        + size_of::<Config>()
        + 2 * Series::RELEASED_BYTES_MAX
        + Witness::RELEASED_BYTES_MAX;

    /// Upper bound on the memory of a detector of host memory whose windows are freed, in
    /// bytes.
    pub const HOST_RELEASED_BYTES_MAX: usize =
        size_of::<Self>() + size_of::<LastFigures>() + Series::RELEASED_BYTES_MAX;

    /// Upper bound on the memory of the detector of an unmanaged process, in bytes: it has one
    /// series.
    pub const PROCESS_BYTES_MAX: usize =
        size_of::<Self>() + size_of::<Config>() + Series::HEAP_BYTES_MAX;

    /// Creates the detector of a rank that steps.
    pub fn new(config: impl Into<Arc<Config>>) -> Self {
        Self {
            config: config.into(),
            axis: Axis::Steps,
            newest: None,
            n_samples: 0,
            batch: BatchShare::default(),
            other_peak: None,
            pace: Pace::default(),
            live: Series::new(SAMPLES_PER_BLOCK),
            witness: Witness::default(),
            slack: Slack::default(),
            reserved: Series::new(SAMPLES_PER_BLOCK),
            intervals: Intervals::default(),
            shifts: Shifts::default(),
            readings: Readings::new(false),
            last: None,
            live_signal: Signal::Allocated,
            follows_pause: false,
        }
    }

    /// Creates the detector of an unmanaged process; it takes readings only.
    pub fn of_process(config: impl Into<Arc<Config>>) -> Self {
        Self { axis: Axis::Seconds, readings: Readings::new(true), ..Self::new(config) }
    }

    /// Creates the detector of a rank that takes no steps; its samples come by time.
    pub fn by_time(config: impl Into<Arc<Config>>) -> Self {
        Self { axis: Axis::Seconds, ..Self::new(config) }
    }

    /// Creates the detector of a rank's memory that is not a device's: [`Signal::Host`],
    /// [`Signal::Children`] or [`Signal::Shm`].
    pub fn of_host(config: Arc<Config>, axis: Axis, signal: Signal) -> Self {
        Self { axis, live_signal: signal, ..Self::new(config) }
    }

    /// Replaces the configuration, as after a restart of the exporter.
    pub fn configure(&mut self, config: impl Into<Arc<Config>>) {
        self.config = config.into();
    }

    /// Returns the configuration, which another detector may share.
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Returns the axis of its samples.
    pub fn axis(&self) -> Axis {
        self.axis
    }

    /// Notes an event after which memory may hold more: an evaluation, a checkpoint, an epoch.
    pub fn mark(&mut self) {
        self.intervals.mark();
    }

    /// Returns whether the last train sample follows a pause, after which memory may hold more.
    pub fn follows_pause(&self) -> bool {
        self.follows_pause
    }

    /// Takes a train sample that comes after all others; `capacity` as far as it is known.
    ///
    /// Returns true when a trend was raised, changed its stage or phase, or was cleared.
    pub fn train(&mut self, sample: &Sample, capacity: impl Into<Capacity>) -> bool {
        self.follows_pause = false;
        let Some(at) = self.place(sample.at) else { return false };
        let sample = &Sample { at, ..*sample };
        if self.pace.advance(at) {
            self.follows_pause = true;
            self.mark();
        }
        self.newest = Some(*sample);
        self.n_samples = self.n_samples.saturating_add(1);
        self.batch.learn(sample);
        let net = self.batch.net(sample);
        let peak = peak_of(sample).max(self.other_peak.take().unwrap_or(0.0));
        let block = Block { minimum: net, peak: narrow(peak), ..block_of(sample, at) };
        let counted = Counted { block, live_blocks: sample.live_blocks.map(narrow) };
        let slack = self.slack.add(sample, peak);
        let n_warmup = self.n_warmup();
        if self.n_samples <= n_warmup {
            self.live.warm_up(counted, self.n_samples == n_warmup);
            return false;
        }
        let config = &self.config;
        let Some(around) = self.surroundings(config, self.live_signal, capacity.into()) else {
            return false;
        };
        if self.intervals.add(counted, config.interval_samples_min) {
            self.live.judge_between(&self.intervals, None, &around);
            self.witness.judge_between(&self.intervals, &around);
        }
        if let Some(grown) = self.live.add(counted, &around) {
            let shown = self.witness.add(&grown, &self.live, &around);
            self.live.tracker.take(shown, &around);
            let blocks_min = config.interval_samples_min.div_ceil(SAMPLES_PER_BLOCK);
            if self.shifts.add(grown.block.block, blocks_min, config) {
                self.live.judge_between(&self.shifts.intervals, Some(&self.shifts), &around);
            }
        }
        if let Some(slack) = slack {
            let around = Surroundings { signal: Signal::Reserved, ..around };
            self.reserved.add(Block { minimum: slack, ..block }.into(), &around);
        }
        let is_silent = self.axis == Axis::Steps
            && self.readings.notice_silence(at.time, self.config.silence_seconds);
        let judged = [&mut self.live, &mut self.reserved];
        judged.map(|series| series.tracker.take_change()).contains(&true) || is_silent
    }

    /// Takes a sample of an evaluation or a checkpoint: only its peak counts, and later
    /// readings are compared with it.
    pub fn other_phase(&mut self, sample: &Sample) {
        self.newest = Some(*sample);
        self.mark();
        let peak = sample.peak.or(sample.peak_bound);
        self.other_peak = self.other_peak.into_iter().chain(peak).reduce(f64::max);
    }

    /// Takes growth of an object of the process, which shows whether its level shifts are a
    /// leak's; `capacity` as far as it is known.
    pub fn holder(&mut self, growth: HolderGrowth, capacity: impl Into<Capacity>) {
        self.shifts.spanned_by(growth);
        let capacity = capacity.into();
        if let Some(around) = self.surroundings(&self.config, self.live_signal, capacity) {
            self.live.judge_between(&self.shifts.intervals, Some(&self.shifts), &around);
        }
    }

    /// Takes the newest reading of the rank's device, however soon after the last; `capacity` as
    /// far as it is known. [`Self::device`] takes fewer. Returns whether the trend of memory
    /// outside the allocator has changed.
    pub fn device_now(
        &mut self,
        reading: &DeviceReading,
        capacity: impl Into<Capacity>,
    ) -> bool {
        let Some(sample) = self.newest else { return false };
        let config = Arc::clone(&self.config);
        let signal = Signal::OutsideAllocator;
        if let Some(around) = self.surroundings(&config, signal, capacity.into()) {
            self.readings.take_newest(reading, &sample, &around);
        }
        self.readings.series.tracker.take_change()
    }

    /// Takes a reading of the rank's device that comes after all others; `capacity` as far as
    /// it is known.
    ///
    /// Ignores a reading before the first sample, and of a rank whose reserved bytes are
    /// unknown. Returns true when a trend was raised, changed its stage or phase, or was
    /// cleared.
    pub fn device(&mut self, reading: &DeviceReading, capacity: impl Into<Capacity>) -> bool {
        let Some(sample) = self.newest else { return false };
        let taken = self.readings.take(reading, &sample, self.config.warmup_readings);
        let Some(block) = taken else { return false };
        self.read(block, Signal::OutsideAllocator, capacity.into())
    }

    /// Takes a reading of an unmanaged process, as [`Self::device`] does of a rank.
    pub fn process(&mut self, reading: &DeviceReading, capacity: impl Into<Capacity>) -> bool {
        let Some(used) = reading.process_used else { return false };
        let at = AxisPoint { position: 0.0, time: reading.time };
        let Some(at) = self.place(at) else { return false };
        let sample = Sample {
            at,
            allocated: used,
            requested: None,
            peak: Some(used),
            peak_bound: Some(used),
            reserved: Some(used),
            peak_reserved: Some(used),
            live_blocks: None,
        };
        self.newest = Some(sample);
        let block = self.readings.take_process(reading, &sample);
        if !self.readings.is_loaded(&sample, &self.config) {
            return false;
        }
        self.read(block, Signal::Process, capacity.into())
    }

    /// Forgets the previous incarnation of a restarted rank; the memory that others use on its
    /// device stays known.
    pub fn restart(&mut self) {
        let readings = self.readings.restarted();
        let axis = if readings.is_of_process { Axis::Seconds } else { Axis::Steps };
        *self = Self { axis, readings, ..Self::new(Arc::clone(&self.config)) };
    }

    /// Frees the windows of an incarnation that has ended; trends, slopes and the distance of
    /// event markers stay until the next.
    pub fn release(&mut self) {
        let slopes = Signal::ALL.map(|signal| self.slope(signal));
        let last = LastFigures { slopes, steps_per_event: self.steps_per_event() };
        self.last = Some(Box::new(last));
        self.intervals.clear();
        self.shifts.clear();
        self.live.release();
        self.witness.release();
        self.reserved.release();
        self.readings.release();
    }

    /// Returns the trends that hold now, growing or level, at most one per signal.
    pub fn trends(&self) -> impl Iterator<Item = &Trend> {
        Signal::ALL.into_iter().filter_map(|signal| self.trend(signal))
    }

    /// Returns the trend of a signal.
    pub fn trend(&self, signal: Signal) -> Option<&Trend> {
        self.series(signal)?.tracker.trend()
    }

    /// Returns the outlook of a signal's growth, as of the moment that `asked` is about;
    /// `capacity` as far as it is known. `None` where no growth is shown.
    pub fn outlook(
        &self,
        signal: Signal,
        capacity: impl Into<Capacity>,
        asked: &Asked,
    ) -> Option<Outlook> {
        let trend = self.trend(signal)?;
        let around = self.surroundings(&self.config, signal, capacity.into())?;
        // What is outside grows from reading to reading, and the newest knows how far.
        let newest = self.readings.outside_newest;
        let newest = newest.filter(|_| signal == Signal::OutsideAllocator);
        let basis = Basis {
            free_bytes: around.capacity.reachable(newest.unwrap_or(around.outside_bytes)),
            seconds_per_unit: self.seconds_per_unit(signal),
            known_within: self.config.known_within,
        };
        Some(Outlook::of(trend, &basis, asked))
    }

    /// Returns the last growth of a signal that crept and ended in this incarnation, and did
    /// not go on.
    pub fn ended_growth(&self, signal: Signal) -> Option<EndedGrowth> {
        self.series(signal)?.tracker.ended()
    }

    /// Returns the bytes by which a signal has risen since a position. They are the level of
    /// the later half since then, less that of the earlier half. `None` below two blocks.
    pub fn rise_since(&self, signal: Signal, position: f64) -> Option<f64> {
        self.series(signal)?.ladder.rise_since(position)
    }

    /// Returns the growth of a signal between two places on its axis, as far as its trend
    /// remembers it.
    pub fn growth_between(&self, signal: Signal, from: f64, to: f64) -> Option<f64> {
        self.series(signal)?.tracker.growth_between(from, to)
    }

    /// Returns the windows that show a signal's trend.
    pub fn shown_by(&self, signal: Signal) -> Option<ShownBy> {
        self.series(signal)?.tracker.shown_by()
    }

    /// Returns the testimony of the number of the allocator's live blocks on live memory;
    /// `None` where it does not count them, and until that is known.
    pub fn testimony(&self) -> Option<Testimony> {
        self.witness.testimony(&self.live, &self.config)
    }

    /// Returns whether the number of live blocks alone shows a signal's trend.
    pub fn is_shown_by_blocks(&self, signal: Signal) -> bool {
        self.series(signal).is_some_and(|series| series.tracker.is_by_number())
    }

    /// Returns the point where growth of a signal was first suspected: half of the growth that
    /// counts, which no random walk explains.
    pub fn suspected(&self, signal: Signal) -> Option<AxisPoint> {
        self.series(signal)?.suspected
    }

    /// Returns whether a signal was ever measured.
    pub fn has(&self, signal: Signal) -> bool {
        self.series(signal).is_some()
    }

    /// Returns the point of the newest sample or reading.
    pub fn newest(&self) -> Option<AxisPoint> {
        self.newest.map(|sample| sample.at)
    }

    /// Returns the rate at which a signal changes, also when nothing is wrong with it.
    ///
    /// The rate is that of its trend, else of every other block since its growth ended or in a
    /// window without a bend; `None` until there are enough blocks. Costs at most 120 pairs a
    /// window, of which there are two where nothing bends.
    pub fn slope(&self, signal: Signal) -> Option<Slope> {
        if let Some(last) = &self.last {
            let known = Signal::ALL.iter().zip(&last.slopes).find(|(of, _)| **of == signal);
            return known.and_then(|(_, slope)| *slope);
        }
        let series = self.series(signal)?;
        let pace = self.seconds_per_unit(signal);
        if let Some(trend) = series.tracker.trend().filter(|trend| trend.is_growing()) {
            return Some(Slope::along(self.axis, trend.slope_bytes_per_unit, pace));
        }
        let ended = series.tracker.level_since();
        let overview = series.overviews.of_signal(&series.ladder, ended, &self.config)?;
        let slope = Slope::along(self.axis, overview.slope, pace);
        Some(Slope { is_straight: overview.is_straight, ..slope })
    }

    /// Returns the rate of all reserved memory, not only of what no larger batch explains;
    /// `None` until it is known, and of a rank that has ended.
    pub fn reserved_slope(&self) -> Option<Slope> {
        let series = self.series(self.live_signal)?;
        let slope = series.overviews.of_reserved(&series.ladder, &self.config)?;
        let pace = self.seconds_per_unit(self.live_signal);
        Some(Slope::along(self.axis, slope, pace))
    }

    /// Returns the number of increments between event markers or level shifts that show growth
    /// of a signal, and their distance in units of the axis. `None` unless those show it.
    pub fn increments_between_events(&self, signal: Signal) -> Option<(usize, f64)> {
        match self.shown_by(signal)? {
            ShownBy::Shifts => self.shifts.intervals.apart(),
            ShownBy::Intervals => self.intervals.apart(),
            ShownBy::Window(_) | ShownBy::Rapid => None,
        }
    }

    /// Returns the steps from one event marker to the next, on average of the newest; `None` before
    /// the second, and of a rank that takes no steps.
    pub fn steps_per_event(&self) -> Option<f64> {
        if let Some(last) = &self.last {
            return last.steps_per_event;
        }
        let (_, steps) = self.intervals.apart().filter(|_| self.axis == Axis::Steps)?;
        Some(steps).filter(|steps| steps.is_finite() && *steps > 1.0)
    }

    /// Returns the smoothed seconds per train step; `None` until two samples show it, and of a
    /// rank that takes no steps.
    pub fn seconds_per_step(&self) -> Option<f64> {
        self.pace.seconds_per_unit().filter(|_| self.axis == Axis::Steps)
    }

    /// Returns the bytes in use on the device outside this rank's caching allocator, as the
    /// median of five readings; `None` before the first.
    pub fn outside_bytes(&self) -> Option<f64> {
        self.readings.outside_bytes()
    }

    /// Returns the number of train samples that this incarnation still needs before live memory
    /// is judged: the warm-up, and the shortest window. 0 once it is judged.
    pub fn samples_until_judged(&self) -> u32 {
        let shortest = u32::try_from(self.config.blocks_min).unwrap_or(u32::MAX);
        let needed = shortest.saturating_mul(SAMPLES_PER_BLOCK);
        needed.saturating_add(self.n_warmup()).saturating_sub(self.n_samples)
    }

    /// Returns the report of every window of a signal now, the shortest first; `capacity` as
    /// far as it is known.
    ///
    /// Costs as much as the most expensive sample.
    pub fn windows(
        &self,
        signal: Signal,
        capacity: impl Into<Capacity>,
    ) -> impl Iterator<Item = WindowReport> {
        let capacity = capacity.into();
        self.series(signal).into_iter().flat_map(move |series| {
            series.ladder.levels().iter().enumerate().filter_map(move |(level_idx, level)| {
                let around = self.surroundings(&self.config, signal, capacity)?;
                Some(WindowReport {
                    signal,
                    axis: self.axis,
                    level_idx,
                    n_samples: series.n_samples(level_idx),
                    from: level.blocks().first()?.at.position,
                    to: level.until,
                    outcome: explanations::judge(&series.window(level_idx)?, &around),
                })
            })
        })
    }

    /// Returns the number of samples that are left out: readings of child processes come more
    /// rarely than steps.
    fn n_warmup(&self) -> u32 {
        match self.live_signal {
            Signal::Children | Signal::Shm => self.config.warmup_readings,
            _ => self.config.warmup_samples,
        }
    }

    /// Returns the point of a sample: by steps as it says, by time as its time says. `None` of
    /// one that does not come after all others.
    fn place(&mut self, at: AxisPoint) -> Option<AxisPoint> {
        if self.axis == Axis::Steps {
            return Some(at);
        }
        let position = self.readings.seconds_since_first(at.time);
        let is_later = self.newest.is_none_or(|newest| position > newest.at.position);
        is_later.then_some(AxisPoint { position, ..at })
    }

    /// Takes a block of readings; returns whether the trend of their signal has changed.
    fn read(&mut self, block: Block, signal: Signal, capacity: Capacity) -> bool {
        self.readings.pace.advance(block.at);
        if let Some(around) = self.surroundings(&self.config, signal, capacity) {
            self.readings.series.add(block.into(), &Surroundings { now: block.at, ..around });
        }
        self.readings.series.tracker.take_change()
    }

    /// Returns the series of a signal; `None` for [`Signal::Process`] of a rank, for whichever of
    /// [`Signal::Allocated`], [`Signal::Host`], [`Signal::Children`] and [`Signal::Shm`] is not its live memory, and for the others of an
    /// unmanaged process.
    fn series(&self, signal: Signal) -> Option<&Series> {
        let is_process = self.readings.is_of_process;
        let (series, is_there) = match signal {
            Signal::Process => (&self.readings.series, is_process),
            Signal::OutsideAllocator => (&self.readings.series, !is_process),
            Signal::Reserved => (&self.reserved, !is_process),
            live => (&self.live, !is_process && live == self.live_signal),
        };
        is_there.then_some(series)
    }

    /// Returns the smoothed seconds per unit of a signal's axis. Before enough readings show it,
    /// it is that of the rank's samples.
    fn seconds_per_unit(&self, signal: Signal) -> Option<f64> {
        let of_samples = self.pace.seconds_per_unit();
        match signal {
            Signal::OutsideAllocator => self.readings.pace.seconds_per_unit().or(of_samples),
            Signal::Process => self.readings.pace.seconds_per_unit(),
            _ => of_samples,
        }
    }

    /// Returns the surroundings that a signal is judged in; `None` before the first sample.
    fn surroundings<'c>(
        &self,
        config: &'c Config,
        signal: Signal,
        capacity: Capacity,
    ) -> Option<Surroundings<'c>> {
        Some(Surroundings {
            config,
            signal,
            axis: self.axis,
            now: self.newest?.at,
            steps_per_unit: self.steps_per_unit(config),
            // The budget is of a device.
            capacity: if signal.is_beside() { capacity } else { config.capacity(capacity) }
                .of(signal),
            outside_bytes: self.readings.outside_bytes().unwrap_or(0.0),
            is_accumulating: signal == Signal::Allocated && self.witness.is_rising(),
        })
    }

    /// Returns the steps, or what counts as one, that a unit of the axis brings: of a rank by
    /// time its samples.
    fn steps_per_unit(&self, config: &Config) -> f64 {
        match (self.axis, self.newest) {
            (Axis::Seconds, Some(newest)) if !self.readings.is_of_process => {
                f64::from(self.n_samples) / newest.at.position
            }
            (Axis::Seconds, _) => config.steps_per_second,
            (Axis::Steps, _) => 1.0,
        }
    }
}
