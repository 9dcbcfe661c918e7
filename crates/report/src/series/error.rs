//! Why there are no series.

use std::fmt::Display;

use thiserror::Error;

use crate::series::model::{COLUMNS_MAX, POINTS_MAX, ROW_BYTES_MAX, SERIES_MAX};
use stepmem_types::format::clean::{Quoted, shortened};

/// Characters of a reader's reason.
const REASON_CHARS_MAX: usize = 160;

/// The reason that bytes give no series. Names are those of the file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SeriesError {
    #[error("it is empty")]
    Empty,
    #[error("line {0} exceeds {ROW_BYTES_MAX} bytes")]
    LongLine(u64),
    #[error("line {line}: {reason}")]
    Line { line: u64, reason: String },
    #[error(
        "no column of it is a time; name one with --time, and the columns with --header if its first line does not ({0})"
    )]
    NoTime(String),
    #[error(
        "none of its {n_rows} rows has a time that can be read: column {column} has {}",
        Quoted(value)
    )]
    NoTimes { column: String, value: String, n_rows: u64 },
    #[error("it has no column {} ({has})", Quoted(wanted))]
    NoColumn { wanted: String, has: String },
    #[error("no name of it is that of memory; choose with --column ({0})")]
    NoMemory(String),
    #[error("{0} has no figure that can be read")]
    NoFigures(String),
    #[error("the unit of {0} is unknown; give it with --unit (MiB, GB, bytes or %)")]
    NoUnit(String),
    #[error("{0} is in percent; give --capacity, of which it is the share")]
    NoCapacity(String),
    #[error("a figure of {name} exceeds --capacity: {value} of {capacity}")]
    AboveCapacity { name: String, value: String, capacity: String },
    #[error(
        "its rows come in bursts, as of several devices; name the column that tells them apart with --by, or log index or uuid ({0})"
    )]
    Bursts(String),
    #[error(
        "series with {labels} overlap in time; add to --by what tells them apart ({has}), or aggregate in the query"
    )]
    Overlap { labels: String, has: String },
    #[error(
        "it has more than {SERIES_MAX} series; name the columns that tell them apart with --by"
    )]
    TooManySeries,
    #[error("it has more than {POINTS_MAX} points")]
    TooManyPoints,
    #[error("it has more than {COLUMNS_MAX} columns")]
    TooManyColumns,
}

impl SeriesError {
    /// Returns the error of a line which a reader refused.
    pub(super) fn line(line: u64, reason: &impl Display) -> Self {
        Self::Line { line, reason: shortened(&reason.to_string(), REASON_CHARS_MAX) }
    }
}
