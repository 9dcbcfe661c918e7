//! Lines for the person who started `run`, on standard error.

use std::io::{self, IsTerminal, Write};

/// Goes to the first column and clears the line, where a program may have left a progress bar.
const CLEAR: &str = "\r\u{1b}[K";

/// Writes text. Whether it is read does not matter to the command.
pub(super) fn say(text: &str) {
    let mut stderr = io::stderr().lock();
    let clear = if stderr.is_terminal() { CLEAR } else { "" };
    drop(stderr.write_all(format!("{clear}{text}").as_bytes()));
}
