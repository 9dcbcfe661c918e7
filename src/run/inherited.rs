//! The signal mask and dispositions that the caller gave `run`, which the command inherits
//! although this process needs others.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{mem, ptr};

use nix::libc;
use nix::sys::signal::{SigSet, Signal};

use crate::run::signals::number;

/// A signal whose disposition this process changes, and whether the caller ignores it.
struct Changed {
    number: i32,
    is_ignored: AtomicBool,
}

/// Rust ignores SIGPIPE before `main` runs. The supervisor has to take SIGCHLD: where it is
/// ignored, the system keeps no exit code.
static CHANGED: [Changed; 2] = [
    Changed { number: libc::SIGPIPE, is_ignored: AtomicBool::new(false) },
    Changed { number: libc::SIGCHLD, is_ignored: AtomicBool::new(false) },
];

/// Runs before Rust's own start, after which the caller's SIGPIPE can no longer be seen.
#[used]
#[expect(unsafe_code, reason = "the list of functions that run before `main`")]
// SAFETY: the section is an array of pointers to C functions that are called once, before any
// thread starts.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = note;

extern "C" fn note() {
    for Changed { number, is_ignored } in &CHANGED {
        #[expect(unsafe_code, reason = "a C call without a safe form")]
        // SAFETY: `sigaction` is plain data for which zeros are valid; the call only writes to
        // it.
        let action = unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            libc::sigaction(*number, ptr::null(), &raw mut action);
            action
        };
        is_ignored.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
}

/// Returns whether the caller ignores a signal whose disposition this process changes.
pub(super) fn ignores(signal: Signal) -> bool {
    let changed = CHANGED.iter().find(|changed| changed.number == number(signal));
    changed.is_some_and(|changed| changed.is_ignored.load(Ordering::Relaxed))
}

/// Starts the command with this mask, and has it ignore the signals that the caller ignores.
pub(super) fn hand_on(command: &mut Command, mask: SigSet) {
    let set = move || -> io::Result<()> {
        mask.thread_set_mask()?;
        for Changed { number, is_ignored } in &CHANGED {
            let is_ignored = is_ignored.load(Ordering::Relaxed);
            let action = if is_ignored { libc::SIG_IGN } else { libc::SIG_DFL };
            #[expect(unsafe_code, reason = "a C call without a safe form")]
            // SAFETY: it takes two integers by value, and no handler runs code of this program.
            if unsafe { libc::signal(*number, action) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    #[expect(unsafe_code, reason = "runs between fork and exec")]
    // SAFETY: `set` makes calls that are safe after a fork, and allocates nothing: errors of
    // the system are numbers.
    unsafe {
        command.pre_exec(set)
    };
}
