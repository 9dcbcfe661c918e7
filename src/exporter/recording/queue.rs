//! Queues the events that the engine takes for the thread that records them. The engine never
//! waits: an event that finds the queue full is counted, and the recording notes how many are
//! missing.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context;
use tokio::sync::oneshot;

use crate::config::keys;
use crate::config::settings::RecordSettings;
use crate::exporter::recording::writer::{
    RecordedItem, RecordedWhat, RecordingCounts, RecordingPlace, RecordingWriter, Session,
};
use crate::exporter::startup::Startup;
use crate::exporter::summaries::directory::{LaunchOfRun, SummaryFolders};
use crate::store::launches::{self, LaunchId};
use crate::store::recordings::RecordingFolder;
use stepmem_engine::{Engine, EngineConfig, Event};
use stepmem_types::ids::Run;
use stepmem_types::units::{Seconds, Uptime};

/// Maximum number of batches, readings and other events that wait to be recorded.
pub(in crate::exporter) const QUEUE_CAPACITY: usize = 4096;
/// Maximum number of records in them together.
pub(in crate::exporter) const WAITING_RECORDS_MAX: usize = 65_536;
/// Time that the exporter waits at its stop until everything is recorded.
pub(in crate::exporter) const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// Starts recording where the settings ask for it. `launches` has the directories of launches.
///
/// # Errors
/// The directory cannot be used, or the system cannot start a thread, and the exporter does not
/// run next to training.
pub(in crate::exporter) fn start(
    settings: &RecordSettings,
    launches: Option<&SummaryFolders>,
    engine: &Engine,
    startup: &mut Startup,
) -> anyhow::Result<Option<EventRecorder>> {
    let place = if let Some(directory) = &settings.directory {
        let claimed = RecordingFolder::claim(directory);
        let claimed = claimed.with_context(|| directory.display().to_string());
        let claimed = startup.started(keys::RECORD_DIRECTORY, claimed);
        claimed.map(|(folder, closed)| RecordingPlace::Folder(folder, closed))
    } else {
        let launches = launches.filter(|_| settings.is_by_launch);
        launches.cloned().map(RecordingPlace::Launches)
    };
    let Some(place) = place else { return Ok(None) };
    let recorder = EventRecorder::start(place, session(engine)?, settings.bytes_max);
    Ok(startup.started(keys::RECORD_DIRECTORY, recorder.map_err(anyhow::Error::from)))
}

/// Returns the properties that all recordings of this exporter share.
fn session(engine: &Engine) -> anyhow::Result<Session> {
    let EngineConfig { gpu_ttl, rank_retention, .. } = engine.config();
    Ok(Session {
        name: launches::unique(),
        started: Seconds::new(engine.unix_time(Uptime::default()).max(0.0))?,
        device_ttl: Seconds::new(gpu_ttl.as_secs_f64().min(Seconds::MAX))?,
        retention: *rank_retention,
    })
}

/// The engine's side of the queue.
#[derive(Debug)]
pub(in crate::exporter) struct EventRecorder {
    items: SyncSender<RecordedItem>,
    counts: Arc<RecordingCounts>,
    /// The launches that the thread knows of; `None` where launches have no directories.
    launches: Option<BTreeMap<Run, LaunchId>>,
    next: u64,
    n_lost: u64,
    finished: oneshot::Receiver<()>,
}

impl EventRecorder {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot start another thread.
    fn start(place: RecordingPlace, session: Session, bytes_max: u64) -> io::Result<Self> {
        let counts = Arc::<RecordingCounts>::default();
        let launches = matches!(place, RecordingPlace::Launches(_)).then(BTreeMap::new);
        let mut writer = RecordingWriter::new(place, session, bytes_max, Arc::clone(&counts));
        let (items, taken) = sync_channel(QUEUE_CAPACITY);
        let (done, finished) = oneshot::channel();
        let thread = std::thread::Builder::new().name("recording".to_owned());
        thread.spawn(move || {
            writer.run(&taken);
            // An exporter that has stopped waiting does not receive it.
            done.send(()).ok();
        })?;
        Ok(Self { items, counts, launches, next: 0, n_lost: 0, finished })
    }

    /// Returns the number of lines by outcome.
    pub(in crate::exporter) fn results(&self) -> [(&'static str, u64); 3] {
        let RecordingCounts { written, failed, dropped, .. } = &*self.counts;
        [("written", written), ("failed", failed), ("dropped", dropped)]
            .map(|(label, count)| (label, count.load(Ordering::Relaxed)))
    }

    /// Returns the number of files that were removed to keep the byte budget.
    pub(in crate::exporter) fn given_up(&self) -> u64 {
        self.counts.given_up.load(Ordering::Relaxed)
    }

    /// Records an event that the engine took at `at`.
    pub(in crate::exporter) fn event(&mut self, event: Event, at: Uptime) {
        self.offer(RecordedWhat::Event(event), at);
    }

    /// Reports which launch a run belongs to, where that decides about its file. Comes before
    /// the run's steps.
    pub(in crate::exporter) fn launch(&mut self, of: Option<LaunchOfRun>, at: Uptime) {
        let (Some(launches), Some(of)) = (&mut self.launches, of) else { return };
        if launches.get(&of.run) == Some(&of.id) {
            return;
        }
        launches.insert(of.run.clone(), of.id.clone());
        self.offer(RecordedWhat::Launch(of), at);
    }

    /// Forgets the launches of runs for which `is_held` is false.
    pub(in crate::exporter) fn retain(&mut self, is_held: impl Fn(&Run) -> bool) {
        if let Some(launches) = &mut self.launches {
            launches.retain(|run, _| is_held(run));
        }
    }

    fn offer(&mut self, what: RecordedWhat, at: Uptime) {
        let n_lines = what.n_lines();
        let n_numbers = u64::try_from(n_lines).unwrap_or(u64::MAX);
        let item = RecordedItem { number: self.next, at, n_lost: self.n_lost, what };
        self.next += n_numbers;
        let waiting = &self.counts.waiting;
        let fits = waiting.load(Ordering::Relaxed) + n_lines <= WAITING_RECORDS_MAX;
        waiting.fetch_add(n_lines, Ordering::Relaxed);
        if fits && self.items.try_send(item).is_ok() {
            self.n_lost = 0;
            return;
        }
        waiting.fetch_sub(n_lines, Ordering::Relaxed);
        self.n_lost += n_numbers;
        self.counts.dropped.fetch_add(n_numbers, Ordering::Relaxed);
    }

    /// Waits until everything is recorded, but no longer than [`FINISH_WITHIN`].
    pub(in crate::exporter) async fn finish(self) {
        let Self { items, finished, .. } = self;
        drop(items);
        if tokio::time::timeout(FINISH_WITHIN, finished).await.is_err() {
            tracing::warn!("the recording is incomplete: its disk is too slow");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use tokio::sync::oneshot;

    use super::{EventRecorder, QUEUE_CAPACITY};
    use crate::exporter::recording::writer::RecordingCounts;
    use stepmem_engine::Event;
    use stepmem_types::units::Uptime;

    #[test]
    fn event_without_room_is_counted_and_the_next_one_says_so() {
        let (items, taken) = sync_channel(QUEUE_CAPACITY);
        let (_done, finished) = oneshot::channel();
        let counts = RecordingCounts::default().into();
        let mut recorder =
            EventRecorder { items, counts, launches: None, next: 0, n_lost: 0, finished };
        for _ in 0..QUEUE_CAPACITY + 3 {
            recorder.event(Event::Tick, Uptime::default());
        }
        assert_eq!(recorder.results(), [("written", 0), ("failed", 0), ("dropped", 3)]);
        assert_eq!(taken.try_iter().count(), QUEUE_CAPACITY);
        recorder.event(Event::Tick, Uptime::default());
        let next = taken.recv().unwrap();
        let expected = u64::try_from(QUEUE_CAPACITY).unwrap() + 3;
        assert_eq!((next.number, next.n_lost), (expected, 3));
    }
}
