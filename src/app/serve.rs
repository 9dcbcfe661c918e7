//! The composition of `serve` and `demo`: creates the channels and tasks and connects them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::analysis::config::EngineConfig;
use crate::analysis::engine::Engine;
use crate::analysis::saved::SavedState;
use crate::analysis::status::Status;
use crate::app::clock::Clock;
use crate::app::collectors::event::CollectorEvent;
use crate::app::collectors::kubelet::ask_kubelet;
use crate::app::collectors::nvml::{GpuChannels, GpuSource, GpuTask};
use crate::app::engine_task::{DropCounts, EngineTask, ExporterFigures, Requests};
use crate::app::listen::{Addresses, bind_socket, listen};
use crate::app::state_file::{StateFile, read_state};
use crate::app::stop::{App, Signals, Tasks};
use crate::app::summary_files::Summaries;
use crate::config::settings::{NvmlSettings, Settings};
use crate::input::owner::kubelet::Kubelet;
use crate::input::push::http;
use crate::input::push::inbox::{Inbox, Releases};
use crate::net::server::{Listener, ServerCounts, serve as serve_http};
use crate::output::otlp::{Export, ExportCounts, OtlpConfig};
use crate::output::web::{self, StatusSource, WebConfig};

/// Maximum number of collector events that wait for the engine.
const COLLECTED_CAPACITY: usize = 4;

/// Runs the exporter until a signal arrives or `beside`, which starts once the exporter listens, ends. A second
/// signal aborts.
///
/// # Errors
/// A socket cannot be bound, OTLP cannot be set up, a task died, `beside` failed, or a second signal arrived.
pub fn run<F: Future<Output = anyhow::Result<()>>>(
    settings: Settings,
    gpu: Option<GpuSource>,
    beside: impl FnOnce(Addresses) -> F,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let signals = Signals::listen()?;
        let (app, addresses) = start(settings, gpu).await?;
        app.until_stopped(signals, beside(addresses)).await
    });
    // A hanging call of the driver blocks a thread of its own, which ends with the process.
    runtime.shutdown_background();
    result
}

/// Starts the exporter. Returns its tasks, and the addresses that it listens on.
async fn start(settings: Settings, gpu: Option<GpuSource>) -> anyhow::Result<(App, Addresses)> {
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
    if let Some(socket) = &settings.push_socket {
        push.push(bind_socket(socket).await?);
    }
    let addresses = Addresses { web: web_addresses, push: push_addresses };
    let export_counts = Arc::<ExportCounts>::default();
    let export = start_export(settings.otlp, latest.clone(), &export_counts).await?;

    let exporter =
        figures(&inbox, [&push_counts, &web_counts], export.is_some().then_some(export_counts));
    let config = EngineConfig { captures: settings.snapshots, ..settings.engine };
    let engine = engine_of(config, saved, clock);
    let (pushed_devices, wanted) = watch::channel(BTreeSet::new());
    let (awaited_scrape, scrape_awaited) = watch::channel(engine.awaits_scrape());
    let task = EngineTask {
        engine,
        clock,
        publisher,
        pushed_devices,
        awaited_scrape,
        exporter,
        state: settings.state_file.map(StateFile::new),
        summaries: Summaries::new(settings.summary_dir),
    };
    let requests = Requests { status: requests, summary: summary_requests };

    let mut app = App {
        linger: settings.linger,
        scrape_awaited,
        export,
        socket: settings.push_socket.map(|socket| socket.path),
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
    let router = http::router(settings.push, inbox, releases, clock);
    Servers { router, counts: push_counts, stop: push_stopped.clone() }
        .spawn(push, &mut app.push_servers);
    let push_url = push_url(&addresses, app.socket.as_deref());
    let site = WebConfig { telemetry_path: settings.telemetry_path, push_url };
    let router = web::router(&site, source, push_stopped);
    Servers { router, counts: web_counts, stop: web_stopped }.spawn(web, &mut app.web_servers);
    if let (Some(nvml), Some(source)) = (settings.nvml, gpu) {
        spawn_collectors(&mut app.gpu, &nvml, &collect)?;
        let releases = release_requests;
        let channels = GpuChannels { pushed_devices: wanted, collected: collect, releases };
        app.gpu.spawn(GpuTask::start(nvml, source, channels)?.run());
    }
    Ok((app, addresses))
}

/// The figures of the exporter itself, at their start.
fn figures(
    inbox: &Inbox,
    servers: [&Arc<ServerCounts>; 2],
    export: Option<Arc<ExportCounts>>,
) -> ExporterFigures {
    let [push, web] = servers.map(Arc::clone);
    ExporterFigures {
        push: inbox.counts(),
        servers: [("push", push), ("web", web)],
        export,
        collectors: BTreeMap::new(),
        dropped: DropCounts::default(),
        process: Vec::new(),
        series: 0,
    }
}

async fn start_export(
    otlp: Option<OtlpConfig>,
    latest: watch::Receiver<Arc<Status>>,
    counts: &Arc<ExportCounts>,
) -> anyhow::Result<Option<Export>> {
    let Some(otlp) = otlp else { return Ok(None) };
    let otlp = OtlpConfig { instance: instance(), ..otlp };
    let counts = Arc::clone(counts);
    let starting = move || Export::start(&otlp, &latest, &counts);
    let export = tokio::task::spawn_blocking(starting).await?;
    Ok(Some(export.context("OTLP export cannot be set up")?))
}

/// Identifies this exporter: the host (in Kubernetes the pod) and the process.
fn instance() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), std::process::id())
}

/// Resumes the state of an earlier exporter, or starts anew.
fn engine_of(config: EngineConfig, saved: Option<SavedState>, clock: Clock) -> Engine {
    let (now, unix) = (clock.now(), Clock::unix_time());
    match saved {
        Some(saved) => {
            let mut engine = Engine::resume(config, saved, now);
            engine.set_clock(now, unix);
            engine
        }
        None => Engine::new(config, unix - now.0.as_secs_f64()),
    }
}

/// The push address that the page shows.
fn push_url(addresses: &Addresses, socket: Option<&Path>) -> String {
    match (addresses.push.first(), socket) {
        (Some(address), _) => format!("http://{address}"),
        (None, Some(socket)) => format!("unix:{}", socket.display()),
        (None, None) => String::new(),
    }
}

/// Starts the collectors apart from NVML.
fn spawn_collectors(
    tasks: &mut Tasks,
    nvml: &NvmlSettings,
    collect: &mpsc::Sender<CollectorEvent>,
) -> anyhow::Result<()> {
    if let Some(socket) = &nvml.kubelet_socket {
        let kubelet = Kubelet::new(socket)?;
        tasks.spawn(ask_kubelet(kubelet, nvml.interval, collect.clone()));
    }
    Ok(())
}

/// A router for several listeners, which share their counts and their stop.
struct Servers {
    router: axum::Router,
    counts: Arc<ServerCounts>,
    stop: watch::Receiver<bool>,
}

impl Servers {
    fn spawn(self, listeners: Vec<Listener>, tasks: &mut Tasks) {
        let Self { router, counts, stop } = self;
        for listener in listeners {
            let serving =
                serve_http(listener, router.clone(), Arc::clone(&counts), stop.clone());
            tasks.spawn(async {
                serving.await;
                Ok(())
            });
        }
    }
}
