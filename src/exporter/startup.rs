//! What goes wrong at the start: an exporter beside training does without it, any other one ends.

use std::collections::BTreeMap;

use crate::config::error::StartupProblem;
use crate::config::settings::StartMode;

/// The problems of a start.
#[derive(Debug, Default)]
pub(super) struct Startup {
    mode: StartMode,
    /// By setting, why.
    problems: BTreeMap<String, String>,
}

impl Startup {
    /// Logs the settings that the exporter does without, and what is probably a slip.
    pub(super) fn new(
        mode: StartMode,
        problems: &[StartupProblem],
        warnings: &[String],
    ) -> Self {
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let mut startup = Self { mode, problems: BTreeMap::new() };
        for StartupProblem { setting, reason } in problems {
            startup.note(setting, reason);
        }
        startup
    }

    pub(super) fn mode(&self) -> StartMode {
        self.mode
    }

    /// Logs and counts what the exporter does without.
    pub(super) fn note(&mut self, setting: &str, reason: &str) {
        tracing::error!(setting, reason, "startup problem");
        self.problems.insert(setting.to_owned(), reason.to_owned());
    }

    /// Returns what could be started; `None` where the exporter does without it.
    ///
    /// # Errors
    /// It could not be started, and the exporter does not run beside training.
    pub(super) fn started<T>(
        &mut self,
        setting: &str,
        result: anyhow::Result<T>,
    ) -> anyhow::Result<Option<T>> {
        match result {
            Ok(started) => Ok(Some(started)),
            Err(error) if self.mode != StartMode::Strict => {
                self.note(setting, &format!("{error:#}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The settings with a problem.
    pub(super) fn into_settings(self) -> Vec<String> {
        self.problems.into_keys().collect()
    }

    /// The problems in words.
    pub(super) fn sentences(&self) -> Vec<String> {
        self.problems.iter().map(|(setting, reason)| format!("{setting}: {reason}")).collect()
    }
}
