//! The errors of values that are out of range, and their texts.

use std::cell::Cell;
use std::fmt;

use serde::de::Error;

thread_local! {
    /// The reason for which a value was refused last.
    static REASON: Cell<Option<String>> = const { Cell::new(None) };
}

/// Returns the error of a value that is out of range. Its text is kept for [`reason`]: the errors
/// of postcard, the format of a state, have none.
pub fn refused<E: Error>(why: impl fmt::Display) -> E {
    let why = why.to_string();
    REASON.set(Some(why.clone()));
    E::custom(why)
}

/// Takes the text of the last value that was refused on this thread: the value, and its range.
pub fn reason() -> Option<String> {
    REASON.take()
}
