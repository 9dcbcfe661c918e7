//! The pace of reading the devices, of watching them and of asking the kubelet: each on a thread or task of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{
    Receiver as ThreadReceiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel,
};
use std::time::Duration;

use anyhow::Context;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::analysis::status::{CollectorStatus, Status};
use crate::config::settings::{NvmlSettings, Settings};
use crate::input::nvml::config::Config;
use crate::input::nvml::cycle::{GpuPoll, RELEASED};
use crate::input::nvml::error::LIBRARY_MISSING;
use crate::input::nvml::poller::Poller;
use crate::input::nvml::xid::{self, Ended};
use crate::input::owner::kubelet::{Assignments, Kubelet};
use crate::input::push::inbox::ReleaseRequest;
use crate::model::device::{DevicePod, GpuSample, GpuUnavailable};
use crate::model::ids::GpuUuid;

/// The longest pause between two rounds of an NVML that does not answer.
const BACKOFF_MAX: Duration = Duration::from_mins(1);
/// The stack of the threads that ask NVML, in bytes.
const THREAD_STACK_BYTES: usize = 512 * 1024;
/// How many processes of a device are read; the engine tells fewer apart.
const PROCESSES_MAX: usize = 4096;
/// How long the watch for Xid errors may take to end: twice the wait for one event, and time for a shutdown.
const WATCH_ENDS_WITHIN: Duration = Duration::from_secs(4);
/// The pause after a watch that failed, doubled each time that it fails again.
const WATCH_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What reads the devices. It may block for as long as a driver does.
pub enum GpuSource {
    /// The driver.
    Nvml(Box<Poller>),
    /// A simulation in its place.
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

    fn answer(&mut self, ask: &Ask) -> GpuPoll {
        match (self, ask) {
            (Self::Nvml(poller), Ask::Release) => {
                poller.release();
                RELEASED
            }
            (Self::Nvml(poller), Ask::Read(pushed)) => {
                poller.look_for(pushed);
                poller.poll()
            }
            (Self::Simulated(_), Ask::Release) => RELEASED,
            (Self::Simulated(simulation), Ask::Read(_)) => simulation(),
        }
    }
}

/// NVML as the settings say, if they ask for it.
pub fn nvml_source(settings: &Settings) -> Option<GpuSource> {
    let NvmlSettings { library, devices, .. } = settings.nvml.clone()?;
    let procfs = PathBuf::from("/proc");
    let config = Config { library, procfs, processes_max: PROCESSES_MAX, devices };
    Some(GpuSource::Nvml(Box::new(Poller::new(config))))
}

/// What a collector brings to the engine.
#[derive(Debug)]
pub(super) enum Collected {
    /// One round of reading the devices.
    Devices(GpuPoll, CollectorStatus),
    /// An Xid error of a device.
    Xid(GpuUuid, u64),
    /// Which containers have which devices, and how many were left out.
    DevicePods(Vec<DevicePod>, u64, CollectorStatus),
}

/// What the thread that reads the devices is asked for.
enum Ask {
    /// A round, with the devices that ranks push from.
    Read(BTreeSet<GpuUuid>),
    /// To hold nothing open.
    Release,
}

/// What the thread that watches for Xid errors shall watch from now on; it answers once it holds nothing else open.
type Watch = (BTreeSet<GpuUuid>, oneshot::Sender<()>);

/// Paces the reading of the devices on a thread of its own and bounds the wait for it: a call that hangs is reported,
/// and nothing queues behind it.
pub(super) struct GpuTask {
    settings: NvmlSettings,
    latest: watch::Receiver<Arc<Status>>,
    collected: mpsc::Sender<Collected>,
    releases: mpsc::Receiver<ReleaseRequest>,
    asks: SyncSender<Ask>,
    polls: mpsc::Receiver<GpuPoll>,
    /// `None` where a simulation is read.
    watches: Option<SyncSender<Watch>>,
    watched: BTreeSet<GpuUuid>,
    failing: Vec<GpuUnavailable>,
}

impl GpuTask {
    /// Starts the threads.
    ///
    /// # Errors
    /// There is no room for a thread.
    pub(super) fn start(
        settings: NvmlSettings,
        source: GpuSource,
        latest: watch::Receiver<Arc<Status>>,
        (collected, releases): (mpsc::Sender<Collected>, mpsc::Receiver<ReleaseRequest>),
    ) -> std::io::Result<Self> {
        let (asks, asked) = sync_channel(1);
        let (answers, polls) = mpsc::channel(1);
        let watches = match &source {
            GpuSource::Simulated(_) => None,
            GpuSource::Nvml(_) => {
                let (tell, told) = sync_channel(1);
                let (library, found) = (settings.library.clone(), collected.clone());
                thread("nvml-xid", move || watch_xids(library.as_deref(), &told, &found))?;
                Some(tell)
            }
        };
        thread("nvml", move || read_devices(source, &asked, &answers))?;
        Ok(Self {
            settings,
            latest,
            collected,
            releases,
            asks,
            polls,
            watches,
            watched: BTreeSet::new(),
            failing: Vec::new(),
        })
    }

    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let mut pause = self.settings.interval;
        loop {
            let began = Instant::now();
            let poll = self.round(Ask::Read(self.pushed())).await?;
            log_gpu(&mut self.failing, &poll.unavailable);
            let is_dead = poll.samples.is_empty() && !poll.unavailable.is_empty();
            let gpus = if poll.is_shut_down { BTreeSet::new() } else { gpus_of(&poll.samples) };
            self.collect(poll, began).await?;
            self.watch(gpus).await;
            pause = if is_dead { (pause * 2).min(BACKOFF_MAX) } else { self.settings.interval };
            let next = Instant::now() + pause;
            tokio::select! {
                () = sleep_until(next) => {}
                Some(request) = self.releases.recv() => self.rest(request).await?,
            }
        }
    }

    /// Asks the thread and waits for its answer, however long that takes; a wait beyond the timeout is reported.
    async fn round(&mut self, ask: Ask) -> anyhow::Result<GpuPoll> {
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
                    // Who asks for a release hears that there is none: its sender goes.
                    Some(request) = self.releases.recv() => drop(request),
                }
            }
        };
        poll.context("the thread that reads the devices died")
    }

    /// Holds no device open for as long as it is asked to.
    async fn rest(&mut self, request: ReleaseRequest) -> anyhow::Result<()> {
        let mut request = Some(request);
        let mut until = Instant::now();
        loop {
            if let Some((time, answer)) = request.take() {
                if time.is_zero() {
                    answer.send(()).ok();
                    break;
                }
                let began = Instant::now();
                let poll = self.round(Ask::Release).await?;
                self.collect(poll, began).await?;
                if !self.unwatch().await {
                    // Whoever asked hears that it is not released: the way to answer goes.
                    tracing::warn!("NVML not released: the wait for an event hangs");
                    break;
                }
                tracing::info!(?time, "NVML released on request");
                // Whoever asked may have gone; it is released all the same.
                answer.send(()).ok();
                until = began + time;
            }
            tokio::select! {
                () = sleep_until(until) => break,
                Some(more) = self.releases.recv() => request = Some(more),
            }
        }
        tracing::info!("NVML is asked again");
        Ok(())
    }

    /// The devices that ranks push from; processes that stand for ranks do not count.
    fn pushed(&self) -> BTreeSet<GpuUuid> {
        let latest = self.latest.borrow();
        let pushing = latest.ranks.iter().filter(|rank| rank.last_push_time.is_some());
        pushing.filter_map(|rank| rank.identity.device.clone()).collect()
    }

    async fn collect(&self, poll: GpuPoll, began: Instant) -> anyhow::Result<()> {
        let status = CollectorStatus {
            collector: "nvml",
            duration_seconds: began.elapsed().as_secs_f64(),
            is_success: poll.unavailable.is_empty(),
        };
        Ok(self.collected.send(Collected::Devices(poll, status)).await?)
    }

    /// Has these GPUs watched for Xid errors; without any, waits until nothing is held open for that.
    async fn watch(&mut self, gpus: BTreeSet<GpuUuid>) {
        if gpus == self.watched {
            return;
        }
        if gpus.is_empty() {
            if !self.unwatch().await {
                tracing::debug!("the wait for an event hangs");
            }
        } else if let Some(watches) = &self.watches
            // A watch that hangs hears of it after a later round.
            && watches.try_send((gpus.clone(), oneshot::channel().0)).is_ok()
        {
            self.watched = gpus;
        }
    }

    /// Ends the watch, and says whether it has ended.
    async fn unwatch(&mut self) -> bool {
        let Some(watches) = &self.watches else { return true };
        let (closed, has_closed) = oneshot::channel();
        if watches.try_send((BTreeSet::new(), closed)).is_err() {
            return false;
        }
        self.watched.clear();
        timeout(WATCH_ENDS_WITHIN, has_closed).await.is_ok_and(|closed| closed.is_ok())
    }
}

/// The GPUs that these are, or are part of.
fn gpus_of(samples: &[GpuSample]) -> BTreeSet<GpuUuid> {
    let gpu =
        |sample: &GpuSample| sample.info.parent.as_ref().unwrap_or(&sample.device).clone();
    samples.iter().map(gpu).collect()
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.stack_size(THREAD_STACK_BYTES).spawn(body).map(drop)
}

fn read_devices(
    mut source: GpuSource,
    asked: &ThreadReceiver<Ask>,
    answers: &mpsc::Sender<GpuPoll>,
) {
    while let Ok(ask) = asked.recv() {
        if answers.blocking_send(source.answer(&ask)).is_err() {
            return;
        }
    }
}

/// Watches the GPUs that it is told of for Xid errors, until nobody tells it any more.
fn watch_xids(
    library: Option<&Path>,
    watches: &ThreadReceiver<Watch>,
    found: &mpsc::Sender<Collected>,
) {
    let mut next = watches.recv().ok();
    while let Some((gpus, closed)) = next.take() {
        // The watch before has ended; nobody need want to know.
        closed.send(()).ok();
        next = watch_until_told(library, &gpus, watches, found);
    }
}

/// Watches these GPUs until it is told of others, which it gives; a watch that fails is tried again, ever more rarely.
fn watch_until_told(
    library: Option<&Path>,
    gpus: &BTreeSet<GpuUuid>,
    watches: &ThreadReceiver<Watch>,
    found: &mpsc::Sender<Collected>,
) -> Option<Watch> {
    let mut pause = WATCH_AGAIN_AFTER;
    while !gpus.is_empty() {
        let mut told = Err(TryRecvError::Empty);
        // When the engine has ended, so has the program.
        let report = |gpu, xid| drop(found.blocking_send(Collected::Xid(gpu, xid)));
        let ended = xid::watch(library, gpus, report, || {
            told = watches.try_recv();
            matches!(told, Err(TryRecvError::Empty))
        });
        match (told, ended) {
            (Ok(watch), _) => return Some(watch),
            (Err(TryRecvError::Disconnected), _) => return None,
            (_, Ended::Told | Ended::Unsupported) => break,
            (_, Ended::Failed(error)) => {
                tracing::debug!(error, "watch for xid errors failed");
                match watches.recv_timeout(pause) {
                    Ok(watch) => return Some(watch),
                    Err(RecvTimeoutError::Disconnected) => return None,
                    Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(BACKOFF_MAX),
                }
            }
        }
    }
    watches.recv().ok()
}

/// Asks the kubelet again and again which containers have which devices.
pub(super) async fn ask_kubelet(
    mut kubelet: Kubelet,
    every: Duration,
    collected: mpsc::Sender<Collected>,
) -> anyhow::Result<()> {
    let mut is_failing = false;
    loop {
        let began = Instant::now();
        let listed = kubelet.list().await;
        match &listed {
            Err(error) if !is_failing => tracing::warn!(%error, "kubelet: no answer"),
            Ok(_) if is_failing => tracing::info!("kubelet: answers again"),
            _ => {}
        }
        is_failing = listed.is_err();
        let status = CollectorStatus {
            collector: "kubelet",
            duration_seconds: began.elapsed().as_secs_f64(),
            is_success: listed.is_ok(),
        };
        let Assignments { pods, dropped } = listed.unwrap_or_default();
        collected.send(Collected::DevicePods(pods, dropped, status)).await?;
        sleep(every).await;
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

/// Says what fails when that changes, once. That there is no NVML is as normal as that there is one.
fn log_gpu(failing: &mut Vec<GpuUnavailable>, unavailable: &[GpuUnavailable]) {
    let is_same =
        |a: &GpuUnavailable, b: &GpuUnavailable| a.device == b.device && a.code == b.code;
    for gone in unavailable {
        if failing.iter().any(|before| is_same(before, gone)) {
            continue;
        }
        let device = gone.device.as_ref().map(ToString::to_string);
        if gone.code == LIBRARY_MISSING {
            tracing::info!(device, code = gone.code, "NVML: {}", gone.message);
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
