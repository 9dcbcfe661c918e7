//! The signal monitor: a process in the command's process group that only notes the signals
//! that it gets. If both the supervisor and the monitor get a signal, it was sent to the group,
//! so the command got it, too.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;

use crate::run::signals;

/// The monitor's output once it notes signals.
pub(super) const READY: &[u8] = b"w";

/// Writes a receipt of each signal to standard output until standard input ends, which happens
/// when the supervisor is gone.
///
/// # Errors
/// Signals cannot be read, or the supervisor is gone.
pub fn run() -> anyhow::Result<()> {
    let (signals, _) = signals::block(&[])?;
    // A command that signals processes by name means the exporter or the command, not this
    // process.
    prctl::set_name(c"signal-monitor").ok();
    let mut supervisor = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    supervisor.write_all(READY)?;
    let stdin = io::stdin();
    loop {
        let mut sources = [
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut sources, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            polled => polled?,
        };
        let [_, of_supervisor] = sources;
        for receipt in signals::received(&signals) {
            supervisor.write_all(&receipt.encode())?;
        }
        if of_supervisor.any() == Some(true) {
            return Ok(());
        }
    }
}
