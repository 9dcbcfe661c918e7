//! Problems at the start: an exporter next to training runs without the feature, any other
//! exporter ends once all of them are known.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::error::StartupProblem;
use crate::config::keys;
use crate::config::settings::{Settings, StartMode};
use crate::store::writable;

/// The problems of a start.
#[derive(Debug, Default)]
pub(super) struct Startup {
    mode: StartMode,
    problems: Vec<StartupProblem>,
}

impl Startup {
    /// Begins a start: logs probable mistakes, and leaves out of the settings what cannot be used.
    pub(super) fn begin(settings: Settings) -> (Self, Settings) {
        let mut startup = Self::new(settings.start, &settings.problems, &settings.warnings);
        let settings = startup.usable(settings);
        (startup, settings)
    }

    /// Logs the settings that the exporter runs without, and probable mistakes.
    pub(super) fn new(
        mode: StartMode,
        problems: &[StartupProblem],
        warnings: &[String],
    ) -> Self {
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let mut startup = Self { mode, problems: Vec::new() };
        for StartupProblem { setting, reason } in problems {
            startup.note(setting, reason);
        }
        startup
    }

    pub(super) fn mode(&self) -> StartMode {
        self.mode
    }

    /// Counts a setting that the exporter runs without, and logs it; one that ends instead says
    /// so at its end.
    pub(super) fn note(&mut self, setting: &str, reason: &str) {
        if self.mode != StartMode::Strict {
            tracing::error!(setting, reason, "startup problem");
        }
        let (setting, reason) = (setting.to_owned(), reason.to_owned());
        self.problems.push(StartupProblem { setting, reason });
    }

    /// Returns the part that was started; `None` where there is a problem.
    pub(super) fn started<T>(&mut self, setting: &str, result: anyhow::Result<T>) -> Option<T> {
        result.map_err(|error| self.note(setting, &format!("{error:#}"))).ok()
    }

    /// Leaves out what could not be written or loaded later, and notes why.
    pub(super) fn usable(&mut self, mut settings: Settings) -> Settings {
        let mut checked = |key: &str, path: Option<PathBuf>, check: Check| {
            let path = path?;
            let result = check(&path);
            let result = result.map_err(|error| anyhow::anyhow!("{}: {error}", path.display()));
            self.started(key, result.map(|()| path))
        };
        settings.summary_dir =
            checked(keys::SUMMARY_DIR, settings.summary_dir, writable::below);
        settings.record.directory =
            checked(keys::RECORD_DIRECTORY, settings.record.directory, writable::below);
        settings.state_file = checked(keys::STATE_FILE, settings.state_file, writable::file);
        if let Some(nvml) = &settings.nvml {
            // It is polled nevertheless: a driver may be installed later.
            checked(keys::NVML_LIBRARY, nvml.library.clone(), library);
        }
        settings
    }

    /// Ends a start that has problems, unless the exporter runs next to training. Returns them.
    ///
    /// # Errors
    /// All problems so far.
    pub(super) fn end(&self) -> anyhow::Result<Vec<String>> {
        let sentences = self.sentences();
        let is_over = self.mode == StartMode::Strict && !sentences.is_empty();
        anyhow::ensure!(!is_over, "{}", sentences.join("\n"));
        Ok(sentences)
    }

    /// The settings with a problem.
    pub(super) fn into_settings(self) -> Vec<String> {
        let settings: BTreeSet<String> =
            self.problems.into_iter().map(|problem| problem.setting).collect();
        settings.into_iter().collect()
    }

    /// Returns the problems as sentences.
    pub(super) fn sentences(&self) -> Vec<String> {
        self.problems.iter().map(ToString::to_string).collect()
    }
}

/// A check that returns the reason that a path cannot be used.
type Check = fn(&Path) -> io::Result<()>;

/// Checks that a library that was named is there; the loader searches for a name alone.
fn library(path: &Path) -> io::Result<()> {
    if path.components().count() == 1 {
        return Ok(());
    }
    std::fs::metadata(path).map(drop)
}
