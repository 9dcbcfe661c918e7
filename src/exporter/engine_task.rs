//! The one task that owns the engine: it feeds events in, and publishes the results.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use std::vec;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::exporter::clock::Clock;
use crate::exporter::collectors::collected::Collected;
use crate::exporter::collectors::snapshot_analysis::AnalysisQueue;
use crate::exporter::event_log::{log_checkpoints, log_event, log_refusal, log_transition};
use crate::exporter::notices::{Notice, Notices};
use crate::exporter::oom_kills::OomKills;
use crate::exporter::recording::queue::EventRecorder;
use crate::exporter::self_metrics::ExporterFigures;
use crate::exporter::state_file::StateFile;
use crate::exporter::stop::Awaited;
use crate::exporter::summaries::requests::SummaryRequests;
use crate::exporter::summaries::writer::{Summaries, SummarySource, WaitingSummary};
use crate::input::push::inbox::{Reply, Submission};
use crate::net::peer::Peer;
use crate::output::web::{StatusRequest, SummaryRequest};
use stepmem_engine::status::Status;
use stepmem_engine::{
    AnalysisOutcome, AnalysisRequest, Effect, Engine, Event, Handled, RankRequest, Receipt,
    Refusal, SnapshotAnalysis, metrics,
};
use stepmem_types::end::{EndAuthority, EndReport, RankEnd};
use stepmem_types::ids::{GpuUuid, Rank, RankId, Run};
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

/// Records of a batch that the engine takes at once: readers of the status and other clients get
/// their turn between two such parts.
pub(super) const RECORDS_AT_ONCE: usize = 256;

/// A batch that was admitted, and of which the engine has taken a part.
struct BegunBatch {
    rest: vec::IntoIter<StepSample>,
    receipt: Receipt,
    peer: Peer,
    reply: Reply,
}

/// An event that the engine took.
struct Taken {
    event: Event,
    peer: Option<Peer>,
    /// The summaries of runs that it may have taken over.
    rivals: Vec<WaitingSummary>,
    now: Uptime,
}

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
        mut submissions: mpsc::Receiver<Submission>,
        mut requests: Requests,
        mut collected: mpsc::Receiver<Collected>,
    ) -> anyhow::Result<()> {
        self.exporter.read_process();
        let mut tick = tokio::time::interval(TICK);
        let mut resting_until = Instant::now();
        let mut is_open = true;
        let mut begun: Option<BegunBatch> = None;
        loop {
            tokio::select! {
                submission = submissions.recv(), if is_open && begun.is_none() => {
                    if let Some(submission) = submission {
                        begun = self.begin(submission);
                    } else {
                        is_open = false;
                        self.close().await;
                    }
                }
                () = tokio::task::yield_now(), if begun.is_some() => {
                    begun = begun.and_then(|batch| self.go_on(batch));
                }
                Some(group) = requests.summary.next(resting_until) => {
                    let now = self.now();
                    let source = SummarySource { engine: &self.engine, now, restarts: self.notices.restarts() };
                    group.answer(&source);
                    resting_until = Instant::now() + SUMMARY_REST * self.now().since(now);
                }
                request = requests.status.recv() => {
                    let Some(request) = request else { break };
                    self.answer(request, &mut requests.status, submissions.len());
                }
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
                    self.look_for_oom_kills(false);
                    self.exporter.read_process();
                    let status = self.judge_and_publish(submissions.len());
                    self.exporter.series = metrics::count_series(&status);
                    self.keep_summaries(&status).await;
                    let now = self.now();
                    if let Some(state) = &mut self.state {
                        state.keep(&self.engine, now).await;
                    }
                }
            }
        }
        while let Some(batch) = begun {
            begun = self.go_on(batch);
        }
        self.judge_and_publish(submissions.len());
        self.finish().await;
        Ok(())
    }

    /// Writes what is still to be written once nobody can push: the exporter may linger, and files
    /// that outlast it are written first.
    async fn close(&mut self) {
        self.look_for_oom_kills(true);
        let now = self.now();
        let source =
            SummarySource { engine: &self.engine, now, restarts: self.notices.restarts() };
        self.summaries.stop(&source).await;
        StateFile::write_all(&mut self.state, &self.engine, now).await;
    }

    /// Answers a reader of the status, and those that asked meanwhile with the same one.
    fn answer(
        &mut self,
        request: StatusRequest,
        more: &mut mpsc::Receiver<StatusRequest>,
        inbox_depth: usize,
    ) {
        let status = self.judge_and_publish(inbox_depth);
        let mut is_scraped = false;
        let mut next = Some(request);
        while let Some(StatusRequest { is_scrape, answer }) = next {
            // A reader that has gone has not read the status.
            is_scraped |= answer.send(Arc::clone(&status)).is_ok() && is_scrape;
            next = more.try_recv().ok();
        }
        if is_scraped {
            self.take(Event::Scraped);
        }
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

    async fn keep_summaries(&mut self, status: &Status) {
        let now = self.now();
        // A run that has ended stays in the status for a while.
        let going_on = status.runs.iter().filter(|run| self.engine.is_going_on(&run.run, now));
        let present: BTreeSet<_> = going_on.map(|run| run.run.clone()).collect();
        let source =
            SummarySource { engine: &self.engine, now, restarts: self.notices.restarts() };
        self.summaries.keep(&source, present).await;
        if let Some(recorder) = &mut self.recorder {
            recorder.retain(|run| self.engine.launch(run).is_some());
        }
    }

    /// Handles what a client submitted. A long batch is admitted as a whole, and returned: it is
    /// taken in parts.
    fn begin(&mut self, Submission { event, peer, reply }: Submission) -> Option<BegunBatch> {
        let batch = match event {
            Event::Steps(batch) if batch.len() > RECORDS_AT_ONCE => batch,
            event => {
                // A client that hung up does not read the receipt.
                reply.send(self.handle(event, Some(peer))).ok();
                return None;
            }
        };
        let now = self.now();
        if let Err(refusal) = self.engine.admit(&batch, now) {
            log_refusal(&refusal);
            reply.send(Err(refusal)).ok();
            return None;
        }
        // All records of a batch come at once.
        self.clock.hold(now);
        let receipt = Receipt { n_records: batch.len(), ..Receipt::default() };
        Some(BegunBatch { rest: batch.into_iter(), receipt, peer, reply })
    }

    /// Takes the next part of a batch, and returns the batch unless that was the last.
    fn go_on(&mut self, mut batch: BegunBatch) -> Option<BegunBatch> {
        let part: Vec<StepSample> = batch.rest.by_ref().take(RECORDS_AT_ONCE).collect();
        let now = self.now();
        let rivals = self.rivals(&part, now);
        let handled = self.engine.admitted(&part, now);
        let taken = Taken { event: Event::Steps(part), peer: Some(batch.peer), rivals, now };
        for request in self.handled(taken, handled).requests {
            // The figures of a request are those of the last part.
            let is_other = |earlier: &RankRequest| {
                (&earlier.id, &earlier.rank) != (&request.id, &request.rank)
            };
            batch.receipt.requests.retain(is_other);
            batch.receipt.requests.push(request);
        }
        if batch.rest.len() == 0 {
            self.clock.release();
            batch.reply.send(Ok(batch.receipt)).ok();
            return None;
        }
        Some(batch)
    }

    /// Has the engine handle an event, records it, and performs its effects.
    fn handle(&mut self, event: Event, peer: Option<Peer>) -> Result<Receipt, Refusal> {
        let now = self.now();
        self.handle_at(event, peer, now)
    }

    fn handle_at(
        &mut self,
        event: Event,
        peer: Option<Peer>,
        now: Uptime,
    ) -> Result<Receipt, Refusal> {
        let rivals = match &event {
            Event::Steps(batch) => self.rivals(batch, now),
            _ => Vec::new(),
        };
        let handled = self.engine.handle(&event, now).inspect_err(log_refusal)?;
        Ok(self.handled(Taken { event, peer, rivals, now }, handled))
    }

    /// Logs and records an event that the engine took, and performs its effects.
    fn handled(&mut self, taken: Taken, handled: Handled) -> Receipt {
        let Taken { event, peer, rivals, now } = taken;
        log_event(&event, peer);
        log_checkpoints(&handled.receipt.requests);
        for transition in handled.transitions {
            log_transition(&transition);
            self.notices.send(|| Notice::Finding(Box::new(transition)));
        }
        self.note_push(&event, rivals, now);
        if event.is_recorded() {
            self.record(event, now);
        }
        for effect in handled.effects {
            self.perform(effect, now);
        }
        handled.receipt
    }

    /// Handles an event that nobody waits for. One that the engine refuses has no answer.
    fn take(&mut self, event: Event) {
        self.handle(event, None).ok();
    }

    fn perform(&mut self, effect: Effect, now: Uptime) {
        match effect {
            Effect::Record(event) => self.record(event, now),
            Effect::Announce(finding) => self.notices.send(|| Notice::Named(finding)),
            Effect::Summarize(run) => {
                let source = SummarySource {
                    engine: &self.engine,
                    now,
                    restarts: self.notices.restarts(),
                };
                self.summaries.ended(&source, &run);
            }
            Effect::OpenDevices(devices) => {
                self.pushed_devices.send_replace(devices);
            }
            Effect::AwaitScrape(is_awaited) => {
                self.awaited.scrape.send_replace(is_awaited);
            }
            Effect::AwaitAnalyses(is_awaited) => {
                self.awaited.analysis.send_replace(is_awaited);
            }
            Effect::Analyze(request) => self.analyze(request),
        }
    }

    /// Submits a snapshot to the analysis. One that finds no place in the queue has an outcome
    /// at once.
    fn analyze(&mut self, request: AnalysisRequest) {
        let number = request.number;
        if !self.analyses.as_ref().is_some_and(|queue| queue.offer(request)) {
            let analysis =
                SnapshotAnalysis::failed(AnalysisOutcome::Queue, "too many snapshots wait");
            self.take(Event::SnapshotAnalyzed(number, Box::new(analysis)));
        }
    }

    fn record(&mut self, event: Event, now: Uptime) {
        if let Some(recorder) = &mut self.recorder {
            recorder.event(event, now);
        }
    }

    /// Returns the summaries, from before a batch, of runs that it may take over.
    fn rivals(&mut self, batch: &[StepSample], now: Uptime) -> Vec<WaitingSummary> {
        if let Some(kills) = &mut self.oom_kills {
            batch
                .iter()
                .filter_map(|sample| sample.identity.pid)
                .for_each(|pid| kills.watch(pid));
        }
        self.summaries.rivals(
            &SummarySource { engine: &self.engine, now, restarts: self.notices.restarts() },
            batch,
        )
    }

    /// Notes to which launches the runs of a batch belong, which the engine took.
    fn note_push(&mut self, event: &Event, rivals: Vec<WaitingSummary>, now: Uptime) {
        let Event::Steps(batch) = event else { return };
        let by_run = batch.chunk_by(|a, b| a.run == b.run);
        let runs = by_run.filter_map(<[_]>::first).map(|sample| &sample.run);
        let source =
            SummarySource { engine: &self.engine, now, restarts: self.notices.restarts() };
        self.summaries.pushed(&source, runs.clone(), rivals);
        if let Some(recorder) = &mut self.recorder {
            for run in runs {
                recorder.launch(self.summaries.launch_of(run), now);
            }
        }
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
            self.end_rank(run, rank, EndReport::killed_out_of_memory(time));
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
            self.end_rank(run, rank, EndReport::exited_out_of_memory(code));
        }
    }

    fn end_rank(&mut self, run: Run, rank: Rank, report: EndReport) {
        let authority = EndAuthority::Any;
        let end = RankEnd { rank: Some(rank), instance: None, authority, report };
        self.take(Event::End(run, end));
    }

    fn take_collected(&mut self, collected: Collected) {
        match collected {
            Collected::Event(event) => self.take(event),
            Collected::Round(round, events) => {
                self.exporter.collectors.insert(round.collector, round);
                self.exporter.dropped.add(round.dropped);
                for event in events {
                    self.take(event);
                }
            }
            Collected::DevicesHint(hint) => self.exporter.devices_hint = hint,
        }
    }

    /// Returns the uptime, and passes the time to the engine: the system's clock may have been
    /// set meanwhile.
    fn now(&mut self) -> Uptime {
        let now = self.clock.now();
        if let Ok(unix) = Seconds::new(Clock::unix_time())
            && self.engine.is_clock_set(now, unix)
        {
            let event = Event::ClockSet(unix);
            // The system's clock is never refused.
            self.engine.handle(&event, now).ok();
            self.record(event, now);
        }
        now
    }

    /// Publishes a status whose findings are judged, and whose figures are computed, for the same
    /// moment.
    fn judge_and_publish(&mut self, inbox_depth: usize) -> Arc<Status> {
        let now = self.now();
        self.handle_at(Event::Tick, None, now).ok();
        let exporter =
            self.exporter.status(inbox_depth, &self.summaries, self.recorder.as_ref());
        let status = Arc::new(self.engine.status(now, exporter));
        self.publisher.send_replace(Arc::clone(&status));
        status
    }
}
