//! The publications of the engine: its status, and its answers about ranks, processes and runs.
//! Nothing is changed here.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::devices::process_of;
use crate::diagnosis::shared::balance::balance;
use crate::diagnosis::shared::input::{DiagnosisInput, RunInput};
use crate::engine::Engine;
use crate::findings::Findings;
use crate::findings::acks::ActiveAck;
use crate::output::run::{RunLaunch, RunView};
use crate::output::snapshot_status::SnapshotStatus;
use crate::output::status::{
    AckStatus, ContainerStatus, DeviceStatus, ExporterStatus, FindingStatus, ProcessStatus,
    RankStatus, RunStatus, Status,
};
use crate::processes::ProcessView;
use crate::ranks::ended::RankEnded;
use crate::ranks::lifecycle::Origin;
use crate::ranks::state::RankState;
use crate::ranks::table::RecordCounts;
use crate::ranks::view::RankView;
use crate::requests::tracker::{RankRequest, RequestKind};
use stepmem_detect::{Asked, Signal};
use stepmem_types::device::{GpuSample, ProcessMemory};
use stepmem_types::end::EndOutcome;
use stepmem_types::ids::{GpuUuid, ProcessId, Rank, RankId, Run, SubjectId};
use stepmem_types::step::StepSample;
use stepmem_types::units::{Count, Uptime};

/// A rank that no other outlasted by more than this stopped with the run.
const TOGETHER_WITHIN: Duration = Duration::from_mins(1);

impl Engine {
    /// Returns the requests to the ranks of a batch in the answer to it.
    pub(crate) fn requests(&mut self, batch: &[StepSample], now: Uptime) -> Vec<RankRequest> {
        let checkpoints = self.checkpoint_requests(batch, now);
        // A later process under the same name is not the one that grew.
        let is_present = |rank: &RankId, since| {
            let is_of =
                |sample: &StepSample| sample.run == rank.run && sample.rank == rank.rank;
            batch.iter().any(is_of) && self.ranks.is_of_present_incarnation(rank, since)
        };
        let scans = self.heap_scans.waiting(is_present);
        let scans = scans.map(|request| self.with_growth(request));
        let snapshots = self.snapshots.requests.waiting(is_present);
        let others = snapshots.chain(scans).chain(self.malloc_requests(batch));
        others.chain(checkpoints).collect()
    }

    /// Returns the requests to checkpoint to the ranks of a batch that would, of runs whose
    /// memory runs out soon.
    fn checkpoint_requests(&mut self, batch: &[StepSample], now: Uptime) -> Vec<RankRequest> {
        if self.checkpoints_due.is_empty() {
            return Vec::new();
        }
        let mut steps: BTreeMap<RankId, (Count, Count)> = BTreeMap::new();
        for sample in batch.iter().filter(|of| self.checkpoints_due.contains_key(&of.run)) {
            let (id, step) = (sample.id(), sample.figures.step);
            let (first, last) = steps.entry(id).or_insert((step, step));
            (*first, *last) = ((*first).min(step), (*last).max(step));
        }
        let mut requests = Vec::new();
        for (rank, steps) in steps {
            let due = self.checkpoints_due.get(&rank.run);
            let state = self.ranks.get_mut(&rank.run, rank.rank);
            let Some((due, state)) = due.zip(state) else { continue };
            if let Some(ask) = state.ask_to_checkpoint(steps, due.every, now) {
                let id = format!("{:.3}", self.started + ask.since.0.as_secs_f64());
                let kind = RequestKind::Checkpoint(Box::new(due.clone()));
                requests.push(RankRequest { id: id.into(), rank, steps: 0, kind });
            }
        }
        requests
    }

    /// Returns the requests to the ranks of a batch whose host memory grows, by a finding: what
    /// their allocators have given out and what is free is read while it does.
    fn malloc_requests(&self, batch: &[StepSample]) -> Vec<RankRequest> {
        if !self.heap_scans.is_on() || self.findings.is_empty() {
            return Vec::new();
        }
        let ranks: BTreeSet<RankId> = batch.iter().map(StepSample::id).collect();
        let growing = ranks.into_iter().filter(|rank| {
            let subject = SubjectId::Rank(rank.clone());
            let of_rank = self.findings.of(&subject);
            let growths = of_rank.filter_map(|finding| finding.evidence.growth());
            growths
                .filter(|growth| !matches!(growth.signal, Signal::Children | Signal::Shm))
                .filter(|growth| growth.is_on_host && !growth.is_level() && !growth.is_over)
                .count()
                > 0
        });
        let request =
            |rank| RankRequest { id: "".into(), rank, steps: 0, kind: RequestKind::Malloc };
        growing.map(request).collect()
    }

    /// Returns a heap-scan request with the growth that it is about.
    fn with_growth(&self, request: RankRequest) -> RankRequest {
        let RankId { run, rank } = &request.rank;
        let Some(state) = self.ranks.get(run, *rank) else { return request };
        let RequestKind::Holders { wants_lines, signal, .. } = request.kind else {
            return request;
        };
        let slope = state.detectors().of(signal).slope(signal);
        let is_growing = state.detectors().trend(signal).is_some();
        let slope = slope.filter(|_| is_growing).and_then(|slope| slope.bytes_per_step);
        let bytes_per_step = slope.map(|slope| slope.value);
        let device = state.identity().device.as_ref();
        let is_on_host = signal == Signal::Host || device.is_some_and(GpuUuid::is_host);
        let kind = RequestKind::Holders { bytes_per_step, signal, is_on_host, wants_lines };
        RankRequest { kind, ..request }
    }

    /// Returns whether a rank of the run pushes or may push again: not all have ended, and it
    /// was not cut off.
    pub fn is_going_on(&self, run: &Run, now: Uptime) -> bool {
        let Some((_, states)) = self.ranks.run(run) else { return false };
        states.values().any(|state| !state.is_ended()) && !is_cut_off(states, now)
    }

    /// Returns the counts of the records that were taken, by outcome.
    pub fn records(&self) -> RecordCounts {
        self.ranks.records()
    }

    /// Returns every run that is held, ascending.
    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.ranks.runs().map(|(run, _)| run)
    }

    /// Returns the ranks of a run that are held, ascending.
    pub fn ranks_of(&self, run: &Run) -> impl Iterator<Item = Rank> {
        self.ranks.run(run).into_iter().flat_map(|(_, ranks)| ranks.keys().copied())
    }

    /// Returns every process that is held, ascending.
    pub fn processes(&self) -> impl Iterator<Item = &ProcessId> {
        self.processes.ids()
    }

    /// Returns one rank at `now`, present or silent; `None` when it is not held.
    pub fn rank(&self, run: &Run, rank: Rank, now: Uptime) -> Option<RankView<'_>> {
        let state = self.ranks.get(run, rank)?;
        let view = self.view(state, &self.site(run, rank, state), now);
        let container = self.container_of(&view, (run, rank), &self.members(now));
        Some(RankView { container, ..view })
    }

    /// Returns one process, present or not; `None` when it is not held.
    pub fn process(&self, id: &ProcessId, now: Uptime) -> Option<ProcessView<'_>> {
        self.processes.get(id, now)
    }

    /// Returns everything at `now`; `exporter` is what the engine does not know of the exporter
    /// itself.
    pub fn status(&self, now: Uptime, exporter: ExporterStatus) -> Status {
        let input = self.diagnosis_input(now);
        let mut runs = Vec::new();
        let n_ranks = input.runs.iter().map(|run| run.ranks.len()).sum();
        let mut ranks = Vec::with_capacity(n_ranks);
        for run in &input.runs {
            let balance = balance(&run.ranks.iter());
            let challengers = self.ranks.n_claimants(run.run, now);
            let asked_for = self.ranks.asked_for(run.run).cloned();
            runs.push(RunStatus {
                challengers,
                asked_for,
                ..RunStatus::of(run, balance.as_ref())
            });
            for (rank, view) in &run.ranks {
                let own = balance.as_ref().and_then(|balance| balance.of(*rank));
                let id = RankId { run: run.run.clone(), rank: *rank };
                let state = self.ranks.get(run.run, *rank);
                let launch = state.and_then(origin).and_then(|origin| origin.launch.cloned());
                let asked = state.and_then(RankState::checkpoint_asked_at);
                let checkpoint_asked_time = asked.map(|at| self.unix_time(at));
                let last_push_time = self.unix_time(view.last_seen);
                let status = RankStatus::of(id, view, own, last_push_time);
                ranks.push(RankStatus { launch, checkpoint_asked_time, ..status });
            }
        }
        let mut devices: Vec<DeviceStatus> = self
            .devices
            .present(now, self.config.gpu_ttl)
            .map(|(sample, read_at)| {
                let owners = self.owners(sample, now);
                let sample = self.with_own_readings(sample, read_at, &owners);
                DeviceStatus::of(&sample, &owners, self.config.processes_max)
            })
            .collect();
        DeviceStatus::share_memory(&mut devices);
        let ack_status = |active: &ActiveAck| {
            let (since, until) = (self.unix_time(active.since), self.unix_time(active.until));
            AckStatus::of(active, since, until)
        };
        Status {
            time: self.unix_time(now),
            runs,
            ranks,
            processes: input
                .processes
                .iter()
                .map(|(id, view)| ProcessStatus::of(id, view))
                .collect(),
            containers: ContainerStatus::all(&input.runs),
            devices,
            device_pods: self.devices.pods().to_vec(),
            pod_memory: self.devices.pod_memory().to_vec(),
            findings: self.findings.iter().map(FindingStatus::of).collect(),
            acks: self.acks.iter().map(ack_status).collect(),
            snapshots: self.snapshot_statuses(),
            records: self.ranks.records(),
            gpu: self.devices.nvml_status(),
            exporter: self.exporter(exporter),
        }
    }

    /// Adds what the engine counts to what is known of the exporter.
    fn exporter(&self, mut exporter: ExporterStatus) -> ExporterStatus {
        let nvml = self.devices.nvml();
        exporter.add_dropped("containers", self.containers.n_refused());
        exporter.add_dropped("ended", self.ranks.ended_dropped());
        exporter.add_dropped("ended_sites", self.sites.n_dropped());
        exporter.add_dropped("processes", nvml.processes_dropped);
        exporter.add_dropped("processes_judged", self.processes_dropped);
        exporter.add_dropped("ranks", self.ranks.records_dropped());
        exporter.add_dropped("xids", nvml.xids_dropped);
        let snapshots = self.snapshots.requests.outcomes();
        exporter.snapshots = snapshots.map(|(result, n)| (result.into(), n)).collect();
        let analyses = self.snapshots.analyses();
        exporter.snapshot_analyses = analyses.map(|(outcome, n)| (outcome.into(), n)).collect();
        let timelines = self.snapshots.timelines();
        exporter.snapshot_timelines = timelines.map(|(result, n)| (result.into(), n)).collect();
        let scans = self.heap_scans.outcomes();
        exporter.looks = scans.map(|(result, n)| (result.into(), n)).collect();
        exporter
    }

    fn snapshot_statuses(&self) -> Vec<SnapshotStatus> {
        let status = |listed| SnapshotStatus::of(listed, self.unix_time(listed.since));
        self.snapshots.requests.iter().map(status).collect()
    }

    /// Returns the memory snapshots of a run that are listed, the oldest first.
    pub fn snapshots(&self, run: &Run) -> Vec<SnapshotStatus> {
        let mut snapshots = self.snapshot_statuses();
        snapshots.retain(|snapshot| snapshot.rank.run == *run);
        snapshots
    }

    /// Returns a run as a summary sees it; `None` when no rank of it is held.
    ///
    /// Its findings are judged again from the last state of its ranks, so that they do not
    /// depend on when others were.
    pub fn run(&self, run: &Run, now: Uptime) -> Option<RunView<'_>> {
        self.run_without(run, now, |_| false)
    }

    /// Returns the ranks that have not announced their end, with the ids of their processes.
    pub fn unended_processes(&self) -> Vec<(RankId, u32)> {
        let of_run = |(run, states): (&Run, &BTreeMap<Rank, RankState>)| {
            let unended = states.iter().filter(|(_, state)| !state.is_ended());
            let id = |rank| RankId { run: run.clone(), rank };
            let named =
                unended.filter_map(|(rank, state)| Some((id(*rank), state.identity().pid?)));
            named.collect::<Vec<_>>()
        };
        self.ranks.runs().flat_map(of_run).collect()
    }

    /// Returns the ranks that may have died of an out-of-memory error that they caught, though
    /// they called themselves completed. None if any rank ended otherwise, which would explain
    /// an exit code as well.
    pub fn ended_after_ooms(&self) -> Vec<RankId> {
        let is_completed = |state: &RankState| {
            let outcome = state.ended().map(|ended| ended.report.outcome);
            outcome == Some(EndOutcome::Completed)
        };
        if !self.ranks.states().all(is_completed) {
            return Vec::new();
        }
        let of_run = |(run, states): (&Run, &BTreeMap<Rank, RankState>)| {
            let dead = states.iter().filter(|(_, state)| state.may_have_died_of_oom());
            dead.map(|(rank, _)| RankId { run: run.clone(), rank: *rank }).collect::<Vec<_>>()
        };
        self.ranks.runs().flat_map(of_run).collect()
    }

    /// Returns a run whose ranks are silent, too, if the process of their pid is gone.
    pub fn run_without(
        &self,
        run: &Run,
        now: Uptime,
        is_gone: impl Fn(u32) -> bool,
    ) -> Option<RunView<'_>> {
        let (_, states) = self.ranks.run(run)?;
        let is_cut_off = is_cut_off(states, now);
        let ttl = self.config.rank_ttl;
        self.run_by(run, now, |state| {
            is_cut_off
                || !state.is_pushing(now, ttl)
                || state.identity().pid.is_some_and(&is_gone)
        })
    }

    /// Returns a run that another launch of its name takes over: its ranks are silent unless
    /// their processes are live.
    pub fn superseded(&self, run: &Run, now: Uptime) -> Option<RunView<'_>> {
        self.run_by(run, now, |state| !state.lifecycle().is_live(now))
    }

    /// Returns the launch of a run whose incarnation began last; `None` when no rank of the run
    /// is held.
    pub fn launch(&self, run: &Run) -> Option<RunLaunch> {
        let (_, states) = self.ranks.run(run)?;
        let newest = newest(states)?;
        let is_of_launch = |of: &Origin<'_>| {
            of.launch == newest.launch && (of.launch.is_some() || of.attempt == newest.attempt)
        };
        let of_launch =
            || states.iter().filter_map(|(rank, state)| Some((rank, origin(state)?)));
        let of_launch = || of_launch().filter(|(_, of)| is_of_launch(of));
        Some(RunLaunch {
            launch: newest.launch.cloned(),
            attempt: newest.attempt,
            began: of_launch().map(|(_, of)| of.began_time).reduce(f64::min)?,
            incarnation_began: newest.began_time,
            first_rank: of_launch().map(|(rank, _)| *rank).min()?,
        })
    }

    /// Returns a run as a summary sees it; `is_silent` judges the ranks that did not announce
    /// an end.
    fn run_by(
        &self,
        run: &Run,
        now: Uptime,
        is_silent: impl Fn(&RankState) -> bool,
    ) -> Option<RunView<'_>> {
        let (run, states) = self.ranks.run(run)?;
        let newest = newest(states)?;
        let is_of_newest = |state: &RankState| {
            origin(state).is_some_and(|origin| {
                origin.attempt == newest.attempt && origin.launch == newest.launch
            })
        };
        let (mut ranks, mut ended, mut silent) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        let members = self.members(now);
        for (rank, state) in states.iter().filter(|(_, state)| is_of_newest(state)) {
            let view = self.view(state, &self.site(run, *rank, state), now);
            let container = self.container_of(&view, (run, *rank), &members);
            let is_gone = state.ended().is_none() && is_silent(state);
            let is_live = state.is_ended() || state.lifecycle().is_live(now);
            let kill = if is_gone || !is_live { self.kill_of(state, now) } else { None };
            // A summary shows the incarnation as it was, however long ago that is.
            ranks.push((
                *rank,
                RankView {
                    ended: None,
                    silent: None,
                    kill,
                    container,
                    oom: state.last_oom(),
                    asked: Asked { is_over: view.asked.is_over || is_gone, ..view.asked },
                    ..view
                },
            ));
            if let Some(end) = state.ended() {
                ended.insert(*rank, end.report.clone());
            } else if is_gone {
                silent.insert(*rank);
            }
        }
        let is_over = ended.len() + silent.len() == ranks.len();
        let last_seen = ranks.iter().map(|(_, view)| view.last_seen).max().unwrap_or(now);
        let is_among_last =
            |view: &RankView<'_>| last_seen.since(view.last_seen) <= TOGETHER_WITHIN;
        let of_last = ranks.iter().filter(|(_, view)| is_over && is_among_last(view));
        let unannounced = of_last.map(|(rank, _)| *rank).filter(|rank| silent.contains(rank));
        let unannounced = unannounced.collect();
        let launch = newest.launch.cloned();
        let thresholds = &self.config.thresholds;
        let runs = vec![RunInput::new(run, ranks.clone())];
        let input = DiagnosisInput {
            runs,
            processes: Vec::new(),
            failing_devices: Vec::new(),
            thresholds,
        };
        let findings = Findings::default().judge(&input, &self.acks, now);
        let time = self.unix_time(now);
        Some(RunView {
            run,
            launch,
            workload: self.config.workload.as_deref(),
            time,
            ranks,
            ended,
            silent,
            unannounced,
            findings,
            thresholds,
        })
    }

    /// Returns a reading in which a process has the memory that its client read after it.
    fn with_own_readings<'a>(
        &self,
        sample: &'a GpuSample,
        read_at: Uptime,
        owners: &BTreeMap<u32, RankId>,
    ) -> Cow<'a, GpuSample> {
        let mut sample = Cow::Borrowed(sample);
        for (pid, owner) in owners {
            let state = self.ranks.get(&owner.run, owner.rank);
            let Some(used) = state.and_then(|state| state.own_process_since(read_at)) else {
                continue;
            };
            let of_owner = |of: &&mut ProcessMemory| of.pid == *pid && of.used.is_some();
            if let Some(process) = sample.to_mut().processes.iter_mut().find(of_owner) {
                process.used = Some(used);
            }
        }
        sample
    }

    /// The present ranks that push from processes seen on the device, by the pid that the
    /// process is listed under. Of several ranks that claim one process, the others are former
    /// ones: the newest counts.
    fn owners(&self, sample: &GpuSample, now: Uptime) -> BTreeMap<u32, RankId> {
        let mut owners: BTreeMap<u32, (Uptime, RankId)> = BTreeMap::new();
        for (id, state) in self.ranks.pushing(now) {
            let is_here = state.identity().device.as_ref() == Some(&sample.device);
            let process = process_of(sample, state.identity()).filter(|_| is_here);
            let Some(process) = process else { continue };
            let seen = state.last_seen();
            if owners.get(&process.pid).is_none_or(|(before, _)| *before <= seen) {
                owners.insert(process.pid, (seen, id));
            }
        }
        owners.into_iter().map(|(pid, (_, id))| (pid, id)).collect()
    }
}

/// Returns whether a run was cut off: a rank of its newest launch ended badly, and no other is
/// live. A launcher that sees one rank fail kills the others, which then announce nothing.
/// Unknown without the name of the launch: the failed rank may be of an earlier one.
fn is_cut_off(states: &BTreeMap<Rank, RankState>, now: Uptime) -> bool {
    let Some(launch) = newest(states).and_then(|newest| newest.launch) else { return false };
    let is_failed = |state: &RankState| {
        let is_bad = |end: &RankEnded| end.report.outcome != EndOutcome::Completed;
        let is_of_launch = origin(state).is_some_and(|of| of.launch == Some(launch));
        is_of_launch && state.ended().is_some_and(is_bad)
    };
    states.values().any(is_failed)
        && states.values().all(|state| state.is_ended() || !state.lifecycle().is_live(now))
}

/// Returns the origin of a run's newest incarnation.
fn newest(states: &BTreeMap<Rank, RankState>) -> Option<Origin<'_>> {
    states.values().filter_map(origin).max_by_key(|origin| origin.began)
}

/// Returns the origin of a rank's incarnation.
fn origin(state: &RankState) -> Option<Origin<'_>> {
    state.lifecycle().origin()
}
