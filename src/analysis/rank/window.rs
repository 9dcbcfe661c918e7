//! One rank's bounded memory: which pushes count, where a new life begins, and what the last steps looked like.
//! Judging what that means is not done here.

use std::cmp::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::analysis::creep::axis::AxisPoint;
use crate::analysis::creep::estimator::CreepEstimator;
use crate::analysis::creep::record::{DeviceReading, MemoryRecord};
use crate::analysis::creep::rules::CreepSettings;
use crate::analysis::estimate;
use crate::analysis::rank::tally::Tally;
use crate::model::ids::{GpuUuid, Rank};
use crate::model::step::{Phase, StepSample};
use crate::model::units::{Bytes, Count, OutOfRange, Seconds, UnixTime, Uptime};

/// How far a step may fall back, without a time of its own or a newer attempt, and still be a late push: more than
/// a client's batches overtake one another, fewer than lie between two checkpoints.
pub const STEP_FALLBACK_TOLERANCE: u64 = 32;
/// The parts that the recent window is made of; the oldest leaves when a new one begins.
pub const RECENT_PARTS: usize = 8;
/// A part of the recent window ends after this many pushes, so that the window holds at most 512.
pub const RECENT_PART_PUSHES: u32 = 64;
/// A part of the recent window also ends after this time, so that the window reaches at most ten minutes back.
pub const RECENT_PART_DURATION: Duration = Duration::from_secs(75);
/// A push that resumes a run on the very next step shows as a fall of allocated below this share of its last value…
const RESUME_FALL_RATIO: f64 = 0.75;
/// …after a gap of more than this many seconds…
const RESUME_GAP_SECONDS: f64 = 30.0;
/// …and of more than this many times the usual gap.
const RESUME_GAP_RATIO: f64 = 15.0;

/// Readings of the device reach the estimator at most this often, in seconds: it counts readings, and was tuned on
/// one every 15 seconds.
pub const DEVICE_READING_EVERY: f64 = 10.0;

/// A process that does not push and holds less than this share of what it held is another one with the same id, or
/// begins anew.
const PROCESS_FALL_RATIO: f64 = 0.25;

/// How many readings the figure of memory outside the allocator is the median of.
const OUTSIDE_READINGS: usize = 5;

/// What became of one push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It was used.
    Accepted,
    /// It was used, and began a new life of the rank.
    Restarted,
    /// Its step was seen before.
    Duplicate,
    /// A later step was seen before.
    Late,
}

/// One rank's state: acceptance, the recent peaks and the creep estimator.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RankWindow {
    identity: Identity,
    clock: PushClock,
    last_train: Option<LastTrain>,
    recent: RecentPeaks,
    interval: IntervalPeak,
    creep: CreepEstimator,
    tally: Tally,
    steps_total: u64,
    /// Train steps of this life.
    life_steps: u32,
    last_seen: Uptime,
    is_ended: bool,
    /// The capacity that NVML gave for its device, for ranks that push none.
    device_total: Option<Bytes>,
    /// When the estimator last took a reading of its device, as a Unix time.
    device_read_at: Option<f64>,
    /// What the process used beyond its allocator, at the last readings, in bytes.
    outside: [f64; OUTSIDE_READINGS],
    /// How many readings this life has had.
    n_outside: usize,
    /// What the process holds on the device; `None` of one that pushes.
    process: Option<Bytes>,
}

/// What a rank says of itself.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Identity {
    /// The restart count of the run.
    pub attempt: Count,
    /// The device that its figures are about.
    pub device: Option<GpuUuid>,
    /// Its process id, in its own namespace.
    pub pid: Option<u32>,
    /// Its rank within the node.
    pub local_rank: Option<Rank>,
    /// Its node's rank.
    pub node_rank: Option<Rank>,
    /// How many ranks the run has.
    pub world_size: Option<u32>,
    /// The device's capacity as the process sees it.
    #[serde(rename = "total_bytes")]
    pub total: Option<Bytes>,
}

/// The figures of the last train step.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct LastTrain {
    /// Its number.
    pub step: Count,
    /// How long it took.
    pub step_seconds: Option<Seconds>,
    /// Live tensor memory at its end.
    #[serde(rename = "allocated_bytes")]
    pub allocated: Bytes,
    /// Maximum of allocated within it.
    #[serde(rename = "peak_allocated_bytes")]
    pub peak_allocated: Option<Bytes>,
    /// What the allocator held at its end.
    #[serde(rename = "reserved_bytes")]
    pub reserved: Option<Bytes>,
    /// Maximum of reserved within it.
    #[serde(rename = "peak_reserved_bytes")]
    pub peak_reserved: Option<Bytes>,
    /// Free parts of split blocks.
    #[serde(rename = "inactive_split_bytes")]
    pub inactive_split: Option<Bytes>,
    /// Failed mallocs that flushed the cache, since the process started.
    pub alloc_retries: Option<Count>,
    /// Out-of-memory errors, since the process started.
    pub ooms: Option<Count>,
    /// Records that the pusher gave up, since the process started.
    pub dropped_records: Option<Count>,
    /// The device's free memory as the process saw it.
    #[serde(rename = "free_bytes")]
    pub free: Option<Bytes>,
}

/// What NVML says of the rank's device, where it does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceView {
    /// The capacity.
    pub total: Option<Bytes>,
    /// What everything on the device uses.
    pub used: Option<Bytes>,
    /// What the rank's own process uses.
    pub process_used: Option<Bytes>,
}

/// The state of one rank at one time, borrowed from its window: what diagnoses look at.
#[derive(Clone, Copy, Debug)]
pub struct RankReport<'a> {
    /// What the rank says of itself.
    pub identity: &'a Identity,
    /// The last train step, if there was one.
    pub last_train: Option<&'a LastTrain>,
    /// The greatest allocated of the recent window, evaluation included.
    pub recent_peak_allocated: Option<Bytes>,
    /// The greatest reserved of the recent window, evaluation included.
    pub recent_peak_reserved: Option<Bytes>,
    /// The greatest allocated of this and the previous interval.
    pub interval_peak_allocated: Option<Bytes>,
    /// The rank's own capacity: as pushed, else as NVML says.
    pub capacity: Option<Bytes>,
    /// What NVML says of its device.
    pub device: DeviceView,
    /// The estimator, for its trends and slopes.
    pub creep: &'a CreepEstimator,
    /// This life, summed up.
    pub tally: &'a Tally,
    /// Train steps accepted since the exporter began.
    pub steps_total: u64,
    /// Train steps of this life.
    pub life_steps: u32,
    /// When the last push came, or the process was last listed.
    pub last_seen: Uptime,
    /// What the process holds on the device; `None` of one that pushes.
    pub process: Option<Bytes>,
    /// What the process used beyond its allocator, at the last readings in any order…
    outside: [f64; OUTSIDE_READINGS],
    /// …of which there were as many as this.
    n_outside: usize,
}

impl RankReport<'_> {
    /// Device memory that is not this rank's allocator's, smoothed; `None` before anything told.
    pub fn other_bytes(&self) -> Option<f64> {
        self.creep.outside_bytes()
    }

    /// What the rank can still take before its device is full: capacity less what others hold less the recent peak
    /// of live memory (of one that does not push, less all that it holds), at least 0. Memory that the allocator holds but does not use counts as available.
    pub fn headroom_bytes(&self) -> Option<f64> {
        let capacity = self.capacity?.as_f64();
        let peak = self.recent_peak_allocated.or(self.process)?.as_f64();
        Some((capacity - self.other_bytes().unwrap_or(0.0) - peak).max(0.0))
    }

    /// The share of what the allocator holds that was not live at the end of the last train step, 0 to 1.
    pub fn fragmentation_ratio(&self) -> Option<f64> {
        let last = self.last_train?;
        let reserved = last.reserved?.as_f64();
        (reserved > 0.0).then(|| ((reserved - last.allocated.as_f64()) / reserved).max(0.0))
    }

    /// What the rank's process uses on the device beyond what its allocator holds, in bytes: the median of the last
    /// readings, since a reading and a push are never of quite the same moment.
    pub fn outside_allocator_bytes(&self) -> Option<f64> {
        self.device.process_used?;
        let mut readings = self.outside;
        let n_readings = readings.len().min(self.n_outside);
        let median = estimate::median(readings.get_mut(..n_readings)?)?;
        Some(median.max(0.0))
    }
}

impl RankWindow {
    /// An empty window of a rank first heard of at `now`.
    pub fn new(creep: CreepSettings, peak_interval: Duration, now: Uptime) -> Self {
        Self {
            identity: Identity::default(),
            clock: PushClock::default(),
            last_train: None,
            recent: RecentPeaks::default(),
            interval: IntervalPeak::new(peak_interval),
            creep: CreepEstimator::new(creep),
            tally: Tally::default(),
            steps_total: 0,
            life_steps: 0,
            last_seen: now,
            is_ended: false,
            device_total: None,
            device_read_at: None,
            outside: [0.0; OUTSIDE_READINGS],
            n_outside: 0,
            process: None,
        }
    }

    /// An empty window of a process that does not push, first listed at `now`.
    pub fn of_process(creep: CreepSettings, device: GpuUuid, pid: u32, now: Uptime) -> Self {
        Self {
            identity: Identity { device: Some(device), pid: Some(pid), ..Identity::default() },
            creep: CreepEstimator::of_process(creep),
            process: Bytes::new(0).ok(),
            ..Self::new(creep, Duration::ZERO, now)
        }
    }

    /// Goes on with other settings, as after a restart of the exporter.
    pub fn configure(&mut self, creep: CreepSettings, peak_interval: Duration) {
        self.creep.configure(creep);
        self.interval.interval = peak_interval;
    }

    /// Takes one push that arrived at `now`, which is the Unix time `arrival`. The second value says whether a trend
    /// was raised, changed or cleared.
    pub fn push(&mut self, sample: &StepSample, now: Uptime, arrival: f64) -> (Taken, bool) {
        self.last_seen = now;
        let time = sample.time.map_or(arrival, Seconds::get);
        let verdict = self.clock.judge(sample, time);
        if matches!(verdict, Taken::Duplicate | Taken::Late) {
            return (verdict, false);
        }
        self.is_ended = false;
        let mut changed = false;
        if verdict == Taken::Restarted {
            changed = self.creep.trends().next().is_some();
            self.begin_life();
        }
        let figures = LastTrain::of(sample);
        let peak = figures.peak_allocated.unwrap_or(figures.allocated).max(figures.allocated);
        let peak_reserved = figures.peak_reserved.max(figures.reserved);
        self.recent.add(peak, peak_reserved, now);
        self.interval.add(peak, now);
        self.tally.add(sample, time);
        self.identify(sample);
        self.clock.advance(sample, time);
        let capacity =
            self.identity.total.or(self.device_total).filter(|total| total.get() > 0);
        let capacity = capacity.map(Bytes::as_f64);
        let record = memory_record(&figures, time);
        if sample.phase == Phase::Train {
            self.last_train = Some(figures);
            self.steps_total += 1;
            self.life_steps = self.life_steps.saturating_add(1);
            changed |= record.is_ok_and(|record| self.creep.train(&record, capacity));
        } else if let Ok(record) = record {
            self.creep.other_phase(&record);
        }
        (verdict, changed)
    }

    /// Takes what is known of the rank's device at the Unix time `time`; whether a trend changed by it.
    pub fn device(&mut self, view: DeviceView, time: f64) -> bool {
        self.device_total = view.total;
        let Some(device_used) = view.used.map(Bytes::as_f64) else { return false };
        let Some(reserved) = self.last_train.and_then(|last| last.reserved) else {
            return false;
        };
        if let Some(process_used) = view.process_used {
            if let Some(slot) = self.outside.get_mut(self.n_outside % OUTSIDE_READINGS) {
                *slot = process_used.as_f64() - reserved.as_f64();
            }
            self.n_outside += 1;
        }
        if self.device_read_at.is_some_and(|read_at| time - read_at < DEVICE_READING_EVERY) {
            return false;
        }
        self.device_read_at = Some(time);
        let Ok(time) = UnixTime::new(time) else { return false };
        let process_used = view.process_used.map(Bytes::as_f64);
        let capacity = self.capacity(view).map(Bytes::as_f64);
        self.creep.device(&DeviceReading { time, device_used, process_used }, capacity)
    }

    /// Takes a reading of a process that does not push, made at `now`, which is the Unix time `time`; whether a trend
    /// changed by it. The estimator gets at most one every `reading_every` seconds.
    pub fn process(
        &mut self,
        view: DeviceView,
        reading_every: f64,
        (now, time): (Uptime, f64),
    ) -> bool {
        self.last_seen = now;
        self.device_total = view.total;
        let (Some(device_used), Some(used)) = (view.used, view.process_used) else {
            return false;
        };
        let before = self.process.replace(used).map_or(0.0, Bytes::as_f64);
        let mut is_changed = false;
        if used.as_f64() < PROCESS_FALL_RATIO * before {
            is_changed = self.creep.trends().next().is_some();
            self.creep.new_life();
        }
        if self.device_read_at.is_some_and(|read_at| time - read_at < reading_every) {
            return is_changed;
        }
        self.device_read_at = Some(time);
        let Ok(time) = UnixTime::new(time) else { return is_changed };
        let reading = DeviceReading {
            time,
            device_used: device_used.as_f64(),
            process_used: Some(used.as_f64()),
        };
        let capacity = self.capacity(view).map(Bytes::as_f64);
        self.creep.process(&reading, capacity) || is_changed
    }

    /// Marks the rank as ended: it leaves every output until a newer push comes.
    pub fn end(&mut self) {
        self.is_ended = true;
    }

    /// Whether the rank belongs in the outputs: not ended, and heard of within `ttl`.
    pub fn is_present(&self, now: Uptime, ttl: Duration) -> bool {
        !self.is_ended && now.since(self.last_seen) <= ttl
    }

    /// Whether its end was announced, and no newer push came.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether it is of a process that does not push.
    pub fn is_process(&self) -> bool {
        self.process.is_some()
    }

    /// When the last push came, accepted or not, or the process was last listed.
    pub fn last_seen(&self) -> Uptime {
        self.last_seen
    }

    /// The number of the last train step.
    pub fn last_step(&self) -> Option<u64> {
        self.last_train.map(|last| last.step.get())
    }

    /// What the rank says of itself.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The rank's state at `now`, with what NVML says of its device.
    pub fn report(&self, device: DeviceView, now: Uptime) -> RankReport<'_> {
        let (recent_peak_allocated, recent_peak_reserved) = self.recent.max();
        RankReport {
            identity: &self.identity,
            last_train: self.last_train.as_ref(),
            recent_peak_allocated,
            recent_peak_reserved,
            interval_peak_allocated: self.interval.at(now),
            capacity: self.capacity(device),
            device,
            creep: &self.creep,
            tally: &self.tally,
            steps_total: self.steps_total,
            life_steps: self.life_steps,
            last_seen: self.last_seen,
            process: self.process,
            outside: self.outside,
            n_outside: self.n_outside,
        }
    }

    fn capacity(&self, device: DeviceView) -> Option<Bytes> {
        self.identity.total.or(device.total).filter(|total| total.get() > 0)
    }

    fn begin_life(&mut self) {
        self.creep.new_life();
        self.tally.begin_life();
        self.clock.newest = None;
        self.n_outside = 0;
        self.life_steps = 0;
        self.recent = RecentPeaks::default();
        self.last_train = None;
    }

    /// What a record leaves out keeps its last value; the attempt is always said.
    fn identify(&mut self, sample: &StepSample) {
        let identity = &mut self.identity;
        identity.attempt = sample.attempt;
        if sample.device.is_some() && sample.device != identity.device {
            identity.device.clone_from(&sample.device);
        }
        identity.pid = sample.pid.or(identity.pid);
        identity.local_rank = sample.local_rank.or(identity.local_rank);
        identity.node_rank = sample.node_rank.or(identity.node_rank);
        identity.world_size = sample.world_size.or(identity.world_size);
        identity.total = sample.total.or(identity.total);
    }
}

impl LastTrain {
    fn of(sample: &StepSample) -> Self {
        Self {
            step: sample.step,
            step_seconds: sample.step_seconds,
            allocated: sample.allocated,
            peak_allocated: sample.peak_allocated,
            reserved: sample.reserved,
            peak_reserved: sample.peak_reserved,
            inactive_split: sample.inactive_split,
            alloc_retries: sample.alloc_retries,
            ooms: sample.ooms,
            dropped_records: sample.dropped_records,
            free: sample.free,
        }
    }
}

/// The record of a step that the estimator takes.
///
/// # Errors
/// `time` is not a Unix time.
fn memory_record(figures: &LastTrain, time: f64) -> Result<MemoryRecord, OutOfRange> {
    Ok(MemoryRecord {
        at: AxisPoint { position: figures.step.as_f64(), time: UnixTime::new(time)? },
        allocated: figures.allocated.as_f64(),
        peak: figures.peak_allocated.unwrap_or(figures.allocated).as_f64(),
        reserved: figures.reserved.map(Bytes::as_f64),
        peak_reserved: figures.peak_reserved.map(Bytes::as_f64),
    })
}

/// Which pushes are new, and which begin a new life.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct PushClock {
    /// What the newest accepted push of this life was; `None` before one.
    newest: Option<Newest>,
    /// The usual gap between two train pushes, in seconds.
    usual_gap: f64,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Newest {
    attempt: Count,
    time: f64,
    /// The step of the last train push, and what was allocated at its end.
    train: Option<(Count, Bytes)>,
}

impl PushClock {
    fn judge(&self, sample: &StepSample, time: f64) -> Taken {
        let Some(newest) = self.newest else { return Taken::Accepted };
        if sample.attempt != newest.attempt {
            let is_new = sample.attempt > newest.attempt;
            return if is_new { Taken::Restarted } else { Taken::Late };
        }
        let is_newer = time > newest.time;
        if sample.phase != Phase::Train {
            return if is_newer { Taken::Accepted } else { Taken::Late };
        }
        let Some((last_step, last_allocated)) = newest.train else { return Taken::Accepted };
        match sample.step.cmp(&last_step) {
            Ordering::Equal => Taken::Duplicate,
            Ordering::Less => {
                let tolerance = if sample.time.is_some() { 0 } else { STEP_FALLBACK_TOLERANCE };
                let fall = last_step.get() - sample.step.get();
                if is_newer && fall > tolerance { Taken::Restarted } else { Taken::Late }
            }
            Ordering::Greater => {
                let gap = time - newest.time;
                let is_resumed = gap > RESUME_GAP_SECONDS
                    && gap > RESUME_GAP_RATIO * self.usual_gap
                    && sample.allocated.as_f64() < RESUME_FALL_RATIO * last_allocated.as_f64();
                if is_resumed { Taken::Restarted } else { Taken::Accepted }
            }
        }
    }

    fn advance(&mut self, sample: &StepSample, time: f64) {
        let train = if sample.phase == Phase::Train {
            if let Some(newest) = self.newest {
                let gap = (time - newest.time).max(0.0);
                self.usual_gap = if self.usual_gap > 0.0 {
                    self.usual_gap + 0.02 * (gap.min(5.0 * self.usual_gap) - self.usual_gap)
                } else {
                    gap
                };
            }
            Some((sample.step, sample.allocated))
        } else {
            self.newest.and_then(|newest| newest.train)
        };
        self.newest = Some(Newest { attempt: sample.attempt, time, train });
    }
}

/// The greatest figures of the last [`RECENT_PARTS`] parts.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct RecentPeaks {
    parts: [Option<(Bytes, Option<Bytes>)>; RECENT_PARTS],
    pushes: u32,
    began: Uptime,
}

impl RecentPeaks {
    fn add(&mut self, allocated: Bytes, reserved: Option<Bytes>, now: Uptime) {
        let is_full =
            self.pushes >= RECENT_PART_PUSHES || now.since(self.began) >= RECENT_PART_DURATION;
        if is_full {
            self.parts.rotate_right(1);
        }
        let [newest, ..] = &mut self.parts;
        match newest {
            Some((peak_allocated, peak_reserved)) if !is_full => {
                *peak_allocated = allocated.max(*peak_allocated);
                *peak_reserved = reserved.max(*peak_reserved);
            }
            _ => {
                *newest = Some((allocated, reserved));
                self.pushes = 0;
                self.began = now;
            }
        }
        self.pushes += 1;
    }

    fn max(&self) -> (Option<Bytes>, Option<Bytes>) {
        let parts = self.parts.iter().flatten();
        (parts.clone().map(|part| part.0).max(), parts.filter_map(|part| part.1).max())
    }
}

/// The greatest allocated of the current and the last whole interval, so that whoever reads at least once an
/// interval sees every spike, and reading changes nothing.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct IntervalPeak {
    interval: Duration,
    current: Option<(u128, Bytes)>,
    previous: Option<(u128, Bytes)>,
}

impl IntervalPeak {
    fn new(interval: Duration) -> Self {
        Self { interval, current: None, previous: None }
    }

    fn index(&self, now: Uptime) -> u128 {
        now.0.as_nanos() / self.interval.as_nanos().max(1)
    }

    fn add(&mut self, peak: Bytes, now: Uptime) {
        let index = self.index(now);
        match &mut self.current {
            Some((current, value)) if *current == index => *value = peak.max(*value),
            _ => {
                self.previous = self.current;
                self.current = Some((index, peak));
            }
        }
    }

    fn at(&self, now: Uptime) -> Option<Bytes> {
        let index = self.index(now);
        [self.current, self.previous]
            .into_iter()
            .flatten()
            .filter(|(of, _)| *of + 1 >= index)
            .map(|(_, value)| value)
            .max()
    }
}
