//! The composition of `serve` and `demo`: creates the channels and tasks and connects them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::config::keys;
use crate::config::settings::{NvmlSettings, PushSocket, Settings, StartMode};
use crate::config::web_file::WebFile;
use crate::exporter::access::{Access, AccessSource};
use crate::exporter::clock::Clock;
use crate::exporter::collectors::collected::{Collected, DropCounts};
use crate::exporter::collectors::kubelet::{OwnPod, ask_kubelet};
use crate::exporter::collectors::kubepods::read_kubepods;
use crate::exporter::collectors::nvml::{GpuChannels, GpuSource, GpuTask};
use crate::exporter::collectors::snapshot_analysis::AnalysisQueue;
use crate::exporter::engine_task::{EngineTask, Requests};
use crate::exporter::listen::{
    Addresses, PUSH, SocketFile, WEB, bind_socket, listen, may_bind, may_listen, opened,
};
use crate::exporter::memory::{fewer_ranks, give_back_early, unmap_code};
use crate::exporter::notices::Notices;
use crate::exporter::oom_kills::OomKills;
use crate::exporter::own_process::OwnProcess;
use crate::exporter::recording::queue;
use crate::exporter::reload::{ReloadedFiles, keep_token};
use crate::exporter::self_metrics::ExporterFigures;
use crate::exporter::startup::Startup;
use crate::exporter::state_file::{ReadState, StateFile, read_state};
use crate::exporter::stop::{App, Awaited, Signals, Tasks};
use crate::exporter::summaries::directory::SummaryFolders;
use crate::exporter::summaries::writer::Summaries;
use crate::input::attribution::kubelet::Kubelet;
use crate::input::attribution::kubepods::Kubepods;
use crate::input::push::http::{
    self, EndpointClock, PushConfig, PushEndpoint, Receivers, TokenFile,
};
use crate::input::push::inbox::{Inbox, PUSH_SECONDS_BOUNDS, ReleaseRequest, Releases};
use crate::input::push::roles::Tokens;
use crate::net::guard::Guard;
use crate::net::listener::Listener;
use crate::net::server::{Connections, ServerCounts, Service, serve as serve_http};
use crate::output::otlp::config::OtlpConfig;
use crate::output::otlp::delivery::ExportCounts;
use crate::output::otlp::export::Export;
use crate::output::web::{self, StatusSource, WebConfig};
use crate::store::timelines::TimelineFolder;
use stepmem_engine::saved::SavedState;
use stepmem_engine::status::Status;
use stepmem_engine::{Engine, EngineConfig, Event, SnapshotSettings};
use stepmem_types::format::units::whole_bytes;
use stepmem_types::ids::GpuUuid;
use stepmem_types::units::Seconds;

/// Number of turns of tasks before the runtime asks the system for new events, which takes a
/// microsecond. A turn can be a millisecond of pipelined requests, and a scrape over TLS waits
/// for four events.
const TURNS_BETWEEN_EVENTS: u32 = 2;

/// Number of files that the exporter opens until it has answered its first client: those of the
/// runtime and of signals, listeners, and a connection or two.
const FIRST_FILES: usize = 11;

/// The file of the kernel with the id of this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Maximum number of collector events that wait for the engine.
const COLLECTED_CAPACITY: usize = 4;

/// Runs the exporter until a signal arrives or until `companion` ends, which starts once the
/// exporter listens. A second signal aborts. `notices` gets the news for a person at a
/// terminal; `companion` gets each status, too.
///
/// # Errors
/// A socket cannot be bound, OTLP cannot be set up, a task died, `companion` failed, or a second
/// signal arrived.
pub fn run<F: Future<Output = anyhow::Result<()>>>(
    settings: Settings,
    gpu: Option<GpuSource>,
    notices: Notices,
    companion: impl FnOnce(Addresses, watch::Receiver<Arc<Status>>) -> F,
) -> anyhow::Result<()> {
    has_files()?;
    give_back_early();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.event_interval(TURNS_BETWEEN_EVENTS).enable_all().build()?;
    let result = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let reloads = signals.reloads();
        let (app, addresses, latest) = tokio::select! {
            started = start(warned(settings), gpu, notices, reloads) => started?,
            _ = signals.next() => return Ok(()),
        };
        tracing::info!("started");
        unmap_code();
        app.until_stopped(signals, companion(addresses, latest)).await
    });
    // A hanging call of the driver blocks its own thread, which ends with the process.
    runtime.shutdown_background();
    result
}

/// Adds warnings of what is probably a mistake at this time on this machine. Lowers `rank.max` to
/// the ranks that fit into the address space of this process.
pub fn warned(mut settings: Settings) -> Settings {
    let deadline = settings.push.deadline.and_then(|deadline| deadline.since(f64::INFINITY));
    if deadline.is_some_and(|deadline| deadline.get() < Clock::unix_time()) {
        settings.warnings.push("deadline: this time is over".to_owned());
    }
    if let Some(directory) = &settings.snapshots.read_directory
        && let Err(error) = std::fs::read_dir(directory)
    {
        let shown = directory.display();
        settings.warnings.push(format!(
            "{}: {shown}: {error}; no snapshot is read until it can be",
            keys::SNAPSHOT_READ_DIRECTORY
        ));
    }
    let ranks_max = settings.engine.ranks_max;
    if let Some((n_ranks, limit)) = fewer_ranks(ranks_max) {
        let limit = whole_bytes(limit);
        settings.warnings.push(format!(
            "rank.max: {ranks_max} ranks do not fit into {limit} of address space (ulimit -v): stepmem holds {n_ranks}; raise that limit, or lower \
             --rank.max"
        ));
        settings.engine.ranks_max = n_ranks;
    }
    settings
}

/// Returns the reasons that an exporter with these settings would not start, or would run
/// without a part of them, a sentence each. `serves` tells whether an exporter answers at an
/// address, which takes what it listens on for itself.
///
/// # Errors
/// The runtime cannot be made.
pub fn problems(
    settings: Settings,
    serves: impl Fn(&str) -> bool,
) -> anyhow::Result<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let speaks_tls = settings.web_file.as_ref().is_some_and(WebFile::speaks_tls);
    let of_address = |address| Addresses { speaks_tls, ..Addresses::default() }.url(address);
    let mut startup = Startup::new(StartMode::Strict, &settings.problems, &[]);
    let settings = startup.usable(settings);
    for (kind, addresses) in [(WEB, &settings.web_addresses), (PUSH, &settings.push_addresses)]
    {
        for address in addresses.iter().filter(|address| !serves(&of_address(**address))) {
            startup.started(kind.setting, may_listen(kind, *address));
        }
    }
    if let Some(PushSocket { path, .. }) = &settings.push_socket
        && !serves(&format!("unix://{}", path.display()))
    {
        startup.started(keys::PUSH_SOCKET, runtime.block_on(may_bind(path)));
    }
    Ok(startup.sentences())
}

/// Ensures that the first files can be opened: the runtime panics if it cannot open its own.
fn has_files() -> anyhow::Result<()> {
    let stdin = io::stdin();
    let copies = (0..FIRST_FILES).map(|_| stdin.as_fd().try_clone_to_owned());
    let copies: io::Result<Vec<OwnedFd>> = copies.collect();
    copies.map(drop).with_context(|| {
        format!("the exporter needs {FIRST_FILES} open files in addition to those that are open (ulimit -n)")
    })
}

/// The sockets that the exporter listens on.
struct Listeners {
    web: Vec<Listener>,
    push: Vec<Listener>,
    addresses: Addresses,
    /// The push endpoint's Unix socket.
    socket: Option<SocketFile>,
}

impl Listeners {
    async fn bind(settings: &Settings, startup: &mut Startup) -> anyhow::Result<Self> {
        let (web, web_addresses) = listen(WEB, &settings.web_addresses, startup)?;
        let (mut push, push_addresses) = listen(PUSH, &settings.push_addresses, startup)?;
        let mut socket = None;
        if let Some(of_setting) = &settings.push_socket {
            let bound = bind_socket(of_setting).await;
            if let Some((listener, file)) = startup.started(keys::PUSH_SOCKET, bound) {
                push.push(listener);
                socket = Some(file);
            }
        }
        let addresses = Addresses {
            web: web_addresses,
            push: push_addresses,
            socket: socket.as_ref().map(|file| file.path().to_owned()),
            speaks_tls: settings.web_file.as_ref().is_some_and(WebFile::speaks_tls),
            problems: Vec::new(),
        };
        Ok(Self { web, push, addresses, socket })
    }
}

/// Starts the exporter. Returns its tasks, the addresses that it listens on, and its latest
/// status.
async fn start(
    settings: Settings,
    gpu: Option<GpuSource>,
    notices: Notices,
    reloads: watch::Receiver<u64>,
) -> anyhow::Result<(App, Addresses, watch::Receiver<Arc<Status>>)> {
    let (mut startup, settings) = Startup::begin(settings);
    let read = read_state(settings.state_file.as_deref(), settings.engine.ranks_max).await;
    let clock = Clock::start(read.saved.as_ref());
    let (inbox, submissions) = Inbox::new();
    let (publisher, latest) = watch::channel(Arc::default());
    let (source, status, summary) = StatusSource::new(latest.clone());
    let [(stop_push, push_stopped), (stop_web, web_stopped)] = stops();

    let Listeners { web, push, mut addresses, socket } =
        Listeners::bind(&settings, &mut startup).await?;
    let (collect, collected) = mpsc::channel(COLLECTED_CAPACITY);
    let (analyses, timelines) = start_analyses(&settings, &collect, &mut startup);
    let export = start_export(settings.otlp, latest.clone(), &inbox).await;
    let (export, exports) = startup.started(keys::OTLP_ENDPOINT, export).flatten().unzip();
    let (devices, releases) = DeviceSource::new(settings.nvml.zip(gpu));
    startup.end()?;
    let (gpu, pushed_devices) = start_collectors(devices, collect, &mut startup);
    let config = EngineConfig { snapshots: settings.snapshots, ..settings.engine };
    let (engine, state) = resumed(config, read, clock, settings.state_file);
    let (launches_max, staging) = (settings.summary_launches_max, settings.snapshot_staging);
    let folders = SummaryFolders::new(settings.summary_dir, launches_max, staging);
    let recorder = queue::start(&settings.record, folders.as_ref(), &engine, &mut startup)?;
    addresses.problems = [settings.warnings, startup.end()?].concat();

    let (start, message) = (settings.start, settings.termination_message);
    let summaries = Summaries::new(folders, message, notices.clone(), start);
    let servers = ServerFigures::new(settings.web_file);
    let exporter = figures(&inbox, &servers, exports, startup);
    let (awaited, of_engine) = Awaited::channel();
    let task = EngineTask {
        engine,
        clock,
        publisher,
        pushed_devices,
        awaited,
        exporter,
        state,
        summaries,
        notices,
        recorder,
        analyses,
        oom_kills: (start == StartMode::Command).then(OomKills::new),
    };

    let mut app = App {
        linger: settings.linger,
        awaited: of_engine,
        export,
        socket,
        stop_push,
        stop_web,
        push_servers: JoinSet::new(),
        web_servers: JoinSet::new(),
        engine: JoinSet::new(),
        gpu,
    };
    app.engine.spawn(task.run(submissions, Requests::new(status, summary), collected));
    let serving = Serving {
        push_config: settings.push,
        servers,
        hosts: settings.web_hosts,
        telemetry_path: settings.telemetry_path,
        timelines,
        listeners: [push, web],
        stops: [push_stopped, web_stopped],
        receivers: Receivers { inbox, releases },
        source,
        reloads,
    };
    serving.start(&mut app, clock, &addresses);
    Ok((app, addresses, latest))
}

/// The parts of the servers; of two, the first is that of pushes.
struct Serving {
    push_config: PushConfig,
    servers: ServerFigures,
    hosts: Vec<String>,
    telemetry_path: String,
    timelines: Option<Arc<TimelineFolder>>,
    listeners: [Vec<Listener>; 2],
    stops: [watch::Receiver<bool>; 2],
    receivers: Receivers,
    source: StatusSource,
    reloads: watch::Receiver<u64>,
}

impl Serving {
    /// Starts the servers of pushes and of the page.
    fn start(self, app: &mut App, clock: Clock, addresses: &Addresses) {
        let [push_guard, web_guard] = guards(self.hosts, &self.telemetry_path);
        let [push_listeners, web_listeners] = self.listeners;
        let ServerFigures { push: push_counts, web: web_counts, access } = self.servers;
        let [push_stopped, web_stopped] = self.stops;
        let files = ReloadedFiles { reloads: self.reloads, stop: push_stopped.clone() };
        let tokens = kept_tokens(&self.push_config, &files, &mut app.push_servers);
        let (access, tasks) = Access::start(access, clock);
        tasks.spawn(files, web_stopped.clone(), &mut app.web_servers);
        // A header shows either a token or a user; the token has priority.
        let push_gate = access.gate(tokens.push.is_none());
        let uptime = Arc::new(move || clock.now());
        let clock = EndpointClock { uptime, started: Clock::unix_time() };
        let connections = Arc::<Connections>::default();
        let endpoint = PushEndpoint::new(&self.push_config, self.receivers, tokens, clock);
        let mut buttons = Router::new();
        if self.push_config.has_page_buttons {
            buttons = http::page_router(&endpoint, addresses.scheme());
        }
        let service = Service {
            router: http::router(endpoint, page_url(addresses)),
            counts: push_counts,
            guard: push_guard,
            gate: push_gate,
            connections: Arc::clone(&connections),
            stop: push_stopped.clone(),
        };
        spawn_servers(service, push_listeners, &mut app.push_servers);
        let site = WebConfig {
            telemetry_path: self.telemetry_path,
            push_url: push_url(addresses),
            tokens: match (&self.push_config.token_file, &self.push_config.admin_token_file) {
                (None, None) => "",
                (None, Some(_)) => "admin",
                (Some(_), None) => "push",
                (Some(_), Some(_)) => "push admin",
            },
            has_buttons: self.push_config.has_page_buttons,
            timelines: self.timelines,
        };
        let service = Service {
            router: web::router(site, self.source, push_stopped).merge(buttons),
            counts: web_counts,
            guard: web_guard,
            gate: access.gate(true),
            connections,
            stop: web_stopped,
        };
        spawn_servers(service, web_listeners, &mut app.web_servers);
    }
}

/// Returns the tokens of pushes and of admins, which tasks keep.
fn kept_tokens(push: &PushConfig, files: &ReloadedFiles, tasks: &mut Tasks) -> Tokens {
    let mut kept = |setting: &'static str, file: &Option<TokenFile>| {
        let TokenFile { path, token } = file.clone()?;
        let (tokens, token) = watch::channel(token);
        tasks.spawn(keep_token((setting, path), tokens, files.clone()));
        Some(token)
    };
    Tokens {
        push: kept(keys::PUSH_TOKEN_FILE, &push.token_file),
        admin: kept(keys::ADMIN_TOKEN_FILE, &push.admin_token_file),
    }
}

/// Returns the guards of the push endpoint and of the web server.
fn guards(hosts: Vec<String>, telemetry_path: &str) -> [Arc<Guard>; 2] {
    let of = |open_paths, hosts| Arc::new(Guard { hosts, open_paths });
    let web_paths = vec![telemetry_path.to_owned(), "/-/".to_owned()];
    [of(vec!["/".to_owned()], hosts.clone()), of(web_paths, hosts)]
}

/// Resumes the state of an earlier exporter, or starts with an empty one.
fn resumed(
    config: EngineConfig,
    ReadState { claim, saved }: ReadState,
    clock: Clock,
    path: Option<PathBuf>,
) -> (Engine, Option<StateFile>) {
    let engine = engine_of(config, saved, clock);
    (engine, path.map(|path| StateFile::new(path, claim, clock.now())))
}

/// The counts of the servers.
struct ServerFigures {
    push: Arc<ServerCounts>,
    web: Arc<ServerCounts>,
    access: AccessSource,
}

impl ServerFigures {
    fn new(web_file: Option<WebFile>) -> Self {
        let access = AccessSource::new(web_file);
        Self { push: Arc::default(), web: Arc::default(), access }
    }
}

/// The figures of the exporter itself, at their start.
fn figures(
    inbox: &Inbox,
    servers: &ServerFigures,
    export: Option<Arc<ExportCounts>>,
    startup: Startup,
) -> ExporterFigures {
    let ServerFigures { push, web, access } = servers;
    ExporterFigures {
        push: inbox.counts(),
        servers: [("push", Arc::clone(push)), ("web", Arc::clone(web))],
        access: Arc::clone(&access.refused),
        web_reloads: access.reloads.clone(),
        export,
        collectors: BTreeMap::new(),
        dropped: DropCounts::default(),
        devices_hint: None,
        own: OwnProcess::new(),
        process: BTreeMap::new(),
        oom_kills: None,
        ends_with_command: startup.mode() == StartMode::Command,
        series: 0,
        startup_problems: startup.into_settings(),
    }
}

async fn start_export(
    otlp: Option<OtlpConfig>,
    latest: watch::Receiver<Arc<Status>>,
    inbox: &Inbox,
) -> anyhow::Result<Option<(Export, Arc<ExportCounts>)>> {
    let Some(otlp) = otlp else { return Ok(None) };
    let otlp = OtlpConfig { instance: instance(), ..otlp };
    let exports = Arc::<ExportCounts>::default();
    let counts = Arc::clone(&exports);
    let starting = move || Export::start(&otlp, &latest, &counts, &PUSH_SECONDS_BOUNDS);
    let export = tokio::task::spawn_blocking(starting).await?;
    let export = export.context("OTLP export cannot be set up")?;
    inbox.counts().record_to(export.recorder());
    Ok(Some((export, exports)))
}

/// Identifies this exporter: the host (in Kubernetes the pod) and the process.
fn instance() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), std::process::id())
}

/// Resumes the state of an earlier exporter, or starts with an empty one.
fn engine_of(config: EngineConfig, saved: Option<SavedState>, clock: Clock) -> Engine {
    let (now, unix) = (clock.now(), Clock::unix_time());
    match saved {
        Some(saved) => {
            let mut engine = Engine::resume(config, saved, now);
            if let Ok(unix) = Seconds::new(unix) {
                // The system's clock is never refused.
                engine.handle(&Event::ClockSet(unix), now).ok();
            }
            engine
        }
        None => Engine::new(config, unix - now.0.as_secs_f64()),
    }
}

/// The address of the page that the push endpoint names.
fn page_url(addresses: &Addresses) -> String {
    addresses.web.first().map(|address| addresses.url(opened(*address))).unwrap_or_default()
}

/// The push address that the page shows.
fn push_url(addresses: &Addresses) -> String {
    match (addresses.push.first(), &addresses.socket) {
        (Some(address), _) => addresses.url(*address),
        (None, Some(socket)) => format!("unix://{}", socket.display()),
        (None, None) => String::new(),
    }
}

/// Starts the analysis of snapshots, and opens the folder of their timelines. `None` where none
/// are read, or drawn.
fn start_analyses(
    settings: &Settings,
    collect: &mpsc::Sender<Collected>,
    startup: &mut Startup,
) -> (Option<AnalysisQueue>, Option<Arc<TimelineFolder>>) {
    let SnapshotSettings { read_directory, timeline_directory, .. } = &settings.snapshots;
    let of_socket = settings.push_socket.as_ref().and_then(|socket| socket.path.parent());
    let foreign: Vec<&Path> = read_directory.as_deref().into_iter().chain(of_socket).collect();
    let key = keys::SNAPSHOT_TIMELINE_DIRECTORY;
    let opened = timeline_directory.as_ref().map(|path| {
        let opened = TimelineFolder::open(path, &foreign).map(Arc::new);
        opened.with_context(|| format!("{key} {}", path.display()))
    });
    let timelines = startup.started(key, opened.transpose()).flatten();
    let Some(directory) = read_directory else { return (None, timelines) };
    let started = AnalysisQueue::start(directory.clone(), timelines.clone(), collect.clone());
    let started = started.map_err(anyhow::Error::from);
    (startup.started(keys::SNAPSHOT_READ_DIRECTORY, started), timelines)
}

/// The channels by which the servers of pushes and of the page are stopped.
fn stops() -> [(watch::Sender<bool>, watch::Receiver<bool>); 2] {
    [watch::channel(false), watch::channel(false)]
}

/// The devices, and the push endpoint's requests to their collector.
struct DeviceSource {
    source: Option<(NvmlSettings, GpuSource)>,
    releases: mpsc::Receiver<ReleaseRequest>,
}

impl DeviceSource {
    /// Returns the source, and the push endpoint's side if there are devices.
    fn new(source: Option<(NvmlSettings, GpuSource)>) -> (Self, Option<Releases>) {
        let (releases, requests) = Releases::new();
        let releases = source.is_some().then_some(releases);
        (Self { source, releases: requests }, releases)
    }
}

/// Starts the collectors of devices. Returns their tasks, and the channel of the devices that
/// ranks push from.
fn start_collectors(
    devices: DeviceSource,
    collect: mpsc::Sender<Collected>,
    startup: &mut Startup,
) -> (Tasks, watch::Sender<BTreeSet<GpuUuid>>) {
    let mut tasks = JoinSet::new();
    let (pushing, pushed_devices) = watch::channel(BTreeSet::new());
    let DeviceSource { source, releases } = devices;
    let Some((nvml, source)) = source else { return (tasks, pushing) };
    let (devices, pod_devices) = watch::channel(None);
    if let Some(socket) = &nvml.kubelet_socket {
        let kubelet = Kubelet::new(socket).map_err(anyhow::Error::from);
        if let Some(kubelet) = startup.started(keys::KUBELET_SOCKET, kubelet) {
            let own = nvml.kubelet_pod.clone().map(|name| OwnPod { name, devices });
            tasks.spawn(ask_kubelet(kubelet, own, nvml.interval, collect.clone()));
        }
    }
    let (containers, users) = watch::channel(BTreeSet::new());
    if let Some(cgroups) = &nvml.kubelet_cgroups {
        let kubepods = Kubepods::new(cgroups, BOOT_ID);
        tasks.spawn(read_kubepods(kubepods, users, nvml.interval, collect.clone()));
    }
    let collected = collect;
    let channels = GpuChannels { pushed_devices, pod_devices, containers, collected, releases };
    let task = GpuTask::start(nvml, source, channels).map_err(anyhow::Error::from);
    if let Some(task) = startup.started(keys::NVML_LIBRARY, task) {
        tasks.spawn(task.run());
    }
    (tasks, pushing)
}

/// Serves several listeners, which share their counts and their stop.
fn spawn_servers(service: Service, listeners: Vec<Listener>, tasks: &mut Tasks) {
    if listeners.is_empty() {
        // The router holds a channel to the engine, which ends with the last such channel.
        tasks.spawn(async move {
            let mut stop = service.stop.clone();
            stop.wait_for(|is_stopped| *is_stopped).await.ok();
            drop(service);
            Ok(())
        });
        return;
    }
    for listener in listeners {
        let serving = serve_http(listener, service.clone());
        tasks.spawn(async {
            serving.await;
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_all_interfaces_is_named_as_loopback() {
        for (listened, expected) in [
            ("0.0.0.0:9477", "http://127.0.0.1:9477"),
            ("[::]:9477", "http://[::1]:9477"),
            ("10.0.0.7:80", "http://10.0.0.7:80"),
        ] {
            let addresses =
                Addresses { web: vec![listened.parse().unwrap()], ..Addresses::default() };
            assert_eq!(page_url(&addresses), expected);
        }
        assert_eq!(page_url(&Addresses::default()), "");
    }
}
