//! The one task that owns the engine: it feeds events in, and publishes the results.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::exporter::clock::Clock;
use crate::exporter::collectors::event::CollectorEvent;
use crate::exporter::collectors::snapshot_analysis::AnalysisQueue;
use crate::exporter::notices::{Notice, Notices};
use crate::exporter::oom_kills::OomKills;
use crate::exporter::recording::queue::EventRecorder;
use crate::exporter::self_metrics::ExporterFigures;
use crate::exporter::state_file::StateFile;
use crate::exporter::stop::Awaited;
use crate::exporter::summaries::requests::SummaryRequests;
use crate::exporter::summaries::writer::{Summaries, SummarySource};
use crate::input::nvml::cycle::GpuPoll;
use crate::input::push::inbox::{Delivery, Offer, Receipt};
use crate::net::peer::Peer;
use crate::output::web::{StatusRequest, SummaryRequest};
use stepmem_engine::diagnosis::kind::Severity;
use stepmem_engine::engine::Engine;
use stepmem_engine::event::Event;
use stepmem_engine::findings::acks::Ack;
use stepmem_engine::findings::{Transition, TransitionState};
use stepmem_engine::metrics::table;
use stepmem_engine::output::status::Status;
use stepmem_engine::ranks::refusal::Refusal;
use stepmem_engine::requests::causes::{
    AnalysisOutcome, HoldersOutcome, HoldersReport, RecordedSite, SnapshotAnalysis,
};
use stepmem_engine::requests::snapshot::CaptureReport;
use stepmem_engine::wire::accepted::Accepted;
use stepmem_types::end::{EndAuthority, EndReport, RankEnd};
use stepmem_types::ids::{GpuUuid, ProcessId, Rank, RankId, Run, SubjectId};
use stepmem_types::step::StepSample;
use stepmem_types::units::{Seconds, Uptime};

/// Interval at which time passes for the engine, and a status is published for consumers that
/// do not ask for one.
const TICK: Duration = Duration::from_secs(1);

/// Factor of the pause after a summary: so many times the time that the summary took. Readers
/// of summaries thus do not keep pushes and scrapes waiting.
const SUMMARY_REST: u32 = 9;

/// The lowest exit code of a command that a signal killed.
const KILLED_FROM: u8 = 128;

/// The one task that owns the engine.
pub(super) struct EngineTask {
    pub(super) engine: Engine,
    pub(super) clock: Clock,
    pub(super) publisher: watch::Sender<Arc<Status>>,
    /// Publishes the devices that ranks push from: the ones that NVML shall open.
    pub(super) pushed_devices: watch::Sender<BTreeSet<GpuUuid>>,
    /// Publishes whether the exporter has something to wait for before it stops.
    pub(super) awaited: Awaited<watch::Sender<bool>>,
    pub(super) exporter: ExporterFigures,
    pub(super) state: Option<StateFile>,
    pub(super) summaries: Summaries,
    pub(super) notices: Notices,
    /// Records everything that the engine takes.
    pub(super) recorder: Option<EventRecorder>,
    /// The queue of snapshot analyses; `None` where no snapshots are read.
    pub(super) analyses: Option<AnalysisQueue>,
    /// Kills by the kernel among the command's processes.
    pub(super) oom_kills: Option<OomKills>,
}

/// The requests of readers.
pub(super) struct Requests {
    pub(super) status: mpsc::Receiver<StatusRequest>,
    pub(super) summary: SummaryRequests,
}

impl Requests {
    pub(super) fn new(
        status: mpsc::Receiver<StatusRequest>,
        summary: mpsc::Receiver<SummaryRequest>,
    ) -> Self {
        Self { status, summary: SummaryRequests::new(summary) }
    }
}

impl EngineTask {
    pub(super) async fn run(
        mut self,
        mut offers: mpsc::Receiver<Offer>,
        mut requests: Requests,
        mut collected: mpsc::Receiver<CollectorEvent>,
    ) -> anyhow::Result<()> {
        self.begin();
        let mut tick = tokio::time::interval(TICK);
        let mut resting_until = Instant::now();
        let mut is_open = true;
        loop {
            tokio::select! {
                offer = offers.recv(), if is_open => {
                    if let Some(offer) = offer {
                        self.take(offer);
                    } else {
                        is_open = false;
                        self.look_for_oom_kills(true);
                        let now = self.now();
                        let source = SummarySource { engine: &self.engine, now };
                        self.summaries.stop(&source).await;
                        // The exporter may linger: files that outlast it are written first.
                        StateFile::write_all(&mut self.state, &self.engine, now).await;
                    }
                }
                Some(group) = requests.summary.next(resting_until) => {
                    let now = self.now();
                    let source = SummarySource { engine: &self.engine, now };
                    group.answer(&source);
                    resting_until = Instant::now() + SUMMARY_REST * self.now().since(now);
                }
                request = requests.status.recv() => match request {
                    Some(StatusRequest { is_scrape, answer }) => {
                        let status = self.publish(offers.len());
                        // A reader that has gone has not read the status.
                        let mut is_scraped =
                            answer.send(Arc::clone(&status)).is_ok() && is_scrape;
                        // Readers that asked meanwhile get the same status.
                        while let Ok(more) = requests.status.try_recv() {
                            let is_sent = more.answer.send(Arc::clone(&status)).is_ok();
                            is_scraped |= is_sent && more.is_scrape;
                        }
                        if is_scraped {
                            self.apply(Event::Scrape);
                            self.say_awaited_scrape();
                        }
                    }
                    None => break,
                },
                permit = StateFile::ready(self.state.as_ref()) => {
                    let now = self.now();
                    if let Some(state) = &mut self.state {
                        state.advance(permit, &self.engine, now);
                    }
                }
                Some(collected) = collected.recv() => self.take_collected(collected),
                () = OomKills::next_exit(self.oom_kills.as_mut()) => {
                    self.look_for_oom_kills(false);
                }
                _ = tick.tick() => {
                    self.take_accepted(Accepted::Tick, Event::Tick);
                    self.look_for_oom_kills(false);
                    self.say_pushed_devices();
                    self.exporter.read_process();
                    let status = self.publish(offers.len());
                    self.exporter.series = table::count_series(&status);
                    self.keep_summaries(&status).await;
                    let now = self.now();
                    if let Some(state) = &mut self.state {
                        state.keep(&self.engine, now).await;
                    }
                }
            }
        }
        self.publish(offers.len());
        self.finish().await;
        Ok(())
    }

    /// Waits for everything that is still to be written.
    async fn finish(mut self) {
        self.summaries.written().await;
        let now = self.now();
        StateFile::write_all(&mut self.state, &self.engine, now).await;
        if let Some(recorder) = self.recorder {
            recorder.finish().await;
        }
    }

    /// Reads its own figures, and submits the analyses that waited when an earlier exporter
    /// stopped.
    fn begin(&mut self) {
        self.exporter.read_process();
        self.hand_on_analyses();
    }

    async fn keep_summaries(&mut self, status: &Status) {
        let now = self.now();
        // A run that has ended stays in the status for a while.
        let going_on = status.runs.iter().filter(|run| self.engine.is_going_on(&run.run, now));
        let present: BTreeSet<_> = going_on.map(|run| run.run.clone()).collect();
        let source = SummarySource { engine: &self.engine, now };
        self.summaries.keep(&source, present).await;
        if let Some(recorder) = &mut self.recorder {
            recorder.retain(|run| self.engine.launch(run).is_some());
        }
    }

    fn take(&mut self, (delivery, answer): Offer) {
        let taken = match delivery {
            Delivery::Steps(batch) => self.take_steps(batch),
            Delivery::End(run, end, peer) => self.take_end(&run, end, peer),
            Delivery::Snapshot(report) => self.take_snapshot(report),
            Delivery::Holders(report) => self.take_holders(report),
            Delivery::Demand(rank, steps, peer) => self.take_demand(&rank, steps, peer),
            Delivery::Ack(ack, peer) => self.take_ack(ack, peer),
        };
        // A client that hung up does not read the receipt.
        answer.send(taken).ok();
    }

    fn take_holders(&mut self, report: HoldersReport) -> Result<Receipt, Refusal> {
        let report = self.engine.admit_holders(report)?;
        log_holders(&report);
        let rank = report.rank.clone();
        self.take_looked(report);
        self.say_named(&rank);
        Ok(ONE)
    }

    fn take_snapshot(&mut self, report: CaptureReport) -> Result<Receipt, Refusal> {
        let report = self.engine.admit_capture(report)?;
        let RankId { run, rank } = &report.rank;
        let (rank, outcome) = (rank.get(), report.outcome.as_label());
        tracing::info!(%run, rank, outcome, "snapshot");
        self.apply(Event::Capture(report));
        self.hand_on_analyses();
        self.awaited.analysis.send_replace(self.engine.awaits_analysis());
        Ok(ONE)
    }

    fn take_steps(&mut self, batch: Vec<StepSample>) -> Result<Receipt, Refusal> {
        let (n_records, ranks) = (batch.len(), ranks_of(&batch));
        if let Some(kills) = &mut self.oom_kills {
            batch.iter().filter_map(|sample| sample.pid).for_each(|pid| kills.watch(pid));
        }
        let now = self.now();
        let source = SummarySource { engine: &self.engine, now };
        let rivals = self.summaries.rivals(&source, &batch);
        let recorded = self.recorder.is_some().then(|| batch.clone());
        let admitted = self.engine.admit(batch, now).inspect_err(log_refusal)?;
        self.apply_at(Event::Steps(admitted), now);
        let source = SummarySource { engine: &self.engine, now };
        self.summaries.pushed(&source, ranks.iter().map(|id| &id.run), rivals);
        if let (Some(recorder), Some(batch)) = (&mut self.recorder, recorded) {
            for id in &ranks {
                recorder.launch(self.summaries.launch_of(&id.run), now);
            }
            recorder.steps(batch, now);
        }
        self.say_pushed_devices();
        Ok(Receipt { n_records, asks: self.engine.requests(&ranks), id: None })
    }

    fn take_end(&mut self, run: &Run, end: RankEnd, peer: Peer) -> Result<Receipt, Refusal> {
        let (rank, outcome) = (end.rank.map(Rank::get), end.report.outcome.as_label());
        let (error, message) =
            (end.report.error_type.clone(), end.report.error_message.clone());
        self.engine.check_known(run, &end)?;
        let recorded = Accepted::End(run.clone(), end.clone());
        let admitted = self.engine.admit_end(run.clone(), end)?;
        tracing::info!(%run, rank, outcome, error, message, %peer, "ended");
        self.end(run, recorded, Event::End(admitted));
        Ok(ONE)
    }

    /// Ends the ranks whose processes the kernel killed for lack of memory; `is_last` at the
    /// command's end.
    fn look_for_oom_kills(&mut self, is_last: bool) {
        let Some(kills) = &mut self.oom_kills else { return };
        let ranks = self.engine.unended_processes();
        let look = kills.look(&ranks, Instant::now().into(), is_last);
        self.exporter.oom_kills = kills.n_kills();
        if look.n_others > 0 {
            tracing::warn!(n = look.n_others, "process killed for lack of memory");
            self.notices.send(|| Notice::OomKills(look.n_others));
        }
        for RankId { run, rank } in look.ranks {
            tracing::warn!(%run, rank = rank.get(), "rank killed for lack of memory");
            let time = Seconds::new(Clock::unix_time()).ok();
            self.end_rank(&run, rank, EndReport::killed_out_of_memory(time));
        }
        if is_last {
            self.take_exit_code();
        }
    }

    /// Corrects the ends of ranks whose processes caught the error that ended them: only the
    /// command's exit code shows it.
    fn take_exit_code(&mut self) {
        let code = self.notices.command_code().get().copied();
        let Some(code) = code.filter(|code| (1..KILLED_FROM).contains(code)) else { return };
        for RankId { run, rank } in self.engine.ended_after_ooms() {
            tracing::warn!(%run, rank = rank.get(), code, "rank ended out of memory");
            self.end_rank(&run, rank, EndReport::exited_out_of_memory(code));
        }
    }

    fn end_rank(&mut self, run: &Run, rank: Rank, report: EndReport) {
        let authority = EndAuthority::Any;
        let end = RankEnd { rank: Some(rank), instance: None, authority, report };
        let recorded = Accepted::End(run.clone(), end.clone());
        if let Ok(admitted) = self.engine.admit_end(run.clone(), end) {
            self.end(run, recorded, Event::End(admitted));
        }
    }

    /// Takes the end of ranks of a run.
    fn end(&mut self, run: &Run, recorded: Accepted, event: Event) {
        let now = self.take_accepted(recorded, event);
        // The end of the last rank is the end of the run.
        if !self.engine.is_going_on(run, now) {
            let source = SummarySource { engine: &self.engine, now };
            self.summaries.ended(&source, run);
        }
        self.say_awaited_scrape();
        self.say_pushed_devices();
    }

    /// Publishes whether the exporter should wait for a scrape before it stops.
    fn say_awaited_scrape(&self) {
        self.awaited.scrape.send_replace(self.engine.awaits_scrape());
    }

    fn take_ack(&mut self, ack: Ack, peer: Peer) -> Result<Receipt, Refusal> {
        let (subject, kind) = (ack.subject().to_string(), ack.kind().label());
        let reason = ack.reason().to_owned();
        let recorded = Accepted::Ack(ack.clone());
        let admitted = self.engine.admit_ack(ack)?;
        tracing::info!(subject, kind, reason, %peer, "acknowledged");
        self.take_accepted(recorded, Event::Ack(admitted));
        Ok(ONE)
    }

    fn take_demand(
        &mut self,
        id: &RankId,
        steps: Option<u32>,
        peer: Peer,
    ) -> Result<Receipt, Refusal> {
        let now = self.now();
        let request = self.engine.demand(id, steps, now)?;
        let RankId { run, rank } = id;
        tracing::info!(%run, rank = rank.get(), steps, %peer, "snapshot wanted");
        Ok(Receipt { id: Some(request), ..ONE })
    }

    /// Publishes the devices that ranks push from to the reader of the devices.
    fn say_pushed_devices(&self) {
        let pushed = self.engine.pushed_devices(self.clock.now());
        self.pushed_devices.send_if_modified(|before| {
            let is_changed = *before != pushed;
            *before = pushed;
            is_changed
        });
    }

    fn take_collected(&mut self, collected: CollectorEvent) {
        match collected {
            CollectorEvent::Devices(poll, status) => {
                self.exporter.collectors.insert(status.collector, status);
                self.take_poll(poll);
            }
            CollectorEvent::DevicesHint(hint) => self.exporter.devices_hint = hint,
            CollectorEvent::Xid(device, xid) => {
                tracing::warn!(%device, xid, "xid error");
                self.take_accepted(Accepted::Xid(device.clone(), xid), Event::Xid(device, xid));
            }
            CollectorEvent::Analysed(number, analysis) => {
                log_analysis(number, &analysis);
                self.take_analysis(number, analysis);
            }
            CollectorEvent::DevicePods(pods, dropped, status) => {
                self.exporter.collectors.insert(status.collector, status);
                self.exporter.dropped.pods += dropped;
                self.apply(Event::DevicePods(pods));
            }
        }
    }

    /// Sends a notice of the code behind a rank's memory, as far as it is known now.
    fn say_named(&mut self, rank: &RankId) {
        let now = self.now();
        for finding in self.engine.named(rank, now) {
            self.notices.send(|| Notice::Named(Box::new(finding)));
        }
    }

    /// Writes the summary of a run again if the run is over: its last snapshot was analyzed
    /// after its end.
    fn sum_up_anew(&mut self, run: &Run) {
        let now = self.now();
        if !self.engine.is_going_on(run, now) {
            let source = SummarySource { engine: &self.engine, now };
            self.summaries.ended(&source, run);
        }
    }

    /// Submits snapshots to the analysis. One that finds no place in the queue has an outcome
    /// at once.
    fn hand_on_analyses(&mut self) {
        while let Some(request) = self.engine.next_analysis() {
            let number = request.number;
            if self.analyses.as_ref().is_some_and(|queue| queue.offer(request)) {
                continue;
            }
            let analysis =
                SnapshotAnalysis::failed(AnalysisOutcome::Queue, "too many snapshots wait");
            self.apply(Event::Analysed(number, Box::new(analysis)));
        }
    }

    fn take_poll(&mut self, poll: GpuPoll) {
        self.exporter.dropped.processes += poll.processes_dropped;
        self.exporter.dropped.devices += poll.devices_dropped;
        if poll.is_released {
            self.take_accepted(Accepted::Released, Event::GpuReleased);
        }
        // Failures come first: a device that answers in the same poll shows that NVML is up.
        for gone in poll.unavailable {
            let recorded = Accepted::Unavailable(gone.device.clone(), gone.code.to_owned());
            self.take_accepted(recorded, Event::GpuUnavailable(gone));
        }
        for sample in poll.samples {
            let recorded = Accepted::Reading(Box::new(sample.clone()));
            self.take_accepted(recorded, Event::Gpu(sample));
        }
    }

    fn take_analysis(&mut self, number: u64, analysis: Box<SnapshotAnalysis>) {
        let now = self.now();
        if let (Some(recorder), Some((rank, since))) =
            (&mut self.recorder, self.engine.snapshot_of(number))
        {
            recorder.event(Accepted::Verdict(rank.clone(), analysis.clone(), since), now);
        }
        self.apply_at(Event::Analysed(number, analysis), now);
        if let Some(rank) = self.engine.rank_of_snapshot(number).cloned() {
            self.say_named(&rank);
            self.sum_up_anew(&rank.run);
        }
        self.awaited.analysis.send_replace(self.engine.awaits_analysis());
    }

    /// Has the engine take a rank's report of its live objects, and records it.
    fn take_looked(&mut self, report: HoldersReport) {
        let now = self.now();
        if let (Some(recorder), Some(site)) = (&mut self.recorder, report.site()) {
            let since = self.engine.look_since(&report, now);
            let rank = report.rank.clone();
            let found = match site {
                RecordedSite::Holder(holder) => Accepted::Holder(rank, holder, since),
                RecordedSite::Searched(search) => Accepted::Searched(rank, search, since),
                RecordedSite::Snapshot(analysis) => Accepted::Verdict(rank, analysis, since),
            };
            recorder.event(found, now);
        }
        self.apply_at(Event::Holders(report), now);
    }

    /// Has the engine take an event, and records it. Returns the event's time.
    fn take_accepted(&mut self, recorded: Accepted, event: Event) -> Uptime {
        let now = self.now();
        if let Some(recorder) = &mut self.recorder {
            recorder.event(recorded, now);
        }
        self.apply_at(event, now);
        now
    }

    /// Returns the uptime, and passes the time to the engine: the system's clock may have been
    /// set meanwhile.
    fn now(&mut self) -> Uptime {
        let (now, unix) = (self.clock.now(), Clock::unix_time());
        let before = self.engine.unix_time(now);
        self.engine.set_clock(now, unix);
        if let Some(recorder) = &mut self.recorder
            && before.total_cmp(&self.engine.unix_time(now)).is_ne()
            && let Ok(unix) = Seconds::new(unix)
        {
            recorder.event(Accepted::Clock(unix), now);
        }
        now
    }

    fn apply(&mut self, event: Event) {
        let now = self.now();
        self.apply_at(event, now);
    }

    fn apply_at(&mut self, event: Event, now: Uptime) {
        for transition in self.engine.apply(event, now) {
            log(&transition);
            self.notices.send(|| Notice::Finding(Box::new(transition)));
        }
    }

    fn publish(&mut self, inbox_depth: usize) -> Arc<Status> {
        let exporter =
            self.exporter.status(inbox_depth, &self.summaries, self.recorder.as_ref());
        let now = self.now();
        let status = Arc::new(self.engine.status(now, exporter));
        self.publisher.send_replace(Arc::clone(&status));
        status
    }
}

/// The receipt of a single event that requests nothing.
const ONE: Receipt = Receipt { n_records: 1, asks: Vec::new(), id: None };

/// The ranks of a batch; one may occur twice.
fn ranks_of(batch: &[StepSample]) -> Vec<RankId> {
    let mut ranks: Vec<RankId> = Vec::new();
    for sample in batch {
        if ranks.last().is_none_or(|id| id.run != sample.run || id.rank != sample.rank) {
            ranks.push(RankId { run: sample.run.clone(), rank: sample.rank });
        }
    }
    ranks
}

/// Logs the first refusal of a process whose rank another one holds, and the first conflict
/// over a name.
fn log_refusal(refusal: &Refusal) {
    let Refusal::Held(contest) = refusal else { return };
    if contest.is_news {
        let (run, rank) = (&contest.rank.run, contest.rank.rank.get());
        tracing::warn!(%run, rank, reason = %refusal, "two programs use one run name");
    }
}

/// Logs the result of a snapshot's analysis, or the reason that there is none.
fn log_analysis(number: u64, analysis: &SnapshotAnalysis) {
    let outcome = analysis.outcome.as_label();
    let reason = analysis.reason.as_ref().map(tracing::field::display);
    if analysis.outcome != AnalysisOutcome::Analysed {
        tracing::warn!(number, outcome, reason, "snapshot not analysed");
        return;
    }
    let leak = analysis.leak.as_ref();
    let site = leak.and_then(|leak| leak.at.as_ref()).map(tracing::field::display);
    let verdict = leak.map(|leak| tracing::field::debug(leak.verdict));
    let share = leak.and_then(|leak| leak.share_ratio);
    let slope = leak.and_then(|leak| leak.bytes_per_step);
    tracing::info!(
        number,
        verdict,
        site,
        share_ratio = share,
        bytes_per_step = slope,
        "snapshot analysed"
    );
}

/// Logs the holders of a rank's tensors.
fn log_holders(report: &HoldersReport) {
    let RankId { run, rank } = &report.rank;
    let (rank, outcome) = (rank.get(), report.outcome.as_label());
    let first = match &report.outcome {
        HoldersOutcome::Named(holders) => holders.first(),
        _ => None,
    };
    let holder = first.map(|holder| tracing::field::display(&holder.name));
    tracing::info!(%run, rank, outcome, holder, "holders");
}

/// Logs a transition: a finding that holds as a warning, one that is informative or over as
/// information.
fn log(transition: &Transition) {
    let (run, rank, uuid, pid) = match &transition.subject {
        SubjectId::Rank(RankId { run, rank }) => (Some(run), Some(rank.get()), None, None),
        SubjectId::Process(ProcessId { uuid, pid }) => (None, None, Some(uuid), Some(*pid)),
        SubjectId::Device(uuid) => (None, None, Some(uuid), None),
    };
    let (run, uuid) = (run.map(tracing::field::display), uuid.map(tracing::field::display));
    let (kind, severity) = (transition.kind.label(), transition.severity.as_label());
    let diagnosis = transition.kind.about().title;
    if transition.state == TransitionState::Cleared {
        tracing::info!(run, rank, uuid, pid, diagnosis, kind, severity, "cleared");
        return;
    }
    let sentence = transition.evidence.sentence();
    let evidence = serde_json::to_value(&transition.evidence).unwrap_or_default();
    let figure = |name: &str| evidence.get(name).and_then(serde_json::Value::as_f64);
    macro_rules! raised {
        ($level:ident) => {
            tracing::$level!(
                run,
                rank,
                uuid,
                pid,
                diagnosis,
                kind,
                severity,
                sentence,
                slope_bytes_per_step = figure("slope_bytes_per_step"),
                growth_bytes = figure("growth_bytes"),
                headroom_bytes = figure("headroom_bytes"),
                oom_eta_seconds = figure("oom_eta_seconds"),
                oom_eta_lower_seconds = figure("oom_eta_lower_seconds"),
                pressure_ratio = figure("pressure_ratio"),
                imbalance_ratio = figure("imbalance_ratio"),
                "raised"
            )
        };
    }
    if transition.severity == Severity::Info { raised!(info) } else { raised!(warn) }
}
