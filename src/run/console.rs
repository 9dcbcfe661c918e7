//! Reports the findings of `run`'s exporter on the terminal, follows the command to its end,
//! and closes with the summary.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::mpsc;
use tokio::task;

use crate::config::environment;
use crate::exporter::notices::{Notice, PlannedSoFar, SummaryNotice};
use crate::exporter::summaries::directory::WrittenFiles;
use crate::run::environment::PUSH_URL;
use crate::run::processes::{CommandState, Ready};
use crate::run::supervisor::KILLED_BY;
use crate::run::terminal::{self, say};
use stepmem_engine::{DiagnosisKind, Severity, Transition, TransitionState};
use stepmem_report::{
    ClosingFiles, ClosingRun, KeptAway, cleared_line, closing, ended_line, finding_line,
    oom_kills_line, unwatched,
};
use stepmem_types::ids::{Run, SubjectId};

/// Maximum number of lines that wait while the terminal takes none; later ones are lost.
const WAITING_LINES_MAX: usize = 256;
/// Maximum number of findings of one kind that have a line each, and of lines that name code or
/// objects. Further ones are on the page.
const LINES_A_KIND_MAX: usize = 16;

/// The supervisor's socket, and the values to send on it.
pub(super) struct Control {
    pub(super) socket: UnixStream,
    pub(super) ready: Ready,
}

/// Traces that processes of the command left in the private directory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traces {
    /// True if the processes had a client to import.
    has_client: bool,
    has_python: bool,
    has_torch: bool,
    kept_away: Option<KeptAway>,
}

impl Traces {
    pub(super) fn read(folder: Option<&Path>, has_client: bool) -> Self {
        let has = |name: &str| folder.is_some_and(|folder| folder.join(name).exists());
        let (has_python, has_torch) = (has("python"), has("torch"));
        Self { has_client, has_python, has_torch, kept_away: kept_away() }
    }
}

/// Returns the variable because of which the client pushes nothing here. A value of the switch that
/// is none turns it off, too.
fn kept_away() -> Option<KeptAway> {
    let is_on = |value: String| !["0", "false"].contains(&value.to_lowercase().as_str());
    if environment::text("STEPMEM_DISABLED").is_some_and(is_on) {
        return Some(KeptAway::Disabled);
    }
    environment::text(PUSH_URL).map(|_| KeptAway::Elsewhere)
}

/// The lines that the console has reported, and those to report at the end.
pub(super) struct Console {
    notices: mpsc::Receiver<Notice>,
    writer: ConsoleWriter,
    is_colored: bool,
    is_started: bool,
    /// The worst reported severity of each finding.
    reported: BTreeMap<(SubjectId, DiagnosisKind), Severity>,
    /// Number of lines about findings with the code or the object behind them.
    n_named: usize,
    /// Number of lines about findings whose growth ended, or that were cleared.
    n_over: usize,
    ends: BTreeMap<Run, SummaryNotice>,
    /// The exit code of the command, once it has ended and the supervisor reported it.
    code: Arc<OnceLock<u8>>,
    /// The planned restarts, for the summaries.
    restarts: PlannedSoFar,
}

impl Console {
    /// # Errors
    /// The system has no thread left.
    pub(super) fn new(
        notices: mpsc::Receiver<Notice>,
        (code, restarts): (Arc<OnceLock<u8>>, PlannedSoFar),
    ) -> io::Result<Self> {
        Ok(Self {
            notices,
            writer: ConsoleWriter::new()?,
            is_colored: terminal::takes_sequences(),
            is_started: false,
            reported: BTreeMap::new(),
            n_named: 0,
            n_over: 0,
            ends: BTreeMap::new(),
            code,
            restarts,
        })
    }

    /// Notifies the supervisor that the exporter listens. Resolves when the command has ended,
    /// or did not start.
    ///
    /// # Errors
    /// The supervisor is gone before that.
    pub(super) async fn follow(
        &mut self,
        control: Control,
        pages: Vec<String>,
        problems: Vec<String>,
    ) -> anyhow::Result<()> {
        control.socket.set_nonblocking(true)?;
        let socket = tokio::net::UnixStream::from_std(control.socket)?;
        let (reader, mut writer) = socket.into_split();
        let line = serde_json::to_string(&control.ready)? + "\n";
        writer.write_all(line.as_bytes()).await?;
        let words = Some(BufReader::new(reader).lines());
        let mut command = Follower { words, command: None, ending: None };
        loop {
            tokio::select! {
                state = command.next() => match state {
                    Some(CommandState::Started(_)) => {
                        self.is_started = true;
                        self.start(&pages, &problems);
                    }
                    Some(CommandState::Restarted(_)) => {}
                    Some(CommandState::Planned(so_far)) => self.restarts.set(so_far),
                    Some(CommandState::Ended(code)) => {
                        self.code.get_or_init(|| code);
                        return Ok(());
                    }
                    None => return Ok(()),
                },
                Some(notice) = self.notices.recv() => self.take(notice),
            }
        }
    }

    /// Returns whether the command ended with exit code 0.
    pub(super) fn has_succeeded(&self) -> bool {
        self.code.get() == Some(&0)
    }

    fn start(&self, pages: &[String], problems: &[String]) {
        let page = pages.first().map_or_else(
            || "watching, without a page".to_owned(),
            |url| format!("watching; page {url}/"),
        );
        for problem in problems {
            self.writer.line(format!("stepmem: {problem}\n"));
        }
        self.writer.line(format!("stepmem: {page}\n"));
    }

    fn take(&mut self, notice: Notice) {
        match notice {
            Notice::Finding(finding) => self.find(&finding),
            Notice::Named(finding) => self.name(*finding),
            Notice::Summary(end) => {
                self.ends.insert(end.summary.run.clone(), *end);
            }
            Notice::OomKills(n) => self.writer.line(oom_kills_line(n)),
        }
    }

    /// Reports a finding when it is raised, again when it gets worse, and when its growth has
    /// ended or it is cleared.
    fn find(&mut self, finding: &Transition) {
        if finding.state == TransitionState::Cleared {
            if finding.severity > Severity::Info {
                self.end(finding, cleared_line(finding));
            }
            return;
        }
        let key = (finding.subject.clone(), finding.kind);
        let was_urgent = self.reported.get(&key).is_some_and(|worst| *worst > Severity::Info);
        let is_withheld = was_urgent && finding.evidence.is_run_first();
        if finding.evidence.is_level() || is_withheld {
            self.end(finding, finding_line(finding, self.is_colored));
            return;
        }
        let (kind, severity) = (finding.kind, finding.severity);
        let n_reported = self.reported.keys().filter(|(_, reported)| *reported == kind).count();
        let worst = self.reported.get_mut(&(finding.subject.clone(), kind));
        match worst {
            Some(worst) if *worst >= severity => return,
            Some(worst) => *worst = severity,
            None => {
                self.reported.insert((finding.subject.clone(), kind), severity);
                if n_reported == LINES_A_KIND_MAX {
                    let title = kind.about().title;
                    self.writer.line(format!("stepmem: {title} on more ranks: see the page\n"));
                }
                if n_reported >= LINES_A_KIND_MAX {
                    return;
                }
            }
        }
        self.writer.line(finding_line(finding, self.is_colored));
    }

    /// Reports that a finding is no longer a warning or critical. A MEMORY RISING that becomes
    /// MEMORY CREEP is info, as is every finding that the engine forgets with an ended rank.
    fn end(&mut self, finding: &Transition, line: String) {
        let reported = self.reported.get_mut(&(finding.subject.clone(), finding.kind));
        let Some(reported) = reported.filter(|reported| **reported > Severity::Info) else {
            return;
        };
        *reported = Severity::Info;
        if self.n_over < LINES_A_KIND_MAX {
            self.n_over += 1;
            self.writer.line(line);
        }
    }

    /// Reports a finding once more, with the code or the object behind it.
    fn name(&mut self, finding: Transition) {
        if self.n_named == LINES_A_KIND_MAX {
            return;
        }
        self.n_named += 1;
        // The end of its rank in the meantime does not lower the severity.
        let reported = self.reported.get(&(finding.subject.clone(), finding.kind)).copied();
        let severity =
            reported.map_or(finding.severity, |reported| reported.max(finding.severity));
        let finding = Transition { severity, ..finding };
        self.writer.line(finding_line(&finding, self.is_colored));
    }

    /// Closes with the summaries, the worst first, and with the directory of snapshots that
    /// none of them has. Returns the summaries.
    pub(super) fn finish(
        mut self,
        traces: Traces,
        left: Option<PathBuf>,
    ) -> Vec<SummaryNotice> {
        while let Ok(notice) = self.notices.try_recv() {
            self.take(notice);
        }
        let mut ends: Vec<SummaryNotice> = self.ends.into_values().collect();
        ends.sort_by_key(|end| std::cmp::Reverse(end.summary.worst()));
        let runs = ends.iter().map(|SummaryNotice { summary, files, problem }| ClosingRun {
            summary,
            problem: problem.as_deref(),
            files: files.as_ref().map(|WrittenFiles { folder, name, note }| ClosingFiles {
                folder: folder.display().to_string(),
                name,
                note: note.as_deref(),
            }),
        });
        let runs: Vec<ClosingRun<'_>> = runs.collect();
        let text = match runs.as_slice() {
            [] if !traces.has_client => {
                "stepmem: nothing was watched, for the reason given at the start\n".to_owned()
            }
            [] => unwatched(traces.has_python, traces.has_torch, traces.kept_away),
            runs => closing(runs, terminal::columns()),
        };
        if self.is_started {
            self.writer.line(text);
            let code = self.code.get().copied();
            let signal = code.and_then(killed_by).map(Signal::as_str);
            if let Some(line) = code.and_then(|code| ended_line(code, signal)) {
                self.writer.line(line);
            }
            if let Some(left) = left {
                let place = left.display();
                self.writer
                    .line(format!("stepmem: {place} has snapshots that no summary has\n"));
            }
        }
        self.writer.end();
        ends
    }
}

/// Returns the signal that a shell's exit code stands for.
fn killed_by(code: u8) -> Option<Signal> {
    Signal::try_from(i32::from(code) - KILLED_BY).ok()
}

/// Follows the command: by the supervisor's messages, or by its process once the supervisor is
/// gone.
struct Follower {
    words: Option<Lines<BufReader<OwnedReadHalf>>>,
    /// The command's process, once it has started.
    command: Option<OwnedFd>,
    /// Waits for the command's end, once there is no other way to notice it.
    ending: Option<task::JoinHandle<()>>,
}

impl Follower {
    /// Resolves at the next news of the command; `None` if there will be none. May be dropped
    /// and called again.
    async fn next(&mut self) -> Option<CommandState> {
        if let Some(words) = &mut self.words {
            let line = words.next_line().await.ok().flatten();
            let state = line.and_then(|line| serde_json::from_str(&line).ok());
            if let Some(CommandState::Started(pid) | CommandState::Restarted(pid)) = state {
                self.command = process(pid);
            }
            if state.is_some() {
                return state;
            }
            self.words = None;
        }
        // The supervisor was killed, and the command runs on.
        if let Some(process) = self.command.take() {
            self.ending = Some(task::spawn_blocking(move || ended(&process)));
        }
        self.ending.as_mut()?.await.ok();
        None
    }
}

fn process(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Waits until a process ends.
fn ended(process: &OwnedFd) {
    let mut sources = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    while poll(&mut sources, PollTimeout::NONE) == Err(Errno::EINTR) {}
}

/// Writes on its own thread: a terminal may stop taking text.
struct ConsoleWriter {
    lines: SyncSender<String>,
    thread: JoinHandle<()>,
}

impl ConsoleWriter {
    fn new() -> io::Result<Self> {
        let (lines, received) = sync_channel::<String>(WAITING_LINES_MAX);
        let writing = move || received.iter().for_each(|line| say(&line));
        let thread = std::thread::Builder::new().name("terminal".to_owned()).spawn(writing)?;
        Ok(Self { lines, thread })
    }

    fn line(&self, line: String) {
        self.lines.try_send(line).ok();
    }

    /// Waits until everything is written.
    fn end(self) {
        drop(self.lines);
        self.thread.join().ok();
    }
}
