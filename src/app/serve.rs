//! The composition of `serve` and `demo`: creates the channels and tasks and connects them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::analysis::captures::CaptureSettings;
use crate::analysis::config::EngineConfig;
use crate::analysis::engine::Engine;
use crate::analysis::saved::SavedState;
use crate::analysis::status::Status;
use crate::app::clock::Clock;
use crate::app::collectors::analyses::AnalysisQueue;
use crate::app::collectors::event::CollectorEvent;
use crate::app::collectors::kubelet::{OwnPod, ask_kubelet};
use crate::app::collectors::nvml::{GpuChannels, GpuSource, GpuTask};
use crate::app::engine_task::{DropCounts, EngineTask, ExporterFigures, Requests};
use crate::app::listen::{Addresses, PUSH, WEB, bind_socket, listen};
use crate::app::notices::Notices;
use crate::app::startup::Startup;
use crate::app::state_file::{StateFile, read_state};
use crate::app::stop::{App, Signals, Tasks};
use crate::app::summary_files::Summaries;
use crate::app::summary_folders::SummaryFolders;
use crate::config::keys;
use crate::config::settings::{NvmlSettings, Settings};
use crate::input::owner::kubelet::Kubelet;
use crate::input::push::http;
use crate::input::push::inbox::{Inbox, PUSH_SECONDS_BOUNDS, ReleaseRequest, Releases};
use crate::model::ids::GpuUuid;
use crate::net::server::{Listener, ServerCounts, serve as serve_http};
use crate::output::otlp::config::OtlpConfig;
use crate::output::otlp::delivery::ExportCounts;
use crate::output::otlp::export::Export;
use crate::output::web::{self, StatusSource, WebConfig};

/// Maximum number of collector events that wait for the engine.
const COLLECTED_CAPACITY: usize = 4;

/// Runs the exporter until a signal arrives or `beside`, which starts once the exporter listens, ends. A second
/// signal aborts. `notices` get what a person at a terminal would want to know.
///
/// # Errors
/// A socket cannot be bound, OTLP cannot be set up, a task died, `beside` failed, or a second signal arrived.
pub fn run<F: Future<Output = anyhow::Result<()>>>(
    settings: Settings,
    gpu: Option<GpuSource>,
    notices: Notices,
    beside: impl FnOnce(Addresses) -> F,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let signals = Signals::listen()?;
        let (app, addresses) = start(settings, gpu, notices).await?;
        tracing::info!("started");
        app.until_stopped(signals, beside(addresses)).await
    });
    // A hanging call of the driver blocks a thread of its own, which ends with the process.
    runtime.shutdown_background();
    result
}

/// What the exporter listens on.
struct Listeners {
    web: Vec<Listener>,
    push: Vec<Listener>,
    addresses: Addresses,
}

impl Listeners {
    async fn bind(settings: &Settings, startup: &mut Startup) -> anyhow::Result<Self> {
        let (web, web_addresses) = listen(WEB, &settings.web_addresses, startup).await?;
        let (mut push, push_addresses) =
            listen(PUSH, &settings.push_addresses, startup).await?;
        let mut socket = None;
        if let Some(of_setting) = &settings.push_socket {
            let bound = bind_socket(of_setting).await;
            if let Some(bound) = startup.started(keys::PUSH_SOCKET, bound)? {
                push.push(bound);
                socket = Some(of_setting.path.clone());
            }
        }
        let addresses = Addresses {
            web: web_addresses,
            push: push_addresses,
            socket,
            problems: Vec::new(),
        };
        Ok(Self { web, push, addresses })
    }
}

/// Starts the exporter. Returns its tasks, and the addresses that it listens on.
async fn start(
    settings: Settings,
    gpu: Option<GpuSource>,
    notices: Notices,
) -> anyhow::Result<(App, Addresses)> {
    let mut startup = Startup::new(settings.start, &settings.problems);
    settings.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let state_file = settings.state_file.as_deref();
    let saved = state_file.and_then(|path| read_state(path, settings.engine.ranks_max));
    let clock = Clock::start(saved.as_ref());
    let (push_counts, web_counts) = <(Arc<ServerCounts>, Arc<ServerCounts>)>::default();
    let (inbox, offers) = Inbox::new();
    let (publisher, latest) = watch::channel(Arc::default());
    let (source, requests, summary_requests) = StatusSource::new(latest.clone());
    let [(stop_push, push_stopped), (stop_web, web_stopped)] =
        [watch::channel(false), watch::channel(false)];
    let (releases, release_requests) = Releases::new();

    let Listeners { web, push, mut addresses } =
        Listeners::bind(&settings, &mut startup).await?;
    let export_counts = Arc::<ExportCounts>::default();
    let export = start_export(settings.otlp, latest, &export_counts, &inbox).await;
    let export = startup.started(keys::OTLP_ENDPOINT, export)?.flatten();
    let (pushed_devices, wanted) = watch::channel(BTreeSet::new());
    let releases = (settings.nvml.is_some() && gpu.is_some()).then_some(releases);
    let devices = settings.nvml.zip(gpu);
    let inputs = DeviceInputs { pushed_devices: wanted, releases: release_requests };
    let (collect, collected) = mpsc::channel(COLLECTED_CAPACITY);
    let analyses = start_analyses(&settings.snapshots, &collect, &mut startup)?;
    let gpu = start_collectors(devices, inputs, collect, &mut startup)?;
    addresses.problems = [settings.warnings, startup.sentences()].concat();

    let export_counts = export.is_some().then_some(export_counts);
    let exporter = figures(&inbox, [&push_counts, &web_counts], export_counts, startup);
    let config = EngineConfig { captures: settings.snapshots, ..settings.engine };
    let engine = engine_of(config, saved, clock);
    let (awaited_scrape, scrape_awaited) = watch::channel(engine.awaits_scrape());
    let folders = SummaryFolders::new(settings.summary_dir, settings.summary_launches_max);
    let task = EngineTask {
        engine,
        clock,
        publisher,
        pushed_devices,
        awaited_scrape,
        exporter,
        state: settings.state_file.map(StateFile::new),
        summaries: Summaries::new(folders, settings.termination_message, notices.clone()),
        notices,
        analyses,
    };
    let requests = Requests { status: requests, summary: summary_requests };

    let mut app = App {
        linger: settings.linger,
        scrape_awaited,
        export,
        socket: addresses.socket.clone(),
        stop_push,
        stop_web,
        push_servers: JoinSet::new(),
        web_servers: JoinSet::new(),
        engine: JoinSet::new(),
        gpu,
    };
    app.engine.spawn(task.run(offers, requests, collected));
    let clock = Arc::new(move || clock.now());
    let router = http::router(settings.push, inbox, releases, clock);
    Servers { router, counts: push_counts, stop: push_stopped.clone() }
        .spawn(push, &mut app.push_servers);
    let push_url = push_url(&addresses);
    let site = WebConfig { telemetry_path: settings.telemetry_path, push_url };
    let router = web::router(&site, source, push_stopped);
    Servers { router, counts: web_counts, stop: web_stopped }.spawn(web, &mut app.web_servers);
    Ok((app, addresses))
}

/// The figures of the exporter itself, at their start.
fn figures(
    inbox: &Inbox,
    servers: [&Arc<ServerCounts>; 2],
    export: Option<Arc<ExportCounts>>,
    startup: Startup,
) -> ExporterFigures {
    let [push, web] = servers.map(Arc::clone);
    ExporterFigures {
        push: inbox.counts(),
        servers: [("push", push), ("web", web)],
        export,
        collectors: BTreeMap::new(),
        dropped: DropCounts::default(),
        devices_hint: None,
        process: Vec::new(),
        series: 0,
        startup_problems: startup.into_settings(),
    }
}

async fn start_export(
    otlp: Option<OtlpConfig>,
    latest: watch::Receiver<Arc<Status>>,
    counts: &Arc<ExportCounts>,
    inbox: &Inbox,
) -> anyhow::Result<Option<Export>> {
    let Some(otlp) = otlp else { return Ok(None) };
    let otlp = OtlpConfig { instance: instance(), ..otlp };
    let counts = Arc::clone(counts);
    let starting = move || Export::start(&otlp, &latest, &counts, &PUSH_SECONDS_BOUNDS);
    let export = tokio::task::spawn_blocking(starting).await?;
    let export = export.context("OTLP export cannot be set up")?;
    inbox.counts().record_to(export.recorder());
    Ok(Some(export))
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
fn push_url(addresses: &Addresses) -> String {
    match (addresses.push.first(), &addresses.socket) {
        (Some(address), _) => format!("http://{address}"),
        (None, Some(socket)) => format!("unix:{}", socket.display()),
        (None, None) => String::new(),
    }
}

/// Starts the analysis of snapshots; `None` where none are read.
fn start_analyses(
    settings: &CaptureSettings,
    collect: &mpsc::Sender<CollectorEvent>,
    startup: &mut Startup,
) -> anyhow::Result<Option<AnalysisQueue>> {
    let Some(directory) = &settings.read_directory else { return Ok(None) };
    let started = AnalysisQueue::start(directory.clone(), collect.clone());
    startup.started(keys::SNAPSHOT_READ_DIRECTORY, started.map_err(anyhow::Error::from))
}

/// What the collector of devices hears from the engine and from the push endpoint.
struct DeviceInputs {
    pushed_devices: watch::Receiver<BTreeSet<GpuUuid>>,
    releases: mpsc::Receiver<ReleaseRequest>,
}

/// Starts the collectors of devices. Returns their tasks.
fn start_collectors(
    devices: Option<(NvmlSettings, GpuSource)>,
    inputs: DeviceInputs,
    collect: mpsc::Sender<CollectorEvent>,
    startup: &mut Startup,
) -> anyhow::Result<Tasks> {
    let mut tasks = JoinSet::new();
    let Some((nvml, source)) = devices else { return Ok(tasks) };
    let (devices, pod_devices) = watch::channel(None);
    if let Some(socket) = &nvml.kubelet_socket {
        let kubelet = Kubelet::new(socket).map_err(anyhow::Error::from);
        if let Some(kubelet) = startup.started(keys::KUBELET_SOCKET, kubelet)? {
            let own = nvml.kubelet_pod.clone().map(|name| OwnPod { name, devices });
            tasks.spawn(ask_kubelet(kubelet, own, nvml.interval, collect.clone()));
        }
    }
    let DeviceInputs { pushed_devices, releases } = inputs;
    let channels = GpuChannels { pushed_devices, pod_devices, collected: collect, releases };
    let task = GpuTask::start(nvml, source, channels).map_err(anyhow::Error::from);
    if let Some(task) = startup.started(keys::NVML_LIBRARY, task)? {
        tasks.spawn(task.run());
    }
    Ok(tasks)
}

/// A router for several listeners, which share their counts and their stop.
struct Servers {
    router: axum::Router,
    counts: Arc<ServerCounts>,
    stop: watch::Receiver<bool>,
}

impl Servers {
    fn spawn(self, listeners: Vec<Listener>, tasks: &mut Tasks) {
        let Self { router, counts, mut stop } = self;
        if listeners.is_empty() {
            // The router holds a channel to the engine, which ends with the last one.
            tasks.spawn(async move {
                stop.wait_for(|is_stopped| *is_stopped).await.ok();
                drop(router);
                Ok(())
            });
            return;
        }
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
