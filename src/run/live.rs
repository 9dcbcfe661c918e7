//! The table of ranks at the foot of the terminal (`run --live`), and the conditions under
//! which it is drawn.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::exporter::process_state::ProcessState;
use crate::run::terminal::{self, Foot, TerminalSize};
use stepmem_engine::output::status::Status;
use stepmem_report::rank_table::{TableRoom, few_lines};

/// Maximum number of lines of the table with its heads, at any height of the terminal. Further
/// ranks are counted.
pub const TABLE_LINES_MAX: usize = 16;
/// Divisor of the terminal's rows: the table takes one such part at most.
const PARTS_MIN: usize = 3;
/// Number of terminal rows below which there is no table.
const TERMINAL_ROWS_MIN: usize = 12;
/// Interval at which the terminal's size is read, and whether the command is in the foreground.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Number of evaluations between draws of the table; it is drawn at once if the terminal's size
/// has changed.
const LOOKS_A_DRAW: u32 = 5;

/// Reasons that there is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoTable {
    NoTerminal,
    Dumb,
    /// Another session has the terminal.
    Foreign,
    /// It has too few rows, or their number is unknown. It may get more.
    Low,
}

impl NoTable {
    /// Returns the reason that this process's terminal can have no table, if there is one.
    pub(super) fn here() -> Option<Self> {
        if !terminal::is_there() {
            Some(Self::NoTerminal)
        } else if !terminal::takes_sequences() {
            Some(Self::Dumb)
        } else if !terminal::controls_us() {
            Some(Self::Foreign)
        } else if terminal::size().and_then(room).is_none() {
            Some(Self::Low)
        } else {
            None
        }
    }

    /// Returns whether the terminal may have a table later.
    pub(super) fn is_for_now(self) -> bool {
        self == Self::Low
    }

    /// Returns a line with the reason.
    pub(super) fn words(self) -> String {
        let why = match self {
            Self::NoTerminal => ": standard error is not a terminal".to_owned(),
            Self::Dumb => ": TERM is unset or dumb".to_owned(),
            Self::Foreign => ": the terminal belongs to another session".to_owned(),
            Self::Low => {
                format!(" while the terminal has fewer than {TERMINAL_ROWS_MIN} rows")
            }
        };
        format!("no table of ranks{why}")
    }
}

/// The table; gone from the terminal when it is dropped.
pub(super) struct LiveTable {
    command: i32,
    status: watch::Receiver<Arc<Status>>,
    supervisor: UnixStream,
    n_looks: u32,
    /// The rows, while the table is on the terminal.
    foot: Option<Foot>,
    /// The size of the terminal and the number of lines of the table that is on it.
    standing: Option<(TerminalSize, usize)>,
}

impl LiveTable {
    /// Returns a table of `status`, which is drawn while the process `command` is in the
    /// foreground of its terminal.
    pub(super) fn new(
        command: i32,
        status: watch::Receiver<Arc<Status>>,
        supervisor: UnixStream,
    ) -> Self {
        Self { command, status, supervisor, n_looks: 0, foot: None, standing: None }
    }

    /// Draws the table if it is due.
    pub(super) fn look(&mut self) {
        let job = ProcessState::of(self.command);
        if job.is_stopped || !job.is_in_foreground {
            self.clear();
            return;
        }
        let size = terminal::size();
        let is_resized = self.standing.is_some_and(|(standing, _)| Some(standing) != size);
        let is_due = self.n_looks.is_multiple_of(LOOKS_A_DRAW);
        self.n_looks = self.n_looks.wrapping_add(1);
        // A draw that is left out does no harm.
        if (is_due || is_resized) && terminal::is_writable() {
            self.draw(size);
        }
    }

    fn draw(&mut self, size: Option<TerminalSize>) {
        let Some((size, room)) = size.and_then(|size| Some((size, room(size)?))) else {
            self.clear();
            return;
        };
        let lines = few_lines(&self.status.borrow(), room, true);
        if lines.is_empty() {
            self.clear();
            return;
        }
        // Another run's table may have it. This table appears when that one is gone.
        self.foot = self.foot.take().or_else(Foot::claim);
        if self.foot.is_none() {
            return;
        }
        let standing = Some((size, lines.len()));
        terminal::draw(&lines, size, self.standing != standing);
        self.standing = standing;
    }

    /// Leaves the terminal to the shell, because the command is stopped, and reports that to
    /// the supervisor.
    pub(super) fn leave(&mut self) {
        self.clear();
        self.supervisor.write_all(b"\n").ok();
    }

    fn clear(&mut self) {
        if self.standing.take().is_some() {
            terminal::restore();
        }
        self.foot = None;
    }
}

impl Drop for LiveTable {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Returns the space for the table; `None` on a terminal that is too low.
fn room(size: TerminalSize) -> Option<TableRoom> {
    let n_lines = TABLE_LINES_MAX.min(size.n_rows / PARTS_MIN);
    let is_high = size.n_rows >= TERMINAL_ROWS_MIN && size.n_columns > 0;
    is_high.then_some(TableRoom { n_lines, n_columns: size.n_columns })
}

#[cfg(test)]
mod tests {
    use crate::run::live::{TABLE_LINES_MAX, room};
    use crate::run::terminal::TerminalSize;

    #[test]
    fn table_takes_a_third_of_the_terminal_at_most() {
        let n_lines = |n_rows| Some(room(TerminalSize { n_rows, n_columns: 80 })?.n_lines);
        assert_eq!(n_lines(11), None);
        assert_eq!(n_lines(12), Some(4));
        assert_eq!(n_lines(24), Some(8));
        assert_eq!(n_lines(500), Some(TABLE_LINES_MAX));
        assert_eq!(room(TerminalSize { n_rows: 24, n_columns: 0 }), None);
    }
}
