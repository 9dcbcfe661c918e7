//! Problems at the start: an exporter next to training runs without the feature, any other
//! exporter ends.

use std::collections::BTreeMap;

use crate::config::error::StartupProblem;
use crate::config::settings::StartMode;

/// The problems of a start.
#[derive(Debug, Default)]
pub(super) struct Startup {
    mode: StartMode,
    /// The reason, by setting.
    problems: BTreeMap<String, String>,
}

impl Startup {
    /// Logs the settings that the exporter runs without, and probable mistakes.
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

    /// Logs and counts a setting that the exporter runs without.
    pub(super) fn note(&mut self, setting: &str, reason: &str) {
        tracing::error!(setting, reason, "startup problem");
        self.problems.insert(setting.to_owned(), reason.to_owned());
    }

    /// Returns the part that was started; `None` where the exporter runs without it.
    ///
    /// # Errors
    /// The part could not be started, and the exporter does not run next to training.
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
            Err(error) => Err(error.context(setting.to_owned())),
        }
    }

    /// The settings with a problem.
    pub(super) fn into_settings(self) -> Vec<String> {
        self.problems.into_keys().collect()
    }

    /// Returns the problems as sentences.
    pub(super) fn sentences(&self) -> Vec<String> {
        self.problems.iter().map(|(setting, reason)| format!("{setting}: {reason}")).collect()
    }
}
