//! The composition root of `serve` and `demo`: the channels, the tasks and how they stop. Only this room spawns and
//! reads the clock.

mod clock;
pub mod collectors;
mod engine_task;
mod state_file;
mod summary_files;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::analysis::config::EngineConfig;
use crate::analysis::engine::Engine;
use crate::analysis::saved::SavedState;
use crate::analysis::status::Status;
use crate::app::clock::Clock;
use crate::app::collectors::{Collected, GpuSource, GpuTask, ask_kubelet};
use crate::app::engine_task::{DropCounts, EngineTask, ExporterFigures, Requests};
use crate::app::state_file::{StateFile, read_state};
use crate::app::summary_files::Summaries;
use crate::config::settings::{NvmlSettings, Settings};
use crate::input::owner::kubelet::Kubelet;
use crate::input::push::http;
use crate::input::push::inbox::{Inbox, Releases};
use crate::net::server::{Listener, ServerCounts, serve as serve_http};
use crate::output::otlp::{self, Export, ExportCounts};
use crate::output::web;
use crate::output::web::StatusSource;

/// How many findings of collectors wait for the engine.
const COLLECTED_CAPACITY: usize = 4;

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
        let saved = settings
            .state_file
            .as_deref()
            .and_then(|path| read_state(path, settings.engine.ranks_max));
        let clock = Clock::start(saved.as_ref());
        let (push_counts, web_counts) = <(Arc<ServerCounts>, Arc<ServerCounts>)>::default();
        let (inbox, offers) = Inbox::new();
        let (publisher, latest) = watch::channel(Arc::default());
        let (source, requests, summary_requests) = StatusSource::new(latest.clone());
        let (stop_push, push_stopped) = watch::channel(false);
        let (stop_web, web_stopped) = watch::channel(false);
        let (collect, collected) = mpsc::channel(COLLECTED_CAPACITY);
        let (releases, release_requests) = Releases::new();

        let (web, web_addresses) = listen("web", &settings.web_addresses).await?;
        let (mut push, push_addresses) = listen("push", &settings.push_addresses).await?;
        if let Some((path, mode)) = &settings.push_socket {
            push.push(bind_socket(path, *mode).await?);
        }
        let addresses = Addresses { web: web_addresses, push: push_addresses };
        let export_counts = Arc::<ExportCounts>::default();
        let export = start_export(settings.otlp, latest.clone(), &export_counts).await?;

        let exporter = ExporterFigures {
            push: inbox.counts(),
            servers: [("push", Arc::clone(&push_counts)), ("web", Arc::clone(&web_counts))],
            export: export.is_some().then_some(export_counts),
            collectors: BTreeMap::new(),
            dropped: DropCounts::default(),
            process: Vec::new(),
            series: 0,
        };
        let config = EngineConfig { captures: settings.snapshots, ..settings.engine };
        let engine = engine_of(config, saved, clock);
        let state = settings.state_file.map(StateFile::new);
        let summaries = Summaries::new(settings.summary_dir);
        let (pushed_devices, wanted) = watch::channel(BTreeSet::new());
        let task =
            EngineTask { engine, clock, publisher, pushed_devices, exporter, state, summaries };
        let requests = Requests { status: requests, summary: summary_requests };

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
        app.engine.spawn(task.run(offers, requests, collected));
        let releases = (settings.nvml.is_some() && gpu.is_some()).then_some(releases);
        let clock = Arc::new(move || clock.now());
        let push_router = http::router(settings.push, inbox, releases, clock);
        let door = (push_counts, push_stopped.clone());
        spawn_servers(&mut app.push_servers, push, &push_router, &door);
        let push_url = push_url(&addresses, app.socket.as_deref());
        let site = web::Config { telemetry_path: settings.telemetry_path, push_url };
        let web_router = web::router(&site, source, push_stopped);
        spawn_servers(&mut app.web_servers, web, &web_router, &(web_counts, web_stopped));
        if let (Some(nvml), Some(source)) = (settings.nvml, gpu) {
            spawn_collectors(&mut app.gpu, &nvml, &collect)?;
            let task = GpuTask::start(nvml, source, wanted, (collect, release_requests))?;
            app.gpu.spawn(task.run());
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

async fn start_export(
    otlp: Option<otlp::Config>,
    latest: watch::Receiver<Arc<Status>>,
    counts: &Arc<ExportCounts>,
) -> anyhow::Result<Option<Export>> {
    let Some(otlp) = otlp else { return Ok(None) };
    let otlp = otlp::Config { instance: instance(), ..otlp };
    let counts = Arc::clone(counts);
    let starting = move || Export::start(&otlp, &latest, &counts);
    let export = tokio::task::spawn_blocking(starting).await?;
    Ok(Some(export.context("OTLP export cannot be set up")?))
}

/// What tells this exporter from others: the host (in Kubernetes the pod) and the process.
fn instance() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), std::process::id())
}

/// Goes on where an earlier exporter stood, or begins anew.
fn engine_of(config: EngineConfig, saved: Option<SavedState>, clock: Clock) -> Engine {
    match saved {
        Some(saved) => Engine::resume(config, saved, clock.now()),
        None => Engine::new(config, clock.started_unix),
    }
}

/// Where the page says that pushes are taken.
fn push_url(addresses: &Addresses, socket: Option<&Path>) -> String {
    match (addresses.push.first(), socket) {
        (Some(address), _) => format!("http://{address}"),
        (None, Some(socket)) => format!("unix:{}", socket.display()),
        (None, None) => String::new(),
    }
}

/// What is asked beside the devices themselves.
fn spawn_collectors(
    tasks: &mut Tasks,
    nvml: &NvmlSettings,
    collect: &mpsc::Sender<Collected>,
) -> anyhow::Result<()> {
    if let Some(socket) = &nvml.kubelet_socket {
        let kubelet = Kubelet::new(socket)?;
        tasks.spawn(ask_kubelet(kubelet, nvml.interval, collect.clone()));
    }
    Ok(())
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
