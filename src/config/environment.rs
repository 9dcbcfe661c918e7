//! The environment variables of the process: the only code that reads them.

use std::ffi::OsString;
use std::path::PathBuf;

/// Returns the value of a variable, if it is set.
pub(super) type Environment<'e> = &'e dyn Fn(&str) -> Option<String>;

/// Reads a variable of this process; one that is not UTF-8 counts as unset.
#[expect(clippy::disallowed_methods, reason = "the place that reads the environment")]
pub(super) fn of_process(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Returns every variable of this process.
pub fn all() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

/// Returns the names of all variables that are UTF-8.
pub(super) fn names() -> Vec<String> {
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
}

/// Returns what a variable of this process holds, unless that is empty.
pub fn text(name: &str) -> Option<String> {
    of_process(name).filter(|value| !value.is_empty())
}

/// Returns the columns that texts are to fit into, by `COLUMNS`.
pub fn columns() -> Option<usize> {
    text("COLUMNS")?.parse().ok()
}

/// Returns the user's home directory: that of `HOME`, else that of the system's list of users.
pub fn home() -> Option<PathBuf> {
    std::env::home_dir().filter(|path| path.is_absolute())
}

/// Returns the absolute path in a variable of this process.
pub fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}
