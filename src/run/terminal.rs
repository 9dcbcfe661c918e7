//! The terminal of the person who started `run`, on standard error.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use rustix::termios::tcgetwinsize;

use crate::config::environment;
use stepmem_types::format::page::broken;

/// Goes to the first column and clears the line, where a program may have left a progress bar.
const CLEAR: &str = "\r\u{1b}[K";

/// The beginning of a sentence of this program.
const SENTENCE: &str = "stepmem: ";

/// Writes text, its sentences broken between words. A failure does not matter to the command.
pub(super) fn say(text: &str) {
    let clear = if takes_sequences() { CLEAR } else { "" };
    let columns = columns();
    let lines = text.split_inclusive('\n').map(|line| match columns {
        Some(columns) if line.starts_with(SENTENCE) => {
            Cow::Owned(broken(line.trim_end(), columns) + "\n")
        }
        _ => Cow::Borrowed(line),
    });
    let mut text: String = lines.collect();
    if environment::is_github_actions() {
        text = text.split_inclusive('\n').map(without_commands).collect();
    }
    drop(io::stderr().lock().write_all(format!("{clear}{text}").as_bytes()));
}

/// Writes workflow commands, which GitHub Actions performs.
pub(super) fn say_commands(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}

/// Returns a line in which no name is taken for a workflow command, wherever a line breaks.
fn without_commands(line: &str) -> Cow<'_, str> {
    let (indent, rest) = line.split_at(line.len() - line.trim_start().len());
    match rest.strip_prefix("::") {
        Some(rest) => Cow::Owned(format!("{indent}: :{rest}").replace("##[", "# #[")),
        None if line.contains("##[") => Cow::Owned(line.replace("##[", "# #[")),
        None => Cow::Borrowed(line),
    }
}

/// Returns whether standard error is a terminal that supports colors and cursor movements.
/// Without `TERM`, or where that is `dumb` as in Emacs and in logs of CI, it prints them.
pub(super) fn takes_sequences() -> bool {
    io::stderr().is_terminal() && environment::text("TERM").is_some_and(|name| name != "dumb")
}

/// Returns the columns into which texts are fitted; `None` where they are not, as in a file.
pub(super) fn columns() -> Option<usize> {
    let of_terminal = || Some(tcgetwinsize(io::stderr()).ok()?.ws_col.into());
    environment::columns(of_terminal)
}

#[cfg(test)]
mod tests {
    use crate::run::terminal::without_commands;

    #[test]
    fn no_line_is_a_workflow_command() {
        for (line, shown) in [
            ("stepmem: a::b, 100%\n", "stepmem: a::b, 100%\n"),
            ("::error::a::b\n", ": :error::a::b\n"),
            ("    ::stop-commands::x ##[y]\n", "    : :stop-commands::x # #[y]\n"),
            ("stepmem: ##[error]x\n", "stepmem: # #[error]x\n"),
            ("\n", "\n"),
        ] {
            assert_eq!(without_commands(line), shown);
        }
    }
}
