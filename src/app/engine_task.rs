//! The one task that owns the engine: it takes what comes in, and publishes what comes out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use tokio::sync::{mpsc, watch};

use crate::analysis::captures::{Listed, Outcome, Snapshots};
use crate::analysis::diagnosis::creep_confirmed::CREEP_CONFIRMED;
use crate::analysis::diagnosis::wording;
use crate::analysis::engine::{Engine, Event, Transition, TransitionState};
use crate::analysis::status::{CollectorStatus, ExporterStatus, SnapshotStatus, Status};
use crate::app::clock::Clock;
use crate::app::collectors::event::CollectorEvent;
use crate::app::state_file::StateFile;
use crate::app::summary_files::{self, Summaries, SummarySource};
use crate::input::nvml::cycle::GpuPoll;
use crate::input::push::inbox::{Delivery, Offer, PushCounts, Receipt};
use crate::input::push::wire::control::RunEnd;
use crate::metrics::table;
use crate::model::ids::{Rank, Run};
use crate::model::step::StepSample;
use crate::model::units::Uptime;
use crate::net::server::ServerCounts;
use crate::output::otlp::ExportCounts;
use crate::output::web::{StatusRequest, SummaryRequest};

/// How often time passes for the engine, and a status is published for those that do not ask for one.
const TICK: Duration = Duration::from_secs(1);

/// What the exporter knows of itself.
pub(super) struct Own {
    pub(super) push: Arc<PushCounts>,
    pub(super) servers: [(&'static str, Arc<ServerCounts>); 2],
    pub(super) export: Option<Arc<ExportCounts>>,
    pub(super) collectors: BTreeMap<&'static str, CollectorStatus>,
    pub(super) dropped: Dropped,
    pub(super) process: Vec<(String, f64)>,
    pub(super) series: usize,
}

/// What the collectors left out to keep their bounds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dropped {
    devices: u64,
    pods: u64,
    processes: u64,
}

impl Own {
    fn status(&self, inbox_depth: usize, engine: &Engine) -> ExporterStatus {
        let gpu = engine.gpu_status();
        let shed = self.servers.iter().map(|(listener, counts)| (*listener, counts.shed()));
        ExporterStatus {
            version: env!("CARGO_PKG_VERSION"),
            pushes: self.push.results(),
            push_seconds: self.push.durations(),
            inbox_depth,
            collectors: self.collectors.values().copied().collect(),
            snapshots: Vec::new(),
            connections_shed: shed.collect(),
            otlp_exports: self
                .export
                .as_ref()
                .map(|counts| counts.results())
                .unwrap_or_default(),
            series: self.series,
            series_dropped: vec![
                ("devices", self.dropped.devices),
                ("pods", self.dropped.pods),
                ("processes", self.dropped.processes + gpu.processes_dropped),
                ("processes_judged", engine.processes_dropped()),
                ("ranks", engine.records_dropped()),
                ("xids", gpu.xids_dropped),
            ],
            process: self.process.clone(),
        }
    }

    /// Reads the figures of the operating system about this process.
    fn read_process(&mut self) {
        self.process = ProcessCollector::for_self()
            .collect()
            .iter()
            .filter_map(|family| {
                let metric = family.get_metric().first()?;
                let value = metric.get_counter().get_value() + metric.get_gauge().get_value();
                Some((family.name().to_owned(), value))
            })
            .collect();
    }
}

/// The one task that owns the engine.
pub(super) struct Keeper {
    pub(super) engine: Engine,
    pub(super) snapshots: Snapshots,
    pub(super) clock: Clock,
    pub(super) publisher: watch::Sender<Arc<Status>>,
    pub(super) own: Own,
    pub(super) state: Option<StateFile>,
    pub(super) summaries: Summaries,
}

/// What readers ask for.
pub(super) struct Requests {
    pub(super) status: mpsc::Receiver<StatusRequest>,
    pub(super) summary: mpsc::Receiver<SummaryRequest>,
}

impl Keeper {
    pub(super) async fn keep(
        mut self,
        mut offers: mpsc::Receiver<Offer>,
        mut requests: Requests,
        mut collected: mpsc::Receiver<CollectorEvent>,
    ) -> anyhow::Result<()> {
        self.own.read_process();
        let mut tick = tokio::time::interval(TICK);
        let mut is_open = true;
        loop {
            tokio::select! {
                offer = offers.recv(), if is_open => {
                    if let Some(offer) = offer {
                        self.take(offer);
                    } else {
                        is_open = false;
                        let known = known(&self.engine, &self.snapshots, self.clock.now());
                        self.summaries.stop(&known).await;
                    }
                }
                Some(request) = requests.summary.recv() => {
                    let known = known(&self.engine, &self.snapshots, self.clock.now());
                    summary_files::answer(&known, request);
                }
                request = requests.status.recv() => match request {
                    // The reader may have gone; the status is published all the same.
                    Some(request) => drop(request.send(self.publish(offers.len()))),
                    None => break,
                },
                Some(collected) = collected.recv() => self.take_collected(collected),
                _ = tick.tick() => {
                    self.apply(Event::Tick);
                    self.snapshots.expire(self.clock.now());
                    self.own.read_process();
                    let status = self.publish(offers.len());
                    self.own.series = table::count_series(&status);
                    self.keep_summaries(&status).await;
                    if let Some(state) = &mut self.state {
                        state.keep(&self.engine, self.clock.now()).await;
                    }
                }
            }
        }
        self.publish(offers.len());
        self.summaries.written().await;
        if let Some(state) = &mut self.state {
            state.written().await;
            state.write(&self.engine, self.clock.now());
            state.written().await;
        }
        Ok(())
    }

    async fn keep_summaries(&mut self, status: &Status) {
        let present: BTreeSet<_> = status.runs.iter().map(|run| run.run.clone()).collect();
        let known = known(&self.engine, &self.snapshots, self.clock.now());
        self.summaries.keep(&known, present).await;
    }

    fn take(&mut self, (delivery, answer): Offer) {
        let taken = match delivery {
            Delivery::Steps(batch) => {
                let now = self.clock.now();
                self.engine.admit(&batch, now).map(|()| {
                    let n_records = batch.len();
                    let ranks = ranks_of(&batch);
                    for (run, _) in &ranks {
                        self.summaries.pushed(run);
                    }
                    for sample in batch {
                        self.apply(Event::Step(sample));
                    }
                    Receipt { n_records, asks: self.snapshots.asks(&ranks) }
                })
            }
            Delivery::End(run, RunEnd { rank, outcome }) => {
                let shown = rank.map(Rank::get);
                tracing::info!(%run, rank = shown, ?outcome, "ended");
                self.summaries.ended(&run);
                self.apply(Event::End(run, rank));
                Ok(ONE)
            }
            Delivery::Snapshot(report) => {
                let (run, rank) = (&report.run, report.rank.get());
                let outcome = report.outcome.as_label();
                tracing::info!(%run, rank, outcome, "snapshot");
                self.snapshots.take(report, self.clock.now());
                Ok(ONE)
            }
            Delivery::Ack(ack) => self.engine.admit_ack(&ack).map(|()| {
                let ((run, rank), kind) = (ack.about(), ack.kind());
                let reason = ack.reason();
                tracing::info!(%run, rank = rank.get(), kind, reason, "acknowledged");
                self.apply(Event::Ack(ack));
                ONE
            }),
        };
        // A pusher that hung up does not hear what was taken.
        answer.send(taken).ok();
    }

    fn take_collected(&mut self, collected: CollectorEvent) {
        match collected {
            CollectorEvent::Devices(poll, status) => {
                self.own.collectors.insert(status.collector, status);
                self.take_poll(poll);
            }
            CollectorEvent::Xid(device, xid) => {
                tracing::warn!(%device, xid, "xid error");
                self.apply(Event::Xid(device, xid));
            }
            CollectorEvent::DevicePods(pods, dropped, status) => {
                self.own.collectors.insert(status.collector, status);
                self.own.dropped.pods += dropped;
                self.apply(Event::DevicePods(pods));
            }
        }
    }

    fn take_poll(&mut self, poll: GpuPoll) {
        self.own.dropped.processes += poll.processes_dropped;
        self.own.dropped.devices += poll.devices_dropped;
        if poll.is_released {
            self.apply(Event::GpuReleased);
        }
        // What failed comes first: a device that answers beside it shows that NVML is up.
        for gone in poll.unavailable {
            self.apply(Event::GpuUnavailable(gone));
        }
        for sample in poll.samples {
            self.apply(Event::Gpu(sample));
        }
    }

    fn apply(&mut self, event: Event) {
        let now = self.clock.now();
        for transition in self.engine.apply(event, now) {
            log(&transition);
            let is_raised = transition.state == TransitionState::Raised;
            if is_raised && transition.kind == CREEP_CONFIRMED.kind {
                self.snapshots.creeps(&transition.run, transition.rank, now);
            }
        }
    }

    fn publish(&self, inbox_depth: usize) -> Arc<Status> {
        let mut own = self.own.status(inbox_depth, &self.engine);
        own.snapshots = self.snapshots.results();
        let mut status = self.engine.status(self.clock.now(), own);
        status.snapshots =
            self.snapshots.iter().map(|s| snapshot_status(&self.engine, s)).collect();
        let status = Arc::new(status);
        self.publisher.send_replace(Arc::clone(&status));
        status
    }
}

/// What summaries are made of.
fn known<'a>(engine: &'a Engine, snapshots: &Snapshots, now: Uptime) -> SummarySource<'a> {
    let snapshots = snapshots.iter().map(|listed| snapshot_status(engine, listed)).collect();
    SummarySource { engine, snapshots, now }
}

fn snapshot_status(engine: &Engine, listed: &Listed) -> SnapshotStatus {
    let Listed { report, since } = listed;
    let (path, bytes, error) = match &report.outcome {
        Outcome::Written { path, bytes } => (Some(path), *bytes, None),
        Outcome::Failed { error } => (None, None, Some(error)),
        Outcome::Waiting | Outcome::Unanswered => (None, None, None),
    };
    SnapshotStatus {
        run: report.run.clone(),
        rank: report.rank,
        reason: report.reason.as_label(),
        outcome: report.outcome.as_label(),
        since: engine.unix_time(*since),
        step: report.step,
        path: path.map(ToString::to_string),
        bytes,
        error: error.map(ToString::to_string),
    }
}

/// What is said to a delivery of one thing that asks for nothing.
const ONE: Receipt = Receipt { n_records: 1, asks: Vec::new() };

/// The ranks of a batch; one may stand there twice.
fn ranks_of(batch: &[StepSample]) -> Vec<(Run, Rank)> {
    let mut ranks: Vec<(Run, Rank)> = Vec::new();
    for sample in batch {
        if ranks.last().is_none_or(|(run, rank)| *run != sample.run || *rank != sample.rank) {
            ranks.push((sample.run.clone(), sample.rank));
        }
    }
    ranks
}

fn log(transition: &Transition) {
    let Transition { run, rank, kind, severity, .. } = transition;
    let (rank, severity) = (rank.get(), severity.as_label());
    match transition.state {
        TransitionState::Raised => {
            let evidence = wording::sentence(&transition.evidence);
            tracing::warn!(%run, rank, kind, severity, %evidence, "raised");
        }
        TransitionState::Cleared => tracing::info!(%run, rank, kind, severity, "cleared"),
    }
}
