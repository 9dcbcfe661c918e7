//! The pace of reading the devices, on a thread of its own.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver as ThreadReceiver, sync_channel};
use std::time::Duration;

use anyhow::Context;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::analysis::sample::GpuUnavailable;
use crate::config::{NvmlSettings, Settings};
use crate::input::nvml::{self, GpuPoll, Poller};

/// The longest pause between two rounds of an NVML that does not answer.
const BACKOFF_MAX: Duration = Duration::from_mins(1);
/// The stack of the thread that asks NVML, in bytes.
const THREAD_STACK_BYTES: usize = 512 * 1024;
/// How many processes of a device are read; the engine tells fewer apart.
const PROCESSES_MAX: usize = 4096;

/// What reads the devices: NVML, or a simulation in its place. It may block for as long as a driver does.
pub type GpuSource = Box<dyn FnMut() -> GpuPoll + Send>;

/// NVML as the settings say, if they ask for it.
pub fn nvml_source(settings: &Settings) -> Option<GpuSource> {
    let NvmlSettings { library, .. } = settings.nvml.clone()?;
    let config =
        nvml::Config { library, procfs: PathBuf::from("/proc"), processes_max: PROCESSES_MAX };
    let mut poller = Poller::new(config);
    Some(Box::new(move || poller.poll()))
}

/// One round of reading the devices.
pub(super) struct GpuRound {
    pub(super) poll: GpuPoll,
    pub(super) took: Duration,
}

/// Paces the reading of the devices on a thread of its own and bounds the wait for it: a call that hangs is reported,
/// and nothing queues behind it.
pub(super) async fn poll_gpu(
    settings: NvmlSettings,
    source: GpuSource,
    rounds: mpsc::Sender<GpuRound>,
) -> anyhow::Result<()> {
    let (asks, asked) = sync_channel(1);
    let (answers, mut polls) = mpsc::channel(1);
    std::thread::Builder::new()
        .name("nvml".to_owned())
        .stack_size(THREAD_STACK_BYTES)
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
        pause = if is_dead { (pause * 2).min(BACKOFF_MAX) } else { settings.interval };
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
