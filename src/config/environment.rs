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

/// Returns the value of a variable of this process, unless it is empty.
pub fn text(name: &str) -> Option<String> {
    of_process(name).filter(|value| !value.is_empty())
}

/// The least width that texts are fitted to, in columns.
const COLUMNS_MIN: usize = 40;

/// Returns the columns into which texts are to fit: `COLUMNS`, else those of the terminal;
/// `None` where there is neither.
pub fn columns(of_terminal: impl FnOnce() -> Option<usize>) -> Option<usize> {
    let given = text("COLUMNS").and_then(|text| text.parse().ok());
    // A terminal that does not know its size reports 0.
    given.or_else(of_terminal).filter(|n| *n > 0).map(|n: usize| n.max(COLUMNS_MIN))
}

/// Returns whether GitHub Actions reads what this process prints, or what runs its workflows
/// elsewhere.
pub fn is_github_actions() -> bool {
    text("GITHUB_ACTIONS").is_some_and(|value| value == "true")
}

/// Returns the user's home directory: that of `HOME`, else that of the system's list of users.
pub fn home() -> Option<PathBuf> {
    std::env::home_dir().filter(|path| path.is_absolute())
}

/// Returns the absolute path in a variable of this process.
pub fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}
