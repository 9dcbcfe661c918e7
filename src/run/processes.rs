//! The exporter and the signal monitor from the supervisor's side: processes of this program
//! with a socket to each.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::run::signal_monitor;
use crate::run::signals::{self, STOPS, SignalReceipt, number};
use stepmem_report::summary::RestartsSoFar;

/// Time after which the supervisor no longer waits for the exporter to be ready; the command
/// starts without it.
pub const READY_WITHIN: Duration = Duration::from_secs(5);
/// Time for which a receipt of the signal monitor counts.
const RECEIPT_VALID: Duration = Duration::from_secs(1);
/// The path of this program, even after its file was replaced.
const PROGRAM: &str = "/proc/self/exe";

/// The part of `run` that a process of this program takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunPart {
    Exporter,
    SignalMonitor,
}

impl RunPart {
    /// The hidden option that names the part.
    pub const OPTION: &str = "part";

    /// Returns the part that the hidden option names.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Exporter, Self::SignalMonitor].into_iter().find(|part| part.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Exporter => "exporter",
            Self::SignalMonitor => "signal-monitor",
        }
    }

    fn start(self, name: &str, arguments: &[OsString]) -> io::Result<(Pid, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(PROGRAM);
        command.arg0(name).arg("run").arg(format!("--{}={}", Self::OPTION, self.name()));
        command.args(arguments).stdin(Stdio::from(OwnedFd::from(theirs.try_clone()?)));
        command.stdout(match self {
            Self::Exporter => Stdio::null(),
            Self::SignalMonitor => Stdio::from(OwnedFd::from(theirs)),
        });
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        Ok((Pid::from_raw(pid), ours))
    }
}

/// The exporter's message once it listens.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Ready {
    /// The address for pushes; absent where the exporter does not listen for them.
    pub(super) push_url: Option<String>,
    /// The directory of the client; absent where it could not be written.
    pub(super) client: Option<String>,
    /// The private directory, in which processes leave traces.
    pub(super) folder: Option<String>,
    /// The directory below which snapshots are written; absent where none are wanted.
    pub(super) snapshots: Option<String>,
    /// Set when clients may trace the lines that allocate growing host memory.
    #[serde(default)]
    pub(super) traces_lines: bool,
    /// The file of the token that pushes need.
    pub(super) token_file: Option<String>,
}

/// The supervisor's message to the exporter about the command.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CommandState {
    /// The command runs as this process.
    Started(i32),
    /// The command ended as planned, and runs again as this process.
    Restarted(i32),
    /// The command ended as planned; it comes before what it runs as.
    Planned(RestartsSoFar),
    /// The command ended with this exit code, in a shell's form.
    Ended(u8),
}

/// The exporter's process.
pub(super) struct ExporterProcess {
    pub(super) pid: Pid,
    /// The process's exit code; `None` while it runs.
    pub(super) code: Option<u8>,
    control: UnixStream,
}

impl ExporterProcess {
    pub(super) fn start(options: &[OsString]) -> io::Result<Self> {
        let (pid, control) = RunPart::Exporter.start("stepmem", options)?;
        Ok(Self { pid, code: None, control })
    }

    /// Waits until the exporter listens, at most [`READY_WITHIN`].
    pub(super) fn ready(&self) -> Option<Ready> {
        self.control.set_read_timeout(Some(READY_WITHIN)).ok()?;
        let mut line = String::new();
        BufReader::new(&self.control).read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    /// Sends it the command's state. The exporter may be gone.
    pub(super) fn tell(&mut self, state: &CommandState) {
        let line = serde_json::to_string(state).unwrap_or_default() + "\n";
        self.control
            .set_nonblocking(true)
            .and_then(|()| self.control.write_all(line.as_bytes()))
            .ok();
    }
}

/// The signal monitor's process.
pub(super) struct SignalMonitor {
    pub(super) pid: Pid,
    socket: UnixStream,
    unread: Vec<u8>,
    receipts: Vec<(SignalReceipt, Instant)>,
    /// The times of its last signal that stops, and of its last one that continues. Each such
    /// signal discards the other one while that one waits.
    stopped: Option<Instant>,
    continued: Option<Instant>,
}

impl SignalMonitor {
    /// Starts the monitor in this process's group. Its command line contains the command's
    /// words. Programs that choose processes by their command line thus signal both.
    pub(super) fn start(words: &[OsString]) -> io::Result<Self> {
        let arguments = [&[OsString::from("--")], words].concat();
        let (pid, socket) = RunPart::SignalMonitor.start("signal-monitor", &arguments)?;
        Ok(Self {
            pid,
            socket,
            unread: Vec::new(),
            receipts: Vec::new(),
            stopped: None,
            continued: None,
        })
    }

    /// Waits until the monitor is ready to note signals. Returns whether it is.
    pub(super) fn is_ready(&mut self) -> bool {
        let mut word = vec![0; signal_monitor::READY.len()];
        let read = self
            .socket
            .set_read_timeout(Some(READY_WITHIN))
            .and_then(|()| self.socket.read_exact(&mut word))
            .and_then(|()| self.socket.set_nonblocking(true));
        read.is_ok() && word == signal_monitor::READY
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads the monitor's receipts. Returns whether it is still there.
    pub(super) fn read(&mut self, now: Instant) -> bool {
        let mut buffer = [0; 64 * SignalReceipt::BYTES];
        let is_there = loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => break false,
                Ok(n_bytes) => self.unread.extend(buffer.iter().take(n_bytes)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break error.kind() == ErrorKind::WouldBlock,
            }
        };
        let (receipts, rest) = self.unread.as_chunks();
        self.receipts.retain(|(_, seen)| now.duration_since(*seen) < RECEIPT_VALID);
        for receipt in receipts.iter().filter_map(|bytes| SignalReceipt::decode(*bytes)) {
            self.receipts.push((receipt, now));
            if STOPS.contains(&receipt.signal) {
                self.stopped = Some(now);
            } else if receipt.signal == Signal::SIGCONT {
                self.continued = Some(now);
            }
        }
        self.unread = rest.to_vec();
        is_there
    }

    /// Returns whether the monitor also got this signal. Each of its receipts counts for one
    /// signal.
    pub(super) fn shares(&mut self, receipt: SignalReceipt) -> bool {
        let found = self.receipts.iter().position(|(seen, _)| *seen == receipt);
        found.map(|idx| self.receipts.swap_remove(idx)).is_some()
    }

    /// Forgets receipts of signals that the later signal made the system discard, where they
    /// still waited. No signal that comes from now on is the same.
    pub(super) fn forget_discarded(&mut self, later: Signal) {
        self.receipts.retain(|(seen, _)| !signals::discards(later, seen.signal));
    }

    /// Returns whether the monitor may have lost this signal to one that came after `since` and
    /// discards it.
    pub(super) fn may_have_lost(&self, signal: Signal, since: Instant) -> bool {
        let later = match signal {
            Signal::SIGCONT => self.stopped,
            stop if STOPS.contains(&stop) => self.continued,
            _ => None,
        };
        later.is_some_and(|later| later >= since)
    }

    /// Returns whether the monitor has no receipt to write about this signal: it sleeps, and
    /// the signal does not wait for it.
    pub(super) fn is_idle(&self, signal: Signal) -> bool {
        let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", self.pid)) else {
            return true;
        };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim()
        };
        let is_sleeping =
            ["S", "T", "Z"].iter().any(|state| field("State:").starts_with(state));
        let bit = 1_u64 << (number(signal) - 1);
        let waits = |name: &str| {
            u64::from_str_radix(field(name), 16).is_ok_and(|pending| pending & bit != 0)
        };
        is_sleeping && !waits("ShdPnd:") && !waits("SigPnd:")
    }
}

/// Ends a process that this program started.
pub(super) fn end(pid: Pid) {
    kill(pid, Signal::SIGKILL).ok();
}
