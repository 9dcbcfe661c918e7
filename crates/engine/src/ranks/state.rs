//! The state of one rank: what its records and its device's readings come to. What that means
//! is judged elsewhere.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ranks::detectors::RankDetectors;
use crate::ranks::ended::{OomEvent, RankEnded};
use crate::ranks::floors::Floors;
use crate::ranks::history::{Figures, History, MarkerKind};
use crate::ranks::host::{HostMemory, child_bytes, host_sample};
use crate::ranks::lifecycle::{Arrival, Lifecycle, RecordVerdict};
use crate::ranks::lifetime::LifetimeStats;
use crate::ranks::limits::{Limit, LimitOrigin, Limits};
use crate::ranks::peaks::{HighWater, IntervalPeak, RecentPeaks, StepPeaks};
use crate::ranks::phase_floors::PhaseFloors;
use crate::ranks::planned_end::NamedEnd;
use crate::ranks::totals::RankTotals;
use crate::ranks::used_now::{ReadBy, UsedNow};
use crate::ranks::view::{DeviceView, RankView};
use crate::requests::causes::SiteView;
use crate::requests::checkpoint::CheckpointAsk;
use stepmem_detect::{
    Asked, AxisPoint, Capacity, Config as DetectConfig, DeviceReading, HolderGrowth, Sample,
    Signal, Stage, Trend,
};
use stepmem_forecast::stats::median::RecentMedian;
use stepmem_types::device::{DeviceMemoryKind, OwnProcessMemory};
use stepmem_types::end::{EndOutcome, EndReport};
use stepmem_types::host::ContainerReading;
use stepmem_types::saved::{self, added};
use stepmem_types::step::{Identity, Phase, StepFigures, StepMark, StepSample};
use stepmem_types::units::{Bytes, Count, OutOfRange, Seconds, UnixTime, Uptime};

/// Readings of the device reach the detector's ladder at most this often, in seconds: it counts
/// readings, and was tuned on one every 15 seconds. The newest ones it judges apart.
pub(crate) const DEVICE_READING_EVERY: f64 = 10.0;

/// An allocator that had to flush its cache within this time is short of memory. The alerts
/// cover the same time.
const RETRIES_WITHIN: Duration = Duration::from_mins(15);

/// Errors give a limit to two decimals: of 1.00 GiB to a 200th.
const ALLOWED_ROUNDED_TO: f64 = 0.01;

/// The time for which the last reading of a process's own memory counts. A client reads it
/// every 15 seconds or more often, and sends it with the next record.
const OWN_PROCESS_KEPT: Duration = Duration::from_mins(5);

/// A rank's state: acceptance, the recent peaks and the detector.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RankState {
    identity: Identity,
    /// The end of its training, as this incarnation names it.
    end: NamedEnd,
    lifecycle: Lifecycle,
    last_train: Option<StepFigures>,
    /// Host memory in addition to its own figures, if it has any.
    host: Option<Box<HostMemory>>,
    /// The last reading of its container in this incarnation.
    container: Option<Box<ContainerReading>>,
    recent: RecentPeaks,
    /// The high-water marks of the last record of this incarnation.
    high_water: HighWater,
    interval: IntervalPeak,
    detectors: RankDetectors,
    /// The detectors of samples by time since the last step; `None` while it takes steps.
    by_time: Option<Box<RankDetectors>>,
    lifetime: LifetimeStats,
    history: History,
    /// The last activity that the history has a marker for when it changes.
    activity: Option<MarkerKind>,
    /// The counts since the exporter began.
    totals: RankTotals,
    /// Train steps of this incarnation.
    life_steps: u32,
    /// Events that may change what memory holds, in the order of [`StepMark::ALL`], since the
    /// exporter began.
    #[serde(deserialize_with = "saved::counts")]
    marks_total: [u64; StepMark::ALL.len()],
    last_seen: Uptime,
    /// The time of its allocator's last cache flush in this incarnation.
    retried_at: Option<Uptime>,
    /// The end of the rank, until a newer record comes.
    ended: Option<RankEnded>,
    /// The last time that it ran out of memory in this incarnation.
    oom: Option<OomEvent>,
    /// The capacity that NVML gave for its device, for ranks that push none.
    device_total: Option<Bytes>,
    /// The time when the detector last took a reading of its device, as a Unix time.
    #[serde(deserialize_with = "saved::times")]
    device_read_at: Option<f64>,
    /// The last reading of its device, and of its process there.
    device_now: Option<UsedNow>,
    process_now: Option<UsedNow>,
    /// Bytes that the process used beyond its allocator, at the last readings.
    outside: RecentMedian,
    /// The memory on its device that its client last read from NVML, and when that came.
    own_process: Option<(OwnProcessMemory, Uptime)>,
    /// The memory that it keeps after phases that its program names.
    phase_floors: PhaseFloors,
    /// The last ask of this incarnation to checkpoint.
    checkpoint: Option<CheckpointAsk>,
    /// The floors of its live memory.
    floors: Floors,
}

/// The place of a record in the history of its rank.
#[derive(Clone, Copy)]
struct HistoryPlace {
    /// The time when its step ended, as a Unix time.
    time: f64,
    /// Set when the rank was silent, or another process, before it.
    follows_gap: bool,
}

impl RankState {
    /// An empty window of a rank first heard of at `now`.
    pub fn new(creep: &DetectConfig, peak_interval: Duration, now: Uptime) -> Self {
        Self {
            identity: Identity::default(),
            end: NamedEnd::default(),
            lifecycle: Lifecycle::default(),
            last_train: None,
            host: None,
            container: None,
            recent: RecentPeaks::default(),
            high_water: HighWater::default(),
            interval: IntervalPeak::new(peak_interval),
            detectors: RankDetectors::new(creep),
            by_time: None,
            lifetime: LifetimeStats::default(),
            history: History::default(),
            activity: None,
            totals: RankTotals::default(),
            life_steps: 0,
            marks_total: [0; StepMark::ALL.len()],
            last_seen: now,
            retried_at: None,
            ended: None,
            oom: None,
            device_total: None,
            device_read_at: None,
            device_now: None,
            process_now: None,
            outside: RecentMedian::default(),
            own_process: None,
            floors: Floors::default(),
            phase_floors: PhaseFloors::default(),
            checkpoint: None,
        }
    }

    /// Goes on with other settings, as after a restart of the exporter.
    pub fn configure(&mut self, creep: &DetectConfig, peak_interval: Duration) {
        self.detectors.configure(creep);
        self.by_time.iter_mut().for_each(|by_time| by_time.configure(creep));
        self.interval.configure(peak_interval);
    }

    /// Takes one record that arrived at `now`, which is the Unix time `arrival`. The second
    /// value is true when a trend was raised, changed or cleared.
    pub fn push(
        &mut self,
        sample: &StepSample,
        now: Uptime,
        arrival: f64,
    ) -> (RecordVerdict, bool) {
        let at = Arrival { now, time: sample.time.map_or(arrival, Seconds::get) };
        let has_other_unit = self.begin_unit(sample, at.time);
        let verdict = self.accept(sample, at);
        let has_restarted = match verdict {
            RecordVerdict::Duplicate | RecordVerdict::Late => return (verdict, false),
            RecordVerdict::Accepted => false,
            RecordVerdict::Restarted => true,
        };
        let follows_gap = has_restarted || !self.lifecycle.is_live(now);
        let mut changed = has_other_unit;
        if has_restarted {
            changed = self.oom.is_some() || self.detectors().trends().next().is_some();
            self.begin_incarnation();
            self.history.mark(MarkerKind::Restart, Some(at.time));
        }
        let peaks = StepPeaks::of(sample, self.high_water);
        changed |= self.measure(sample, peaks, at);
        self.count_marks(sample, at.time);
        self.remember(sample, peaks, HistoryPlace { time: at.time, follows_gap });
        self.identify(sample);
        self.end.take(&sample.identity, sample.figures.step, at.time);
        self.take_host_parts(sample);
        self.phase_floors.take(sample, at.time);
        self.own_process = sample.own_process.map(|own| (own, now)).or(self.own_process);
        self.lifecycle.advance(sample, at);
        changed |= self.detect(sample, peaks.within(sample.figures), at);
        for now in [&mut self.device_now, &mut self.process_now].into_iter().flatten() {
            now.close(sample.figures.reserved);
        }
        (verdict, changed)
    }

    /// Returns whether the same process counted another unit before this record.
    fn has_other_unit(&self, sample: &StepSample, time: f64) -> bool {
        sample.phase == Phase::Train
            && sample.identity.unit != self.identity.unit
            && self.lifecycle.counts_before(sample, time)
    }

    /// Starts over when a process begins to count another unit, as with the first step after calls.
    /// Returns whether a trend ended by that.
    fn begin_unit(&mut self, sample: &StepSample, time: f64) -> bool {
        let unit = sample.identity.unit;
        if !self.has_other_unit(sample, time) || !self.lifecycle.may_begin(unit) {
            return false;
        }
        let had_trend = self.detectors().trends().next().is_some();
        self.detectors.restart();
        self.by_time = None;
        self.lifetime.begin_steps();
        self.lifecycle.begin_unit();
        self.totals.begin_unit();
        self.life_steps = 0;
        self.checkpoint = None;
        had_trend
    }

    /// Judges whether a record is new, and counts one that comes too late.
    fn accept(&mut self, sample: &StepSample, at: Arrival) -> RecordVerdict {
        let end = self.ended.as_ref().map(|ended| &ended.report);
        let verdict = if self.has_other_unit(sample, at.time) {
            self.lifecycle.judge_stray()
        } else {
            self.lifecycle.judge(sample, at, end)
        };
        match verdict {
            RecordVerdict::Duplicate => {}
            RecordVerdict::Late => {
                self.totals.late_records = added(self.totals.late_records, 1);
                self.lifecycle.ignore();
            }
            RecordVerdict::Accepted | RecordVerdict::Restarted => self.last_seen = at.now,
        }
        verdict
    }

    /// Takes the figures of a record into the peaks and sums. Returns whether the rank ran out of
    /// memory with it.
    fn measure(&mut self, sample: &StepSample, peaks: StepPeaks, at: Arrival) -> bool {
        self.high_water = HighWater::of(sample);
        let ooms_before = self.totals.ooms;
        self.count_ooms(sample, at.now);
        let ran_out = self.totals.ooms != ooms_before;
        if ran_out {
            self.history.mark(MarkerKind::Oom, Some(at.time));
        }
        self.recent.add(peaks, at.now);
        if let Some(peak) = peaks.allocated {
            self.interval.add(peak, at.now);
        }
        self.lifetime.add(sample, peaks, at.time);
        ran_out
    }

    /// Gives the detectors a record, by its phase. Returns whether a trend changed.
    fn detect(&mut self, sample: &StepSample, figures: StepFigures, at: Arrival) -> bool {
        let record = memory_record(&figures, self.high_water, at.time).ok();
        let own = match sample.phase {
            Phase::Sample | Phase::Idle => self.take_by_time(sample.phase, figures, record),
            Phase::Train => {
                self.note_retries(&figures, at.now);
                self.take_step(sample, figures, record)
            }
            Phase::Eval | Phase::Checkpoint | Phase::Named => {
                if let (Some(record), false) = (record, self.is_ended()) {
                    self.detectors.other_phase(&record);
                }
                false
            }
        };
        let allocated = sample.host.as_ref().and_then(|parts| parts.allocated);
        let host = allocated.is_some_and(|held| self.take_host(held, sample, at.time));
        let children = self.take_children(sample, at.time);
        let shm = self.take_shm(sample, at.time);
        own || host || children || shm
    }

    /// Notes that the allocator had to flush its cache since the last train step.
    fn note_retries(&mut self, figures: &StepFigures, now: Uptime) {
        let retries = self.last_train.and_then(|last| last.alloc_retries);
        if retries.is_some() && figures.alloc_retries > retries {
            self.retried_at = Some(now);
        }
    }

    /// Takes a train step. Returns whether a trend changed.
    fn take_step(
        &mut self,
        sample: &StepSample,
        figures: StepFigures,
        record: Option<Sample>,
    ) -> bool {
        let had_trend = self.by_time.take().is_some_and(|of| of.trends().next().is_some());
        if !sample.marks.is_empty() {
            self.detectors.mark();
        }
        self.last_train = Some(figures);
        self.totals.steps = added(self.totals.steps, 1);
        self.life_steps = self.life_steps.saturating_add(1);
        self.count_unread(sample.n_steps.saturating_sub(1));
        let (capacity, is_ended) = (self.own_capacity(), self.is_ended());
        let record = record.filter(|_| !is_ended);
        let is_changed = record.is_some_and(|record| self.detectors.train(&record, capacity));
        had_trend || is_changed
    }

    /// The memory whose holders are searched for: its own, and the host's next to a device.
    pub(crate) const HELD_SIGNALS: [Signal; 2] = [Signal::Allocated, Signal::Host];

    /// Returns the memory whose growth is suspected with its last record for the first time.
    pub(crate) fn newly_suspected(&self) -> Option<Signal> {
        let newest = self.detectors.own().newest()?.position;
        Self::HELD_SIGNALS.into_iter().find(|signal| {
            let suspected = self.detectors.of(*signal).suspected(*signal);
            suspected.is_some_and(|suspected| newest <= suspected.position)
        })
    }

    /// Takes host memory in addition to the rank's own figures.
    fn take_host_parts(&mut self, sample: &StepSample) {
        let Some(parts) = &sample.host else { return };
        let host = self.host.get_or_insert_default();
        let held = parts.allocated.unwrap_or(sample.figures.allocated);
        host.take(parts, held, sample.figures.step);
        if self.identity.is_unified() {
            host.share(sample.figures.reserved);
        }
    }

    /// Takes host memory next to a device's, at a train step or a sample by time. Returns
    /// whether a trend changed.
    fn take_host(&mut self, allocated: Bytes, sample: &StepSample, time: f64) -> bool {
        let Ok(time) = UnixTime::new(time) else { return false };
        if self.is_ended() || self.identity.is_host() {
            return false;
        }
        let at = AxisPoint { position: sample.figures.step.as_f64(), time };
        let record = host_sample(at, allocated);
        let capacity = self.host_capacity();
        match sample.phase {
            Phase::Train => self.detectors.train_beside(Signal::Host, &record, capacity),
            Phase::Sample => {
                let by_time = self.by_time.as_mut();
                by_time.is_some_and(|by_time| {
                    by_time.train_beside(Signal::Host, &record, capacity)
                })
            }
            Phase::Eval | Phase::Checkpoint | Phase::Named | Phase::Idle => false,
        }
    }

    /// Takes what its child processes hold of their own, if that was read since the record before
    /// a train step or a sample by time. Returns whether a trend changed.
    fn take_children(&mut self, sample: &StepSample, time: f64) -> bool {
        let was_read = sample.host.as_ref().is_some_and(|parts| parts.has_children());
        let own = self.host.as_ref().filter(|_| was_read).and_then(|host| host.children_own());
        own.is_some_and(|own| self.take_beside((Signal::Children, own), sample, time))
    }

    /// Takes what is in `/dev/shm`, likewise.
    fn take_shm(&mut self, sample: &StepSample, time: f64) -> bool {
        let used = sample.host.as_ref().and_then(|parts| parts.figures.shm_used);
        used.is_some_and(|used| self.take_beside((Signal::Shm, used), sample, time))
    }

    /// Takes a reading of a signal on the host, at a train step or a sample by time. Returns
    /// whether a trend changed.
    fn take_beside(
        &mut self,
        (signal, held): (Signal, Bytes),
        sample: &StepSample,
        time: f64,
    ) -> bool {
        let (Ok(time), false) = (UnixTime::new(time), self.is_ended()) else { return false };
        let at = AxisPoint { position: sample.figures.step.as_f64(), time };
        let record = host_sample(at, held);
        let capacity = self.view(DeviceView::default(), self.last_seen).capacity_of(signal);
        let detectors = match sample.phase {
            Phase::Train => Some(&mut self.detectors),
            Phase::Sample => self.by_time.as_deref_mut(),
            Phase::Eval | Phase::Checkpoint | Phase::Named | Phase::Idle => None,
        };
        detectors.is_some_and(|of| of.train_beside(signal, &record, capacity.shared))
    }

    /// Takes a reading of its container. Returns whether it is the first of this incarnation.
    pub fn contain(&mut self, reading: &ContainerReading) -> bool {
        self.container.replace(Box::new(reading.clone())).is_none()
    }

    /// The last reading of its container, in this incarnation.
    pub fn container(&self) -> Option<&ContainerReading> {
        self.container.as_deref()
    }

    /// Returns whether its host memory grows and creeps.
    pub(crate) fn host_creeps(&self) -> bool {
        let own = if self.identity.is_host() { Signal::Allocated } else { Signal::Host };
        [own, Signal::Children, Signal::Shm].into_iter().any(|signal| {
            let trend = self.detectors().trend(signal);
            trend.is_some_and(|trend| trend.stage == Stage::Creeping && trend.is_growing())
        })
    }

    /// Returns the capacity of the growth of its host memory next to a device, in bytes.
    fn host_capacity(&self) -> Option<f64> {
        self.host.as_ref()?.capacity(self.container.as_deref())
    }

    /// Takes growth of an object of its process, which holds memory of a signal, unless it takes
    /// no steps.
    pub fn holder(&mut self, growth: HolderGrowth, signal: Signal) {
        if self.by_time.is_some() || self.is_ended() {
            return;
        }
        let capacity = match signal {
            Signal::Host => self.host_capacity().into(),
            _ => self.own_capacity(),
        };
        self.detectors.holder(growth, signal, capacity);
    }

    /// Takes a record by time. Its figures are those of the rank now, whose last step stays
    /// what it was. Returns whether a trend changed.
    fn take_by_time(
        &mut self,
        phase: Phase,
        figures: StepFigures,
        record: Option<Sample>,
    ) -> bool {
        let (step, step_seconds) = self
            .last_train
            .map_or((Count::default(), None), |last| (last.step, last.step_seconds));
        self.last_train = Some(StepFigures { step, step_seconds, ..figures });
        let (Phase::Sample, Some(record), false) = (phase, record, self.is_ended()) else {
            return false;
        };
        let config = **self.detectors.own().config();
        let capacity = self.own_capacity();
        let by_time = || Box::new(RankDetectors::by_time(&config));
        let by_time = self.by_time.get_or_insert_with(by_time);
        by_time.train(&record, capacity)
    }

    /// Counts the event markers of a record: itself, if it is of an evaluation or a checkpoint,
    /// and what came before it.
    fn count_marks(&mut self, sample: &StepSample, time: f64) {
        let mut marks = sample.marks;
        match sample.phase {
            Phase::Eval => marks.add(StepMark::Eval),
            Phase::Checkpoint => marks.add(StepMark::Checkpoint),
            Phase::Train | Phase::Sample | Phase::Idle | Phase::Named => {}
        }
        for (n, of) in self.marks_total.iter_mut().zip(StepMark::ALL) {
            *n = added(*n, marks.iter().any(|mark| mark == of).into());
        }
        marks.iter().for_each(|mark| self.history.mark(mark.into(), Some(time)));
    }

    /// Adds a record to the history, and a marker where the rank begins or ceases to take
    /// steps. Live memory within an evaluation or a checkpoint is not comparable with that of
    /// steps; its peak is.
    fn remember(
        &mut self,
        sample: &StepSample,
        peaks: StepPeaks,
        HistoryPlace { time, follows_gap }: HistoryPlace,
    ) {
        let kind = match sample.phase {
            Phase::Train => Some(MarkerKind::Train),
            Phase::Sample => Some(MarkerKind::Sample),
            Phase::Idle => Some(MarkerKind::Idle),
            Phase::Eval | Phase::Checkpoint | Phase::Named => None,
        };
        if let Some(kind) = kind
            && self.activity.replace(kind).is_some_and(|before| before != kind)
        {
            self.history.mark(kind, Some(time));
        }
        let is_comparable = kind.is_some();
        if kind == Some(MarkerKind::Train) {
            self.floors.take(sample.figures.allocated);
        }
        self.history.add(&Figures {
            time,
            step: Some(sample.figures.step.get()).filter(|_| sample.phase == Phase::Train),
            allocated: Some(sample.figures.allocated).filter(|_| is_comparable),
            peak_allocated: peaks.allocated,
            reserved: sample.figures.reserved.filter(|_| is_comparable),
            host: sample.host.as_ref().and_then(|parts| parts.allocated),
            live_blocks: counted_blocks(&sample.figures)
                .filter(|_| is_comparable)
                .map(Count::get),
            follows_gap,
        });
    }

    /// Notes in the history that a finding about it began, changed its severity or ceased with
    /// its last record.
    pub fn mark(&mut self, kind: MarkerKind) {
        self.history.mark(kind, None);
    }

    /// Returns its past across its incarnations.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Returns whether its memory is judged by time: it takes no steps, and they left no trend
    /// of its own figures.
    fn is_by_time(&self) -> bool {
        let is_own = |trend: &Trend| !trend.signal.is_beside();
        let has_trend = self.detectors.trends().any(is_own);
        self.by_time.is_some() && !has_trend
    }

    /// Takes what is known of the rank's device at a moment, unless the rank has ended; whether a
    /// trend changed by it. What says nothing of its process counts for that only while its
    /// client does not read it.
    pub fn device(&mut self, view: DeviceView, at: Arrival, by: ReadBy) -> bool {
        if self.is_ended() {
            return false;
        }
        let reads_own = self.own_process(at.now).and_then(OwnProcessMemory::bytes).is_some();
        self.identity.memory_kind = self.identity.memory_kind.or(view.memory_kind);
        let view = self.resolved(view);
        self.device_total = view.total;
        let Some(reserved) = self.last_train.and_then(|last| last.reserved) else {
            return false;
        };
        UsedNow::renew(&mut self.device_now, view.used, reserved, by);
        if view.process_used.is_none() && reads_own {
            return false;
        }
        let process_used = view.process_used.or(view.process_estimated);
        UsedNow::renew(&mut self.process_now, process_used, reserved, by);
        if let Some(process_used) = process_used {
            self.outside.add(process_used.as_f64() - reserved.as_f64());
        }
        let Some(device_used) = view.used.map(Bytes::as_f64) else { return false };
        let Ok(time) = UnixTime::new(at.time) else { return false };
        let process_used = view.process_used.map(Bytes::as_f64);
        let reading = DeviceReading { time, device_used, process_used };
        let capacity = self.limits(view).capacity(0.0);
        // A clock that was set back makes a reading due.
        let too_soon = 0.0..DEVICE_READING_EVERY;
        let is_due =
            self.device_read_at.is_none_or(|read_at| !too_soon.contains(&(at.time - read_at)));
        if is_due {
            self.device_read_at = Some(at.time);
        }
        let detectors = self.by_time.as_deref_mut().unwrap_or(&mut self.detectors).own_mut();
        let is_changed = detectors.device_now(&reading, capacity);
        (is_due && detectors.device(&reading, capacity)) || is_changed
    }

    /// Ends the rank until a newer push comes: frees its windows, and keeps what they showed.
    /// The first end counts; a later one can only correct it.
    pub fn end(&mut self, report: &EndReport, now: Uptime) {
        if self.is_ended() {
            self.correct_end(report);
            return;
        }
        self.lifecycle.end();
        self.count_unread(report.unread_steps.unwrap_or_default());
        if let (Some(1..), Some(step)) = (report.unread_steps, report.step) {
            self.lifetime.end_at(step.get());
            // Completed, though its memory is that of the last record.
            self.last_train.iter_mut().for_each(|last| last.step = last.step.max(step));
        }
        self.take_last_peaks(StepPeaks::of_end(report), now);
        self.take_allowed(report);
        self.count_last_ooms(report, now);
        if let Some(oom) = &mut self.oom {
            oom.ending = Some(report.outcome);
        }
        if self.is_by_time()
            && let Some(by_time) = self.by_time.take()
        {
            self.detectors = *by_time;
        }
        self.by_time = None;
        self.detectors.release();
        self.phase_floors = PhaseFloors::default();
        self.floors = Floors::default();
        let time = report.time.map(Seconds::get);
        self.history.mark(MarkerKind::End(report.outcome), time);
        self.history.release();
        self.ended = Some(RankEnded { report: report.clone(), at: now, is_scraped: false });
    }

    /// Takes the limit that its last error names, unless it is what is known to the digits that
    /// the error gives.
    fn take_allowed(&mut self, report: &EndReport) {
        let Some(allowed) = report.allowed() else { return };
        let is_known = |known: &Bytes| {
            (known.as_f64() - allowed.as_f64()).abs() <= ALLOWED_ROUNDED_TO * allowed.as_f64()
        };
        let known = self.identity.reserved_limit.filter(is_known);
        self.identity.reserved_limit = Some(known.unwrap_or(allowed));
    }

    /// Returns its end, if that is another one than a later report has and stays.
    pub(crate) fn other_end(&self, report: &EndReport) -> Option<EndOutcome> {
        let known = self.ended.as_ref()?.report.outcome;
        let is_corrected = report.outcome == EndOutcome::Oom && self.may_have_died_of_oom();
        (known != report.outcome && !is_corrected).then_some(known)
    }

    /// Corrects the end of a process that called itself completed although its last event was
    /// an out-of-memory error. A process does not know its own exit code; this report comes
    /// from somebody who does.
    fn correct_end(&mut self, report: &EndReport) {
        if report.outcome != EndOutcome::Oom || !self.may_have_died_of_oom() {
            return;
        }
        if let (Some(ended), Some(oom)) = (&mut self.ended, &mut self.oom) {
            ended.report.outcome = report.outcome;
            ended.report.error_type.clone_from(&report.error_type);
            ended.report.error_message.clone_from(&report.error_message);
            (oom.is_fatal, oom.ending) = (true, Some(report.outcome));
        }
    }

    /// Returns whether its process called itself completed, and caught an out-of-memory error
    /// without a step after it.
    pub(crate) fn may_have_died_of_oom(&self) -> bool {
        let ended = self.ended.as_ref();
        ended.is_some_and(|ended| ended.report.outcome == EndOutcome::Completed)
            && self.oom.is_some_and(|oom| oom.is_last && !oom.is_fatal)
    }

    /// Counts the out-of-memory errors since the last record, and the one that the process
    /// ended with.
    fn count_last_ooms(&mut self, report: &EndReport, now: Uptime) {
        let is_fatal = report.outcome == EndOutcome::Oom;
        let step = report.step.map(Count::get).or(self.last_step());
        let counted = report.ooms.zip(self.last_train.as_mut()).map_or(0, |(ooms, last)| {
            let before = last.ooms.unwrap_or_default();
            last.ooms = Some(ooms.max(before));
            ooms.get().saturating_sub(before.get())
        });
        let n_caught = counted.saturating_sub(u64::from(is_fatal));
        if n_caught > 0 {
            let event = self.oom(step, now);
            let n_events = added(event.n_events - 1, n_caught);
            let is_last = report.unread_steps.is_none_or(|n| n == 0);
            self.oom = Some(OomEvent { n_events, is_last, ..event });
            self.totals.ooms = added(self.totals.ooms, n_caught);
        }
        if is_fatal {
            let mut event = self.oom(step, now);
            if report.is_oom_kill() && !self.identity.is_host() && !self.identity.is_unified() {
                // Of the host's memory, about which the figures of its device show nothing.
                (event.headroom_bytes, event.growth_bytes) = (None, None);
                event.limit = None;
            }
            let is_left = |requested: Bytes| {
                self.last_train.and_then(|last| last.free).is_none_or(|free| free > requested)
            };
            self.oom = Some(OomEvent {
                requested: report.requested,
                limit: event.limit.filter(|_| report.requested.is_none_or(is_left)),
                is_fatal,
                is_kill: report.is_oom_kill(),
                n_uncounted: u64::from(counted == 0 && !report.is_oom_kill()),
                ..event
            });
            self.totals.ooms = added(self.totals.ooms, 1);
        }
    }

    /// Takes the peaks since the last record, which are of the last step as far as is known.
    fn take_last_peaks(&mut self, peaks: StepPeaks, now: Uptime) {
        self.high_water.raise(peaks);
        self.recent.raise(peaks);
        if let Some(peak) = peaks.allocated {
            self.interval.add(peak, now);
        }
        self.lifetime.raise(peaks);
    }

    /// Counts train steps whose memory was not read.
    fn count_unread(&mut self, n_steps: u32) {
        self.totals.steps = added(self.totals.steps, n_steps.into());
        self.totals.unread_steps = added(self.totals.unread_steps, n_steps.into());
        self.life_steps = self.life_steps.saturating_add(n_steps);
        self.lifetime.add_unread(n_steps);
    }

    /// Notes that Prometheus has read everything.
    pub fn scraped(&mut self) {
        if let Some(ended) = &mut self.ended {
            ended.is_scraped = true;
        }
    }

    /// Returns whether the rank belongs in the outputs: it pushes, or ended lately.
    pub fn is_shown(&self, now: Uptime, ttl: Duration) -> bool {
        match &self.ended {
            Some(ended) => ended.is_shown(now),
            None => self.is_pushing(now, ttl),
        }
    }

    /// Returns whether the rank pushes: not ended, and heard of within `ttl`.
    pub(crate) fn is_pushing(&self, now: Uptime, ttl: Duration) -> bool {
        !self.is_ended() && now.since(self.last_seen) <= ttl
    }

    /// Returns its end, if it ended.
    pub fn ended(&self) -> Option<&RankEnded> {
        self.ended.as_ref()
    }

    /// The last time that it ran out of memory in this incarnation.
    pub(crate) fn last_oom(&self) -> Option<&OomEvent> {
        self.oom.as_ref()
    }

    /// Returns whether its end was announced, and no newer record came.
    pub(crate) fn is_ended(&self) -> bool {
        self.lifecycle.is_ended()
    }

    /// Returns the time when the last push that was accepted came.
    pub fn last_seen(&self) -> Uptime {
        self.last_seen
    }

    /// Returns its lifecycle: which process holds it, and whether that is live.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// The memory of its process on its device, as its client lately read it from NVML.
    pub fn own_process(&self, now: Uptime) -> Option<OwnProcessMemory> {
        let (own, read_at) = self.own_process?;
        (now.since(read_at) <= OWN_PROCESS_KEPT).then_some(own)
    }

    /// The memory of its process on its device that its client read after `time`.
    pub(crate) fn own_process_since(&self, time: Uptime) -> Option<Bytes> {
        let (own, read_at) = self.own_process?;
        own.bytes().filter(|_| read_at > time)
    }

    /// The detectors of its growth: by steps, or by time while it takes none.
    pub fn detectors(&self) -> &RankDetectors {
        let by_time = self.by_time.as_deref().filter(|_| self.is_by_time());
        by_time.unwrap_or(&self.detectors)
    }

    /// The number of the last train step.
    pub fn last_step(&self) -> Option<u64> {
        self.last_train.map(|last| last.step.get())
    }

    /// Returns the ask to checkpoint that the answer to a push of a rank that would has, whose
    /// records are of these steps, and notes it.
    pub(crate) fn ask_to_checkpoint(
        &mut self,
        steps: (Count, Count),
        every: Duration,
        now: Uptime,
    ) -> Option<CheckpointAsk> {
        self.identity.on_deadline?;
        let ask = CheckpointAsk::of_answer(self.checkpoint, steps, every, now)?;
        self.checkpoint = Some(ask);
        Some(ask)
    }

    /// The last time that its present process was asked to checkpoint.
    pub(crate) fn checkpoint_asked_at(&self) -> Option<Uptime> {
        Some(self.checkpoint?.since)
    }

    /// The rank's own description.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The rank's state at `now`, with NVML's figures of its device.
    pub fn view(&self, device: DeviceView, now: Uptime) -> RankView<'_> {
        let recent = self.recent.max();
        let limits = self.limits(device);
        RankView {
            identity: &self.identity,
            last_train: self.last_train.as_ref(),
            host: self.host.as_deref(),
            own_container: self.container.as_deref(),
            container: None,
            kill: None,
            recent_peak_allocated: recent.allocated,
            recent_reserved: recent.reserved_known,
            high_water_allocated: self.high_water.allocated,
            has_retried: self.retried_at.is_some_and(|at| now.since(at) <= RETRIES_WITHIN),
            interval_peak_allocated: self.interval.at(now),
            capacity: limits.binding().map(|limit| limit.bytes),
            limits,
            device: self.resolved(device),
            device_model: None,
            detectors: self.detectors(),
            lifetime: &self.lifetime,
            totals: self.totals,
            life_steps: self.life_steps,
            marks_total: self.marks_total,
            ended: self.ended.as_ref(),
            silent: self.silence(now),
            oom: self.oom.as_ref().filter(|oom| oom.is_shown(now)),
            last_seen: self.last_seen,
            outside_allocator_bytes: self.outside_bytes(device.process_used),
            outside_estimated_bytes: self.outside_bytes(device.process_estimated),
            outside_steady_bytes: self.outside.median().map(|bytes| bytes.max(0.0)),
            own_process: None,
            site: SiteView::default(),
            asked: self.asked(now),
            planned_end: self.end.planned(self.lifetime.seconds_without_steps()),
            phase_floors: &self.phase_floors,
            floors: &self.floors,
        }
    }

    /// Returns the facts with which its outlook is asked for at `now`.
    fn asked(&self, now: Uptime) -> Asked {
        Asked {
            silence_seconds: now.since(self.last_seen).as_secs_f64(),
            pause_seconds: self.lifecycle.usual_pause().as_secs_f64(),
            is_over: self.is_ended(),
        }
    }

    /// Returns the bytes that the rank's process uses on the device beyond what its allocator
    /// holds, by the newest reading.
    fn outside_bytes(&self, process_used: Option<Bytes>) -> Option<f64> {
        process_used?;
        Some(self.process_now?.other_bytes().max(0.0))
    }

    /// Returns the device's capacity: that of its own records, else NVML's. Of unified memory
    /// it is the least of them and of what its process may use of the host's.
    fn capacity(&self, device: DeviceView) -> Option<Bytes> {
        let totals = [self.identity.total, device.total];
        let mut known = totals.into_iter().flatten().filter(|total| total.get() > 0);
        if !self.identity.is_unified() {
            return known.next();
        }
        known.chain(self.host.as_ref().and_then(|host| host.total())).min()
    }

    /// Returns the view of a device whose memory may not be its own alone. Of unified memory
    /// the process uses what it holds on device and host; what is free for others is not
    /// judged. The operating system uses a NUMA node's memory as it likes.
    fn resolved(&self, view: DeviceView) -> DeviceView {
        match self.identity.memory_kind {
            None => view,
            Some(DeviceMemoryKind::NumaNode) => DeviceView { used: None, ..view },
            Some(DeviceMemoryKind::Unified) => {
                let reserved = self.last_train.and_then(|last| last.reserved);
                let on_host = self.host.as_ref().map_or(0, |host| host.held());
                let used = |on_device: Bytes| Bytes::new(on_device.get() + on_host).ok();
                let used = view.process_used.max(reserved).and_then(used);
                DeviceView { total: self.capacity(view), used, ..view }
            }
        }
    }

    /// Returns the capacity that its own records or NVML gave, less the host memory that its
    /// child processes hold of it; and its own limit.
    fn own_capacity(&self) -> Capacity {
        let known = DeviceView { total: self.device_total, ..DeviceView::default() };
        self.limits(known).capacity(child_bytes(&self.identity, self.host.as_deref()))
    }

    /// Returns the device memory that is not its allocator's, by the newest reading; `None` before
    /// the first.
    fn other_bytes(&self) -> Option<f64> {
        let newest = self.device_now.as_ref().map(UsedNow::other_bytes);
        newest.or(self.detectors().own().outside_bytes())
    }

    /// Returns the limits of its memory. A memory fraction limits what the allocator reserves, the
    /// kernel's what the process maps.
    fn limits(&self, device: DeviceView) -> Limits {
        let others = self.other_bytes().unwrap_or(0.0)
            + child_bytes(&self.identity, self.host.as_deref());
        let limit = |origin, bytes, others| Limit { origin, bytes, others };
        let host = self.host.as_ref().filter(|_| self.identity.is_host());
        let of_kernel = host.and_then(|host| host.kernel_limit());
        let of_program = self.identity.reserved_limit.filter(|limit| limit.get() > 0);
        Limits {
            shared: self
                .capacity(device)
                .map(|bytes| limit(LimitOrigin::Device, bytes, others)),
            own: of_program
                .map(|bytes| limit(LimitOrigin::Program, bytes, 0.0))
                .into_iter()
                .chain(of_kernel)
                .reduce(Limit::tighter),
        }
    }

    /// Returns the time that it has been silent, if it is neither live nor ended.
    fn silence(&self, now: Uptime) -> Option<Duration> {
        let is_over = self.is_ended() || self.lifecycle.is_live(now);
        (!is_over).then(|| now.since(self.last_seen))
    }

    /// Notes that the process' own count of out-of-memory errors rose.
    fn count_ooms(&mut self, sample: &StepSample, now: Uptime) {
        let before = self.last_train.and_then(|last| last.ooms).unwrap_or_default();
        let rise =
            sample.figures.ooms.map_or(0, |ooms| ooms.get().saturating_sub(before.get()));
        // The first record of an incarnation may report errors that are long over.
        if rise > 0 && self.last_train.is_some() {
            let event = self.oom(Some(sample.figures.step.get()), now);
            let n_events = added(event.n_events - 1, rise);
            self.oom = Some(OomEvent { n_events, ..event });
            self.totals.ooms = added(self.totals.ooms, rise);
        }
    }

    /// Returns the event that it ran out of memory once more.
    fn oom(&self, step: Option<u64>, now: Uptime) -> OomEvent {
        let view = self.view(DeviceView::default(), now);
        let headroom = view.headroom();
        let mut trends = self.detectors().trends();
        let trend = trends.find(|trend| trend.signal == Signal::Allocated);
        OomEvent {
            step,
            requested: None,
            headroom_bytes: headroom.map(|headroom| headroom.bytes),
            limit: view.limits.own_binding().map(|limit| (limit.origin, limit.bytes)),
            growth_bytes: trend.map(|trend| trend.growth_bytes),
            n_events: added(self.oom.map_or(0, |oom| oom.n_events), 1),
            is_fatal: false,
            is_kill: false,
            n_uncounted: 0,
            is_last: false,
            ending: None,
            at: now,
        }
    }

    fn begin_incarnation(&mut self) {
        self.ended = None;
        self.oom = None;
        self.detectors.restart();
        self.by_time = None;
        self.lifetime.begin_incarnation();
        self.lifecycle.begin_incarnation();
        self.outside = RecentMedian::default();
        self.process_now = None;
        self.own_process = None;
        self.phase_floors = PhaseFloors::default();
        self.life_steps = 0;
        self.recent = RecentPeaks::default();
        self.interval.restart();
        self.high_water = HighWater::default();
        self.retried_at = None;
        self.last_train = None;
        self.host = None;
        self.container = None;
        self.identity.reserved_limit = None;
        self.end = NamedEnd::default();
        self.checkpoint = None;
        self.floors = Floors::default();
    }

    /// A field that a record leaves out keeps its last value; the attempt is always given, and
    /// what is left out of the end of training is unknown.
    fn identify(&mut self, sample: &StepSample) {
        let identity = &mut self.identity;
        identity.attempt = sample.identity.attempt;
        identity.total_steps = sample.identity.total_steps;
        identity.deadline = sample.identity.deadline;
        identity.on_deadline = sample.identity.on_deadline;
        if sample.phase == Phase::Train {
            identity.unit = sample.identity.unit;
        }
        if sample.identity.device.is_some() && sample.identity.device != identity.device {
            identity.device.clone_from(&sample.identity.device);
            // A process that began to use a GPU has its host memory next to the device's.
            self.host = None;
            self.own_process = None;
            (self.device_now, self.process_now) = (None, None);
            identity.memory_kind = None;
            identity.reserved_limit = None;
        }
        identity.memory_kind = sample.identity.memory_kind.or(identity.memory_kind);
        identity.pid = sample.identity.pid.or(identity.pid);
        identity.local_rank = sample.identity.local_rank.or(identity.local_rank);
        identity.node_rank = sample.identity.node_rank.or(identity.node_rank);
        identity.world_size = sample.identity.world_size.or(identity.world_size);
        // Memory that a device shares with the machine may be reported as 0, which is no
        // capacity.
        identity.total =
            sample.identity.total.filter(|total| total.get() > 0).or(identity.total);
        identity.reserved_limit = sample.identity.reserved_limit.or(identity.reserved_limit);
    }
}

/// Returns the number of live blocks; `None` of an allocator that does not count them: it has
/// bytes, but no block.
fn counted_blocks(figures: &StepFigures) -> Option<Count> {
    figures.live_blocks.filter(|number| number.get() > 0)
}

/// The record of a step that the detector takes.
///
/// A high-water mark bounds a peak that is unknown, except where the allocator holds less than
/// that. Memory that it holds may then be in use as well as not.
///
/// # Errors
///
/// `time` is not a Unix time.
fn memory_record(
    figures: &StepFigures,
    high_water: HighWater,
    time: f64,
) -> Result<Sample, OutOfRange> {
    let bounds = |mark: &Bytes| figures.reserved.is_none_or(|reserved| reserved >= *mark);
    let peak_bound = figures.peak_allocated.or(high_water.allocated.filter(bounds));
    Ok(Sample {
        at: AxisPoint { position: figures.step.as_f64(), time: UnixTime::new(time)? },
        allocated: figures.allocated.as_f64(),
        requested: figures.requested.map(Bytes::as_f64),
        peak: figures.peak_allocated.map(Bytes::as_f64),
        peak_bound: peak_bound.map(Bytes::as_f64),
        reserved: figures.reserved.map(Bytes::as_f64),
        peak_reserved: figures.peak_reserved.map(Bytes::as_f64),
        live_blocks: counted_blocks(figures).map(Count::as_f64),
    })
}
