//! What a command prints about an error: any part of it may be a text of others.

use stepmem_types::format::clean::lines;

/// Characters of an error that are printed.
pub const ERROR_CHARS_MAX: usize = 8192;

/// Returns the chain of an error as it is printed: clean, and not longer than
/// [`ERROR_CHARS_MAX`].
pub fn shown(error: &anyhow::Error) -> String {
    lines(&format!("{error:#}"), ERROR_CHARS_MAX)
}
