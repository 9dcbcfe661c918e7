//! The one task that owns the engine: it takes what comes in, and publishes what comes out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use tokio::sync::{mpsc, watch};

use crate::analysis::diagnosis::wording;
use crate::analysis::engine::{Engine, Event, Transition, TransitionState};
use crate::analysis::sample::Rank;
use crate::analysis::status::{CollectorStatus, ExporterStatus, Status};
use crate::app::clock::Clock;
use crate::app::gpu::GpuRound;
use crate::app::state_file::StateFile;
use crate::app::summaries::{self, Summaries};
use crate::input::inbox::{Delivery, Offer, PushCounts};
use crate::input::nvml::GpuPoll;
use crate::input::wire::RunEnd;
use crate::metrics;
use crate::output::http::{Request, SummaryRequest};
use crate::output::otlp::ExportCounts;
use crate::server::ServerCounts;

/// How often time passes for the engine, and a status is published for those that do not ask for one.
const TICK: Duration = Duration::from_secs(1);

/// What the exporter knows of itself.
pub(super) struct Own {
    pub(super) push: Arc<PushCounts>,
    pub(super) servers: [(&'static str, Arc<ServerCounts>); 2],
    pub(super) export: Option<Arc<ExportCounts>>,
    pub(super) collector: Option<CollectorStatus>,
    pub(super) processes_dropped: u64,
    pub(super) process: Vec<(String, f64)>,
    pub(super) series: usize,
}

impl Own {
    fn status(&self, inbox_depth: usize, engine: &Engine) -> ExporterStatus {
        let shed = self.servers.iter().map(|(listener, counts)| (*listener, counts.shed()));
        ExporterStatus {
            version: env!("CARGO_PKG_VERSION"),
            pushes: self.push.results(),
            push_seconds: self.push.durations(),
            inbox_depth,
            collectors: self.collector.into_iter().collect(),
            connections_shed: shed.collect(),
            otlp_exports: self
                .export
                .as_ref()
                .map(|counts| counts.results())
                .unwrap_or_default(),
            series: self.series,
            series_dropped: vec![
                ("processes", self.processes_dropped),
                ("processes_judged", engine.processes_dropped()),
                ("ranks", engine.records_dropped()),
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
    pub(super) clock: Clock,
    pub(super) publisher: watch::Sender<Arc<Status>>,
    pub(super) own: Own,
    pub(super) state: Option<StateFile>,
    pub(super) summaries: Summaries,
}

/// What readers ask for.
pub(super) struct Requests {
    pub(super) status: mpsc::Receiver<Request>,
    pub(super) summary: mpsc::Receiver<SummaryRequest>,
}

impl Keeper {
    pub(super) async fn keep(
        mut self,
        mut offers: mpsc::Receiver<Offer>,
        mut requests: Requests,
        mut gpu_rounds: mpsc::Receiver<GpuRound>,
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
                        self.summaries.stop(&self.engine, self.clock.now()).await;
                    }
                }
                Some(request) = requests.summary.recv() => {
                    summaries::answer(&self.engine, request, self.clock.now());
                }
                request = requests.status.recv() => match request {
                    // The reader may have gone; the status is published all the same.
                    Some(request) => drop(request.send(self.publish(offers.len()))),
                    None => break,
                },
                Some(round) = gpu_rounds.recv() => self.take_gpu(round),
                _ = tick.tick() => {
                    self.apply(Event::Tick);
                    self.own.read_process();
                    let status = self.publish(offers.len());
                    self.own.series = metrics::count_series(&status);
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
        self.summaries.keep(&self.engine, present, self.clock.now()).await;
    }

    fn take(&mut self, (delivery, answer): Offer) {
        let taken = match delivery {
            Delivery::Steps(batch) => {
                let now = self.clock.now();
                self.engine.admit(&batch, now).map(|()| {
                    let n_records = batch.len();
                    for sample in batch {
                        self.apply(Event::Step(sample));
                    }
                    n_records
                })
            }
            Delivery::End(run, RunEnd { rank, outcome }) => {
                let shown = rank.map(Rank::get);
                tracing::info!(%run, rank = shown, ?outcome, "ended");
                self.summaries.ended(&run);
                self.apply(Event::End(run, rank));
                Ok(1)
            }
            Delivery::Ack(ack) => self.engine.admit_ack(&ack).map(|()| {
                let ((run, rank), kind) = (ack.about(), ack.kind());
                let reason = ack.reason();
                tracing::info!(%run, rank = rank.get(), kind, reason, "acknowledged");
                self.apply(Event::Ack(ack));
                1
            }),
        };
        // A pusher that hung up does not hear what was taken.
        answer.send(taken).ok();
    }

    fn take_gpu(&mut self, round: GpuRound) {
        let GpuPoll { samples, unavailable, processes_dropped } = round.poll;
        self.own.processes_dropped += processes_dropped;
        self.own.collector = Some(CollectorStatus {
            collector: "nvml",
            duration_seconds: round.took.as_secs_f64(),
            is_success: unavailable.is_empty(),
        });
        // What failed comes first: a device that answers beside it shows that NVML is up.
        for gone in unavailable {
            self.apply(Event::GpuUnavailable(gone));
        }
        for sample in samples {
            self.apply(Event::Gpu(sample));
        }
    }

    fn apply(&mut self, event: Event) {
        self.engine.apply(event, self.clock.now()).iter().for_each(log);
    }

    fn publish(&self, inbox_depth: usize) -> Arc<Status> {
        let own = self.own.status(inbox_depth, &self.engine);
        let status = Arc::new(self.engine.status(self.clock.now(), own));
        self.publisher.send_replace(Arc::clone(&status));
        status
    }
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
