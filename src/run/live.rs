//! The table of ranks at the foot of the terminal (`run --live`): when it is drawn, and when it is not.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::exporter::process_state::ProcessState;
use crate::run::terminal::{self, Foot, TerminalSize};
use stepmem_engine::output::status::Status;
use stepmem_report::rank_table::{TableRoom, few_lines};

/// Lines of the table with its heads, however high the terminal is. Further ranks are counted.
pub const TABLE_LINES_MAX: usize = 16;
/// Of so many parts of the terminal, the table takes one at most.
const PARTS_MIN: usize = 3;
/// A lower terminal has no table.
const TERMINAL_ROWS_MIN: usize = 12;
/// How often the terminal's size is read, and whether the command is in the foreground.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The table is drawn at every look of so many; at once if the terminal has another size.
const LOOKS_A_DRAW: u32 = 5;

/// Why there is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoTable {
    NoTerminal,
    Dumb,
    /// Another session has the terminal.
    Foreign,
    /// It has too few rows, or they are unknown. It may get more.
    Low,
}

impl NoTable {
    /// Returns what keeps a table from this process's terminal, if anything does.
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

    /// Returns a line that says so.
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
    /// There while it stands.
    foot: Option<Foot>,
    /// The size of the terminal and the lines of the table that stands there.
    standing: Option<(TerminalSize, usize)>,
}

impl LiveTable {
    /// Returns a table of what `status` says while the process `command` is in the foreground of its terminal.
    pub(super) fn new(
        command: i32,
        status: watch::Receiver<Arc<Status>>,
        supervisor: UnixStream,
    ) -> Self {
        Self { command, status, supervisor, n_looks: 0, foot: None, standing: None }
    }

    /// Draws it if it is time.
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
        // One that is not drawn is not missed.
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
        // Another run's table has it, maybe. This one comes when that one is gone.
        self.foot = self.foot.take().or_else(Foot::claim);
        if self.foot.is_none() {
            return;
        }
        let standing = Some((size, lines.len()));
        terminal::draw(&lines, size, self.standing != standing);
        self.standing = standing;
    }

    /// Leaves the terminal to the shell, as the command is stopped, and tells the supervisor so.
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

/// Returns the room of the table; `None` on a terminal that is too low.
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
