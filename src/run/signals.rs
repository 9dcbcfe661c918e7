//! The signals that `run` passes on to its command, and the descriptor that they are read from.

use nix::errno::Errno;
use nix::libc::SI_KERNEL;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};

/// Signals that a process cannot catch, that concern only itself, or that report its children.
const OWN: [Signal; 10] = [
    Signal::SIGKILL,
    Signal::SIGSTOP,
    Signal::SIGCHLD,
    Signal::SIGPIPE,
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGTRAP,
    Signal::SIGSYS,
];

/// The signals that stop a process and can be caught.
pub(super) const STOPS: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// A signal and its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SignalReceipt {
    pub(super) signal: Signal,
    /// The process that sent it; 0 for the kernel, or for a process outside the PID namespace.
    pub(super) sender: u32,
    /// True if the kernel sent it, as for Ctrl-C and Ctrl-Z.
    pub(super) is_of_kernel: bool,
}

/// Returns the signals that are passed on.
pub(super) fn passed_on() -> SigSet {
    Signal::iterator().filter(|signal| !OWN.contains(signal)).collect()
}

/// Blocks the signals that are passed on, and `more`. Returns their descriptor and the previous
/// mask.
///
/// # Errors
/// The system has no descriptor left.
pub(super) fn block(more: &[Signal]) -> Result<(SignalFd, SigSet), Errno> {
    let mut set = passed_on();
    set.extend(more.iter().copied());
    let before = SigSet::thread_get_mask()?;
    set.thread_block()?;
    match SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC) {
        Ok(signals) => Ok((signals, before)),
        Err(error) => {
            before.thread_set_mask()?;
            Err(error)
        }
    }
}

/// Returns whether the later signal makes the system discard an earlier one that still waits.
pub(super) fn discards(later: Signal, earlier: Signal) -> bool {
    let continues = |signal| signal == Signal::SIGCONT;
    let stops = |signal| STOPS.contains(&signal);
    continues(later) && stops(earlier) || stops(later) && continues(earlier)
}

/// Reads every signal that waits.
pub(super) fn received(signals: &SignalFd) -> Vec<SignalReceipt> {
    let mut received = Vec::new();
    while let Ok(Some(info)) = signals.read_signal() {
        received.extend(receipt(&info));
    }
    received
}

fn receipt(info: &siginfo) -> Option<SignalReceipt> {
    let signal = Signal::try_from(i32::try_from(info.ssi_signo).ok()?).ok()?;
    let is_of_kernel = info.ssi_code == SI_KERNEL;
    Some(SignalReceipt { signal, sender: info.ssi_pid, is_of_kernel })
}

impl SignalReceipt {
    /// The length of a receipt on the signal monitor's pipe, in bytes.
    pub(super) const BYTES: usize = 6;

    /// Returns the signal's number, its sender and whether that is the kernel.
    pub(super) fn encode(self) -> [u8; Self::BYTES] {
        let number = u8::try_from(number(self.signal)).unwrap_or_default();
        let [a, b, c, d] = self.sender.to_le_bytes();
        [number, a, b, c, d, u8::from(self.is_of_kernel)]
    }

    pub(super) fn decode([number, a, b, c, d, kernel]: [u8; Self::BYTES]) -> Option<Self> {
        let signal = Signal::try_from(i32::from(number)).ok()?;
        let sender = u32::from_le_bytes([a, b, c, d]);
        Some(Self { signal, sender, is_of_kernel: kernel != 0 })
    }
}

/// Returns the number of a signal.
#[expect(clippy::as_conversions, reason = "the enum is its number")]
pub(super) fn number(signal: Signal) -> i32 {
    signal as i32
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;

    use crate::run::signals::{SignalReceipt, passed_on};

    #[test]
    fn signals_that_trainers_and_job_control_use_are_passed_on() {
        let passed_on = passed_on();
        for signal in [
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGQUIT,
            Signal::SIGHUP,
            Signal::SIGUSR1,
            Signal::SIGUSR2,
            Signal::SIGTSTP,
            Signal::SIGCONT,
        ] {
            assert!(passed_on.contains(signal), "{signal}");
        }
        assert!(!passed_on.contains(Signal::SIGCHLD) && !passed_on.contains(Signal::SIGSEGV));
    }

    #[test]
    fn receipt_is_read_as_it_was_written() {
        for is_of_kernel in [false, true] {
            let receipt =
                SignalReceipt { signal: Signal::SIGUSR2, sender: 4_194_303, is_of_kernel };
            assert_eq!(SignalReceipt::decode(receipt.encode()), Some(receipt));
        }
        assert_eq!(SignalReceipt::decode([0; SignalReceipt::BYTES]), None);
    }
}
