//! What goes wrong at the start: a sidecar does without it, any other exporter ends.

use std::collections::BTreeSet;

use crate::config::error::StartupProblem;

/// The problems of a start.
#[derive(Debug, Default)]
pub(super) struct Startup {
    is_sidecar: bool,
    settings: BTreeSet<String>,
}

impl Startup {
    /// Logs the settings that a sidecar does without.
    pub(super) fn new(is_sidecar: bool, problems: &[StartupProblem]) -> Self {
        let mut startup = Self { is_sidecar, settings: BTreeSet::new() };
        for StartupProblem { setting, reason } in problems {
            startup.note(setting, reason);
        }
        startup
    }

    pub(super) fn is_sidecar(&self) -> bool {
        self.is_sidecar
    }

    /// Logs and counts what a sidecar does without.
    pub(super) fn note(&mut self, setting: &str, reason: &str) {
        tracing::error!(setting, reason, "startup problem");
        self.settings.insert(setting.to_owned());
    }

    /// Returns what could be started; `None` where a sidecar does without it.
    ///
    /// # Errors
    /// It could not be started, and the exporter is not a sidecar.
    pub(super) fn started<T>(
        &mut self,
        setting: &str,
        result: anyhow::Result<T>,
    ) -> anyhow::Result<Option<T>> {
        match result {
            Ok(started) => Ok(Some(started)),
            Err(error) if self.is_sidecar => {
                self.note(setting, &format!("{error:#}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The settings with a problem.
    pub(super) fn into_settings(self) -> Vec<String> {
        self.settings.into_iter().collect()
    }
}
