//! Analyses memory snapshots, one at a time, each in a process of this program with limits on memory and time: a file that
//! training writes is never opened by the exporter itself.

use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::analysis::sites::{AnalysisOutcome, AnalysisRequest, SnapshotAnalysis};
use crate::app::collectors::event::CollectorEvent;
use crate::app::collectors::memory_left::memory_left;
use crate::app::collectors::thread;

/// Snapshots that wait to be analysed.
pub const QUEUE_CAPACITY: usize = 8;
/// An analysis may take this long.
pub const ANALYSIS_WITHIN: Duration = Duration::from_mins(2);
/// An analysis may take this much memory, where as much is left.
pub const MEMORY_BYTES_MAX: u64 = 1 << 30;
/// An answer of an analysis is at most this long.
pub const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// What an analysis leaves of the memory that its container has left.
const MEMORY_BYTES_SPARED: u64 = 8 << 20;
/// With less an analysis is not started.
const MEMORY_BYTES_MIN: u64 = 10 << 20;
/// The signals by which the kernel and the allocator end a process that breaks its limits.
const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;
const SIGXCPU: i32 = 24;

/// The queue of snapshots to analyse.
#[derive(Debug)]
pub(in crate::app) struct AnalysisQueue(SyncSender<AnalysisRequest>);

impl AnalysisQueue {
    /// Starts the thread that analyses the files below `directory`.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub(in crate::app) fn start(
        directory: PathBuf,
        collected: mpsc::Sender<CollectorEvent>,
    ) -> io::Result<Self> {
        let (requests, requested) = sync_channel(QUEUE_CAPACITY);
        thread::start("snapshots", move || analyse_all(&directory, &requested, &collected))?;
        Ok(Self(requests))
    }

    /// Takes a request. Returns false when there is no room for it.
    pub(in crate::app) fn offer(&self, request: AnalysisRequest) -> bool {
        self.0.try_send(request).is_ok()
    }
}

fn analyse_all(
    directory: &Path,
    requested: &Receiver<AnalysisRequest>,
    collected: &mpsc::Sender<CollectorEvent>,
) {
    while let Ok(request) = requested.recv() {
        let answer = |analysis| {
            let event = CollectorEvent::Analysed(request.number, Box::new(analysis));
            collected.blocking_send(event).is_ok()
        };
        let memory_max = memory_left().map_or(MEMORY_BYTES_MAX, |left| {
            left.saturating_sub(MEMORY_BYTES_SPARED).min(MEMORY_BYTES_MAX)
        });
        if memory_max < MEMORY_BYTES_MIN {
            let reason = format!(
                "{} MiB of memory are left for an analysis, which takes {} MiB at least",
                memory_max >> 20,
                MEMORY_BYTES_MIN >> 20
            );
            if !answer(SnapshotAnalysis::failed(AnalysisOutcome::NotStarted, &reason)) {
                return;
            }
            continue;
        }
        let mut child = match start(directory, &request, memory_max) {
            Ok(child) => child,
            Err(error) => {
                let reason = format!("no process could be started: {error}");
                if !answer(SnapshotAnalysis::failed(AnalysisOutcome::NotStarted, &reason)) {
                    return;
                }
                continue;
            }
        };
        let read = read_answer(&mut child, Instant::now() + ANALYSIS_WITHIN);
        if read.is_none() {
            // It may have ended by itself meanwhile.
            child.kill().ok();
            let reason = format!("it took more than {} s", ANALYSIS_WITHIN.as_secs());
            if !answer(SnapshotAnalysis::failed(AnalysisOutcome::Timeout, &reason)) {
                return;
            }
        }
        // A process that the kernel cannot end yet holds up the next: one at a time.
        let status = child.wait();
        if let Some(bytes) = read
            && !answer(understood(status, &bytes))
        {
            return;
        }
    }
}

/// Starts the process that analyses a snapshot. It limits itself before it opens the file.
fn start(directory: &Path, request: &AnalysisRequest, memory_max: u64) -> io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg("analyse")
        .arg("--directory")
        .arg(directory)
        .args(["--memory-max", &memory_max.to_string()]);
    if let Some(owner) = request.owner {
        command.args(["--owner", &owner.to_string()]);
    }
    command.arg("--").arg(&*request.file);
    command.env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
}

/// Reads what a process answers until it closes its output; `None` when it takes too long or answers too much.
fn read_answer(child: &mut Child, deadline: Instant) -> Option<Vec<u8>> {
    let mut output = child.stdout.take()?;
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let left = deadline.checked_duration_since(Instant::now())?;
        let wait = Timespec::try_from(left).ok()?;
        let mut polled = [PollFd::new(&output, PollFlags::IN)];
        match poll(&mut polled, Some(&wait)) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
        match output.read(&mut chunk) {
            Ok(0) => return Some(answer),
            Ok(n_read) => answer.extend_from_slice(chunk.get(..n_read)?),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
        if answer.len() > ANSWER_BYTES_MAX {
            return None;
        }
    }
}

/// Returns what a process that ended says, or why it says nothing.
fn understood(status: io::Result<ExitStatus>, answer: &[u8]) -> SnapshotAnalysis {
    let failed = SnapshotAnalysis::failed;
    let status = match status {
        Ok(status) => status,
        Err(error) => return failed(AnalysisOutcome::Crashed, &error.to_string()),
    };
    match status.signal() {
        Some(SIGABRT) => failed(AnalysisOutcome::Memory, "it took more memory than it may"),
        Some(SIGXCPU | SIGKILL) => {
            failed(AnalysisOutcome::CpuTime, "it took more processor time than it may")
        }
        _ if status.success() => serde_json::from_slice(answer).unwrap_or_else(|error| {
            failed(AnalysisOutcome::Crashed, &format!("its answer is not an analysis: {error}"))
        }),
        _ => failed(AnalysisOutcome::Crashed, &status.to_string()),
    }
}
