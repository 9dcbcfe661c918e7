//! When the state file is read and written.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::analysis::engine::Engine;
use crate::analysis::saved::SavedState;
use crate::model::units::Uptime;
use crate::store::state::{self, StateError};

/// Minimum time between two writes of the state file.
const STATE_EVERY: Duration = Duration::from_secs(10);

/// The largest state file of `ranks_max` ranks, in bytes.
fn bytes_max(ranks_max: usize) -> u64 {
    u64::try_from(SavedState::bytes_max(ranks_max)).unwrap_or(u64::MAX)
}

/// Reads the state of an earlier exporter. Sets a file aside that cannot be trusted.
pub(super) fn read_state(path: &Path, ranks_max: usize) -> Option<SavedState> {
    match state::read(path, bytes_max(ranks_max)) {
        Ok(saved) => saved,
        Err(error) => {
            match state::set_aside(path) {
                Ok(aside) => {
                    tracing::warn!(%error, aside = %aside.display(), "state set aside");
                }
                Err(obstacle) => tracing::warn!(%error, %obstacle, "state not read"),
            }
            None
        }
    }
}

/// Writes the state file.
pub(super) struct StateFile {
    path: PathBuf,
    /// The number of accepted records at the last write.
    n_records: u64,
    written_at: Option<Uptime>,
    writing: Option<JoinHandle<Result<(), StateError>>>,
    is_failing: bool,
}

impl StateFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, n_records: 0, written_at: None, writing: None, is_failing: false }
    }

    /// Writes new state, at most every [`STATE_EVERY`] and one write at a time.
    pub(super) async fn keep(&mut self, engine: &Engine, now: Uptime) {
        if self.writing.as_ref().is_some_and(|writing| !writing.is_finished()) {
            return;
        }
        self.written().await;
        let n_records = engine.records().accepted;
        let is_early = self.written_at.is_some_and(|at| now.since(at) < STATE_EVERY);
        if n_records != self.n_records && !is_early {
            self.write(engine, now);
        }
    }

    /// Starts a write on a thread of its own.
    pub(super) fn write(&mut self, engine: &Engine, now: Uptime) {
        self.n_records = engine.records().accepted;
        self.written_at = Some(now);
        let (path, saved) = (self.path.clone(), engine.save(now));
        self.writing = Some(tokio::task::spawn_blocking(move || state::write(&path, &saved)));
    }

    /// Waits for the write in progress. Logs the first of consecutive failures.
    pub(super) async fn written(&mut self) {
        let Some(writing) = self.writing.take() else { return };
        let result = writing.await.map_err(anyhow::Error::from).and_then(|result| Ok(result?));
        if let (Err(error), false) = (&result, self.is_failing) {
            tracing::warn!(%error, "state not written");
        }
        self.is_failing = result.is_err();
    }
}
