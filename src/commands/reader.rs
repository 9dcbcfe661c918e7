//! The reader of a command's output: a person at a terminal, or another program.

use std::io::{IsTerminal, stdout};

use rustix::termios::tcgetwinsize;

use crate::config::environment;

/// The reader of standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reader {
    pub(super) is_terminal: bool,
    /// Columns to fit the text into; `None` does not fit it, as for a pipe or a file.
    pub(super) columns: Option<usize>,
}

impl Reader {
    /// Takes the columns from `COLUMNS`, else from the terminal.
    pub(super) fn of_stdout() -> Self {
        let is_terminal = stdout().is_terminal();
        let of_terminal = || tcgetwinsize(stdout()).ok().map(|size| usize::from(size.ws_col));
        let columns = environment::columns(|| of_terminal().filter(|_| is_terminal));
        Self { is_terminal, columns }
    }
}
