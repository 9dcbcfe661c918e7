//! The times at which the state file is read and written.

use std::fmt::Display;
use std::fs::{File, TryLockError};
use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::OwnedPermit;
use tokio::task::JoinHandle;

use crate::store::state::{self, StateError, StateLimits, StateWriter};
use crate::store::{atomic, open};
use stepmem_engine::Engine;
use stepmem_engine::saved::{SaveCursor, SavedState};
use stepmem_types::units::Uptime;

/// Minimum time between two writes of the state file.
const STATE_EVERY: Duration = Duration::from_secs(10);
/// Time limit for reading the state, and for writing the last one.
pub(super) const STATE_WITHIN: Duration = Duration::from_secs(5);
/// A state is not resumed again after so many exporters of one boot ended while they resumed it,
/// without having been stopped.
pub(super) const UNCLEAN_ENDS_MAX: u32 = 2;
/// An exporter has resumed a state after this time at the latest; it has before, once all
/// ranks that push were judged.
pub(super) const RESUMED_WITHIN: Duration = Duration::from_mins(1);
/// Minimum time between two attempts to take over a state file that another exporter keeps.
const CLAIM_EVERY: Duration = Duration::from_secs(2);
/// Maximum number of parts that wait for the disk.
const PARTS_CAPACITY: usize = 2;

/// The right to keep a state file, of one exporter at a time.
pub(super) enum Claim {
    /// The right of this exporter, with the locked file next to the state file until the
    /// process ends. There is no lock where that file cannot be made: then the state itself can
    /// hardly be written.
    Held(#[expect(dead_code, reason = "locked while it is open")] Option<File>),
    /// Another exporter keeps it.
    OfAnother,
}

impl Claim {
    /// Claims a state file. Never waits for another exporter.
    fn of(path: &Path) -> Self {
        let Ok(lock) = open::lock_file(&atomic::beside(path, "lock")) else {
            return Self::Held(None);
        };
        match lock.try_lock() {
            Ok(()) => Self::Held(Some(lock)),
            Err(TryLockError::WouldBlock) => Self::OfAnother,
            // A file system without locks.
            Err(TryLockError::Error(_)) => Self::Held(None),
        }
    }
}

/// The state in a state file at the start, and the right to keep the file.
pub(super) struct ReadState {
    pub(super) claim: Claim,
    /// The state of an earlier exporter.
    pub(super) saved: Option<SavedState>,
}

/// Reads the state of an earlier exporter, unless another one keeps it now. Renames a file that
/// cannot be trusted, and one that ended the processes which resumed it.
pub(super) async fn read_state(path: Option<&Path>, ranks_max: usize) -> ReadState {
    // As long as nothing is known, another exporter may keep it.
    let unknown = ReadState { claim: Claim::OfAnother, saved: None };
    let Some(path) = path else { return unknown };
    let of_task = path.to_owned();
    let reading = tokio::task::spawn_blocking(move || {
        let claim = Claim::of(&of_task);
        let is_held = matches!(claim, Claim::Held(_));
        let saved = is_held.then(|| read(&of_task, ranks_max)).flatten();
        ReadState { claim, saved }
    });
    let shown = path.display();
    match tokio::time::timeout(STATE_WITHIN, reading).await {
        Ok(Ok(state)) => {
            if matches!(state.claim, Claim::OfAnother) {
                tracing::warn!(
                    path = %shown,
                    "state.file: another exporter keeps this file: this one keeps no state until that ends"
                );
            }
            state
        }
        Ok(Err(error)) => {
            tracing::warn!(%error, "state not read");
            unknown
        }
        Err(_) => {
            tracing::warn!(path = %shown, within = ?STATE_WITHIN, "state not read in time");
            unknown
        }
    }
}

fn read(path: &Path, ranks_max: usize) -> Option<SavedState> {
    let n_ends = state::unclean_ends(path);
    if n_ends >= UNCLEAN_ENDS_MAX {
        set_aside(path, &"the exporters that resumed it ended soon after");
        log_mark(state::end_resuming(path));
        return None;
    }
    let mut saved = SavedState::default();
    let limits = StateLimits {
        file_bytes_max: u64::try_from(SavedState::bytes_max(ranks_max)).unwrap_or(u64::MAX),
        part_bytes_max: SavedState::PART_BYTES_MAX,
    };
    let result = state::read(path, limits, |part| saved.add(part, ranks_max));
    let result = result.and_then(|is_there| match is_there {
        true if !saved.is_whole() => Err(StateError::Checksum(path.display().to_string())),
        is_there => Ok(is_there),
    });
    match result {
        Ok(false) => None,
        Ok(true) => match state::begin_resuming(path, n_ends + 1) {
            Ok(()) => Some(saved),
            Err(error) => {
                // It may be a directory that cannot be written to: the same state could be
                // resumed again and again.
                tracing::warn!(%error, "state not resumed");
                None
            }
        },
        Err(error) => {
            set_aside(path, &error);
            None
        }
    }
}

/// Renames a state, and logs why.
fn set_aside(path: &Path, error: &dyn Display) {
    match state::set_aside(path) {
        Ok(aside) => tracing::warn!(%error, aside = %aside.display(), "state set aside"),
        Err(obstacle) => tracing::warn!(%error, %obstacle, "state not read"),
    }
}

fn log_mark(result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!(%error, "mark of the resumed state not taken away");
    }
}

/// Writes the state file.
pub(super) struct StateFile {
    path: PathBuf,
    claim: Claim,
    /// An attempt to take it over, and when the last one began.
    claiming: Option<JoinHandle<Claim>>,
    claimed_at: Option<Uptime>,
    /// The time when the exporter began to resume a state; `None` once its mark is taken away.
    resuming: Option<Uptime>,
    /// The number of records that the engine had taken at the last write.
    n_records: u64,
    written_at: Option<Uptime>,
    writing: Option<Writing>,
    is_failing: bool,
}

/// A write in progress.
struct Writing {
    cursor: SaveCursor,
    /// The parts; `None` ends the file. Closed once that was sent.
    parts: Option<mpsc::Sender<Option<Vec<u8>>>>,
    task: JoinHandle<Result<(), StateError>>,
}

/// The permit to send one more part.
pub(super) type PartPermit = OwnedPermit<Option<Vec<u8>>>;

impl StateFile {
    /// `now`: when the state was resumed. There may be a mark also where none was: one that was
    /// not read in time.
    pub(super) fn new(path: PathBuf, claim: Claim, now: Uptime) -> Self {
        Self {
            path,
            claim,
            claiming: None,
            claimed_at: None,
            resuming: Some(now),
            n_records: 0,
            written_at: None,
            writing: None,
            is_failing: false,
        }
    }

    /// Returns whether this exporter keeps the file. Tries to take it over from one that has
    /// ended, every [`CLAIM_EVERY`].
    async fn is_kept(&mut self, now: Uptime) -> bool {
        if matches!(self.claim, Claim::Held(_)) {
            return true;
        }
        if let Some(claiming) = self.claiming.take_if(|claiming| claiming.is_finished()) {
            self.claim = claiming.await.unwrap_or(Claim::OfAnother);
            if matches!(self.claim, Claim::Held(_)) {
                self.resuming = Some(now);
                tracing::info!(path = %self.path.display(), "this exporter keeps the state from now on");
                return true;
            }
        }
        let is_early = self.claimed_at.is_some_and(|at| now.since(at) < CLAIM_EVERY);
        if self.claiming.is_none() && !is_early {
            self.claimed_at = Some(now);
            let path = self.path.clone();
            self.claiming = Some(tokio::task::spawn_blocking(move || Claim::of(&path)));
        }
        false
    }

    /// Begins to write new state, at most every [`STATE_EVERY`] and one write at a time.
    pub(super) async fn keep(&mut self, engine: &Engine, now: Uptime) {
        if !self.is_kept(now).await {
            return;
        }
        if self.resuming.is_some_and(|since| {
            now.since(since) >= RESUMED_WITHIN || engine.has_judged_since(since, now)
        }) {
            self.resumed().await;
        }
        if self.writing.as_ref().is_some_and(|writing| !writing.task.is_finished()) {
            return;
        }
        self.written().await;
        let n_records = engine.records().accepted;
        let is_early = self.written_at.is_some_and(|at| now.since(at) < STATE_EVERY);
        if n_records != self.n_records && !is_early {
            self.begin(engine, now);
        }
    }

    /// Takes away the mark of a state that did not end the exporter.
    async fn resumed(&mut self) {
        if self.resuming.take().is_none() {
            return;
        }
        let path = self.path.clone();
        let ending = tokio::task::spawn_blocking(move || state::end_resuming(&path));
        if let Ok(Ok(result)) = tokio::time::timeout(STATE_WITHIN, ending).await {
            log_mark(result);
        }
    }

    fn begin(&mut self, engine: &Engine, now: Uptime) {
        self.n_records = engine.records().accepted;
        self.written_at = Some(now);
        let (parts, taken) = mpsc::channel(PARTS_CAPACITY);
        let path = self.path.clone();
        let task = tokio::task::spawn_blocking(move || write(&path, taken));
        self.writing =
            Some(Writing { cursor: SaveCursor::default(), parts: Some(parts), task });
    }

    /// Resolves when the disk takes another part.
    pub(super) async fn ready(state: Option<&Self>) -> Option<PartPermit> {
        let writing = state.and_then(|state| state.writing.as_ref());
        match writing.and_then(|writing| writing.parts.clone()) {
            // An error means that the write failed.
            Some(parts) => parts.reserve_owned().await.ok(),
            None => pending().await,
        }
    }

    /// Writes the next part; without a permit, nothing more is written.
    pub(super) fn advance(&mut self, permit: Option<PartPermit>, engine: &Engine, now: Uptime) {
        let Some(writing) = &mut self.writing else { return };
        let Some(permit) = permit else {
            writing.parts = None;
            return;
        };
        let cursor = std::mem::take(&mut writing.cursor);
        let next = engine.save(cursor, now);
        match next.map(|(part, cursor)| (state::part(&part), cursor)) {
            Some((Ok(part), cursor)) => {
                writing.cursor = cursor;
                permit.send(Some(part));
            }
            // No part is refused: the format can represent all their values.
            Some((Err(_), _)) => writing.parts = None,
            None => {
                permit.send(None);
                writing.parts = None;
            }
        }
    }

    /// Writes everything within [`STATE_WITHIN`].
    pub(super) async fn write_all(state: &mut Option<Self>, engine: &Engine, now: Uptime) {
        let whole = async {
            // Another exporter that still keeps it knows its own ranks.
            let mut state =
                state.as_mut().filter(|state| matches!(state.claim, Claim::Held(_)));
            if let Some(state) = &mut state {
                state.resumed().await;
                // A write that is cut short leaves the file as it was, but uses the same
                // temporary name next to it.
                if let Some(Writing { parts, task, .. }) = state.writing.take() {
                    drop(parts);
                    task.await.ok();
                }
                state.begin(engine, now);
            }
            while state.as_ref().is_some_and(|state| state.is_feeding()) {
                let permit = Self::ready(state.as_deref()).await;
                if let Some(state) = &mut state {
                    state.advance(permit, engine, now);
                }
            }
            if let Some(state) = &mut state {
                state.written().await;
            }
        };
        if tokio::time::timeout(STATE_WITHIN, whole).await.is_err() {
            tracing::warn!(within = ?STATE_WITHIN, "state not written in time");
        }
    }

    fn is_feeding(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.parts.is_some())
    }

    /// Waits for the write in progress. Logs the first of consecutive failures.
    async fn written(&mut self) {
        let Some(Writing { parts, task, .. }) = self.writing.take() else { return };
        drop(parts);
        let result = task.await.map_err(anyhow::Error::from).and_then(|result| Ok(result?));
        if let (Err(error), false) = (&result, self.is_failing) {
            tracing::warn!(%error, "state not written");
        }
        self.is_failing = result.is_err();
    }
}

/// Writes parts as they come; without an end, the file stays as it was.
fn write(path: &Path, mut parts: mpsc::Receiver<Option<Vec<u8>>>) -> Result<(), StateError> {
    let mut writer = StateWriter::create(path)?;
    while let Some(part) = parts.blocking_recv() {
        match part {
            Some(part) => writer.add(&part)?,
            None => return writer.finish(),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use tokio::runtime::Builder;

    use crate::exporter::state_file::{Claim, RESUMED_WITHIN, StateFile};
    use crate::store::state;
    use stepmem_engine::wire::{Layout, decode_steps};
    use stepmem_engine::{Engine, EngineConfig, Event};
    use stepmem_types::units::Uptime;

    #[test]
    fn mark_of_a_state_whose_rank_is_silent_goes_after_its_time() {
        let folder = std::env::temp_dir().join(format!("stepmem-mark-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("state");
        state::begin_resuming(&path, 1).unwrap();
        let at = |after: Duration| Uptime(Duration::from_secs(1000) + after);
        let record = br#"{"run":"r","rank":0,"step":1,"allocated_bytes":1}"#;
        let mut engine = Engine::new(EngineConfig::default(), 1e9);
        let batch = decode_steps(record, Layout::Json).unwrap();
        // It was seen before the state was resumed, and is awaited.
        engine.handle(&Event::Steps(batch), Uptime(Duration::from_secs(990))).unwrap();
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            // A write that it began ends with it, before the runtime waits for that.
            let mut file = StateFile::new(path.clone(), Claim::Held(None), at(Duration::ZERO));
            for (after, n_ends) in [(RESUMED_WITHIN.mul_f64(0.99), 1), (RESUMED_WITHIN, 0)] {
                file.keep(&engine, at(after)).await;
                assert_eq!(state::unclean_ends(&path), n_ends, "after {after:?}");
            }
        });
        fs::remove_dir_all(folder).unwrap();
    }
}
