//! Why a body is refused.

use std::fmt;

use crate::wire::echo::{ECHO_CHARS_MAX, message, shortened};
use stepmem_types::format::clean::Quoted;
use stepmem_types::units::{INTEGER_MAX, OutOfRange, number_shown};

/// The reason that a body is refused: the record (from 0), the field, the value and the limit.
#[derive(Debug, thiserror::Error)]
#[error("{}{problem}", Location { record: *record, field })]
pub struct DecodeError {
    pub(super) record: Option<usize>,
    pub(super) field: String,
    pub(super) problem: DecodeFault,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum DecodeFault {
    #[error("{0}")]
    Json(String),
    #[error("the body is empty: expected JSON")]
    Empty,
    #[error("{} is not an integer of 0..={INTEGER_MAX}", number_shown(*.0))]
    NotInteger(f64),
    #[error("{} is not one of {}", Quoted(.0), .1)]
    NotOneOf(String, String),
    #[error("the batch of {n_records} records exceeds {n_max}")]
    TooManyRecords { n_records: usize, n_max: usize },
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
}

impl DecodeError {
    /// Returns whether the body is well-formed but a value is not allowed.
    pub fn is_out_of_range(&self) -> bool {
        !matches!(
            self.problem,
            DecodeFault::Json(_) | DecodeFault::Empty | DecodeFault::TooManyRecords { .. }
        )
    }

    /// Returns whether the batch has too many records.
    pub fn is_too_long(&self) -> bool {
        matches!(self.problem, DecodeFault::TooManyRecords { .. })
    }

    pub(super) fn at(mut self, record: usize) -> Self {
        if matches!(self.problem, DecodeFault::Empty) {
            return self;
        }
        self.record.get_or_insert(record);
        self
    }

    pub(super) fn json(error: &serde_path_to_error::Error<serde_json::Error>) -> Self {
        use serde_path_to_error::Segment;
        let mut record = None;
        let mut field = String::new();
        for segment in error.path() {
            match segment {
                Segment::Seq { index } if record.is_none() => record = Some(*index),
                Segment::Map { key } => field = shortened(key, ECHO_CHARS_MAX).into_owned(),
                Segment::Seq { .. } | Segment::Enum { .. } | Segment::Unknown => {}
            }
        }
        // The message itself names an unknown or missing field.
        let problem = DecodeFault::Json(message(error.inner()));
        Self { record, field, problem }
    }
}

struct Location<'a> {
    record: Option<usize>,
    field: &'a str,
}

impl fmt::Display for Location<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(record) = self.record {
            write!(f, "record {record}: ")?;
        }
        if self.field.is_empty() { Ok(()) } else { write!(f, "{}: ", self.field) }
    }
}
