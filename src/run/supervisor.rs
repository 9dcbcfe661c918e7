//! The supervisor: the process that was started. It starts the exporter, the signal monitor and
//! the command, passes signals on to the command, and ends as the command did.
//!
//! The command is its child in the same process group, with the same terminal. If the exporter
//! or the monitor fails, the command goes on. If the supervisor is killed, the command goes on
//! as an orphan.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::SignalFd;
use nix::unistd::{Pid, getpid, getsid};
use rustix::process::{WaitOptions, WaitStatus};
use tokio::time::Instant;

use crate::run::environment::{Replaced, Words, c_strings, environment, variables};
use crate::run::inherited;
use crate::run::processes::{CommandState, ExporterProcess, Ready, SignalMonitor, end};
use crate::run::restarts::{RestartOptions, Restarts};
use crate::run::signals::{self, STOPS, SignalReceipt};
use crate::run::terminal::say;

/// Time that a signal waits for the monitor to get it, too, as from a program that signals one
/// process after the other.
const SHARED_WITHIN: Duration = Duration::from_millis(100);
/// Time limit for the exporter's last lines after the command has ended.
pub const FINISH_WITHIN: Duration = Duration::from_secs(15);
/// The exit codes of a shell whose command does not exist, or cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// Offset of a shell's exit code for a command that a signal killed: the signal's number is
/// added.
pub(super) const KILLED_BY: i32 = 128;

/// The command to start, and its options.
#[derive(Clone, Debug)]
pub struct CommandLaunch {
    /// The program and its arguments; not empty.
    pub command: Vec<OsString>,
    /// The options of `run`, for the exporter.
    pub options: Vec<OsString>,
    /// The exit codes of `--fail-on`.
    pub gate: GateCodes,
    /// Planned restarts, if they are wanted.
    pub restarts: Option<RestartOptions>,
}

/// Exit codes of the exporter for the verdict of `--fail-on`, which are then those of `run`.
#[derive(Clone, Copy, Debug)]
pub struct GateCodes {
    pub failed: u8,
    /// The exit code if the gate could not reach a verdict.
    pub unjudged: u8,
    /// True if a command that was not watched ends with `unjudged`.
    pub needs_watching: bool,
}

/// Reasons that there is no verdict.
const UNWATCHED: &str = "nothing was watched";
const UNSUMMED: &str = "there is no summary to judge by";

impl GateCodes {
    /// Returns the exit code of a command for which there is no verdict, for this reason.
    fn without_verdict(self, code: u8, why: &str) -> u8 {
        if code != 0 || !self.needs_watching {
            return code;
        }
        let unjudged = self.unjudged;
        say(&format!("stepmem: exit code {unjudged}: {why} (--fail-on)\n"));
        unjudged
    }
}

/// The command could not be started.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", program.display())]
pub struct NotStarted {
    program: OsString,
    reason: io::Error,
    /// The exit code of a shell in this case.
    pub code: u8,
}

/// Runs the command to its end. Returns the exit code in a shell's form.
///
/// # Errors
/// The command cannot be started.
pub fn run(launch: &CommandLaunch) -> Result<u8, NotStarted> {
    // Where the parent process ignores SIGCHLD, the system would keep no exit code.
    drop(signal_hook::flag::register(libc::SIGCHLD, std::sync::Arc::default()));
    let Ok((signals, mask)) = signals::block(&[Signal::SIGCHLD]) else {
        return Err(launch.not_started(launch.replace_us(SigSet::thread_get_mask())));
    };
    let exporter = ExporterProcess::start(&launch.options).inspect_err(unwatched).ok();
    let mut monitor = SignalMonitor::start(&launch.command).ok();
    let ready = exporter.as_ref().and_then(ExporterProcess::ready).unwrap_or_default();
    monitor = monitor.take_if(SignalMonitor::is_ready);
    // Signals from before the command's start did not reach it.
    let early = signals::received(&signals);
    let restarts = launch.restarts(&ready);
    let replaced = restarts.as_ref().map(Restarts::variables).unwrap_or_default();
    let command = launch.spawn(&ready, &replaced, mask).map_err(|error| {
        let has_no_file = error.raw_os_error() == Some(libc::EMFILE);
        launch.not_started(if has_no_file { launch.replace_us(Ok(mask)) } else { error })
    })?;
    for receipt in early.into_iter().filter(|receipt| receipt.signal != Signal::SIGCHLD) {
        pass_on(command, receipt.signal);
    }
    let mut supervisor = Supervisor {
        signals,
        exporter,
        monitor,
        command,
        undecided: Vec::new(),
        is_told_to_end: false,
    };
    if let Some(exporter) = &mut supervisor.exporter {
        exporter.tell(&CommandState::Started(command.as_raw()));
    }
    supervisor.tell_restarts(restarts.as_ref());
    let code = catch_unwind(AssertUnwindSafe(|| supervisor.watch()));
    let mut code = code.unwrap_or_else(|_| wait_for(command));
    let Some(mut restarts) = restarts else { return Ok(supervisor.finish(code, launch.gate)) };
    while !supervisor.is_told_to_end && restarts.is_planned(code) {
        supervisor.tell_restarts(Some(&restarts));
        match launch.spawn(&ready, &restarts.variables(), mask) {
            Ok(command) => code = supervisor.watch_again(command),
            Err(error) => {
                say(&format!("stepmem: the command is not started again: {error}\n"));
                break;
            }
        }
    }
    Ok(supervisor.finish(code, launch.gate))
}

fn unwatched(error: &io::Error) {
    say(&format!("stepmem: the command is not watched: {error}\n"));
}

impl CommandLaunch {
    /// Starts the command as it would start without this program: with the inherited signal
    /// mask and dispositions.
    fn spawn(&self, ready: &Ready, replaced: &Replaced, mask: SigSet) -> io::Result<Pid> {
        if inherited::ignores(Signal::SIGCHLD) {
            let child = self.command(variables(ready, replaced), mask).spawn()?;
            return Ok(Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?));
        }
        let mut attributes = PosixSpawnAttr::init()?;
        attributes.set_sigmask(&mask)?;
        let mut flags = PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK;
        if !inherited::ignores(Signal::SIGPIPE) {
            attributes.set_sigdefault(&SigSet::from(Signal::SIGPIPE))?;
            flags |= PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF;
        }
        attributes.set_flags(flags)?;
        let files = PosixSpawnFileActions::init()?;
        let variables = environment(ready, replaced);
        let spawn = |words: &Words| {
            let program = words.first().ok_or(Errno::EINVAL)?;
            posix_spawnp(program, &files, &attributes, words, &variables)
        };
        match spawn(&c_strings(&self.command)) {
            // A script without `#!`, which shells run themselves.
            Err(Errno::ENOEXEC) => {
                let shell = [&[OsString::from("/bin/sh")], self.command.as_slice()].concat();
                Ok(spawn(&c_strings(&shell))?)
            }
            spawned => Ok(spawned?),
        }
    }

    /// Becomes the command. Returns only if that fails.
    fn replace_us(&self, mask: Result<SigSet, Errno>) -> io::Error {
        match mask {
            Ok(mask) => {
                self.command(variables(&Ready::default(), &Replaced::new()), mask).exec()
            }
            Err(error) => error.into(),
        }
    }

    /// Returns the command for a start that passes descriptors, unlike `posix_spawn`, and can
    /// have it ignore a signal.
    fn command(&self, variables: Vec<(OsString, OsString)>, mask: SigSet) -> Command {
        let (program, arguments) = match self.command.split_first() {
            Some((program, arguments)) => (program.as_os_str(), arguments),
            None => ("".as_ref(), [].as_slice()),
        };
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(variables);
        inherited::hand_on(&mut command, mask);
        command
    }

    /// Prepares planned restarts, if they are wanted and possible.
    fn restarts(&self, ready: &Ready) -> Option<Restarts> {
        let options = self.restarts.as_ref()?;
        let folder = ready.folder.as_ref().ok_or_else(|| io::Error::other(UNWATCHED));
        let restarts = folder.and_then(|folder| Restarts::prepare(options, folder.as_ref()));
        let without =
            |error: &io::Error| say(&format!("stepmem: no planned restarts: {error}\n"));
        restarts.inspect_err(without).ok()
    }

    fn not_started(&self, reason: io::Error) -> NotStarted {
        let is_missing = reason.kind() == io::ErrorKind::NotFound;
        let code = if is_missing { NOT_FOUND } else { NOT_EXECUTABLE };
        NotStarted { program: self.command.first().cloned().unwrap_or_default(), reason, code }
    }
}

/// The supervisor while the command runs.
struct Supervisor {
    signals: SignalFd,
    exporter: Option<ExporterProcess>,
    monitor: Option<SignalMonitor>,
    command: Pid,
    undecided: Vec<Undecided>,
    /// Set once a signal came that ends programs: the command is not started again.
    is_told_to_end: bool,
}

/// A signal of which it is not yet known whether the command got it, too.
struct Undecided {
    receipt: SignalReceipt,
    since: Instant,
    /// The time of the decision.
    until: Instant,
    /// Set when a later signal makes the system discard this one where it still waits.
    is_overtaken: bool,
}

impl Supervisor {
    /// Tells the exporter of planned restarts, if there were any.
    fn tell_restarts(&mut self, restarts: Option<&Restarts>) {
        let so_far = restarts.and_then(Restarts::so_far);
        if let Some((exporter, so_far)) = self.exporter.as_mut().zip(so_far) {
            exporter.tell(&CommandState::Planned(so_far));
        }
    }

    /// Watches the command, which runs again as another process. Returns its exit code.
    fn watch_again(&mut self, command: Pid) -> u8 {
        self.command = command;
        self.undecided.clear();
        if let Some(exporter) = &mut self.exporter {
            exporter.tell(&CommandState::Restarted(command.as_raw()));
        }
        let code = catch_unwind(AssertUnwindSafe(|| self.watch()));
        code.unwrap_or_else(|_| wait_for(command))
    }

    /// Passes signals on until the command has ended. Returns its exit code.
    fn watch(&mut self) -> u8 {
        loop {
            let now = Instant::now();
            if let Some(monitor) = &mut self.monitor
                && !monitor.read(now)
            {
                self.monitor = None;
            }
            // All signals are read before children are asked: the supervisor stops only after
            // it has read its own stop signal.
            let received = signals::received(&self.signals);
            let received = received.into_iter().filter(|it| it.signal != Signal::SIGCHLD);
            // Receipts that the monitor has written so far count for the earlier signals.
            self.decide(now);
            for receipt in received {
                self.take(receipt, now);
            }
            self.decide(now);
            if let Some(code) = self.ask_children() {
                return code;
            }
            // Children were asked after the signals were read: a child that ends from now on
            // interrupts this wait.
            self.wait();
        }
    }

    /// Stops as the command was stopped. Returns once continued.
    fn stop_by(&mut self, signal: i32) {
        // The signal that continued the group before is not the one that continues this process
        // next.
        if let Some(monitor) = &mut self.monitor {
            monitor.read(Instant::now());
            monitor.forget_discarded(Signal::SIGTSTP);
        }
        stop_by(signal);
        // The signal that stopped the command has reached it: a stop signal that comes from now
        // on is another one.
        self.undecided.retain(|undecided| !STOPS.contains(&undecided.receipt.signal));
        if let Some(monitor) = &mut self.monitor {
            monitor.read(Instant::now());
            monitor.forget_discarded(Signal::SIGCONT);
        }
    }

    /// Waits for a signal, a receipt of the monitor, or the time to decide about a signal.
    fn wait(&self) {
        self.wait_until(self.undecided.iter().map(|undecided| undecided.until).min());
    }

    /// Waits for a signal or a receipt of the monitor, at most until `until`.
    fn wait_until(&self, until: Option<Instant>) {
        let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
        // Rounded up, so that the time has come when the wait ends.
        let timeout = timeout.map(|timeout| timeout + Duration::from_millis(1));
        let timeout = timeout.and_then(|timeout| PollTimeout::try_from(timeout).ok());
        let mut sources = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        let monitor = self.monitor.as_ref().map(SignalMonitor::socket);
        sources.extend(monitor.map(|socket| PollFd::new(socket, PollFlags::POLLIN)));
        // Interrupted or not: whatever has arrived is read next.
        poll(&mut sources, timeout.unwrap_or(PollTimeout::NONE)).ok();
    }

    /// Takes a signal, in the order in which they came.
    fn take(&mut self, receipt: SignalReceipt, now: Instant) {
        self.is_told_to_end |= ends_patience(&receipt);
        for before in &mut self.undecided {
            before.is_overtaken |= signals::discards(receipt.signal, before.receipt.signal);
        }
        if let Some(monitor) = &mut self.monitor {
            monitor.forget_discarded(receipt.signal);
        }
        let until = now + SHARED_WITHIN;
        self.undecided.push(Undecided { receipt, since: now, until, is_overtaken: false });
    }

    /// Passes on the signals that the command did not get by itself.
    fn decide(&mut self, now: Instant) {
        let command = self.command;
        let monitor = &mut self.monitor;
        self.undecided.retain_mut(|Undecided { receipt, since, until, is_overtaken }| {
            let Some(monitor) = monitor else {
                if !is_for_the_group(*receipt) {
                    pass_on(command, receipt.signal);
                }
                return false;
            };
            if monitor.shares(*receipt)
                || *is_overtaken && monitor.may_have_lost(receipt.signal, *since)
            {
                return false;
            }
            if *until > now {
                return true;
            }
            if !monitor.is_idle(receipt.signal) {
                *until = now + SHARED_WITHIN;
                return true;
            }
            // Receipts that the monitor wrote between the two reads.
            if monitor.read(now) && monitor.shares(*receipt) {
                return false;
            }
            pass_on(command, receipt.signal);
            false
        });
    }

    /// Records children that ended or stopped. Returns the exit code once the command has
    /// ended.
    fn ask_children(&mut self) -> Option<u8> {
        loop {
            let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
            let (pid, status) = match rustix::process::wait(options) {
                Ok(Some((pid, status))) => (Pid::from_raw(pid.as_raw_pid()), status),
                Ok(None) => return None,
                Err(rustix::io::Errno::INTR) => continue,
                // The command remains a child until it was waited for.
                Err(_) => return Some(NOT_EXECUTABLE),
            };
            if pid == self.command {
                match status.stopping_signal() {
                    Some(signal) => self.stop_by(signal),
                    None => return Some(shell_code(status)),
                }
            } else if let Some(exporter) = &mut self.exporter
                && exporter.pid == pid
            {
                exporter.code = (!status.stopped()).then(|| shell_code(status));
            }
        }
    }

    /// Lets the exporter write its last lines. Returns the exit code of `run`.
    fn finish(mut self, code: u8, gate: GateCodes) -> u8 {
        self.monitor = None;
        let Some(exporter) = &mut self.exporter else {
            return gate.without_verdict(code, UNWATCHED);
        };
        exporter.tell(&CommandState::Ended(code));
        let until = Instant::now() + FINISH_WITHIN;
        loop {
            // The SIGCHLD of a child that has ended is always read before that child is asked:
            // a wait follows each check of the children.
            let is_given_up = signals::received(&self.signals).iter().any(ends_patience);
            // Without the exporter no child is left.
            if self.ask_children().is_some() || self.exporter_code().is_some() {
                break;
            }
            if is_given_up || Instant::now() >= until {
                self.give_up();
                return gate.without_verdict(code, UNSUMMED);
            }
            self.wait_until(Some(until));
        }
        match self.exporter_code() {
            Some(verdict) if [gate.failed, gate.unjudged].contains(&verdict) && code == 0 => {
                verdict
            }
            Some(verdict) if [0, gate.failed, gate.unjudged].contains(&verdict) => code,
            None => gate.without_verdict(code, UNSUMMED),
            Some(failure) => {
                say(&format!(
                    "stepmem: no summary: the exporter ended early ({failure}); the command ran on without it\n"
                ));
                gate.without_verdict(code, UNSUMMED)
            }
        }
    }

    fn exporter_code(&self) -> Option<u8> {
        self.exporter.as_ref().and_then(|exporter| exporter.code)
    }

    fn give_up(&self) {
        if let Some(exporter) = &self.exporter {
            end(exporter.pid);
        }
        say("stepmem: no summary: the exporter was ended before it had one\n");
    }
}

/// Returns whether this signal, after the command's end, demands an immediate end: a person or
/// a system sent it.
fn ends_patience(receipt: &SignalReceipt) -> bool {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGQUIT, Signal::SIGHUP].contains(&receipt.signal)
}

/// Returns whether a signal went to the whole group, as far as that shows without a signal
/// monitor. The kernel sends SIGHUP only to a session's first process.
fn is_for_the_group(receipt: SignalReceipt) -> bool {
    let is_leader = getsid(None).is_ok_and(|session| session == getpid());
    receipt.is_of_kernel && !(receipt.signal == Signal::SIGHUP && is_leader)
}

/// Sends the command a signal. It may have ended.
fn pass_on(command: Pid, signal: Signal) {
    kill(command, signal).ok();
}

/// Stops as the command was stopped, so that the shell sees that. Returns once continued.
fn stop_by(signal: i32) {
    let Ok(signal) = Signal::try_from(signal) else { return };
    let only = SigSet::from(signal);
    let unblocked = if signal == Signal::SIGSTOP { Ok(()) } else { only.thread_unblock() };
    if unblocked.is_ok() {
        raise(signal).ok();
    }
    if signal != Signal::SIGSTOP {
        only.thread_block().ok();
    }
}

/// Returns a shell's exit code for a process that ended.
fn shell_code(status: WaitStatus) -> u8 {
    let killed = status.terminating_signal().map(|signal| KILLED_BY + signal);
    let code = status.exit_status().or(killed).unwrap_or(i32::from(NOT_EXECUTABLE));
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Waits for the command and does nothing else.
fn wait_for(command: Pid) -> u8 {
    let pid = rustix::process::Pid::from_raw(command.as_raw());
    loop {
        match rustix::process::waitpid(pid, WaitOptions::empty()) {
            Ok(Some((_, status))) => return shell_code(status),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return NOT_EXECUTABLE,
        }
    }
}
