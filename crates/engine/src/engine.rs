//! The one owner of all state: events and the time go in, transitions and a status come out.

use std::time::Duration;

use crate::config::EngineConfig;
use crate::devices::{DeviceTable, device_view, pushed_view};
use crate::diagnosis::scene::{RunScene, Scene};
use crate::diagnosis::{DiagnosisKind, Evidence};
use crate::event::Event;
use crate::findings::acks::{Ack, Acks, AdmittedAck};
use crate::findings::{Finding, Findings, Transition, TransitionState};
use crate::processes::{ProcessTable, ProcessView, Reading};
use crate::ranks::refusal::Refusal;
use crate::ranks::state::RankState;
use crate::ranks::table::{Admitted, AdmittedEnd, RankTable};
use crate::ranks::view::RankView;
use crate::requests::causes::{
    AnalysisRequest, HoldersReport, KnownHolder, RecordedSite, SiteTable, SiteView,
    SnapshotAnalysis,
};
use crate::requests::heap_scans::Looks;
use crate::requests::schedule::Growth;
use crate::requests::snapshot::CaptureReport;
use crate::requests::snapshots::Captures;
use stepmem_detect::sample::Axis;
use stepmem_detect::shifts::HolderGrowth;
use stepmem_detect::signal::Signal;
use stepmem_types::device::{Attribution, GpuSample};
use stepmem_types::end::RankEnd;
use stepmem_types::ids::{ProcessId, Rank, RankId, Run, SubjectId};
use stepmem_types::site::TensorHolder;
use stepmem_types::step::StepSample;
use stepmem_types::units::{Seconds, Uptime};

/// The interval at which records and readings have all subjects judged when no trend has
/// changed; a tick always does.
pub const JUDGE_EVERY: Duration = Duration::from_secs(5);
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
    pub(super) devices: DeviceTable,
    pub(super) findings: Findings,
    pub(super) acks: Acks,
    pub(super) captures: Captures,
    pub(super) looks: Looks,
    /// The lines and objects behind the ranks' memory.
    pub(super) sites: SiteTable,
    pub(super) processes_dropped: u64,
    pub(super) last_judged: Uptime,
}

impl Engine {
    /// An engine without a rank; `started` is the Unix time at uptime 0.
    pub fn new(config: EngineConfig, started: f64) -> Self {
        Self {
            ranks: RankTable::new(config.ranks()),
            captures: Captures::new(config.captures.clone()),
            looks: Looks::new(config.looks_on_creep, config.looks_cooldown),
            sites: SiteTable::default(),
            config,
            started,
            processes: ProcessTable::default(),
            devices: DeviceTable::default(),
            findings: Findings::default(),
            acks: Acks::default(),
            processes_dropped: 0,
            last_judged: Uptime::default(),
        }
    }

    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Lets a batch in as a whole. Evicts ranks that have left the outputs where it must.
    ///
    /// # Errors
    ///
    /// The bound that it would break; its records are counted as dropped.
    pub fn admit(&mut self, batch: Vec<StepSample>, now: Uptime) -> Result<Admitted, Refusal> {
        let arrival = self.unix_time(now);
        self.ranks.admit(batch, now, arrival)
    }

    /// Lets an acknowledgement in.
    ///
    /// # Errors
    ///
    /// Its subject is not held, or the limit is reached.
    pub fn admit_ack(&self, ack: Ack) -> Result<AdmittedAck, Refusal> {
        let is_held = match ack.subject() {
            SubjectId::Rank(id) => self.ranks.get(&id.run, id.rank).is_some(),
            SubjectId::Process(id) => self.processes.get(id).is_some(),
            SubjectId::Device(uuid) => self.devices.is_held(uuid),
        };
        if !is_held {
            return Err(Refusal::UnknownSubject(ack.subject().clone()));
        }
        self.acks.admit(ack)
    }

    /// Checks that an operator ends what has pushed. A process of its own may end before its
    /// first step.
    ///
    /// # Errors
    /// The run or its rank is not held.
    pub fn check_known(&self, run: &Run, end: &RankEnd) -> Result<(), Refusal> {
        let is_meant = |rank: Rank| end.rank.is_none_or(|of| of == rank);
        if !end.is_of_operator() || self.ranks_of(run).any(is_meant) {
            return Ok(());
        }
        let has_run = self.ranks_of(run).next().is_some();
        match end.rank.filter(|_| has_run) {
            Some(rank) => {
                let id = RankId { run: run.clone(), rank };
                Err(Refusal::UnknownSubject(SubjectId::Rank(id)))
            }
            None => Err(Refusal::UnknownRun(run.clone())),
        }
    }

    /// Lets the end of a rank in.
    ///
    /// # Errors
    /// Another process holds the rank.
    pub fn admit_end(&self, run: Run, end: RankEnd) -> Result<AdmittedEnd, Refusal> {
        self.ranks.admit_end(run, end)
    }

    /// Lets a report about a snapshot in.
    ///
    /// # Errors
    /// Its rank is not held, or by another process.
    pub fn admit_capture(&self, report: CaptureReport) -> Result<CaptureReport, Refusal> {
        self.ranks.check_own(&report.rank, report.instance)?;
        let RankId { run, rank } = &report.rank;
        match self.ranks.get(run, *rank) {
            Some(_) => Ok(report),
            None => Err(Refusal::UnknownSubject(SubjectId::Rank(report.rank))),
        }
    }

    /// Lets a report about live objects in.
    ///
    /// # Errors
    /// Its rank is held by another process.
    pub fn admit_holders(&self, mut report: HoldersReport) -> Result<HoldersReport, Refusal> {
        let RankId { run, rank } = &report.rank;
        self.ranks.check_own(&report.rank, report.instance)?;
        let state = self.ranks.get(run, *rank);
        let names_own = state.is_some_and(|state| state.lifecycle().is_named(report.instance));
        report.mark_own(report.is_known && names_own);
        Ok(report)
    }

    /// Takes one event that happened at `now`, and returns what it raised, changed or cleared.
    /// `now` never falls.
    pub fn apply(&mut self, event: Event, now: Uptime) -> Vec<Transition> {
        let is_changed = match event {
            Event::Steps(batch) => return self.steps(batch, now),
            Event::Ack(ack) => self.acks.insert(ack, now),
            Event::End(end) => {
                let arrival = self.unix_time(now);
                let has_ended = self.ranks.end(end, now, arrival);
                self.forget_sites();
                has_ended
            }
            Event::Scrape => {
                self.ranks.scraped();
                false
            }
            Event::Gpu(sample) => self.gpu(sample, now),
            Event::GpuUnavailable(unavailable) => self.devices.fail(&unavailable, now),
            Event::Capture(report) => {
                self.captures.take(report, now);
                false
            }
            Event::Analysed(number, analysis) => self.analysed(number, *analysis, now),
            Event::Holders(report) => self.hold(&report, now),
            Event::Site(rank, site, since) => {
                self.take_site(&rank, site, AskedAt { since, now })
            }
            Event::GpuReleased => {
                self.devices.release();
                false
            }
            Event::Xid(device, xid) => {
                self.devices.xid(device, xid);
                false
            }
            Event::DevicePods(pods) => {
                self.devices.assign(pods);
                false
            }
            Event::Tick => {
                self.tick(now);
                true
            }
        };
        self.judge_if(is_changed, now)
    }

    /// Asks a rank for a memory snapshot because an operator wants it. Returns the id of the
    /// request.
    ///
    /// # Errors
    /// The rank does not push.
    pub fn demand(
        &mut self,
        rank: &RankId,
        steps: Option<u32>,
        now: Uptime,
    ) -> Result<Box<str>, Refusal> {
        let state = self.ranks.get(&rank.run, rank.rank);
        let ttl = self.config.rank_ttl;
        if !state.is_some_and(|state| state.is_pushing(now, ttl) && !state.is_ended()) {
            return Err(Refusal::UnknownSubject(SubjectId::Rank(rank.clone())));
        }
        Ok(self.captures.demand(rank, steps, now))
    }

    /// Returns the next snapshot that another process shall analyze.
    pub fn next_analysis(&mut self) -> Option<AnalysisRequest> {
        self.captures.next_analysis()
    }

    /// Returns which rank a listed snapshot is of, and when it was asked for or reported.
    pub fn snapshot_of(&self, number: u64) -> Option<(&RankId, Uptime)> {
        self.captures.listed(number).map(|listed| (&listed.report.rank, listed.since))
    }

    /// Returns when the heap scan of a report was requested; `now` if it was not requested.
    pub fn look_since(&self, report: &HoldersReport, now: Uptime) -> Uptime {
        self.looks.since(report).unwrap_or(now)
    }

    /// Sets the Unix time at `now`: the system's clock may have been set since it was last
    /// read. Ignores differences below `CLOCK_STEP_MIN`, so that times stay equal from one
    /// status to the next.
    pub fn set_clock(&mut self, now: Uptime, unix: f64) {
        if (unix - self.unix_time(now)).abs() >= CLOCK_STEP_MIN {
            self.started = unix - now.0.as_secs_f64();
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
        let is_present = |rank: &RankId, since| ranks.is_of_present_life(rank, since);
        self.captures.expire(is_present, now);
        self.looks.expire(is_present, now);
        self.renew_looks(now);
        self.ranks.forget(now, retention);
        self.forget_sites();
        self.processes.forget(now, retention);
        self.devices.forget(now, self.config.gpu_ttl);
    }

    fn forget_sites(&mut self) {
        let ranks = &self.ranks;
        self.sites.retain(|run, rank| Some(ranks.get(run, rank)?.is_ended()));
    }

    /// Takes the result of an analysis. Returns whether it reports something of a rank.
    fn analysed(&mut self, number: u64, analysis: SnapshotAnalysis, now: Uptime) -> bool {
        let about = self.captures.analysed(number, &analysis, now);
        let Some((rank, since)) = about else { return false };
        self.take_site(
            &rank,
            RecordedSite::Snapshot(Box::new(analysis)),
            AskedAt { since, now },
        )
    }

    /// Takes what was found out of a rank. Returns whether the rank is held.
    fn take_site(&mut self, rank: &RankId, site: RecordedSite, asked: AskedAt) -> bool {
        let AskedAt { since, now } = asked;
        if self.ranks.get(&rank.run, rank.rank).is_none() {
            return false;
        }
        match site {
            RecordedSite::Snapshot(analysis) => self.sites.take(rank, *analysis, since),
            RecordedSite::Holder(holder) => {
                if let (Some(state), Some(growth)) =
                    (self.ranks.get_mut(&rank.run, rank.rank), growth_of_holder(&holder))
                {
                    state.holder(growth);
                }
                let known = KnownHolder { asked: since, reported: now, holder: *holder };
                self.sites.hold(rank, known);
            }
            RecordedSite::Searched(search) => self.sites.search(rank, search, since),
        }
        true
    }

    /// Takes what a rank reports of its live objects. Returns whether it has come to something.
    fn hold(&mut self, report: &HoldersReport, now: Uptime) -> bool {
        let since = self.looks.take(report, now);
        let asked = AskedAt { since, now };
        report.site().is_some_and(|site| self.take_site(&report.rank, site, asked))
    }

    fn steps(&mut self, batch: Admitted, now: Uptime) -> Vec<Transition> {
        let mut transitions = Vec::new();
        let arrival = self.unix_time(now);
        for mut sample in batch.into_samples() {
            self.ranks.correct_time(&mut sample.time, arrival);
            let is_changed = self.step(&sample, now);
            transitions.append(&mut self.judge_if(is_changed, now));
        }
        transitions
    }

    fn step(&mut self, sample: &StepSample, now: Uptime) -> bool {
        let arrival = self.unix_time(now);
        let result = self.ranks.push(sample, now, arrival);
        let state = self.ranks.get_mut(&sample.run, sample.rank);
        let (true, Some(state)) = (result.is_used, state) else { return result.is_changed };
        // Where NVML does not read the device, the process's own view of it shows how much
        // others hold.
        let device = state.identity().device.as_ref();
        let is_read = device.is_some_and(|device| self.devices.is_read(device));
        let mut is_changed = result.is_changed;
        if is_newly_suspected(state) {
            let rank = RankId { run: sample.run.clone(), rank: sample.rank };
            if let Some(growth) = growth_by_step(&rank, state) {
                self.looks.suspects(&growth, now);
            }
        }
        if let (false, Some(total), Some(free)) = (is_read, sample.total, sample.free) {
            let time = sample.time.map_or(arrival, Seconds::get);
            is_changed |= state.device(pushed_view(total, free), time);
        }
        is_changed
    }

    fn gpu(&mut self, sample: GpuSample, now: Uptime) -> bool {
        let time = self.unix_time(now);
        let mut is_changed = false;
        for state in self.ranks.states_mut() {
            if state.identity().device.as_ref() == Some(&sample.device)
                && state.is_pushing(now, self.config.rank_ttl)
            {
                let view = device_view(&sample, state.identity());
                is_changed |= state.device(view, time);
            }
        }
        let n_dropped = sample.processes.len().saturating_sub(self.config.processes_max);
        self.devices.drop_processes(n_dropped);
        is_changed |= self.read_processes(&Reading { sample: &sample, now, time });
        self.devices.read(sample, now, time);
        is_changed
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

    /// Returns what others see of a rank; `site` is the result of [`Self::site`].
    pub(super) fn view<'a>(
        &'a self,
        state: &'a RankState,
        site: SiteView<'a>,
        now: Uptime,
    ) -> RankView<'a> {
        let device = self.devices.view_of(state.identity(), now, self.config.gpu_ttl);
        let device_model = self.devices.model_of(state.identity());
        RankView { device_model, site, ..state.view(device, now) }
    }

    /// Returns the known facts of the code behind a rank's memory, in its present incarnation.
    pub(super) fn site(&self, run: &Run, rank: Rank, state: &RankState) -> SiteView<'_> {
        let began = state.lifecycle().origin().map(|origin| origin.began);
        let site = self.sites.of(run, rank, began);
        // The name is cloned only where a bound is known.
        let is_withheld = site.has_bound()
            && self
                .findings
                .withholds_page(&SubjectId::Rank(RankId { run: run.clone(), rank }));
        SiteView { is_withheld, ..site }
    }

    pub(super) fn scene(&self, now: Uptime) -> Scene<'_> {
        let ttl = self.config.rank_ttl;
        let runs = self.ranks.runs().map(|(run, states)| {
            let present = states.iter().filter(|(_, state)| state.is_shown(now, ttl));
            let views = present.map(|(rank, state)| {
                (*rank, self.view(state, self.site(run, *rank, state), now))
            });
            RunScene::new(run, views.collect())
        });
        Scene {
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
        let found = self.findings.judge(&self.scene(now), &self.acks, now);
        if found.is_empty() && self.findings.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let time = self.unix_time(now);
        self.findings.replace(found, time)
    }

    fn judge(&mut self, now: Uptime) -> Vec<Transition> {
        let (ceased, raised) = self.judged(now);
        let time = self.unix_time(now);
        for finding in &raised {
            self.ask_about(finding, now);
        }
        let ceased = ceased.into_iter().map(|finding| (finding, TransitionState::Cleared));
        let raised = raised.into_iter().map(|finding| (finding, TransitionState::Raised));
        ceased
            .chain(raised)
            .map(|(finding, state)| self.transition(finding, state, time))
            .collect()
    }

    /// Returns the findings of a rank that name the code or the object behind its memory.
    pub fn named(&self, rank: &RankId, now: Uptime) -> Vec<Transition> {
        let of_rank = |finding: &&Finding| finding.subject.rank() == Some(rank);
        let findings = self.findings.iter().map(|active| &active.finding).filter(of_rank);
        let named = findings.filter(|finding| match &finding.evidence {
            Evidence::CreepConfirmed(figures) | Evidence::CreepEarly(figures) => {
                figures.site.is_some() || figures.holder.is_some()
            }
            Evidence::OutOfMemory(figures) => figures.site.is_some(),
            _ => false,
        });
        let time = self.unix_time(now);
        let transition =
            |finding: &Finding| self.transition(finding.clone(), TransitionState::Raised, time);
        named.map(transition).collect()
    }

    /// Asks a rank whose live memory grows what grows. A snapshot shows memory of devices
    /// alone.
    pub(super) fn ask_about(&mut self, finding: &Finding, now: Uptime) {
        let Some((growth, is_on_host)) = growth_of(&self.ranks, finding) else { return };
        self.looks.creeps(&growth, life_of(&self.ranks, growth.rank), now);
        if !is_on_host {
            self.captures.creeps(&growth, now);
        }
    }

    /// Asks ranks whose live memory goes on growing for newer figures of what holds it.
    fn renew_looks(&mut self, now: Uptime) {
        for active in self.findings.iter() {
            if let Some((growth, _)) = growth_of(&self.ranks, &active.finding) {
                self.looks.creeps(&growth, life_of(&self.ranks, growth.rank), now);
            }
        }
    }

    fn transition(&self, finding: Finding, state: TransitionState, time: f64) -> Transition {
        let Finding { subject, kind, severity, evidence } = finding;
        let rank = subject.rank().and_then(|id| self.ranks.get(&id.run, id.rank));
        let step = rank.and_then(RankState::last_step);
        let time = (time * 1000.0).round() / 1000.0;
        Transition { time, step, subject, kind, state, severity, evidence }
    }
}

/// When a rank was asked for something, and the time of its answer.
#[derive(Clone, Copy)]
struct AskedAt {
    since: Uptime,
    now: Uptime,
}

/// Returns when the present incarnation of a rank began.
fn life_of(ranks: &RankTable, rank: &RankId) -> Option<Uptime> {
    Some(ranks.get(&rank.run, rank.rank)?.lifecycle().origin()?.began)
}

/// Returns the growth of live memory that a finding is about, and whether it is the host's.
/// `None` of another finding, and of a rank that has ended.
fn growth_of<'a>(ranks: &'a RankTable, finding: &'a Finding) -> Option<(Growth<'a>, bool)> {
    let is_growth =
        matches!(finding.kind, DiagnosisKind::CreepConfirmed | DiagnosisKind::CreepEarly);
    let (Some(rank), Evidence::CreepConfirmed(figures) | Evidence::CreepEarly(figures)) =
        (finding.subject.rank(), &finding.evidence)
    else {
        return None;
    };
    let state = ranks.get(&rank.run, rank.rank)?;
    if !is_growth || figures.signal != Signal::Allocated || state.ended().is_some() {
        return None;
    }
    let growth =
        Growth { bytes_per_step: figures.slope_bytes_per_step, ..growth_by_step(rank, state)? };
    Some((growth, figures.is_on_host))
}

/// Returns by how much an object of a process grew from one heap scan to the last; `None` where
/// their steps are unknown.
fn growth_of_holder(holder: &TensorHolder) -> Option<HolderGrowth> {
    let (from, to) = (holder.since_step?.as_f64(), holder.step?.as_f64());
    Some(HolderGrowth { from, to, bytes: holder.bytes_per_step * (to - from) })
}

/// Returns whether growth of a rank's live memory is suspected with its last record for the
/// first time.
fn is_newly_suspected(state: &RankState) -> bool {
    let creep = state.creep();
    let since = creep.suspected().zip(creep.newest());
    since.is_some_and(|(suspected, newest)| newest.position <= suspected.position)
}

/// Returns growth of a rank whose rate is unknown. `None` of one that takes no steps: a client
/// searches for holders, and records a snapshot, from step to step.
fn growth_by_step<'a>(rank: &'a RankId, state: &RankState) -> Option<Growth<'a>> {
    let creep = state.creep();
    (creep.axis() == Axis::Steps).then(|| Growth {
        rank,
        bytes_per_step: None,
        seconds_per_step: creep.seconds_per_step(),
        stairs: creep.increments_between_events(),
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
    use stepmem_types::units::Uptime;

    #[test]
    fn clock_that_is_set_moves_every_time_and_one_that_drifts_none() {
        let mut engine = Engine::new(EngineConfig::default(), 1000.0);
        let now = Uptime(Duration::from_secs(100));
        for (unix, expected) in [(1100.3, 1100.0), (4700.0, 4700.0), (1100.0, 1100.0)] {
            engine.set_clock(now, unix);
            let time = engine.status(now, ExporterStatus::default()).time;
            assert!((time - expected).abs() < 1e-6, "{unix}: {time}");
        }
    }
}
