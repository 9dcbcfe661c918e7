//! What a test could not try on this machine.

use std::fmt::Display;
use std::io::{Write as _, stderr};

/// Reports it on standard error itself: what `eprintln!` writes is not shown of a test that passes. Begins with a new line, after
/// the progress of other tests. `make test` prints these lines last.
pub fn skipped(reason: impl Display) {
    let line = format!("\nSKIPPED {reason}\n");
    stderr().write_all(line.as_bytes()).unwrap();
}
