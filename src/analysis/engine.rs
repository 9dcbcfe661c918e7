//! The one owner of all state: events and the time go in, transitions and a status come out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::analysis::acks::{ACKS_MAX, Ack, Acks, HeldAck, SavedAck};
use crate::analysis::creep::rules::CreepSettings;
use crate::analysis::diagnosis::imbalance;
use crate::analysis::diagnosis::{
    DIAGNOSES, Evidence, Finding, Findings, Held, RunScene, Scene, Severity, Thresholds,
};
use crate::analysis::processes::{ProcessSettings, Processes, Reading};
use crate::analysis::rank::window::{DeviceView, RankReport, RankWindow, Taken};
use crate::analysis::status::{
    AckStatus, DeviceStatus, ExporterStatus, FindingStatus, GpuStatus, RankStatus,
    RecordCounts, RunStatus, Status,
};
use crate::model::device::{Attribution, DevicePod, GpuSample, GpuUnavailable, ProcessMemory};
use crate::model::ids::{GpuUuid, Rank, Run};
use crate::model::step::StepSample;
use crate::model::units::{Bytes, Seconds, Uptime};

/// How often pushes and readings have all ranks judged when no trend of any rank has changed; a tick always does.
pub const JUDGE_EVERY: Duration = Duration::from_secs(5);
/// How many different kinds of Xid errors of all devices are told apart.
pub const XIDS_MAX: usize = 256;

/// What the engine may hold and how it judges.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The limits of findings.
    pub thresholds: Thresholds,
    /// The creep estimator's.
    pub creep: CreepSettings,
    /// How many train pushes at the start of a life are not used, of runs that have a number of their own.
    pub warmup_pushes: BTreeMap<Run, u32>,
    /// A rank silent for longer leaves every output.
    pub rank_ttl: Duration,
    /// A rank silent for longer is forgotten.
    pub rank_retention: Duration,
    /// How many ranks are held, over all runs.
    pub ranks_max: usize,
    /// How many runs are held.
    pub runs_max: usize,
    /// A device that was not read for longer leaves every output.
    pub gpu_ttl: Duration,
    /// How many processes a device are told apart.
    pub processes_max: usize,
    /// The length of the intervals of the interval peak.
    pub peak_interval: Duration,
    /// How often the estimator of a process that does not push gets a reading.
    pub process_reading_every: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            thresholds: Thresholds::default(),
            creep: CreepSettings::default(),
            warmup_pushes: BTreeMap::new(),
            rank_ttl: Duration::from_mins(10),
            rank_retention: Duration::from_hours(6),
            ranks_max: 1024,
            runs_max: 64,
            gpu_ttl: Duration::from_secs(10),
            processes_max: 64,
            peak_interval: Duration::from_mins(1),
            process_reading_every: Duration::from_secs(10),
        }
    }
}

impl EngineConfig {
    /// The creep estimator's settings for the ranks of a run.
    fn creep_of(&self, run: &Run) -> CreepSettings {
        let warmup_pushes = self.warmup_pushes.get(run).copied();
        CreepSettings {
            warmup_pushes: warmup_pushes.unwrap_or(self.creep.warmup_pushes),
            ..self.creep
        }
    }
}

/// One thing that happened.
#[derive(Debug)]
pub enum Event {
    /// A rank pushed a step.
    Step(StepSample),
    /// Somebody lowered a finding; [`Engine::admit_ack`] must have let it in.
    Ack(Ack),
    /// A rank ended (`None`: the whole run).
    End(Run, Option<Rank>),
    /// A device was read.
    Gpu(GpuSample),
    /// A device, or NVML, gave no answer.
    GpuUnavailable(GpuUnavailable),
    /// NVML is not asked for now.
    GpuReleased,
    /// A device reported an Xid error.
    Xid(GpuUuid, u64),
    /// The kubelet told which containers it gave devices to.
    DevicePods(Vec<DevicePod>),
    /// Time passed.
    Tick,
}

/// Why a batch may not enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It would take more ranks than are held.
    #[error("the batch brings the ranks to {ranks}, which exceeds the limit of {max}")]
    TooManyRanks {
        /// How many ranks there would be.
        ranks: usize,
        /// The limit.
        max: usize,
    },
    /// It would take more runs than are held.
    #[error("the batch brings the runs to {runs}, which exceeds the limit of {max}")]
    TooManyRuns {
        /// How many runs there would be.
        runs: usize,
        /// The limit.
        max: usize,
    },
    /// It is about a rank that is not held.
    #[error("no rank {rank} of that run has pushed here")]
    UnknownRank {
        /// The rank.
        rank: Rank,
    },
    /// It would take more acknowledgements than are held.
    #[error("the acknowledgements would exceed {ACKS_MAX}")]
    TooManyAcks,
}

/// One run as a summary sees it: every rank of its latest attempt, also those that have left the outputs.
#[derive(Debug)]
pub struct RunReport<'a> {
    /// The run.
    pub run: &'a Run,
    /// When this was made, as a Unix time.
    pub time: f64,
    /// The ranks, ascending.
    pub ranks: Vec<(Rank, RankReport<'a>)>,
    /// Those among them whose end was announced, and those that have been silent for longer than a rank may be.
    pub ended: BTreeSet<Rank>,
    /// See `ended`.
    pub silent: BTreeSet<Rank>,
    /// What is true of the ranks by their last figures, the worst diagnosis first and then by rank.
    pub findings: Vec<Finding>,
    /// The limits that they were judged by.
    pub thresholds: &'a Thresholds,
}

/// A finding that was raised, changed its severity, or was cleared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transition {
    /// When, as a Unix time with milliseconds.
    pub time: f64,
    /// The rank's last train step.
    pub step: Option<u64>,
    /// The run.
    pub run: Run,
    /// The rank.
    pub rank: Rank,
    /// The diagnosis.
    pub kind: &'static str,
    /// Whether it holds from now on.
    pub state: TransitionState,
    /// How much it matters; of a cleared one, how much it mattered.
    pub severity: Severity,
    /// The figures behind it; of a cleared one, the last that it had.
    pub evidence: Evidence,
}

/// Whether a finding holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TransitionState {
    /// It holds from now on, at this severity.
    Raised,
    /// It no longer holds.
    Cleared,
}

/// What outlasts a restart of the exporter: the windows of all ranks, since when findings hold, and what was
/// acknowledged. Its size is bounded by `ranks_max` times the bytes of a window.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SavedState {
    /// The Unix time at which the uptime was 0.
    pub started: f64,
    /// The uptime at which this was saved.
    pub uptime: Uptime,
    runs: BTreeMap<Run, BTreeMap<Rank, RankWindow>>,
    processes: Processes,
    since: Vec<(Run, Rank, String, f64)>,
    acks: Vec<SavedAck>,
}

/// All state of the analysis.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    /// The Unix time at which the uptime was 0.
    started: f64,
    runs: BTreeMap<Run, BTreeMap<Rank, RankWindow>>,
    // Invariant: the number of windows in `runs`.
    n_ranks: usize,
    /// The processes that do not push.
    processes: Processes,
    devices: BTreeMap<GpuUuid, Device>,
    device_pods: Vec<DevicePod>,
    gpu: GpuStatus,
    findings: Findings,
    acks: Acks,
    records: RecordCounts,
    records_dropped: u64,
    processes_dropped: u64,
    last_judged: Uptime,
}

#[derive(Debug)]
struct Device {
    sample: GpuSample,
    read_at: Uptime,
}

impl Engine {
    /// An engine without a rank; `started` is the Unix time at uptime 0.
    pub fn new(config: EngineConfig, started: f64) -> Self {
        Self {
            config,
            started,
            runs: BTreeMap::new(),
            n_ranks: 0,
            processes: Processes::default(),
            devices: BTreeMap::new(),
            device_pods: Vec::new(),
            gpu: GpuStatus::default(),
            findings: Findings::default(),
            acks: Acks::default(),
            records: RecordCounts::default(),
            records_dropped: 0,
            processes_dropped: 0,
            last_judged: Uptime::default(),
        }
    }

    /// What a later engine needs to go on where this one stands at `now`.
    pub fn save(&self, now: Uptime) -> SavedState {
        SavedState {
            started: self.started,
            uptime: now,
            runs: self.runs.clone(),
            processes: self.processes.clone(),
            since: self
                .findings
                .iter()
                .map(|Held { finding, since }| {
                    (finding.run.clone(), finding.rank, finding.kind.to_owned(), *since)
                })
                .collect(),
            acks: self.acks.iter().map(SavedAck::of).collect(),
        }
    }

    /// An engine that goes on where another stood; what held then and still does is not raised anew.
    pub fn resume(config: EngineConfig, saved: SavedState, now: Uptime) -> Self {
        let mut engine = Self::new(config, saved.started);
        engine.runs = saved.runs;
        for (run, ranks) in &mut engine.runs {
            let creep = engine.config.creep_of(run);
            for window in ranks.values_mut() {
                window.configure(creep, engine.config.peak_interval);
            }
        }
        engine.processes = saved.processes;
        engine.processes.configure(engine.config.creep, engine.config.peak_interval);
        for ack in saved.acks {
            if let Some((ack, since)) = ack.restored(now) {
                engine.acks.hold(ack, since);
            }
        }
        engine.forget(now, engine.config.rank_retention);
        // What is raised here was raised before.
        drop(engine.judge(now));
        for (run, rank, kind, since) in saved.since {
            engine.findings.held_since((&run, rank, &kind), since);
        }
        engine
    }

    /// Says whether a batch may enter as a whole, making room by forgetting ranks that have left the outputs.
    ///
    /// # Errors
    /// The bound that it would break; it is then counted as refused and must not be applied.
    pub fn admit(&mut self, batch: &[StepSample], now: Uptime) -> Result<(), Refusal> {
        let is_known = |sample: &StepSample| {
            self.runs.get(&sample.run).is_some_and(|ranks| ranks.contains_key(&sample.rank))
        };
        if batch.iter().all(is_known) {
            return Ok(());
        }
        let (max_ranks, max_runs) = (self.config.ranks_max, self.config.runs_max);
        let (mut ranks, mut runs) = self.with_newcomers(batch);
        if ranks > max_ranks || runs > max_runs {
            self.forget(now, self.config.rank_ttl);
            (ranks, runs) = self.with_newcomers(batch);
        }
        let refusal = if ranks > max_ranks {
            Refusal::TooManyRanks { ranks, max: max_ranks }
        } else if runs > max_runs {
            Refusal::TooManyRuns { runs, max: max_runs }
        } else {
            return Ok(());
        };
        self.records_dropped += u64::try_from(batch.len()).unwrap_or(u64::MAX);
        Err(refusal)
    }

    /// Says whether an acknowledgement may enter.
    ///
    /// # Errors
    /// Its rank is not held, or there is no room for it.
    pub fn admit_ack(&self, ack: &Ack) -> Result<(), Refusal> {
        let (run, rank) = ack.about();
        if self.held(run, rank).is_none() {
            return Err(Refusal::UnknownRank { rank });
        }
        if self.acks.has_room(ack) { Ok(()) } else { Err(Refusal::TooManyAcks) }
    }

    /// Takes one event that happened at `now`, and returns what it raised, changed or cleared. `now` never falls.
    pub fn apply(&mut self, event: Event, now: Uptime) -> Vec<Transition> {
        let is_due = matches!(event, Event::Tick) || now.since(self.last_judged) >= JUDGE_EVERY;
        let is_changed = match event {
            Event::Step(sample) => self.step(&sample, now),
            Event::Ack(ack) => self.acks.hold(ack, now),
            Event::End(run, rank) => self.end(&run, rank),
            Event::Gpu(sample) => self.gpu(sample, now),
            Event::GpuUnavailable(unavailable) => {
                self.gpu_unavailable(&unavailable);
                false
            }
            Event::GpuReleased => {
                self.devices.clear();
                self.gpu.is_up = None;
                false
            }
            Event::Xid(device, xid) => {
                self.xid(device, xid);
                false
            }
            Event::DevicePods(mut pods) => {
                pods.sort_unstable();
                self.device_pods = pods;
                false
            }
            Event::Tick => {
                self.acks.expire(now);
                self.forget(now, self.config.rank_retention);
                self.processes.forget(now, self.config.rank_retention);
                let ttl = self.config.gpu_ttl;
                self.devices.retain(|_, device| now.since(device.read_at) <= ttl);
                false
            }
        };
        if is_changed || is_due { self.judge(now) } else { Vec::new() }
    }

    /// The Unix time at `now`.
    pub fn unix_time(&self, now: Uptime) -> f64 {
        self.started + now.0.as_secs_f64()
    }

    /// Everything at `now`, with how the exporter itself is.
    pub fn status(&self, now: Uptime, exporter: ExporterStatus) -> Status {
        let mut runs = Vec::new();
        let mut ranks = Vec::new();
        for scene in self.scenes(now) {
            let balance = imbalance::balance(&scene.ranks);
            if self.runs.contains_key(scene.run) {
                runs.push(RunStatus::of(&scene, balance.as_ref()));
            }
            for (rank, report) in &scene.ranks {
                let own = balance.as_ref().and_then(|balance| balance.of(*rank));
                let last_push_time =
                    report.process.is_none().then(|| self.unix_time(report.last_seen));
                ranks.push(RankStatus::of((scene.run, *rank), report, own, last_push_time));
            }
        }
        let mut devices: Vec<DeviceStatus> = self
            .devices
            .values()
            .filter(|device| now.since(device.read_at) <= self.config.gpu_ttl)
            .map(|device| {
                let owners = self.owners(&device.sample, now);
                DeviceStatus::of(&device.sample, &owners, self.config.processes_max)
            })
            .collect();
        DeviceStatus::share_memory(&mut devices);
        Status {
            time: self.unix_time(now),
            runs,
            ranks,
            devices,
            device_pods: self.device_pods.clone(),
            findings: self.findings.iter().map(FindingStatus::of).collect(),
            acks: self.acks.iter().map(|held| self.ack_status(held)).collect(),
            snapshots: Vec::new(),
            records: self.records,
            gpu: self.gpu.clone(),
            exporter,
        }
    }

    /// What became of the records that were taken.
    pub fn records(&self) -> RecordCounts {
        self.records
    }

    /// Every run that is held, ascending, and those that processes stand for.
    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.keys().chain(self.processes.runs().map(|(run, _)| run))
    }

    /// One rank at `now`, present or silent; `None` when it is not held.
    pub fn rank(&self, run: &Run, rank: Rank, now: Uptime) -> Option<RankReport<'_>> {
        Some(self.report(self.held(run, rank)?, now))
    }

    /// A run as a summary sees it; `None` when no rank of it is held.
    ///
    /// Its findings are judged anew from what the ranks have come to, so that they do not depend on when others were.
    pub fn run_report(&self, run: &Run, now: Uptime) -> Option<RunReport<'_>> {
        let EngineConfig { rank_ttl, gpu_ttl, ref thresholds, .. } = self.config;
        let pushing = self.runs.get_key_value(run).map(|held| (held, rank_ttl));
        let silent = || self.processes.runs().find(|(of, _)| *of == run);
        let ((run, windows), ttl) = pushing.or_else(|| Some((silent()?, gpu_ttl)))?;
        let attempt = windows.values().map(|window| window.identity().attempt).max()?;
        let latest: Vec<_> =
            windows.iter().filter(|(_, window)| window.identity().attempt == attempt).collect();
        let ranks_where = |is: &dyn Fn(&RankWindow) -> bool| {
            let those = latest.iter().filter(|(_, window)| is(window));
            those.map(|(rank, _)| **rank).collect()
        };
        let ended = ranks_where(&RankWindow::is_ended);
        let silent = ranks_where(&|window| !window.is_ended() && !window.is_present(now, ttl));
        let reports =
            latest.iter().map(|(rank, window)| (**rank, self.report(window, now))).collect();
        let scenes = [RunScene { run, ranks: reports }];
        let held = Findings::default();
        let scene = Scene { runs: &scenes, thresholds, held: &held };
        let mut findings: Vec<Finding> =
            DIAGNOSES.iter().flat_map(|diagnosis| (diagnosis.find)(&scene)).collect();
        for finding in findings.iter_mut().filter(|finding| self.acks.lowers(finding, now)) {
            finding.severity = Severity::Info;
        }
        let [RunScene { ranks, .. }] = scenes;
        let time = self.unix_time(now);
        Some(RunReport { run, time, ranks, ended, silent, findings, thresholds })
    }

    /// How many readings of processes that do not push were left out to keep a bound.
    pub fn processes_dropped(&self) -> u64 {
        self.processes_dropped
    }

    /// How NVML is.
    pub fn gpu_status(&self) -> &GpuStatus {
        &self.gpu
    }

    /// How many records were left out to keep a bound.
    pub fn records_dropped(&self) -> u64 {
        self.records_dropped
    }

    /// The window of a rank, or of the process that stands for it.
    fn held(&self, run: &Run, rank: Rank) -> Option<&RankWindow> {
        let pushed = self.runs.get(run).and_then(|ranks| ranks.get(&rank));
        pushed.or_else(|| self.processes.rank(run, rank))
    }

    fn ack_status(&self, held: &HeldAck) -> AckStatus {
        let (run, rank) = held.ack.about();
        AckStatus {
            run: run.clone(),
            rank,
            kind: held.ack.kind(),
            reason: held.ack.reason().to_owned(),
            since: self.unix_time(held.since),
            until: self.unix_time(held.until),
        }
    }

    fn step(&mut self, sample: &StepSample, now: Uptime) -> bool {
        let arrival = self.unix_time(now);
        // The name is cloned for a new run only.
        let ranks = match self.runs.get_mut(&sample.run) {
            Some(ranks) => ranks,
            None => self.runs.entry(sample.run.clone()).or_default(),
        };
        let window = ranks.entry(sample.rank).or_insert_with(|| {
            self.n_ranks += 1;
            let creep = self.config.creep_of(&sample.run);
            RankWindow::new(creep, self.config.peak_interval, now)
        });
        let time = sample.time.map_or(arrival, Seconds::get);
        let (taken, mut is_changed) = window.push(sample, now, arrival);
        let records = &mut self.records;
        match taken {
            Taken::Accepted => records.accepted += 1,
            Taken::Restarted => {
                records.accepted += 1;
                records.restarted += 1;
            }
            Taken::Duplicate => records.duplicate += 1,
            Taken::Late => records.late += 1,
        }
        if matches!(taken, Taken::Accepted | Taken::Restarted) {
            records.inconsistent += u64::from(sample.is_inconsistent());
            // Where NVML does not read the device, what the process sees of it tells how much others hold.
            let is_read = window
                .identity()
                .device
                .as_ref()
                .is_some_and(|device| self.devices.contains_key(device));
            if let (false, Some(total), Some(free)) = (is_read, sample.total, sample.free) {
                let used = Bytes::new(total.get().saturating_sub(free.get())).ok();
                let view = DeviceView { total: Some(total), used, process_used: None };
                is_changed |= window.device(view, time);
            }
        }
        is_changed
    }

    fn end(&mut self, run: &Run, rank: Option<Rank>) -> bool {
        let Some(ranks) = self.runs.get_mut(run) else { return false };
        match rank {
            Some(rank) => ranks.get_mut(&rank).into_iter().for_each(RankWindow::end),
            None => ranks.values_mut().for_each(RankWindow::end),
        }
        true
    }

    fn gpu(&mut self, sample: GpuSample, now: Uptime) -> bool {
        let time = self.unix_time(now);
        self.gpu.is_up = Some(true);
        self.gpu.last_success_time = Some(time);
        let mut is_changed = false;
        for window in self.runs.values_mut().flat_map(BTreeMap::values_mut) {
            if window.identity().device.as_ref() == Some(&sample.device)
                && window.is_present(now, self.config.rank_ttl)
            {
                let view = device_view(&sample, window);
                is_changed |= window.device(view, time);
            }
        }
        let dropped = sample.processes.len().saturating_sub(self.config.processes_max);
        self.gpu.processes_dropped += u64::try_from(dropped).unwrap_or(u64::MAX);
        is_changed |= self.read_processes(&sample, now, time);
        let device = sample.device.clone();
        self.devices.insert(device, Device { sample, read_at: now });
        is_changed
    }

    /// Looks at the processes of a device that no rank pushes about. A rank that does not say its device, or not by
    /// its UUID, may be any of them, so that none is judged beside it.
    fn read_processes(&mut self, sample: &GpuSample, now: Uptime, time: f64) -> bool {
        if !sees_training_pids(sample.attribution) {
            return false;
        }
        let is_pushed_about = self.runs.values().flat_map(BTreeMap::values).any(|window| {
            let device = window.identity().device.as_ref();
            device.is_none_or(|device| *device == sample.device || device.is_unknown_gpu())
                && window.is_present(now, self.config.rank_ttl)
        });
        if is_pushed_about {
            self.processes.leave(sample);
            return false;
        }
        let settings = ProcessSettings {
            creep: self.config.creep,
            reading_every: self.config.process_reading_every.as_secs_f64(),
            ttl: self.config.gpu_ttl,
        };
        let (is_changed, n_refused) =
            self.processes.read(&Reading { sample, now, time }, &settings);
        self.processes_dropped += n_refused;
        is_changed
    }

    fn gpu_unavailable(&mut self, unavailable: &GpuUnavailable) {
        if let Some(device) = &unavailable.device {
            self.devices.remove(device);
        } else {
            self.devices.clear();
        }
        // A device that still answers says so itself.
        if self.devices.is_empty() {
            self.gpu.is_up = Some(false);
        }
        let code = unavailable.code;
        match self.gpu.errors.binary_search_by_key(&code, |error| error.0) {
            Ok(idx) => {
                if let Some(error) = self.gpu.errors.get_mut(idx) {
                    error.1 += 1;
                }
            }
            Err(idx) => self.gpu.errors.insert(idx, (code, 1)),
        }
    }

    fn xid(&mut self, device: GpuUuid, xid: u64) {
        let xids = &mut self.gpu.xids;
        if let Some(seen) = xids.iter_mut().find(|seen| seen.0 == device && seen.1 == xid) {
            seen.2 += 1;
        } else if xids.len() < XIDS_MAX {
            xids.push((device, xid, 1));
        } else {
            self.gpu.xids_dropped += 1;
        }
    }

    /// Forgets the ranks that have been silent for longer than `silence`, and runs without a rank.
    fn forget(&mut self, now: Uptime, silence: Duration) {
        for ranks in self.runs.values_mut() {
            ranks.retain(|_, window| now.since(window.last_seen()) <= silence);
        }
        self.runs.retain(|_, ranks| !ranks.is_empty());
        self.n_ranks = self.runs.values().map(BTreeMap::len).sum();
    }

    /// How many ranks and runs there would be with those of the batch.
    fn with_newcomers(&self, batch: &[StepSample]) -> (usize, usize) {
        let mut ranks = BTreeSet::new();
        let mut runs = BTreeSet::new();
        for sample in batch {
            match self.runs.get(&sample.run) {
                Some(known) if known.contains_key(&sample.rank) => {}
                Some(_) => drop(ranks.insert((&sample.run, sample.rank))),
                None => {
                    ranks.insert((&sample.run, sample.rank));
                    runs.insert(&sample.run);
                }
            }
        }
        (self.n_ranks + ranks.len(), self.runs.len() + runs.len())
    }

    fn report<'a>(&'a self, window: &'a RankWindow, now: Uptime) -> RankReport<'a> {
        let identity = window.identity();
        let view = identity
            .device
            .as_ref()
            .and_then(|device| self.devices.get(device))
            .filter(|device| now.since(device.read_at) <= self.config.gpu_ttl)
            .map(|device| device_view(&device.sample, window))
            .unwrap_or_default();
        window.report(view, now)
    }

    /// The present ranks of every run that has one, and the processes that do not push after them, each ascending.
    fn scenes(&self, now: Uptime) -> Vec<RunScene<'_>> {
        let EngineConfig { rank_ttl, gpu_ttl, .. } = self.config;
        let pushing = self.runs.iter().map(|(run, windows)| (run, windows, rank_ttl));
        let silent = self.processes.runs().filter(|(run, _)| !self.runs.contains_key(run));
        pushing
            .chain(silent.map(|(run, windows)| (run, windows, gpu_ttl)))
            .map(|(run, windows, ttl)| RunScene {
                run,
                ranks: windows
                    .iter()
                    .filter(|(_, window)| window.is_present(now, ttl))
                    .map(|(rank, window)| (*rank, self.report(window, now)))
                    .collect(),
            })
            .filter(|scene| !scene.ranks.is_empty())
            .collect()
    }

    /// The present ranks that push from processes seen on the device, or that processes stand for, by the pid that the
    /// process is listed under. Of several ranks that claim one process, the others are former ones: the newest counts.
    fn owners(&self, sample: &GpuSample, now: Uptime) -> BTreeMap<u32, (Run, Rank)> {
        let mut owners: BTreeMap<u32, (Run, Rank)> = BTreeMap::new();
        let mut newest: BTreeMap<u32, Uptime> = BTreeMap::new();
        for (run, ranks) in self.runs.iter().chain(self.processes.runs()) {
            for (rank, window) in ranks {
                let is_here = window.identity().device.as_ref() == Some(&sample.device)
                    && window.is_present(now, self.config.rank_ttl);
                let Some(process) = process_of(sample, window).filter(|_| is_here) else {
                    continue;
                };
                let seen = window.last_seen();
                if newest.get(&process.pid).is_none_or(|before| *before <= seen) {
                    newest.insert(process.pid, seen);
                    owners.insert(process.pid, (run.clone(), *rank));
                }
            }
        }
        owners
    }

    fn judge(&mut self, now: Uptime) -> Vec<Transition> {
        self.last_judged = now;
        let scenes = self.scenes(now);
        let thresholds = &self.config.thresholds;
        let scene = Scene { runs: &scenes, thresholds, held: &self.findings };
        let mut found: Vec<Finding> =
            DIAGNOSES.iter().flat_map(|diagnosis| (diagnosis.find)(&scene)).collect();
        for finding in &mut found {
            if self.acks.lowers(finding, now) {
                finding.severity = Severity::Info;
            }
        }
        if found.is_empty() && self.findings.is_empty() {
            return Vec::new();
        }
        self.transit(found, now)
    }

    /// Replaces what held by what was found, and says what is different.
    fn transit(&mut self, found: Vec<Finding>, now: Uptime) -> Vec<Transition> {
        let time = self.unix_time(now);
        let mut before = std::mem::take(&mut self.findings);
        let mut raised = Vec::new();
        for finding in found {
            let held = before.remove(&finding);
            if held.as_ref().map(|held| held.finding.severity) != Some(finding.severity) {
                raised.push(self.transition(&finding, TransitionState::Raised, time));
            }
            let since = held.map_or(time, |held| held.since);
            self.findings.insert(Held { finding, since });
        }
        let mut transitions: Vec<Transition> = before
            .iter()
            .map(|held| self.transition(&held.finding, TransitionState::Cleared, time))
            .collect();
        transitions.append(&mut raised);
        transitions
    }

    fn transition(&self, finding: &Finding, state: TransitionState, time: f64) -> Transition {
        let window = self.held(&finding.run, finding.rank);
        Transition {
            time: (time * 1000.0).round() / 1000.0,
            step: window.and_then(RankWindow::last_step),
            run: finding.run.clone(),
            rank: finding.rank,
            kind: finding.kind,
            state,
            severity: finding.severity,
            evidence: finding.evidence.clone(),
        }
    }
}

/// What a reading of a device says to a rank.
fn device_view(sample: &GpuSample, window: &RankWindow) -> DeviceView {
    DeviceView {
        total: sample.memory.map(|memory| memory.total),
        used: sample.memory.map(|memory| memory.used),
        process_used: process_of(sample, window).and_then(|process| process.used),
    }
}

/// The process of the device that a rank pushes from, which is the one that knows itself by the pushed id, or that stands
/// for the rank. `None` where there is none, or several in containers of their own.
fn process_of<'a>(sample: &'a GpuSample, window: &RankWindow) -> Option<&'a ProcessMemory> {
    let pid = window.identity().pid?;
    let is_it = |process: &&ProcessMemory| {
        if window.is_process() { process.pid == pid } else { process.own_pid == Some(pid) }
    };
    let mut found = sample.processes.iter().filter(is_it);
    found.next().filter(|_| found.next().is_none())
}

/// Whether the process ids of a list can be those of training processes that are seen from here.
fn sees_training_pids(attribution: Attribution) -> bool {
    matches!(attribution, Attribution::Host | Attribution::SharedPidNamespace)
}
