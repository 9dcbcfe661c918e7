//! The environment variables of the process: the only code that reads them.

/// Returns the value of a variable, if it is set.
pub(super) type Environment<'e> = &'e dyn Fn(&str) -> Option<String>;

/// Reads a variable of this process; one that is not UTF-8 counts as unset.
#[expect(clippy::disallowed_methods, reason = "the place that reads the environment")]
pub(super) fn of_process(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
