//! The composition root of `serve` and `demo`: the clock, the channels, the tasks and how they stop. Only this file
//! spawns and reads the clock.

use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver as ThreadReceiver, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::analysis::diagnosis::wording;
use crate::analysis::engine::{Engine, Event, Transition, TransitionState};
use crate::analysis::sample::{GpuUnavailable, Rank, Uptime};
use crate::analysis::status::{CollectorStatus, ExporterStatus, Status};
use crate::config::{NvmlSettings, Settings};
use crate::input::inbox::{Delivery, Inbox, Offer, PushCounts};
use crate::input::nvml::{self, GpuPoll, Poller};
use crate::input::wire::RunEnd;
use crate::metrics;
use crate::output::http::{Request, StatusSource};
use crate::output::otlp::{self, Export, ExportCounts};
use crate::server::{Listener, ServerCounts, serve as serve_http};
use crate::{input, output};

/// How often time passes for the engine, and a status is published for those that do not ask for one.
const TICK: Duration = Duration::from_secs(1);
/// The longest pause between two rounds of an NVML that does not answer.
const GPU_BACKOFF_MAX: Duration = Duration::from_mins(1);
/// How many readings of devices wait for the engine.
const GPU_POLLS_CAPACITY: usize = 4;
/// The stack of the thread that asks NVML, in bytes.
const GPU_THREAD_STACK_BYTES: usize = 512 * 1024;
/// How many processes of a device are read; the engine tells fewer apart.
const GPU_PROCESSES_MAX: usize = 4096;

/// What reads the devices: NVML, or a simulation in its place. It may block for as long as a driver does.
pub type GpuSource = Box<dyn FnMut() -> GpuPoll + Send>;

/// NVML as the settings say, if they ask for it.
pub fn nvml_source(settings: &Settings) -> Option<GpuSource> {
    let NvmlSettings { library, .. } = settings.nvml.clone()?;
    let config = nvml::Config {
        library,
        procfs: PathBuf::from("/proc"),
        processes_max: GPU_PROCESSES_MAX,
    };
    let mut poller = Poller::new(config);
    Some(Box::new(move || poller.poll()))
}

/// Where the exporter listens.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// The page and the metrics.
    pub web: Vec<SocketAddr>,
    /// Pushes over TCP.
    pub push: Vec<SocketAddr>,
}

/// Serves until a signal ends it, or until `beside`, which begins once the exporter listens, ends; a second signal
/// aborts.
///
/// # Errors
/// An address or socket cannot be had, OTLP cannot be set up, a task died, `beside` failed, or a second signal came.
pub fn run<F: Future<Output = anyhow::Result<()>>>(
    settings: Settings,
    gpu: Option<GpuSource>,
    beside: impl FnOnce(Addresses) -> F,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let signals = Signals::listen()?;
        let (app, addresses) = App::start(settings, gpu).await?;
        app.until_stopped(signals, beside(addresses)).await
    });
    // A driver call that hangs holds a thread of its own, which ends with the process.
    runtime.shutdown_background();
    result
}

/// What asks the program to stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

type Tasks = JoinSet<anyhow::Result<()>>;

/// The running exporter.
struct App {
    linger: Duration,
    export: Option<Export>,
    socket: Option<PathBuf>,
    stop_push: watch::Sender<bool>,
    stop_web: watch::Sender<bool>,
    push_servers: Tasks,
    web_servers: Tasks,
    // The engine ends when neither a push server nor a web server is left.
    engine: Tasks,
    gpu: Tasks,
}

impl App {
    async fn start(
        settings: Settings,
        gpu: Option<GpuSource>,
    ) -> anyhow::Result<(Self, Addresses)> {
        let clock = Clock::start();
        let push_counts = Arc::<ServerCounts>::default();
        let web_counts = Arc::<ServerCounts>::default();
        let (inbox, offers) = Inbox::new();
        let (publisher, latest) = watch::channel(Arc::default());
        let (source, requests) = StatusSource::new(latest.clone());
        let (stop_push, push_stopped) = watch::channel(false);
        let (stop_web, web_stopped) = watch::channel(false);
        let (polls, gpu_polls) = mpsc::channel(GPU_POLLS_CAPACITY);

        let (web, web_addresses) = listen("web", &settings.web_addresses).await?;
        let (mut push, push_addresses) = listen("push", &settings.push_addresses).await?;
        if let Some((path, mode)) = &settings.push_socket {
            push.push(bind_socket(path, *mode).await?);
        }
        let addresses = Addresses { web: web_addresses, push: push_addresses };

        let export_counts = Arc::<ExportCounts>::default();
        let export = match settings.otlp {
            Some(otlp) => {
                let otlp = otlp::Config { instance: instance(), ..otlp };
                let counts = Arc::clone(&export_counts);
                let starting = move || Export::start(&otlp, &latest, &counts);
                let export = tokio::task::spawn_blocking(starting).await?;
                Some(export.context("OTLP export cannot be set up")?)
            }
            None => None,
        };

        let own = Own {
            push: inbox.counts(),
            servers: [("push", Arc::clone(&push_counts)), ("web", Arc::clone(&web_counts))],
            export: export.is_some().then_some(export_counts),
            collector: None,
            processes_dropped: 0,
            process: Vec::new(),
            series: 0,
        };
        let engine = Engine::new(settings.engine, clock.started_unix);
        let keeper = Keeper { engine, clock, publisher, own };

        let mut app = Self {
            linger: settings.linger,
            export,
            socket: settings.push_socket.map(|(path, _)| path),
            stop_push,
            stop_web,
            push_servers: JoinSet::new(),
            web_servers: JoinSet::new(),
            engine: JoinSet::new(),
            gpu: JoinSet::new(),
        };
        app.engine.spawn(keeper.keep(offers, requests, gpu_polls));
        let push_router =
            input::http::router(settings.push, inbox, Arc::new(move || clock.now()));
        let door = (push_counts, push_stopped.clone());
        spawn_servers(&mut app.push_servers, push, &push_router, &door);
        let push_url = match (addresses.push.first(), &app.socket) {
            (Some(address), _) => format!("http://{address}"),
            (None, Some(socket)) => format!("unix:{}", socket.display()),
            (None, None) => String::new(),
        };
        let site = output::http::Config { telemetry_path: settings.telemetry_path, push_url };
        let web_router = output::http::router(&site, source, push_stopped);
        spawn_servers(&mut app.web_servers, web, &web_router, &(web_counts, web_stopped));
        if let (Some(nvml), Some(source)) = (settings.nvml, gpu) {
            app.gpu.spawn(poll_gpu(nvml, source, polls));
        }
        Ok((app, addresses))
    }

    async fn until_stopped(
        mut self,
        mut signals: Signals,
        beside: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        tokio::select! {
            () = signals.next() => tracing::info!("stopping"),
            result = beside => result?,
            died = self.died() => return died,
        }
        tokio::select! {
            result = self.wind_down() => result,
            () = signals.next() => anyhow::bail!("aborted by a second signal"),
        }
    }

    /// Waits for a task that ends although nobody asked it to.
    async fn died(&mut self) -> anyhow::Result<()> {
        let joined = tokio::select! {
            Some(joined) = self.push_servers.join_next() => joined,
            Some(joined) = self.web_servers.join_next() => joined,
            Some(joined) = self.engine.join_next() => joined,
            Some(joined) = self.gpu.join_next() => joined,
        };
        joined.context("a task died")??;
        anyhow::bail!("a task ended before it was asked to")
    }

    /// Stops from the inside out: pushes, then what they brought, then those who read it.
    async fn wind_down(mut self) -> anyhow::Result<()> {
        self.stop_push.send_replace(true);
        while let Some(joined) = self.push_servers.join_next().await {
            joined??;
        }
        if let Some(socket) = &self.socket
            && let Err(error) = std::fs::remove_file(socket)
        {
            // The last scrape and the last export matter more than a file.
            tracing::warn!(%error, socket = %socket.display(), "socket not removed");
        }
        tokio::time::sleep(self.linger).await;
        self.stop_web.send_replace(true);
        while let Some(joined) = self.web_servers.join_next().await {
            joined??;
        }
        while let Some(joined) = self.engine.join_next().await {
            joined??;
        }
        if let Some(export) = self.export.take() {
            // It blocks, and over gRPC it needs this runtime meanwhile.
            tokio::task::spawn_blocking(|| export.stop()).await?;
        }
        Ok(())
    }
}

/// What tells this exporter from others: the host (in Kubernetes the pod) and the process.
fn instance() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), std::process::id())
}

fn spawn_servers(
    tasks: &mut Tasks,
    listeners: Vec<Listener>,
    router: &axum::Router,
    (counts, stopped): &(Arc<ServerCounts>, watch::Receiver<bool>),
) {
    for listener in listeners {
        let serving = serve_http(listener, router.clone(), Arc::clone(counts), stopped.clone());
        tasks.spawn(async {
            serving.await;
            Ok(())
        });
    }
}

async fn listen(
    what: &'static str,
    addresses: &[SocketAddr],
) -> anyhow::Result<(Vec<Listener>, Vec<SocketAddr>)> {
    let mut listeners = Vec::new();
    let mut bound = Vec::new();
    for address in addresses {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address} ({what})"))?;
        let address = listener.local_addr()?;
        tracing::info!(%address, what, "listening");
        listeners.push(Listener::Tcp(listener));
        bound.push(address);
    }
    Ok((listeners, bound))
}

/// Binds a Unix socket in place of one that nobody listens on any more.
async fn bind_socket(path: &Path, mode: u32) -> anyhow::Result<Listener> {
    let shown = path.display();
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        anyhow::ensure!(metadata.file_type().is_socket(), "{shown} exists and is no socket");
        anyhow::ensure!(
            UnixStream::connect(path).await.is_err(),
            "another process listens on {shown}"
        );
        std::fs::remove_file(path).with_context(|| format!("cannot replace {shown}"))?;
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen on {shown} (push)"))?;
    std::fs::set_permissions(path, Permissions::from_mode(mode))
        .with_context(|| format!("cannot set the mode of {shown}"))?;
    tracing::info!(address = %shown, what = "push", "listening");
    Ok(Listener::Unix(listener))
}

/// Reads the time.
#[derive(Clone, Copy, Debug)]
struct Clock {
    started: Instant,
    started_unix: f64,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this is app.rs")]
    fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), started_unix: unix.as_secs_f64() }
    }

    fn now(self) -> Uptime {
        Uptime(self.started.elapsed())
    }
}

/// What the exporter knows of itself.
struct Own {
    push: Arc<PushCounts>,
    servers: [(&'static str, Arc<ServerCounts>); 2],
    export: Option<Arc<ExportCounts>>,
    collector: Option<CollectorStatus>,
    processes_dropped: u64,
    process: Vec<(String, f64)>,
    series: usize,
}

impl Own {
    fn status(&self, inbox_depth: usize, records_dropped: u64) -> ExporterStatus {
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
                ("ranks", records_dropped),
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
struct Keeper {
    engine: Engine,
    clock: Clock,
    publisher: watch::Sender<Arc<Status>>,
    own: Own,
}

impl Keeper {
    async fn keep(
        mut self,
        mut offers: mpsc::Receiver<Offer>,
        mut requests: mpsc::Receiver<Request>,
        mut gpu_rounds: mpsc::Receiver<GpuRound>,
    ) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(TICK);
        let mut is_open = true;
        loop {
            tokio::select! {
                offer = offers.recv(), if is_open => match offer {
                    Some(offer) => self.take(offer),
                    None => is_open = false,
                },
                request = requests.recv() => match request {
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
                }
            }
        }
        self.publish(offers.len());
        Ok(())
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
        let own = self.own.status(inbox_depth, self.engine.records_dropped());
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

/// One round of reading the devices.
struct GpuRound {
    poll: GpuPoll,
    took: Duration,
}

/// Paces the reading of the devices on a thread of its own and bounds the wait for it: a call that hangs is reported,
/// and nothing queues behind it.
async fn poll_gpu(
    settings: NvmlSettings,
    source: GpuSource,
    rounds: mpsc::Sender<GpuRound>,
) -> anyhow::Result<()> {
    let (asks, asked) = sync_channel(1);
    let (answers, mut polls) = mpsc::channel(1);
    std::thread::Builder::new()
        .name("nvml".to_owned())
        .stack_size(GPU_THREAD_STACK_BYTES)
        .spawn(move || read_devices(source, &asked, &answers))?;
    let mut failing = Vec::new();
    let mut pause = settings.interval;
    loop {
        let began = Instant::now();
        asks.send(()).context("the thread that reads the devices died")?;
        let in_time = tokio::time::timeout(settings.timeout, polls.recv()).await;
        let poll = if let Ok(poll) = in_time {
            poll
        } else {
            let poll = timed_out(settings.timeout);
            log_gpu(&mut failing, &poll.unavailable);
            rounds.send(GpuRound { poll, took: began.elapsed() }).await?;
            polls.recv().await
        };
        let poll = poll.context("the thread that reads the devices died")?;
        log_gpu(&mut failing, &poll.unavailable);
        let is_dead = poll.samples.is_empty() && !poll.unavailable.is_empty();
        rounds.send(GpuRound { poll, took: began.elapsed() }).await?;
        pause = if is_dead { (pause * 2).min(GPU_BACKOFF_MAX) } else { settings.interval };
        tokio::time::sleep(pause).await;
    }
}

fn read_devices(
    mut source: GpuSource,
    asked: &ThreadReceiver<()>,
    answers: &mpsc::Sender<GpuPoll>,
) {
    while asked.recv().is_ok() {
        if answers.blocking_send(source()).is_err() {
            return;
        }
    }
}

fn timed_out(timeout: Duration) -> GpuPoll {
    let unavailable = GpuUnavailable {
        device: None,
        code: "timeout",
        message: format!("NVML has not answered for {timeout:?}"),
    };
    GpuPoll { samples: Vec::new(), unavailable: vec![unavailable], processes_dropped: 0 }
}

/// Says what fails when that changes, once.
fn log_gpu(failing: &mut Vec<GpuUnavailable>, unavailable: &[GpuUnavailable]) {
    let is_same =
        |a: &GpuUnavailable, b: &GpuUnavailable| a.device == b.device && a.code == b.code;
    for gone in unavailable {
        if !failing.iter().any(|before| is_same(before, gone)) {
            let device = gone.device.as_ref().map(ToString::to_string);
            tracing::warn!(device, code = gone.code, "NVML: {}", gone.message);
        }
    }
    if unavailable.is_empty() && !failing.is_empty() {
        tracing::info!("NVML answers again");
    }
    failing.clear();
    failing.extend_from_slice(unavailable);
}
