//! Polls NVML from its own thread: a hanging call is reported, and nothing queues behind it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver as ThreadReceiver, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::config::settings::{NvmlSettings, Settings};
use crate::exporter::collectors::collected::{Collected, CollectorRound, DropCounts};
use crate::exporter::collectors::kubelet::PodDevices;
use crate::exporter::collectors::thread;
use crate::exporter::collectors::xid::XidWatch;
use crate::input::nvml::config::{GivenDevices, PollerConfig};
use crate::input::nvml::cycle::{GpuPoll, RELEASED};
use crate::input::nvml::poller::Poller;
use crate::input::push::inbox::ReleaseRequest;
use stepmem_engine::Event;
use stepmem_types::device::{Container, GpuSample, GpuUnavailable};
use stepmem_types::ids::GpuUuid;
use stepmem_types::nvml_code::LIBRARY_MISSING;

/// The longest pause between polls while NVML does not answer.
const BACKOFF_MAX: Duration = Duration::from_mins(1);
/// Processes read per device; the engine shows fewer.
const PROCESSES_MAX: usize = 4096;

/// Reason that devices are not opened before the kubelet answers.
const KUBELET_SILENT: &str =
    "no rank pushes from a device, and the kubelet has not answered yet at --kubelet.socket";
/// Reason that devices are not opened where the kubelet lists none for the pod.
const KUBELET_LISTS_NONE: &str = "no rank pushes from a device, and the kubelet lists none for this pod; set --kubelet.pod to its \
     namespace and name, or --nvml.devices to their UUIDs";

/// The source of device readings. May block as long as a driver does.
pub enum GpuSource {
    /// The driver.
    Nvml(Box<Poller>),
    /// A simulation of it.
    Simulated(Box<dyn FnMut() -> GpuPoll + Send>),
}

impl GpuSource {
    /// Reads the devices once.
    pub fn read(&mut self) -> GpuPoll {
        match self {
            Self::Nvml(poller) => poller.poll(),
            Self::Simulated(simulation) => simulation(),
        }
    }

    fn answer(&mut self, ask: &PollRequest) -> GpuPoll {
        match (self, ask) {
            (Self::Nvml(poller), PollRequest::Release) => {
                poller.release();
                RELEASED
            }
            (Self::Nvml(poller), PollRequest::Read(pushed)) => {
                poller.look_for(pushed);
                poller.poll()
            }
            (Self::Nvml(poller), PollRequest::ReadEvery) => {
                poller.look_for_every();
                poller.poll()
            }
            (Self::Simulated(_), PollRequest::Release) => RELEASED,
            (Self::Simulated(simulation), PollRequest::Read(_) | PollRequest::ReadEvery) => {
                simulation()
            }
        }
    }
}

/// NVML with these settings; `None` if it is disabled.
pub fn nvml_source(settings: &Settings) -> Option<GpuSource> {
    let NvmlSettings { library, devices, hides_names, .. } = settings.nvml.clone()?;
    let procfs = PathBuf::from("/proc");
    let config = PollerConfig {
        library,
        procfs,
        processes_max: PROCESSES_MAX,
        reads_names: !hides_names,
        devices,
    };
    Some(GpuSource::Nvml(Box::new(Poller::new(config))))
}

/// A request to the polling thread.
enum PollRequest {
    /// Polls once, with the devices that ranks push from or that the pod was given.
    Read(BTreeSet<GpuUuid>),
    /// Polls once, with every device that NVML counts.
    ReadEvery,
    /// Closes all devices.
    Release,
}

/// Requests polls from a thread and bounds the wait for them: a hanging call is reported, and
/// nothing queues behind it.
pub(in crate::exporter) struct GpuTask {
    settings: NvmlSettings,
    pushed_devices: watch::Receiver<BTreeSet<GpuUuid>>,
    collected: mpsc::Sender<Collected>,
    releases: mpsc::Receiver<ReleaseRequest>,
    asks: SyncSender<PollRequest>,
    polls: mpsc::Receiver<GpuPoll>,
    /// `None` for a simulation.
    xids: Option<XidWatch>,
    containers: watch::Sender<BTreeSet<Container>>,
    failing: Vec<GpuUnavailable>,
    given: GivenWatch,
}

/// The channels between this task and the rest of the exporter.
pub(in crate::exporter) struct GpuChannels {
    /// The devices that ranks push from, as the engine answers.
    pub(in crate::exporter) pushed_devices: watch::Receiver<BTreeSet<GpuUuid>>,
    /// The devices of the exporter's own pod, as the kubelet lists them.
    pub(in crate::exporter) pod_devices: watch::Receiver<PodDevices>,
    /// Publishes the containers whose processes use a device.
    pub(in crate::exporter) containers: watch::Sender<BTreeSet<Container>>,
    /// The channel to the engine.
    pub(in crate::exporter) collected: mpsc::Sender<Collected>,
    /// Requests to hold no device open for a time.
    pub(in crate::exporter) releases: mpsc::Receiver<ReleaseRequest>,
}

impl GpuTask {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub(in crate::exporter) fn start(
        settings: NvmlSettings,
        source: GpuSource,
        channels: GpuChannels,
    ) -> std::io::Result<Self> {
        let GpuChannels { pushed_devices, pod_devices, containers, collected, releases } =
            channels;
        let (asks, asked) = sync_channel(1);
        let (answers, polls) = mpsc::channel(1);
        let given = GivenWatch::new(&settings, pod_devices);
        let xids = match &source {
            GpuSource::Simulated(_) => None,
            GpuSource::Nvml(_) => {
                Some(XidWatch::start(settings.library.clone(), collected.clone())?)
            }
        };
        thread::start("nvml", move || read_devices(source, &asked, &answers))?;
        Ok(Self {
            settings,
            pushed_devices,
            collected,
            releases,
            asks,
            polls,
            xids,
            containers,
            failing: Vec::new(),
            given,
        })
    }

    pub(in crate::exporter) async fn run(mut self) -> anyhow::Result<()> {
        let mut pause = self.settings.interval;
        loop {
            let began = Instant::now();
            let pushed = self.pushed_devices.borrow().clone();
            let before = self.given.hint;
            let request = self.given.request(pushed, began);
            let hint = self.given.hint;
            if hint != before {
                if let Some(hint) = hint {
                    tracing::info!("no device is opened: {hint}");
                }
                self.collected.send(Collected::DevicesHint(hint)).await?;
            }
            let poll = self.round(request).await?;
            log_gpu(&mut self.failing, &poll.unavailable);
            let is_dead = poll.samples.is_empty() && !poll.unavailable.is_empty();
            self.containers.send_replace(containers_of(&poll.samples));
            let gpus = if poll.is_shut_down { BTreeSet::new() } else { gpus_of(&poll.samples) };
            self.collect(poll, began).await?;
            if let Some(xids) = &mut self.xids {
                xids.watch(gpus).await;
            }
            pause = if is_dead { (pause * 2).min(BACKOFF_MAX) } else { self.settings.interval };
            let next = Instant::now() + pause;
            tokio::select! {
                () = sleep_until(next) => {}
                Some(request) = self.releases.recv() => self.rest(request).await?,
            }
        }
    }

    /// Sends a request and waits for its result. Reports a wait beyond the timeout, then waits
    /// on.
    async fn round(&mut self, ask: PollRequest) -> anyhow::Result<GpuPoll> {
        let began = Instant::now();
        self.asks.send(ask).context("the thread that reads the devices died")?;
        let poll = if let Ok(poll) = timeout(self.settings.timeout, self.polls.recv()).await {
            poll
        } else {
            let poll = timed_out(self.settings.timeout);
            log_gpu(&mut self.failing, &poll.unavailable);
            self.collect(poll, began).await?;
            loop {
                tokio::select! {
                    poll = self.polls.recv() => break poll,
                    // Dropping the request reports that the release failed.
                    Some(request) = self.releases.recv() => drop(request),
                }
            }
        };
        poll.context("the thread that reads the devices died")
    }

    /// Holds no device open for the requested time.
    async fn rest(&mut self, request: ReleaseRequest) -> anyhow::Result<()> {
        let mut request = Some(request);
        let mut until = Instant::now();
        loop {
            if let Some(ReleaseRequest { time, answer }) = request.take() {
                if time.is_zero() {
                    answer.send(()).ok();
                    break;
                }
                let began = Instant::now();
                let poll = self.round(PollRequest::Release).await?;
                self.collect(poll, began).await?;
                if let Some(xids) = &mut self.xids
                    && !xids.close().await
                {
                    // Dropping `answer` reports that the release failed.
                    tracing::warn!("NVML not released: the wait for an event hangs");
                    break;
                }
                tracing::info!(?time, "NVML released on request");
                // The client may have left; the release stands.
                answer.send(()).ok();
                until = began + time;
            }
            tokio::select! {
                () = sleep_until(until) => break,
                Some(more) = self.releases.recv() => request = Some(more),
            }
        }
        tracing::info!("NVML polls resume");
        Ok(())
    }

    async fn collect(&self, poll: GpuPoll, began: Instant) -> anyhow::Result<()> {
        let round = CollectorRound {
            collector: "nvml",
            duration_seconds: began.elapsed().as_secs_f64(),
            is_success: poll.unavailable.is_empty(),
            dropped: DropCounts {
                devices: poll.devices_dropped,
                processes: poll.processes_dropped,
                ..DropCounts::default()
            },
        };
        Ok(self.collected.send(Collected::Round(round, events(poll))).await?)
    }
}

/// Returns the events of a poll. Failures come first: a device that answers in the same poll
/// shows that NVML is up.
fn events(poll: GpuPoll) -> Vec<Event> {
    let released = poll.is_released.then_some(Event::DevicesReleased).into_iter();
    let lost = poll.unavailable.into_iter().map(Event::DeviceLost);
    let read = poll.samples.into_iter().map(|sample| Event::Reading(Box::new(sample)));
    released.chain(lost).chain(read).collect()
}

/// The devices to open: those that ranks push from, or those that the pod was given once none
/// has pushed for a while.
struct GivenWatch {
    given: Option<GivenDevices>,
    pod_devices: watch::Receiver<PodDevices>,
    after: Duration,
    /// The time since which no rank pushes from a device.
    idle_since: Option<Instant>,
    /// Reason that the last request opens no device.
    hint: Option<&'static str>,
}

impl GivenWatch {
    fn new(settings: &NvmlSettings, pod_devices: watch::Receiver<PodDevices>) -> Self {
        let (given, after) = (settings.given.clone(), settings.open_given_after);
        Self { given, pod_devices, after, idle_since: None, hint: None }
    }

    /// Returns the next request, which may open devices that no rank pushes from.
    fn request(&mut self, pushed: BTreeSet<GpuUuid>, now: Instant) -> PollRequest {
        if !pushed.is_empty() {
            self.idle_since = None;
        } else if self.idle_since.is_none() {
            self.idle_since = Some(now);
        }
        let is_idle = self.idle_since.is_some_and(|since| now - since >= self.after);
        let (request, hint) = match self.given.as_ref().filter(|_| is_idle) {
            Some(GivenDevices::Listed(uuids)) => (PollRequest::Read(uuids.clone()), None),
            Some(GivenDevices::Claimed) => (PollRequest::ReadEvery, None),
            Some(GivenDevices::OfPod) => match &*self.pod_devices.borrow() {
                None => (PollRequest::Read(pushed), Some(KUBELET_SILENT)),
                Some(uuids) if uuids.is_empty() => {
                    (PollRequest::Read(pushed), Some(KUBELET_LISTS_NONE))
                }
                Some(uuids) => (PollRequest::Read(uuids.clone()), None),
            },
            Some(GivenDevices::Unknown(hint)) => (PollRequest::Read(pushed), Some(*hint)),
            None => (PollRequest::Read(pushed), None),
        };
        self.hint = hint;
        request
    }
}

/// The GPUs that these devices are, or are part of.
fn gpus_of(samples: &[GpuSample]) -> BTreeSet<GpuUuid> {
    let gpu =
        |sample: &GpuSample| sample.info.parent.as_ref().unwrap_or(&sample.device).clone();
    samples.iter().map(gpu).collect()
}

/// The containers of the processes on these devices.
fn containers_of(samples: &[GpuSample]) -> BTreeSet<Container> {
    let processes = samples.iter().flat_map(|sample| &sample.processes);
    processes.filter_map(|process| process.container.clone()).collect()
}

fn read_devices(
    mut source: GpuSource,
    asked: &ThreadReceiver<PollRequest>,
    answers: &mpsc::Sender<GpuPoll>,
) {
    while let Ok(ask) = asked.recv() {
        if answers.blocking_send(source.answer(&ask)).is_err() {
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
    GpuPoll { unavailable: vec![unavailable], ..GpuPoll::default() }
}

/// Logs changed failures once. A missing NVML library is normal.
fn log_gpu(failing: &mut Vec<GpuUnavailable>, unavailable: &[GpuUnavailable]) {
    let is_same =
        |a: &GpuUnavailable, b: &GpuUnavailable| a.device == b.device && a.code == b.code;
    for gone in unavailable {
        if failing.iter().any(|before| is_same(before, gone)) {
            continue;
        }
        let device = gone.device.as_ref().map(ToString::to_string);
        if gone.code == LIBRARY_MISSING {
            let why = &gone.message;
            tracing::info!(device, code = gone.code, "NVML: no NVIDIA driver here: {why}");
        } else {
            tracing::warn!(device, code = gone.code, "NVML: {}", gone.message);
        }
    }
    if unavailable.is_empty() && !failing.is_empty() {
        tracing::info!("NVML answers again");
    }
    failing.clear();
    failing.extend_from_slice(unavailable);
}
