//! The one owner of all state: events and the time go in; transitions, effects and a status
//! come out.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::EngineConfig;
use crate::containers::{ContainerTable, FULL_RATIO, Members, ReadingTime};
use crate::devices::{DeviceTable, device_view, view_at_record};
use crate::diagnosis::shared::input::{DiagnosisInput, RunInput};
use crate::event::{Event, Handled, Receipt, Told};
use crate::findings::acks::{Ack, Acks};
use crate::findings::checkpoints::due_by_stairs;
use crate::findings::{Finding, Findings, Transition, TransitionState};
use crate::kind::DiagnosisKind;
use crate::processes::{ProcessTable, ProcessView, Reading};
use crate::ranks::container_view::ContainerView;
use crate::ranks::history::MarkerKind;
use crate::ranks::lifecycle::Arrival;
use crate::ranks::refusal::Refusal;
use crate::ranks::state::RankState;
use crate::ranks::table::RankTable;
use crate::ranks::used_now::ReadBy;
use crate::ranks::view::{DeviceView, RankView, SilentKill};
use crate::requests::causes::{
    Cause, FoundCause, HeldView, HoldersReport, SiteTable, SiteView,
};
use crate::requests::checkpoint::CheckpointDue;
use crate::requests::heap_scans::HeapScans;
use crate::requests::schedule::Growth;
use crate::requests::snapshot::SnapshotReport;
use crate::requests::snapshots::Snapshots;
use stepmem_detect::{Axis, HolderGrowth, Signal, Stage};
use stepmem_types::device::{Attribution, GpuSample, OwnProcessMemory};
use stepmem_types::end::{EndOutcome, RankEnd};
use stepmem_types::host::ContainerId;
use stepmem_types::ids::{ProcessId, Rank, RankId, Run, SubjectId};
use stepmem_types::site::TensorHolder;
use stepmem_types::step::StepSample;
use stepmem_types::units::{Bytes, Seconds, Uptime};

/// The interval at which records and readings have all subjects judged when no trend has
/// changed; a tick always does.
pub(crate) const JUDGE_EVERY: Duration = Duration::from_secs(5);
/// A difference of the system's clock from ours counts from this many seconds on.
const CLOCK_STEP_MIN: f64 = 0.5;

/// All state of the analysis.
#[derive(Debug)]
pub struct Engine {
    pub(super) config: EngineConfig,
    /// The Unix time at which the uptime was 0, by the clock as it was last read.
    pub(super) started: f64,
    pub(super) ranks: RankTable,
    pub(super) processes: ProcessTable,
    pub(super) containers: ContainerTable,
    pub(super) devices: DeviceTable,
    pub(super) findings: Findings,
    pub(super) acks: Acks,
    pub(super) snapshots: Snapshots,
    pub(super) heap_scans: HeapScans,
    pub(super) told: Told,
    /// The lines and objects behind the ranks' memory.
    pub(super) sites: SiteTable,
    /// The runs whose memory runs out soon, as last judged.
    pub(super) checkpoints_due: BTreeMap<Run, CheckpointDue>,
    pub(super) processes_dropped: u64,
    pub(super) last_judged: Uptime,
}

impl Engine {
    /// An engine without a rank; `started` is the Unix time at uptime 0.
    pub fn new(config: EngineConfig, started: f64) -> Self {
        Self {
            ranks: RankTable::new(config.ranks()),
            snapshots: Snapshots::new(config.snapshots.clone()),
            heap_scans: HeapScans::new(config.heap_scans_on_creep, config.heap_scan_cooldown),
            told: Told::default(),
            sites: SiteTable::default(),
            config,
            started,
            processes: ProcessTable::default(),
            containers: ContainerTable::default(),
            devices: DeviceTable::default(),
            findings: Findings::default(),
            acks: Acks::default(),
            checkpoints_due: BTreeMap::new(),
            processes_dropped: 0,
            last_judged: Uptime::default(),
        }
    }

    /// Returns the settings that the engine was made with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Takes one event that happened at `now`, which never falls.
    ///
    /// # Errors
    /// The event is about what is not held or belongs to another process, or it would break a
    /// bound. Nothing of it is taken then.
    pub fn handle(&mut self, event: &Event, now: Uptime) -> Result<Handled, Refusal> {
        let mut receipt = Receipt::default();
        let (mut is_changed, mut found) = (false, None);
        match event {
            Event::Steps(batch) => {
                self.admit(batch, now)?;
                return Ok(self.admitted(batch, now));
            }
            Event::SnapshotWanted(rank, steps) => {
                self.check_pushing(rank, now)?;
                receipt.id = Some(self.snapshots.want(rank, *steps, now));
                return Ok(Handled { receipt, ..Handled::default() });
            }
            Event::LinesWanted(rank) => {
                self.check_pushing(rank, now)?;
                let signal = self.host_signal_of(rank);
                receipt.id = Some(self.heap_scans.want_lines(rank, signal, now));
                return Ok(Handled { receipt, ..Handled::default() });
            }
            Event::ClockSet(unix) => {
                self.set_clock(now, *unix);
                return Ok(Handled::default());
            }
            Event::End(run, end) => is_changed = self.end(run, end, now)?,
            Event::Ack(ack) => {
                self.ack(ack, now)?;
                is_changed = true;
            }
            Event::SnapshotReport(report) => self.snapshot_report(report, now)?,
            Event::HoldersReport(report) => found = self.holders_report(report, now)?,
            Event::SnapshotAnalyzed(number, analysis) => {
                found = self.snapshots.analyzed(*number, analysis, now);
            }
            Event::CauseFound(found) => is_changed = self.take_cause(found, now),
            Event::Reading(sample) => is_changed = self.reading(sample, now),
            Event::DeviceLost(lost) => is_changed = self.devices.fail(lost, now),
            Event::DevicesReleased => self.devices.release(),
            Event::Xid(device, xid) => self.devices.xid(device, *xid),
            Event::Pods(pods) => self.devices.assign(pods),
            Event::PodMemory(pods) => self.devices.take_pod_memory(pods),
            Event::Scraped => self.ranks.scraped(),
            Event::Tick => {
                self.tick(now);
                is_changed = true;
            }
        }
        is_changed |= found.as_ref().is_some_and(|found| self.take_cause(found, now));
        let transitions = self.judge_if(is_changed, now);
        if let Event::Ack(ack) = event {
            let mut found = self.findings.of(ack.subject());
            receipt.is_found = Some(found.any(|finding| finding.kind == ack.kind()));
        }
        let mut effects = self.effects(event, now);
        if let Some(found) = found {
            effects.splice(0..0, self.effects_of_cause(found, now));
        }
        Ok(Handled { receipt, transitions, effects })
    }

    fn ack(&mut self, ack: &Ack, now: Uptime) -> Result<(), Refusal> {
        let is_held = match ack.subject() {
            SubjectId::Rank(id) => self.ranks.get(&id.run, id.rank).is_some(),
            SubjectId::Process(id) => self.processes.ids().any(|of| of == id),
            SubjectId::Device(uuid) => self.devices.is_held(uuid),
        };
        if !is_held {
            return Err(Refusal::UnknownSubject(ack.subject().clone()));
        }
        self.acks.insert(ack, now)
    }

    fn end(&mut self, run: &Run, end: &RankEnd, now: Uptime) -> Result<bool, Refusal> {
        self.check_end(run, end)?;
        let has_ended = self.ranks.end(run, end, Arrival { now, time: self.unix_time(now) });
        self.forget_sites();
        Ok(has_ended)
    }

    /// Checks that an operator ends what has pushed, and a process what it holds. A process may
    /// end before its first step.
    fn check_end(&self, run: &Run, end: &RankEnd) -> Result<(), Refusal> {
        let id = end.rank.map(|rank| RankId { run: run.clone(), rank });
        if !end.is_of_operator() {
            return id.map_or(Ok(()), |id| self.ranks.check_own(&id, end.instance));
        }
        let has_run = self.ranks_of(run).next().is_some();
        match id.filter(|_| has_run) {
            Some(id) if self.ranks.get(run, id.rank).is_none() => {
                Err(Refusal::UnknownSubject(SubjectId::Rank(id)))
            }
            None if !has_run => Err(Refusal::UnknownRun(run.clone())),
            Some(_) | None => self.check_first_end(run, end),
        }
    }

    /// Checks that an operator's end changes something, or says what is known.
    fn check_first_end(&self, run: &Run, end: &RankEnd) -> Result<(), Refusal> {
        let states = self.ranks.run(run).into_iter().flat_map(|(_, states)| states);
        let asked = states.filter(|(rank, _)| end.rank.is_none_or(|asked| asked == **rank));
        let others: Option<Vec<EndOutcome>> =
            asked.map(|(_, state)| state.other_end(&end.report)).collect();
        let first = others.and_then(|others| others.first().copied());
        first.map_or(Ok(()), |outcome| {
            Err(Refusal::HasEnded { run: run.clone(), rank: end.rank, outcome })
        })
    }

    fn snapshot_report(&mut self, report: &SnapshotReport, now: Uptime) -> Result<(), Refusal> {
        self.ranks.check_own(&report.rank, report.instance)?;
        if self.ranks.get(&report.rank.run, report.rank.rank).is_none() {
            return Err(Refusal::UnknownSubject(SubjectId::Rank(report.rank.clone())));
        }
        self.snapshots.take(report.clone(), now);
        Ok(())
    }

    /// Takes what a rank reports of its live objects. Returns the cause that it names.
    fn holders_report(
        &mut self,
        report: &HoldersReport,
        now: Uptime,
    ) -> Result<Option<FoundCause>, Refusal> {
        let RankId { run, rank } = &report.rank;
        self.ranks.check_own(&report.rank, report.instance)?;
        let state = self.ranks.get(run, *rank);
        let names_own = state.is_some_and(|state| state.lifecycle().is_named(report.instance));
        let (signal, since) = self.heap_scans.take(report, now);
        let cause = report.cause(report.is_known && names_own);
        Ok(cause.map(|cause| FoundCause { rank: report.rank.clone(), cause, signal, since }))
    }

    /// Returns the signal of a rank's host memory: of its own figures, unless they are a
    /// device's and it has host memory next to them.
    fn host_signal_of(&self, rank: &RankId) -> Signal {
        let state = self.ranks.get(&rank.run, rank.rank);
        let has_host =
            state.is_some_and(|state| state.detectors().of(Signal::Host).has(Signal::Host));
        if has_host { Signal::Host } else { Signal::Allocated }
    }

    /// Checks that a rank pushes, so that it gets what an operator requests.
    fn check_pushing(&self, rank: &RankId, now: Uptime) -> Result<(), Refusal> {
        let state = self.ranks.get(&rank.run, rank.rank);
        let ttl = self.config.rank_ttl;
        let is_pushing = state.is_some_and(|of| of.is_pushing(now, ttl) && !of.is_ended());
        let unknown = || Refusal::UnknownSubject(SubjectId::Rank(rank.clone()));
        is_pushing.then_some(()).ok_or_else(unknown)
    }

    /// Returns whether the system's clock, which shows `unix` at `now`, was set since it was
    /// last read. Smaller differences than `CLOCK_STEP_MIN` do not count, so that times stay
    /// equal from one status to the next.
    pub fn is_clock_set(&self, now: Uptime, unix: Seconds) -> bool {
        (unix.get() - self.unix_time(now)).abs() >= CLOCK_STEP_MIN
    }

    fn set_clock(&mut self, now: Uptime, unix: Seconds) {
        if self.is_clock_set(now, unix) {
            self.started = unix.get() - now.0.as_secs_f64();
        }
    }

    /// Returns the Unix time at `now`.
    pub fn unix_time(&self, now: Uptime) -> f64 {
        self.started + now.0.as_secs_f64()
    }

    fn tick(&mut self, now: Uptime) {
        let retention = self.config.rank_retention;
        self.acks.expire(now);
        let ranks = &self.ranks;
        let is_present = |rank: &RankId, since| ranks.is_of_present_incarnation(rank, since);
        self.snapshots.expire(is_present, now);
        self.heap_scans.expire(is_present, now);
        self.renew_heap_scans(now);
        self.ranks.forget(now, retention);
        self.forget_sites();
        self.processes.forget(now, retention);
        self.containers.forget(now, retention);
        self.devices.forget(now, self.config.gpu_ttl);
    }

    fn forget_sites(&mut self) {
        let ranks = &self.ranks;
        self.sites.retain(|run, rank| Some(ranks.get(run, rank)?.is_ended()));
    }

    /// Takes what was found out of a rank. Returns whether the rank is held.
    fn take_cause(&mut self, found: &FoundCause, now: Uptime) -> bool {
        let RankId { run, rank } = &found.rank;
        let Some(state) = self.ranks.get_mut(run, *rank) else { return false };
        if let Cause::Holder(holder) = &found.cause
            && let Some(growth) = growth_of_holder(holder)
        {
            state.holder(growth, found.signal);
        }
        self.sites.take(found, now);
        true
    }

    /// Makes place for the ranks of a batch.
    ///
    /// # Errors
    /// The bound that the batch would break, or the rank that belongs to another process.
    pub fn admit(&mut self, batch: &[StepSample], now: Uptime) -> Result<(), Refusal> {
        let arrival = self.unix_time(now);
        self.ranks.admit(batch, now, arrival)
    }

    /// Takes a batch that was admitted, or a part of one.
    pub fn admitted(&mut self, batch: &[StepSample], now: Uptime) -> Handled {
        let arrival = self.unix_time(now);
        let mut transitions = Vec::new();
        for sample in batch {
            let mut time = sample.time;
            self.ranks.correct_time(&mut time, arrival);
            let is_changed = if time == sample.time {
                self.step(sample, now)
            } else {
                self.step(&StepSample { time, ..sample.clone() }, now)
            };
            transitions.append(&mut self.judge_if(is_changed, now));
        }
        let requests = self.requests(batch, now);
        let receipt = Receipt { n_records: batch.len(), requests, ..Receipt::default() };
        Handled { receipt, transitions, ..Handled::default() }
    }

    fn step(&mut self, sample: &StepSample, now: Uptime) -> bool {
        let arrival = self.unix_time(now);
        let result = self.ranks.push(sample, now, arrival);
        let mut is_changed = result.is_changed;
        if result.is_used && sample.container.is_some() {
            is_changed |= self.contain(sample, now);
        }
        let sees_device = sample.own_process.is_some()
            || sample.figures.free.is_some()
            || sample.identity.memory_kind.is_some();
        if !result.is_used || !(result.newly_suspected.is_some() || sees_device) {
            return is_changed;
        }
        let state = self.ranks.get_mut(&sample.run, sample.rank);
        let Some(state) = state else { return is_changed };
        if let Some(signal) = result.newly_suspected {
            let rank = RankId { run: sample.run.clone(), rank: sample.rank };
            if let Some(growth) = growth_by_step(&rank, state, signal) {
                self.heap_scans.suspects(&growth, now);
            }
        }
        if sees_device {
            // Where NVML does not read the device, the process's own view of it shows how much
            // others hold. The client's reading of its process is compared with the allocator's
            // figures of the same record.
            let device = state.identity().device.as_ref();
            let is_read = device.is_some_and(|device| self.devices.is_read(device));
            let nvml = is_read
                .then(|| self.devices.view_of(state.identity(), now, self.config.gpu_ttl));
            if let Some(view) = view_at_record(sample, nvml) {
                let time = sample.time.map_or(arrival, Seconds::get);
                is_changed |= state.device(view, Arrival { now, time }, ReadBy::Client);
            }
        }
        is_changed
    }

    /// Takes a rank's reading of its container. Returns whether a trend changed.
    fn contain(&mut self, sample: &StepSample, now: Uptime) -> bool {
        let state = self.ranks.get_mut(&sample.run, sample.rank);
        let Some((state, reading)) = state.zip(sample.container.as_deref()) else {
            return false;
        };
        if state.contain(reading) {
            self.containers.begin_again(&reading.id);
        }
        let time = sample.time.map_or(self.started + now.0.as_secs_f64(), Seconds::get);
        self.containers.take(reading, ReadingTime { now, time }, &self.config.creep)
    }

    fn reading(&mut self, sample: &GpuSample, now: Uptime) -> bool {
        let time = self.unix_time(now);
        let mut is_changed = false;
        let estimate = self.estimate(sample, now);
        for state in self.ranks.states_mut() {
            if state.identity().device.as_ref() == Some(&sample.device)
                && state.is_pushing(now, self.config.rank_ttl)
            {
                let mut view = device_view(sample, state.identity());
                view.process_estimated = estimate.filter(|_| view.process_used.is_none());
                is_changed |= state.device(view, Arrival { now, time }, ReadBy::Exporter);
            }
        }
        let n_dropped = sample.processes.len().saturating_sub(self.config.processes_max);
        self.devices.drop_processes(n_dropped);
        is_changed |= self.read_processes(&Reading { sample, now, time });
        self.devices.read(sample.clone(), now, time);
        is_changed
    }

    /// Returns the memory of the one rank that pushes about a device, where its container has
    /// that alone.
    fn estimate(&self, sample: &GpuSample, now: Uptime) -> Option<Bytes> {
        let used = self.devices.used_by_container(sample)?;
        let is_here = |state: &&RankState| {
            state.identity().device.as_ref() == Some(&sample.device)
                && state.is_pushing(now, self.config.rank_ttl)
        };
        let mut ranks = self.ranks.states().filter(is_here);
        (ranks.next().is_some() && ranks.next().is_none()).then_some(used)
    }

    /// Evaluates the processes of a device that no rank pushes about. A rank that does not name
    /// its device, or not by its UUID, may be any of them. Next to such a rank none is judged.
    fn read_processes(&mut self, reading: &Reading<'_>) -> bool {
        let sample = reading.sample;
        if !sees_training_pids(sample.attribution) {
            return false;
        }
        let is_pushed_about = self.ranks.states().any(|state| {
            let device = state.identity().device.as_ref();
            device.is_none_or(|device| *device == sample.device || device.is_unknown_gpu())
                && state.is_pushing(reading.now, self.config.rank_ttl)
        });
        if is_pushed_about {
            self.processes.leave(&sample.device);
            return false;
        }
        let result = self.processes.read(reading, &self.config.processes());
        self.processes_dropped += result.n_refused;
        result.is_changed
    }

    /// Returns the view of a rank that others have; `site` is the result of [`Self::site`].
    pub(super) fn view<'a>(
        &'a self,
        state: &'a RankState,
        site: &SiteView<'a>,
        now: Uptime,
    ) -> RankView<'a> {
        let uuid = state.identity().device.as_ref();
        let read =
            uuid.and_then(|uuid| self.devices.reading_of(uuid, now, self.config.gpu_ttl));
        let mut device = read.map_or_else(DeviceView::default, |(sample, _)| {
            device_view(sample, state.identity())
        });
        let own_process = state.own_process(now).filter(|_| device.process_used.is_none());
        let fresher = read.and_then(|(_, read_at)| state.own_process_since(read_at));
        let known = fresher.or(device.process_used);
        device.process_used = known.or(own_process.and_then(OwnProcessMemory::bytes));
        if device.process_used.is_none() {
            device.process_estimated = read.and_then(|(sample, _)| self.estimate(sample, now));
        }
        let device_model = self.devices.model_of(state.identity());
        let view = state.view(device, now);
        let kill = view.silent.and_then(|_| self.kill_of(state, now));
        RankView { device_model, own_process, site: *site, kill, ..view }
    }

    /// Returns the ranks of each container.
    pub(super) fn members(&self, now: Uptime) -> BTreeMap<&ContainerId, Members> {
        let mut members = BTreeMap::new();
        for (run, states) in self.ranks.runs() {
            for (rank, state) in states.iter().filter(|(_, state)| state.container().is_some())
            {
                let id = RankId { run: run.clone(), rank: *rank };
                let is_over = state.is_ended() || !state.lifecycle().is_live(now);
                Members::add(&mut members, &id, state, is_over);
            }
        }
        members
    }

    /// Returns the container of a rank, as the rank sees it.
    pub(super) fn container_of(
        &self,
        view: &RankView<'_>,
        (run, rank): (&Run, Rank),
        members: &BTreeMap<&ContainerId, Members>,
    ) -> Option<ContainerView<'_>> {
        let id = &view.own_container?.id;
        let state = self.containers.get(id, view.last_seen, self.config.rank_ttl)?;
        let members = members.get(id)?;
        let is_lead = members.lead.run == *run && members.lead.rank == rank;
        Some(state.view(members, is_lead, view.asked))
    }

    /// Returns the kernel's kill of a process that fell silent: one that another rank of its
    /// container reported or, as far as is known, one of a container that was full.
    pub(super) fn kill_of(&self, state: &RankState, now: Uptime) -> Option<SilentKill> {
        let own = state.container()?;
        let n_kills = self.containers.kills_of(&own.id, state);
        let is_of = |other: &&RankState| {
            let is_same = other.container().is_some_and(|of| of.id == own.id);
            let is_silent = !other.is_ended() && !other.lifecycle().is_live(now);
            is_same && is_silent && self.containers.kills_of(&own.id, other) > 0
        };
        let n_silent = || u64::try_from(self.ranks.states().filter(is_of).count());
        let is_seen = n_kills > 0 && n_silent().is_ok_and(|n_silent| n_silent <= n_kills);
        let used_ratio = own.used_ratio();
        let is_full = used_ratio.is_some_and(|ratio| ratio >= FULL_RATIO);
        (n_kills > 0 || is_full).then_some(SilentKill { is_seen, n_kills, used_ratio })
    }

    /// Returns the known facts of the code behind a rank's memory, in its present incarnation.
    pub(super) fn site(&self, run: &Run, rank: Rank, state: &RankState) -> SiteView<'_> {
        let began = state.lifecycle().origin().map(|origin| origin.began);
        let site = self.sites.of(run, rank, began);
        // The name is cloned only where a bound is known.
        let withheld = |held: HeldView<'_>, signal| {
            let id = || SubjectId::Rank(RankId { run: run.clone(), rank });
            let kind = || DiagnosisKind::of_growth(signal, Stage::Creeping);
            held.has_bound()
                && kind().is_some_and(|kind| self.findings.withholds_page(&id(), kind))
        };
        let own = withheld(site.own, Signal::Allocated);
        let host = withheld(site.host, Signal::Host);
        SiteView {
            own: HeldView { is_withheld: own, ..site.own },
            host: HeldView { is_withheld: host, ..site.host },
            ..site
        }
    }

    pub(super) fn diagnosis_input(&self, now: Uptime) -> DiagnosisInput<'_> {
        let ttl = self.config.rank_ttl;
        let members = self.members(now);
        let runs = self.ranks.runs().map(|(run, states)| {
            let present = states.iter().filter(|(_, state)| state.is_shown(now, ttl));
            let mut views = Vec::with_capacity(states.len());
            views.extend(present.map(|(rank, state)| {
                let view = self.view(state, &self.site(run, *rank, state), now);
                let container = self.container_of(&view, (run, *rank), &members);
                (*rank, RankView { container, ..view })
            }));
            RunInput::new(run, views)
        });
        DiagnosisInput {
            runs: runs.filter(|run| !run.ranks.is_empty()).collect(),
            processes: self.present_processes(now).collect(),
            failing_devices: self.devices.failing().collect(),
            thresholds: &self.config.thresholds,
        }
    }

    /// The unmanaged processes that were listed lately, on devices that are read.
    fn present_processes(
        &self,
        now: Uptime,
    ) -> impl Iterator<Item = (&ProcessId, ProcessView<'_>)> {
        let present = self.processes.present(now, self.config.gpu_ttl);
        present.filter(|(id, _)| self.devices.is_read(&id.uuid))
    }

    /// Judges when something has changed, or when it is time.
    fn judge_if(&mut self, is_changed: bool, now: Uptime) -> Vec<Transition> {
        let is_due = now.since(self.last_judged) >= JUDGE_EVERY;
        if is_changed || is_due { self.judge(now) } else { Vec::new() }
    }

    /// Judges all subjects. Returns the findings that ceased, and those that began or changed
    /// their severity.
    pub(super) fn judged(&mut self, now: Uptime) -> (Vec<Finding>, Vec<Finding>) {
        self.last_judged = now;
        let before = self.config.checkpoint_before;
        let input = self.diagnosis_input(now);
        let found = self.findings.judge(&input, &self.acks, now);
        let due = due_by_stairs(&input, &found, before);
        if found.is_empty() && self.findings.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let time = self.unix_time(now);
        let changed = self.findings.replace(found, time);
        self.checkpoints_due = self
            .findings
            .checkpoints_due(before, due, |of| self.acks.lowers(&of.subject, of.kind, now));
        changed
    }

    fn judge(&mut self, now: Uptime) -> Vec<Transition> {
        let (ceased, raised) = self.judged(now);
        let time = self.unix_time(now);
        for finding in &raised {
            self.ask_about(finding, now);
        }
        let ceased = ceased.into_iter().map(|finding| (finding, TransitionState::Cleared));
        let raised = raised.into_iter().map(|finding| (finding, TransitionState::Raised));
        let changed = ceased.chain(raised);
        let transition = |(finding, state)| {
            self.mark(&finding, state);
            self.transition(finding, state, time)
        };
        changed.map(transition).collect()
    }

    /// Adds a marker of a finding to the history of its rank.
    fn mark(&mut self, finding: &Finding, state: TransitionState) {
        let id = finding.subject.rank();
        let Some(rank) = id.and_then(|id| self.ranks.get_mut(&id.run, id.rank)) else { return };
        let marker = match state {
            TransitionState::Raised => MarkerKind::Raised,
            TransitionState::Cleared => MarkerKind::Cleared,
        };
        rank.mark(marker(finding.kind, finding.severity));
    }

    /// Asks a rank whose live memory grows what grows. A snapshot shows memory of devices
    /// alone.
    pub(super) fn ask_about(&mut self, finding: &Finding, now: Uptime) {
        let Some((growth, is_on_host)) = growth_of(&self.ranks, finding) else { return };
        self.heap_scans.creeps(&growth, began_of(&self.ranks, growth.rank), now);
        if !is_on_host {
            self.snapshots.creeps(&growth, now);
        }
    }

    /// Asks ranks whose live memory goes on growing for newer figures of what holds it.
    fn renew_heap_scans(&mut self, now: Uptime) {
        for active in self.findings.iter() {
            if let Some((growth, _)) = growth_of(&self.ranks, &active.finding) {
                self.heap_scans.creeps(&growth, began_of(&self.ranks, growth.rank), now);
            }
        }
    }

    pub(super) fn transition(
        &self,
        finding: Finding,
        state: TransitionState,
        time: f64,
    ) -> Transition {
        let Finding { subject, kind, severity, evidence } = finding;
        let rank = subject.rank().and_then(|id| self.ranks.get(&id.run, id.rank));
        let step = rank.and_then(RankState::last_step);
        let time = (time * 1000.0).round() / 1000.0;
        Transition { time, step, subject, kind, state, severity, evidence }
    }
}

/// Returns the time when the present incarnation of a rank began.
fn began_of(ranks: &RankTable, rank: &RankId) -> Option<Uptime> {
    Some(ranks.get(&rank.run, rank.rank)?.lifecycle().origin()?.began)
}

/// Returns the growth of live memory that a finding is about, and whether it is the host's.
/// `None` of another finding, and of a rank that has ended.
fn growth_of<'a>(ranks: &'a RankTable, finding: &'a Finding) -> Option<(Growth<'a>, bool)> {
    let rank = finding.subject.rank()?;
    let figures = finding.evidence.growth()?;
    let state = ranks.get(&rank.run, rank.rank).filter(|state| state.ended().is_none())?;
    let signal =
        RankState::HELD_SIGNALS.into_iter().find(|signal| *signal == figures.signal)?;
    let growth = growth_by_step(rank, state, signal)?;
    let growth = Growth { bytes_per_step: figures.slope_bytes_per_step, ..growth };
    Some((growth, figures.is_on_host))
}

/// Returns by how much an object of a process grew from one heap scan to the last; `None` where
/// their steps are unknown.
fn growth_of_holder(holder: &TensorHolder) -> Option<HolderGrowth> {
    let (from, to) = (holder.since_step?.as_f64(), holder.step?.as_f64());
    Some(HolderGrowth { from, to, bytes: holder.bytes_per_step * (to - from) })
}

/// Returns growth of a rank whose rate is unknown. `None` of one that takes no steps: a client
/// searches for holders, and records a snapshot, from step to step.
fn growth_by_step<'a>(
    rank: &'a RankId,
    state: &RankState,
    signal: Signal,
) -> Option<Growth<'a>> {
    let (own, of_signal) = (state.detectors().own(), state.detectors().of(signal));
    (own.axis() == Axis::Steps).then(|| Growth {
        rank,
        signal,
        bytes_per_step: None,
        seconds_per_step: own.seconds_per_step(),
        level_shifts: of_signal.increments_between_events(signal),
    })
}

/// Returns whether the process ids of a list can be those of training processes that are seen
/// from here.
fn sees_training_pids(attribution: Attribution) -> bool {
    matches!(attribution, Attribution::Host | Attribution::SharedPidNamespace)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::config::EngineConfig;
    use crate::engine::Engine;
    use crate::output::status::ExporterStatus;
    use stepmem_types::units::{Seconds, Uptime};

    #[test]
    fn clock_that_is_set_moves_every_time_and_one_that_drifts_none() {
        let mut engine = Engine::new(EngineConfig::default(), 1000.0);
        let now = Uptime(Duration::from_secs(100));
        for (unix, expected) in [(1100.3, 1100.0), (4700.0, 4700.0), (1100.0, 1100.0)] {
            engine.set_clock(now, Seconds::new(unix).unwrap());
            let time = engine.status(now, ExporterStatus::default()).time;
            assert!((time - expected).abs() < 1e-6, "{unix}: {time}");
        }
    }
}
