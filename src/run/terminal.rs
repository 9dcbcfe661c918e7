//! The terminal of the person who started `run`, on standard error: lines, and rows at its foot
//! that stay while lines scroll above them.

use std::fs::{File, TryLockError};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::termios::{tcgetpgrp, tcgetwinsize};

use crate::config::environment;

/// Standard error as a path that can be opened.
const STDERR: &str = "/proc/self/fd/2";
/// Goes to the first column and clears the line, where a program may have left a progress bar.
const CLEAR: &str = "\r\u{1b}[K";
/// Lets the whole screen scroll, and clears the lines below the cursor's, which stays in its
/// line. Ensures that there is a line below: with rows at the foot there is one, so that
/// nothing moves. Sets autowrap to its default: Ctrl-C discards output that the terminal has
/// not read yet, which may be the end of a draw.
const RESTORE: &str = "\u{1b}7\u{1b}[m\u{1b}[?7h\u{1b}[r\u{1b}8\u{1b}D\u{1b}[A\u{1b}7\u{1b}[m\u{1b}[B\r\u{1b}[J\u{1b}8";

/// Rows and columns of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TerminalSize {
    pub(super) n_rows: usize,
    pub(super) n_columns: usize,
}

/// Writes text. A failure does not matter to the command.
pub(super) fn say(text: &str) {
    let clear = if takes_sequences() { CLEAR } else { "" };
    write(&format!("{clear}{text}"));
}

pub(super) fn is_there() -> bool {
    io::stderr().is_terminal()
}

/// Returns whether standard error is a terminal that supports colors and cursor movements.
/// Without `TERM`, or where that is `dumb` as in Emacs and in logs of CI, it prints them.
pub(super) fn takes_sequences() -> bool {
    is_there() && environment::text("TERM").is_some_and(|name| name != "dumb")
}

/// Returns the size; `None` where it is unknown.
pub(super) fn size() -> Option<TerminalSize> {
    let size = tcgetwinsize(io::stderr()).ok()?;
    Some(TerminalSize { n_rows: size.ws_row.into(), n_columns: size.ws_col.into() })
}

/// Returns the columns into which texts are fitted; `None` where they are not, as in a file.
pub(super) fn columns() -> Option<usize> {
    environment::columns(|| size().filter(|_| is_there()).map(|size| size.n_columns))
}

/// Returns whether the terminal takes text at once, which it does not after Ctrl-S.
pub(super) fn is_writable() -> bool {
    let stderr = io::stderr();
    let mut sources = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    poll(&mut sources, PollTimeout::ZERO).is_ok_and(|n_ready| n_ready > 0)
}

/// Returns whether this process's group is in the terminal's foreground.
pub(super) fn is_ours() -> bool {
    tcgetpgrp(io::stderr()).is_ok_and(|group| group == rustix::process::getpgrp())
}

/// Returns whether the terminal is the one that controls this process's session.
pub(super) fn controls_us() -> bool {
    tcgetpgrp(io::stderr()).is_ok()
}

/// The right to the rows at the foot of the terminal. One process has it at a time, until this
/// value is dropped.
pub(super) struct Foot {
    /// `None` where the terminal cannot be opened: then there is no lock.
    _claim: Option<File>,
}

impl Foot {
    /// Returns `None` while another process has it.
    pub(super) fn claim() -> Option<Self> {
        // A lock belongs to the open file, and the programs of a terminal share the one that
        // they inherited.
        let flags = OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(terminal) = open(STDERR, flags, Mode::empty()).map(File::from) else {
            return Some(Self { _claim: None });
        };
        match terminal.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            Ok(()) | Err(TryLockError::Error(_)) => Some(Self { _claim: Some(terminal) }),
        }
    }
}

/// Clears the rows at the foot, and lets the whole screen scroll again.
pub(super) fn restore() {
    write(RESTORE);
}

/// Draws rows at the foot in one write. The cursor, its colors and the program that uses them
/// stay unaffected. The first row is in reverse video. `makes_room` where the rows are not
/// there yet, or the terminal has another size.
pub(super) fn draw(rows: &[String], size: TerminalSize, makes_room: bool) {
    write(&drawn(rows, size, makes_room));
}

fn drawn(rows: &[String], size: TerminalSize, makes_room: bool) -> String {
    let n_above = size.n_rows.saturating_sub(rows.len());
    let room = format!("{RESTORE}{}\u{1b}[{}A", "\u{1b}D".repeat(rows.len()), rows.len());
    let rows = rows.iter().enumerate().map(|(idx, row)| {
        let line = n_above + idx + 1;
        let row = match idx {
            0 => format!("\u{1b}[7m{row:<width$}", width = size.n_columns),
            _ => row.clone(),
        };
        format!("\u{1b}[{line};1H\u{1b}[m\u{1b}[2K{row}")
    });
    let rows: String = rows.collect();
    let room = if makes_room { &room } else { "" };
    // The region is set each time: a program may have reset it. That moves the cursor, so it is
    // saved before.
    format!("{room}\u{1b}7\u{1b}[1;{n_above}r\u{1b}[?7l{rows}\u{1b}[?7h\u{1b}8")
}

fn write(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}
