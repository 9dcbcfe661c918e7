//! The thread that records. It sorts events into the files of their runs, writes every few
//! seconds, begins new files, and removes the oldest ones.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tokio::time::Instant;

use crate::exporter::summaries::directory::{
    LaunchOfRun, RECORDING_STEM, SummaryFolders, folder_name,
};
use crate::input::recording::LINE_BYTES_MAX;
use crate::store::directory::Directory;
use crate::store::recordings::{
    ClosedRecording, OpenRecording, RecordingFolder, create_in_launch,
};
use crate::store::zstd;
use stepmem_engine::Event;
use stepmem_engine::wire::{RECORDING_VERSION, RecordedEvent, RecordingHead};
use stepmem_types::device::GpuUnavailable;
use stepmem_types::ids::{GpuUuid, Run, SubjectId};
use stepmem_types::step::StepSample;
use stepmem_types::units::{Seconds, Uptime};

/// Interval at which waiting lines are written: the most that a crash loses.
const FLUSH_EVERY: Duration = Duration::from_secs(2);
/// Time after which the log tells again that a recording cannot be written.
const TOLD_AGAIN_AFTER: Duration = Duration::from_hours(1);
/// Bytes that wait for one file beyond which they are written at once.
const FRAME_BYTES: usize = 256 * 1024;
/// Divisor of the byte budget: a file may have this part of it before the next one begins.
const PART_OF_ALL: u64 = 8;
/// Time that a run's file stays open after the engine has forgotten the run.
const CLOSED_AFTER: Duration = Duration::from_mins(1);
/// Maximum number of files that are kept, of any size: readers open all files of a directory.
pub(in crate::exporter) const FILES_MAX: usize = 512;
/// The name of the files about no run. No run's name is written with a plus.
const NO_RUN: &str = "+devices";

/// Counts of lines and files by outcome.
#[derive(Debug, Default)]
pub(in crate::exporter) struct RecordingCounts {
    pub(in crate::exporter) written: AtomicU64,
    pub(in crate::exporter) failed: AtomicU64,
    pub(in crate::exporter) dropped: AtomicU64,
    /// Files that were removed to keep the byte budget.
    pub(in crate::exporter) given_up: AtomicU64,
    /// Records that wait.
    pub(in crate::exporter) waiting: AtomicUsize,
}

/// An item that waits to be recorded.
#[derive(Debug)]
pub(in crate::exporter) struct RecordedItem {
    /// The number of its first event.
    pub(in crate::exporter) number: u64,
    pub(in crate::exporter) at: Uptime,
    /// Number of events before this one that the full queue dropped.
    pub(in crate::exporter) n_lost: u64,
    pub(in crate::exporter) what: RecordedWhat,
}

#[derive(Debug)]
pub(in crate::exporter) enum RecordedWhat {
    Event(Event),
    /// The current launch of a run is this one.
    Launch(LaunchOfRun),
}

impl RecordedWhat {
    /// Returns the number of lines that it becomes.
    pub(in crate::exporter) fn n_lines(&self) -> usize {
        match self {
            Self::Event(Event::Steps(batch)) => batch.len(),
            Self::Event(_) => 1,
            Self::Launch(_) => 0,
        }
    }
}

/// The place of recordings.
#[derive(Debug)]
pub(in crate::exporter) enum RecordingPlace {
    /// One directory for all of them, which has these files of earlier sessions.
    Folder(RecordingFolder, Vec<ClosedRecording>),
    /// The directory of its launch for each recording.
    Launches(SummaryFolders),
}

/// The properties of an exporter's session.
#[derive(Clone, Debug)]
pub(in crate::exporter) struct Session {
    /// Identifies the session.
    pub(in crate::exporter) name: String,
    /// The Unix time at which the uptime was 0.
    pub(in crate::exporter) started: Seconds,
    pub(in crate::exporter) device_ttl: Seconds,
    /// Time after which a silent run has no open file.
    pub(in crate::exporter) retention: Duration,
}

/// The subject of a file: a run, or `None` for events about no run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FileSubject(Option<Run>);

/// The files of one subject: a run, or the events about no run.
#[derive(Debug, Default)]
struct RunFiles {
    open: Option<OpenRecording>,
    part: u32,
    launch: Option<LaunchOfRun>,
    /// The directory and the stem, once there was a file.
    place: Option<(Directory, String)>,
    /// The devices that ranks of the run push from.
    devices: BTreeSet<GpuUuid>,
    last_push: Uptime,
    /// The text that waits to be written, and the number of its lines.
    text: Vec<u8>,
    n_lines: u64,
    n_lost: u64,
}

/// Writes recordings.
#[derive(Debug)]
pub(in crate::exporter) struct RecordingWriter {
    place: RecordingPlace,
    session: Session,
    bytes_max: u64,
    counts: Arc<RecordingCounts>,
    files: BTreeMap<FileSubject, RunFiles>,
    /// The closed files, the oldest first.
    closed: VecDeque<ClosedRecording>,
    /// The last time that the system's clock was set, for files that begin later.
    clock: Option<RecordedEvent>,
    /// The last time that the log reported that a recording could not be written.
    warned_at: Option<Instant>,
}

impl RecordingWriter {
    pub(in crate::exporter) fn new(
        mut place: RecordingPlace,
        session: Session,
        bytes_max: u64,
        counts: Arc<RecordingCounts>,
    ) -> Self {
        let closed = match &mut place {
            RecordingPlace::Folder(_, closed) => std::mem::take(closed).into(),
            RecordingPlace::Launches(_) => VecDeque::new(),
        };
        Self {
            place,
            session,
            bytes_max,
            counts,
            files: BTreeMap::new(),
            closed,
            clock: None,
            warned_at: None,
        }
    }

    /// Records until the engine is gone.
    pub(in crate::exporter) fn run(&mut self, items: &Receiver<RecordedItem>) {
        self.give_up();
        let mut next_flush = Instant::now() + FLUSH_EVERY;
        let mut now = Uptime::default();
        loop {
            let left = next_flush.saturating_duration_since(Instant::now());
            match items.recv_timeout(left) {
                Ok(item) => {
                    now = item.at;
                    self.take(item);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() >= next_flush {
                self.flush();
                self.close_silent(now);
                next_flush = Instant::now() + FLUSH_EVERY;
            }
        }
        self.flush();
    }

    fn take(&mut self, item: RecordedItem) {
        let RecordedItem { number, at, n_lost, what } = item;
        for files in self.files.values_mut() {
            files.n_lost += n_lost;
        }
        self.counts.waiting.fetch_sub(what.n_lines(), Ordering::Relaxed);
        match what {
            RecordedWhat::Launch(of) => self.launch(of),
            RecordedWhat::Event(Event::Steps(batch)) => {
                for (number, sample) in (number..).zip(batch) {
                    let event = Event::Steps(vec![sample]);
                    self.event(&mut RecordedEvent { number, at, n_lost: 0, event });
                }
            }
            RecordedWhat::Event(event) => {
                self.event(&mut RecordedEvent { number, at, n_lost: 0, event });
            }
        }
    }

    /// Begins a new file for a launch.
    fn launch(&mut self, of: LaunchOfRun) {
        let subject = FileSubject(Some(of.run.clone()));
        self.write(&subject);
        let files = self.files.entry(subject).or_default();
        self.closed.extend(files.open.take().map(OpenRecording::close));
        *files = RunFiles { launch: Some(of), ..RunFiles::default() };
        files.begin(self.clock.as_ref());
    }

    fn event(&mut self, recorded: &mut RecordedEvent) {
        if let Event::ClockSet(_) = &recorded.event {
            self.clock = Some(recorded.clone());
        }
        for subject in self.subjects(&recorded.event) {
            let clock = self.clock.as_ref();
            let files = self.files.entry(subject.clone()).or_insert_with(|| {
                let mut files = RunFiles::default();
                files.begin(clock);
                files
            });
            if let Event::Steps(batch) = &recorded.event {
                files.note_push(batch, recorded.at);
            }
            recorded.n_lost = std::mem::take(&mut files.n_lost);
            if !files.note(recorded) {
                self.counts.failed.fetch_add(1, Ordering::Relaxed);
            }
            if files.text.len() >= FRAME_BYTES {
                self.write(&subject);
            }
        }
    }

    /// Returns the subjects in whose files an event stands; that of the first of several steps.
    fn subjects(&self, event: &Event) -> Vec<FileSubject> {
        let one = |run: &Run| vec![FileSubject(Some(run.clone()))];
        match event {
            Event::Steps(batch) => {
                batch.first().map(|first| one(&first.run)).unwrap_or_default()
            }
            Event::End(run, _) => one(run),
            Event::CauseFound(found) => one(&found.rank.run),
            Event::Ack(ack) => match ack.subject() {
                SubjectId::Rank(id) => one(&id.run),
                SubjectId::Process(id) => self.on_device(&id.uuid),
                SubjectId::Device(uuid) => self.on_device(uuid),
            },
            Event::Reading(sample) => self.on_device(&sample.device),
            Event::DeviceLost(GpuUnavailable { device: Some(device), .. })
            | Event::Xid(device, _) => self.on_device(device),
            Event::DeviceLost(GpuUnavailable { device: None, .. })
            | Event::DevicesReleased
            | Event::ClockSet(_)
            | Event::Tick => self.files.keys().cloned().collect(),
            Event::SnapshotReport(_)
            | Event::HoldersReport(_)
            | Event::SnapshotWanted(..)
            | Event::LinesWanted(_)
            | Event::SnapshotAnalyzed(..)
            | Event::Pods(_)
            | Event::PodMemory(_)
            | Event::Scraped => Vec::new(),
        }
    }

    fn on_device(&self, device: &GpuUuid) -> Vec<FileSubject> {
        let with = self.files.iter().filter(|(_, files)| files.devices.contains(device));
        let runs: Vec<FileSubject> = with.map(|(run, _)| run.clone()).collect();
        match self.place {
            RecordingPlace::Folder(..) if runs.is_empty() => vec![FileSubject(None)],
            _ => runs,
        }
    }

    fn flush(&mut self) {
        let runs: Vec<FileSubject> = self.files.keys().cloned().collect();
        for subject in runs {
            self.write(&subject);
        }
    }

    /// Closes the files of runs that the engine has forgotten.
    fn close_silent(&mut self, now: Uptime) {
        let retention = self.session.retention;
        let closed = &mut self.closed;
        self.files.retain(|subject, files| {
            let is_kept =
                subject.0.is_none() || now.since(files.last_push) <= retention + CLOSED_AFTER;
            if !is_kept {
                closed.extend(files.open.take().map(OpenRecording::close));
            }
            is_kept
        });
    }

    /// Writes the waiting lines of a subject. Lines that cannot be written are lost.
    fn write(&mut self, subject: &FileSubject) {
        let Some(files) = self.files.get_mut(subject).filter(|files| files.n_lines > 0) else {
            return;
        };
        let result = files.write(subject.0.as_ref(), &self.place, &self.session);
        let n_lines = std::mem::take(&mut files.n_lines);
        files.text.clear();
        if result.is_err() {
            files.n_lost += n_lines;
        }
        let part_bytes_max = self.bytes_max / PART_OF_ALL;
        if files.open.as_ref().is_some_and(|open| open.bytes() >= part_bytes_max) {
            self.closed.extend(files.open.take().map(OpenRecording::close));
        }
        let counter = if result.is_ok() { &self.counts.written } else { &self.counts.failed };
        counter.fetch_add(n_lines, Ordering::Relaxed);
        if let Err(error) = result {
            // Small pieces may fit between others that do not: what is said is not said again.
            let is_told = self.warned_at.is_some_and(|at| at.elapsed() < TOLD_AGAIN_AFTER);
            if !is_told {
                tracing::warn!(%error, "recording not written");
                self.warned_at = Some(Instant::now());
            }
        }
        self.give_up();
    }

    /// Removes the oldest files beyond the bounds. If none is closed, the largest open one is
    /// removed.
    fn give_up(&mut self) {
        loop {
            let open = || self.files.values().filter_map(|files| files.open.as_ref());
            let bytes: u64 = self.closed.iter().map(|file| file.bytes).sum::<u64>()
                + open().map(OpenRecording::bytes).sum::<u64>();
            if bytes <= self.bytes_max && self.closed.len() + open().count() <= FILES_MAX {
                return;
            }
            let file = match self.closed.pop_front() {
                Some(file) => file,
                None => match self.largest() {
                    Some(file) => file,
                    None => return,
                },
            };
            if let Err(error) = std::fs::remove_file(&file.path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(%error, file = %file.path.display(), "recording not removed");
            }
            self.counts.given_up.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Closes the largest open file.
    fn largest(&mut self) -> Option<ClosedRecording> {
        let open = self.files.values_mut().filter(|files| files.open.is_some());
        let bytes = |files: &&mut RunFiles| files.open.as_ref().map(OpenRecording::bytes);
        open.max_by_key(bytes)?.open.take().map(OpenRecording::close)
    }
}

impl RunFiles {
    /// Begins with the last event that set the clock.
    fn begin(&mut self, clock: Option<&RecordedEvent>) {
        if let Some(clock) = clock {
            self.note(clock);
        }
    }

    /// Notes when ranks of the run pushed last, and from which devices.
    fn note_push(&mut self, batch: &[StepSample], at: Uptime) {
        self.last_push = at;
        for device in batch.iter().filter_map(|sample| sample.identity.device.as_ref()) {
            if !self.devices.contains(device) {
                self.devices.insert(device.clone());
            }
        }
    }

    /// Adds an event to the waiting text. Returns whether it fits in a line.
    fn note(&mut self, event: &RecordedEvent) -> bool {
        let before = self.text.len();
        event.write(&mut self.text);
        let n_bytes = self.text.len() - before;
        let fits = u64::try_from(n_bytes).is_ok_and(|bytes| bytes <= LINE_BYTES_MAX);
        if fits {
            self.n_lines += 1;
        } else {
            self.text.truncate(before);
            self.n_lost += 1;
        }
        fits
    }

    /// Writes the waiting text as a frame, into a new file if none is open.
    fn write(
        &mut self,
        run: Option<&Run>,
        place: &RecordingPlace,
        session: &Session,
    ) -> io::Result<()> {
        if self.open.is_none() {
            let mut open = self.create(run, place)?;
            let head = RecordingHead {
                recording: RECORDING_VERSION,
                session: session.name.clone(),
                run: run.cloned(),
                part: self.part,
                started: session.started,
                device_ttl_seconds: session.device_ttl,
            };
            let mut first = Vec::new();
            head.write(&mut first);
            let result = open.append(&zstd::frame(&first));
            self.open = Some(open);
            // A file without its head is of no use, and its name is taken: the next name is
            // tried.
            if result.is_err() {
                self.open.take().map(OpenRecording::close).map(remove).transpose()?;
                return result;
            }
        }
        match &mut self.open {
            Some(open) => open.append(&zstd::frame(&self.text)),
            None => Ok(()),
        }
    }

    fn create(
        &mut self,
        run: Option<&Run>,
        place: &RecordingPlace,
    ) -> io::Result<OpenRecording> {
        if let (Some((folder, stem)), RecordingPlace::Launches(_)) = (&self.place, place) {
            self.part += 1;
            return OpenRecording::create(folder, stem, &mut self.part);
        }
        match place {
            RecordingPlace::Folder(folder, _) => {
                let stem = folder.stem(&run.map_or_else(|| NO_RUN.to_owned(), folder_name));
                self.part += 1;
                OpenRecording::create(folder.folder(), &stem, &mut self.part)
            }
            RecordingPlace::Launches(folders) => {
                let of = self.launch.as_ref();
                let of = of.ok_or_else(|| io::Error::other("the run has no launch"))?;
                let folder = folders.of_launch(of)?;
                let (open, stem) = create_in_launch(&folder, RECORDING_STEM)?;
                self.place = Some((folder, stem));
                self.part = 1;
                Ok(open)
            }
        }
    }
}

fn remove(file: ClosedRecording) -> io::Result<()> {
    std::fs::remove_file(file.path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::{
        RecordedItem, RecordedWhat, RecordingCounts, RecordingPlace, RecordingWriter, Session,
    };
    use crate::input::recording::{MissingPart, merged};
    use crate::store::recordings::RecordingFolder;
    use stepmem_engine::Event;
    use stepmem_engine::wire::{Layout, decode_steps};
    use stepmem_types::ids::Run;
    use stepmem_types::units::{Seconds, Uptime};

    const BYTES_MAX: u64 = 64 * 1024;

    /// Records batches of 100 steps, each written as a frame, in a new session on a directory.
    /// Returns the number of files that were removed.
    fn record(path: &PathBuf, runs: &[&str], n_batches: u64) -> u64 {
        let (folder, closed) = RecordingFolder::claim(path).unwrap();
        let session = Session {
            name: crate::store::launches::unique(),
            started: Seconds::new(1e9).unwrap(),
            device_ttl: Seconds::new(15.0).unwrap(),
            retention: Duration::from_hours(6),
        };
        let counts = Arc::<RecordingCounts>::default();
        let place = RecordingPlace::Folder(folder, closed);
        let mut writer = RecordingWriter::new(place, session, BYTES_MAX, Arc::clone(&counts));
        writer.give_up();
        for batch in 0..n_batches {
            for run in runs {
                let steps = (batch * 100..(batch + 1) * 100).map(|step| {
                    let bytes = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 12;
                    format!(
                        "{{\"run\":\"{run}\",\"rank\":0,\"step\":{step},\"allocated_bytes\":{bytes}}}\n"
                    )
                });
                let text: String = steps.collect();
                let batch = decode_steps(text.as_bytes(), Layout::NdJson).unwrap();
                counts.waiting.fetch_add(batch.len(), Ordering::Relaxed);
                let what = RecordedWhat::Event(Event::Steps(batch));
                writer.take(RecordedItem { number: 0, at: Uptime::default(), n_lost: 0, what });
            }
            writer.flush();
            assert!(bytes(path) <= BYTES_MAX, "{}", bytes(path));
        }
        assert_eq!(counts.waiting.load(Ordering::Relaxed), 0);
        counts.given_up.load(Ordering::Relaxed)
    }

    fn bytes(path: &PathBuf) -> u64 {
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    }

    fn fresh(name: &str) -> PathBuf {
        let name = format!("stepmem-recording-files-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::remove_dir_all(&path).ok();
        path
    }

    #[test]
    fn oldest_files_go_first_and_the_rest_says_since_when_it_knows() {
        let path = fresh("bound");
        assert_eq!(record(&path, &["llm"], 2), 0);
        assert_eq!(merged([&path], |_| Ok(())).unwrap(), []);
        let n_given_up = record(&path, &["llm"], 100);
        assert!(n_given_up > 3, "{n_given_up}");
        let gaps = merged([&path], |_| Ok(())).unwrap();
        let [gap] = gaps.as_slice() else { panic!("{gaps:?}") };
        assert_eq!(gap.run.as_ref().map(Run::as_str), Some("llm"));
        assert_eq!(gap.missing, MissingPart::Beginning(1e9));
        assert!(bytes(&path) > BYTES_MAX / 2);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn files_that_are_all_open_are_given_up_too() {
        let path = fresh("open");
        let runs: Vec<String> = (0..20).map(|n| format!("run-{n}")).collect();
        let runs: Vec<&str> = runs.iter().map(String::as_str).collect();
        assert!(record(&path, &runs, 3) > 0);
        fs::remove_dir_all(path).unwrap();
    }
}
