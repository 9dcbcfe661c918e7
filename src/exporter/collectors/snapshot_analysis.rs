//! Analyzes memory snapshots one at a time, each in a child process of this program with limits
//! on memory and time. The exporter itself never opens a file that training writes.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::exporter::clock::Clock;
use crate::exporter::collectors::collected::Collected;
use crate::exporter::collectors::memory_left::memory_left;
use crate::exporter::collectors::thread;
use crate::store::timelines::{DRAWN, TimelineFolder};
use stepmem_engine::{
    AnalysisOutcome, AnalysisRequest, Event, SnapshotAnalysis, TimelineOutcome,
};

/// Maximum number of snapshots that wait for their analysis.
pub const QUEUE_CAPACITY: usize = 8;
/// Time limit of an analysis.
pub const ANALYSIS_WITHIN: Duration = Duration::from_mins(2);
/// Memory limit of an analysis, in bytes, where that much is left.
pub const MEMORY_BYTES_MAX: u64 = 1 << 30;
/// Maximum length of an analysis's answer, in bytes.
pub const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// Bytes that an analysis leaves free of the memory that its container has left.
const MEMORY_BYTES_SPARED: u64 = 8 << 20;
/// Bytes below which an analysis is not started.
const MEMORY_BYTES_MIN: u64 = 10 << 20;
/// The signals by which the kernel and the allocator end a process that breaks its limits.
const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;
const SIGXCPU: i32 = 24;

/// The queue of snapshots that wait for their analysis.
#[derive(Debug)]
pub(in crate::exporter) struct AnalysisQueue(SyncSender<AnalysisRequest>);

impl AnalysisQueue {
    /// Starts the thread that analyzes the files below `directory`.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub(in crate::exporter) fn start(
        directory: PathBuf,
        timelines: Option<Arc<TimelineFolder>>,
        collected: mpsc::Sender<Collected>,
    ) -> io::Result<Self> {
        let start: StartProcess =
            Box::new(move |request, sheet| start(&directory, request, sheet));
        let timelines = timelines.map(|folder| Timelines { folder, began: Clock::unix_time() });
        Self::of(Analyzer { start, within: ANALYSIS_WITHIN, timelines }, collected)
    }

    fn of(analyzer: Analyzer, collected: mpsc::Sender<Collected>) -> io::Result<Self> {
        let (requests, requested) = sync_channel(QUEUE_CAPACITY);
        thread::start("snapshots", move || analyzer.run(&requested, &collected))?;
        Ok(Self(requests))
    }

    /// Queues a request. Returns false when the queue is full.
    pub(in crate::exporter) fn offer(&self, request: AnalysisRequest) -> bool {
        self.0.try_send(request).is_ok()
    }
}

/// Starts the process for a request, which draws a timeline into the file, if there is one.
/// Returns the reason if it starts none.
type StartProcess = Box<dyn Fn(&AnalysisRequest, Option<File>) -> Result<Child, String> + Send>;

/// Analyzes one snapshot after the other.
struct Analyzer {
    start: StartProcess,
    /// Time limit of a process, which is ended after it.
    within: Duration,
    timelines: Option<Timelines>,
}

/// The folder of timelines.
struct Timelines {
    folder: Arc<TimelineFolder>,
    /// The Unix time of the start, which keeps the ids of an earlier exporter apart.
    began: f64,
}

impl Timelines {
    /// Opens the file of the next timeline; `None` (and logged) if that fails.
    fn begin(&self) -> Option<File> {
        self.folder.begin().inspect_err(warn_of_timeline).ok()
    }

    /// Keeps the timeline of the snapshot of this number, if it was drawn.
    fn keep(&self, number: u64, is_drawn: bool) -> TimelineOutcome {
        let id = format!("{:010.0}-{number:06}", self.began);
        let kept = if is_drawn {
            self.folder.keep(&id)
        } else {
            let undrawn = || Err(io::Error::other("it was not drawn within its limits"));
            self.folder.discard().and_then(|()| undrawn())
        };
        match kept {
            Ok(n_removed) => TimelineOutcome::Written { id: id.into(), n_removed },
            Err(error) => {
                warn_of_timeline(&error);
                TimelineOutcome::Failed
            }
        }
    }
}

fn warn_of_timeline(error: &io::Error) {
    tracing::warn!(%error, "no timeline of a snapshot");
}

impl Analyzer {
    /// Answers requests until either side is gone.
    fn run(&self, requested: &Receiver<AnalysisRequest>, collected: &mpsc::Sender<Collected>) {
        while let Ok(request) = requested.recv() {
            let (analysis, child) = self.analyze(&request);
            let event = Event::SnapshotAnalyzed(request.number, Box::new(analysis));
            let is_wanted = collected.blocking_send(Collected::Event(event)).is_ok();
            if let Some(mut child) = child {
                // A process that the kernel cannot end yet holds up the next: one at a time.
                child.wait().ok();
            }
            if !is_wanted {
                return;
            }
        }
    }

    /// Analyzes a snapshot. Returns the result, and the process if it is yet to be reaped.
    fn analyze(&self, request: &AnalysisRequest) -> (SnapshotAnalysis, Option<Child>) {
        let sheet = self.timelines.as_ref().and_then(Timelines::begin);
        let (mut analysis, is_drawn, child) = match (self.start)(request, sheet) {
            Ok(mut child) => {
                let (analysis, is_drawn) = conclude(&mut child, self.within);
                (analysis, is_drawn, Some(child))
            }
            Err(reason) => {
                let failed = SnapshotAnalysis::failed(AnalysisOutcome::NotStarted, &reason);
                (failed, false, None)
            }
        };
        let is_analyzed = analysis.outcome == AnalysisOutcome::Analysed;
        let timelines = self.timelines.as_ref().filter(|_| is_analyzed);
        analysis.timeline = timelines.map(|of| of.keep(request.number, is_drawn));
        (analysis, child)
    }
}

/// Starts the process that analyzes a snapshot. The process limits itself before it opens the
/// file.
fn start(
    directory: &Path,
    request: &AnalysisRequest,
    sheet: Option<File>,
) -> Result<Child, String> {
    let memory_max = memory_left().map_or(MEMORY_BYTES_MAX, |left| {
        left.saturating_sub(MEMORY_BYTES_SPARED).min(MEMORY_BYTES_MAX)
    });
    if memory_max < MEMORY_BYTES_MIN {
        return Err(format!(
            "{} MiB of memory are left for an analysis, which takes {} MiB at least",
            memory_max >> 20,
            MEMORY_BYTES_MIN >> 20
        ));
    }
    let mut command = Command::new("/proc/self/exe");
    command
        .arg("analyze")
        .arg("--directory")
        .arg(directory)
        .args(["--memory-max", &memory_max.to_string()]);
    if let Some(owner) = request.owner {
        command.args(["--owner", &owner.to_string()]);
    }
    if sheet.is_some() {
        command.arg("--timeline");
    }
    command.arg("--").arg(&*request.file);
    command.env_clear().current_dir("/");
    command
        .stdin(sheet.map_or_else(Stdio::null, Stdio::from))
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command.spawn().map_err(|error| format!("no process could be started: {error}"))
}

/// Reasons that a process does not count as having answered.
enum Unanswered {
    Late,
    TooLong,
    System(io::Error),
}

/// Awaits a process's answer and its end, and kills it when either takes too long. The caller
/// reaps it. Also returns whether the process drew the timeline.
fn conclude(child: &mut Child, within: Duration) -> (SnapshotAnalysis, bool) {
    let deadline = Instant::now() + within;
    let mut answer = Vec::new();
    let ended = read_answer(child, deadline, &mut answer)
        .and_then(|()| await_end(child, deadline))
        .map(|()| child.wait());
    if ended.is_err() {
        // It may have ended by itself meanwhile.
        child.kill().ok();
    }
    // The first line counts, regardless of the lines after it.
    if let Some((analysis, rest)) = said(&answer) {
        let is_successful = ended.ok().and_then(Result::ok).is_some_and(|of| of.success());
        return (analysis, is_successful && rest.trim_ascii() == DRAWN.as_bytes());
    }
    let failed = SnapshotAnalysis::failed;
    let analysis = match ended {
        Ok(status) => unsaid(status, &answer),
        Err(Unanswered::Late) => {
            let reason = format!("it took more than {} s", within.as_secs_f64());
            failed(AnalysisOutcome::Timeout, &reason)
        }
        Err(Unanswered::TooLong) => {
            let reason = format!("its answer exceeds {ANSWER_BYTES_MAX} bytes");
            failed(AnalysisOutcome::Crashed, &reason)
        }
        Err(Unanswered::System(error)) => failed(AnalysisOutcome::Crashed, &error.to_string()),
    };
    (analysis, false)
}

/// Returns the analysis in the first line of an answer, and what follows it.
fn said(answer: &[u8]) -> Option<(SnapshotAnalysis, &[u8])> {
    let end = answer.iter().position(|byte| *byte == b'\n')?;
    let (line, rest) = answer.split_at(end);
    Some((serde_json::from_slice(line).ok()?, rest))
}

/// Reads what a process answers until it closes its output.
fn read_answer(
    child: &mut Child,
    deadline: Instant,
    answer: &mut Vec<u8>,
) -> Result<(), Unanswered> {
    let Some(mut output) = child.stdout.take() else { return Ok(()) };
    let mut chunk = [0; 4096];
    loop {
        await_readable(&output, deadline)?;
        match output.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(n_read) => answer.extend(chunk.iter().take(n_read)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Unanswered::System(error)),
        }
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(Unanswered::TooLong);
        }
    }
}

/// Awaits the end of a process that has closed its output.
fn await_end(child: &Child, deadline: Instant) -> Result<(), Unanswered> {
    match pidfd_open(Pid::from_child(child), PidfdFlags::empty()) {
        Ok(process) => await_readable(&process, deadline),
        // Without the call (before Linux 5.3) only the wait remains, which has no limit.
        Err(_) => Ok(()),
    }
}

fn await_readable(source: &impl AsFd, deadline: Instant) -> Result<(), Unanswered> {
    let system = |error: Errno| Unanswered::System(error.into());
    loop {
        let left = deadline.checked_duration_since(Instant::now()).ok_or(Unanswered::Late)?;
        let wait = Timespec::try_from(left).map_err(|_| Unanswered::Late)?;
        match poll(&mut [PollFd::new(source, PollFlags::IN)], Some(&wait)) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(system(error)),
            Ok(0) => return Err(Unanswered::Late),
            Ok(_) => return Ok(()),
        }
    }
}

/// Returns the reason that a process ended without an answer.
fn unsaid(status: io::Result<ExitStatus>, answer: &[u8]) -> SnapshotAnalysis {
    let failed = SnapshotAnalysis::failed;
    let status = match status {
        Ok(status) => status,
        Err(error) => return failed(AnalysisOutcome::Crashed, &error.to_string()),
    };
    match status.signal() {
        Some(SIGABRT) => failed(AnalysisOutcome::Memory, "it took more memory than allowed"),
        Some(SIGXCPU | SIGKILL) => {
            failed(AnalysisOutcome::CpuTime, "it took more processor time than allowed")
        }
        _ if status.success() => {
            let error = serde_json::from_slice::<SnapshotAnalysis>(answer).err();
            let error =
                error.map_or_else(|| "its line has no end".to_owned(), |of| of.to_string());
            failed(AnalysisOutcome::Crashed, &format!("its answer is not an analysis: {error}"))
        }
        _ => failed(AnalysisOutcome::Crashed, &status.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Long enough for a shell to start on a busy machine.
    const WITHIN: Duration = Duration::from_secs(2);
    const ANSWER: &str = r#"{"outcome":"analysed","reason":null,"leak":null,"oom":null}"#;

    /// Has the shell run these scripts instead of analyses, all requested at once. Returns the
    /// analyses, and the ids of the processes.
    fn analyses(scripts: &[&str]) -> (Vec<SnapshotAnalysis>, Vec<u32>) {
        let (collected, mut events) = mpsc::channel(scripts.len());
        let started = Arc::new(Mutex::new(Vec::new()));
        let ids = Arc::clone(&started);
        let start: StartProcess = Box::new(move |request, _| {
            let mut command = Command::new("sh");
            command.args(["-c", &request.file]).stdin(Stdio::null()).stdout(Stdio::piped());
            let child = command.spawn().unwrap();
            ids.lock().unwrap().push(child.id());
            Ok(child)
        });
        let queue =
            AnalysisQueue::of(Analyzer { start, within: WITHIN, timelines: None }, collected)
                .unwrap();
        for (number, script) in (0..).zip(scripts) {
            assert!(queue.offer(AnalysisRequest {
                number,
                file: (*script).into(),
                owner: None
            }));
        }
        let answers = (0..).zip(scripts).map(|(expected, _)| match events.blocking_recv() {
            Some(Collected::Event(Event::SnapshotAnalyzed(number, analysis)))
                if number == expected =>
            {
                *analysis
            }
            other => panic!("{other:?}"),
        });
        let answers = answers.collect();
        drop(queue);
        // The thread has ended, and with it the last process, when its side of the channel is
        // gone.
        assert!(events.blocking_recv().is_none());
        let ids = started.lock().unwrap().clone();
        (answers, ids)
    }

    fn check(script: &str, outcome: AnalysisOutcome, reason: &str) {
        let (answers, ids) = analyses(&[script, &format!("echo '{ANSWER}'")]);
        let [first, next] = answers.as_slice() else { panic!("{answers:?}") };
        assert_eq!(first, &SnapshotAnalysis::failed(outcome, reason), "{script}");
        assert_eq!(next.outcome, AnalysisOutcome::Analysed, "after {script}: {next:?}");
        for id in ids {
            assert!(!Path::new(&format!("/proc/{id}")).exists(), "{script}: {id} is left");
        }
    }

    #[test]
    fn process_that_hangs_is_ended_and_the_next_is_started() {
        check("exec sleep 600", AnalysisOutcome::Timeout, "it took more than 2 s");
    }

    #[test]
    fn process_that_is_stopped_is_ended() {
        check("kill -STOP $$", AnalysisOutcome::Timeout, "it took more than 2 s");
    }

    #[test]
    fn process_that_answers_and_hangs_is_ended() {
        let script = format!("printf '{ANSWER}'; exec sleep 600 >&-");
        check(&script, AnalysisOutcome::Timeout, "it took more than 2 s");
    }

    #[test]
    fn line_that_was_answered_counts_whatever_follows() {
        for (rest, is_drawn) in
            [("exec sleep 600", false), ("kill -ABRT $$", false), ("echo drawn", true)]
        {
            let command = format!("echo '{ANSWER}'; {rest}");
            let mut child = Command::new("sh")
                .args(["-c", &command])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let (analysis, drawn) = conclude(&mut child, WITHIN);
            child.wait().unwrap();
            assert_eq!(analysis.outcome, AnalysisOutcome::Analysed, "{rest}");
            assert_eq!(drawn, is_drawn, "{rest}");
        }
    }

    #[test]
    fn process_that_answers_without_end_is_ended() {
        let said = "its answer exceeds 262144 bytes";
        check("exec yes", AnalysisOutcome::Crashed, said);
    }
}
