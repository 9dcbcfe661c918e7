//! Recordings: reads their lines, and merges several files by time. Does not interpret them.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::Context;

use crate::input::unpacked;
use crate::store::launches::{LAUNCH_FILE, latest_launch};
use crate::store::open::Unread;
use stepmem_engine::Event;
use stepmem_engine::wire::{
    RecordedEvent, RecordedLine, RecordingHead, decode_line, decode_recorded,
};
use stepmem_types::ids::{GpuUuid, Rank, Run};
use stepmem_types::units::Seconds;

/// The longest line, in bytes.
pub const LINE_BYTES_MAX: u64 = 1024 * 1024;
/// The longest recording, in bytes after decompression. A bomb of a few MiB would keep a reader
/// busy for days.
pub const RECORDING_BYTES_MAX: u64 = 64 * 1024 * 1024 * 1024;
/// The most bytes between two records: blank lines, and heads without events.
pub const BLANK_BYTES_MAX: u64 = 1024 * 1024;
/// Size of the read buffer, in bytes.
const READ_BUFFER_BYTES: usize = 256 * 1024;
/// Size of each read buffer when several files are read at once, in bytes.
const SHARED_BUFFER_BYTES: usize = 16 * 1024;
/// Maximum number of records with the same time that are sorted; further ones keep the order of
/// the files.
const SAME_TIME_MAX: usize = 8192;
/// The endings of the recordings of a directory.
const ENDINGS: [&str; 3] = [".jsonl", ".jsonl.gz", ".jsonl.zst"];

/// The name of a directory that has no recording, in the error about it.
#[derive(Debug)]
pub struct NoRecording(pub String);

impl Display for NoRecording {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the directory has no {SOUGHT}", self.0)
    }
}

/// The recordings that a directory is searched for, in an error.
pub const SOUGHT: &str = "recording (*.jsonl, .gz, .zst)";

/// The content of a line, by its writer.
#[derive(Debug)]
pub enum RecordingLine {
    /// A push record or a reading in the form that anybody may write, and its Unix time.
    Plain(Event, Option<Seconds>),
    /// An event that an exporter took, with the head of that exporter's session.
    Recorded(Rc<RecordingHead>, RecordedEvent),
}

impl RecordingLine {
    /// Returns the Unix time of the line; `None` for a push record without one.
    fn time(&self) -> Option<f64> {
        match self {
            Self::Plain(_, time) => time.map(Seconds::get),
            Self::Recorded(head, event) => Some(head.started.get() + event.at.0.as_secs_f64()),
        }
    }

    /// Returns the event itself.
    pub fn into_event(self) -> Event {
        match self {
            Self::Plain(event, _) => event,
            Self::Recorded(_, recorded) => recorded.event,
        }
    }

    /// Returns the place of the event among those of its exporter: the session and the number.
    fn number(&self) -> Option<(&str, u64)> {
        match self {
            Self::Plain(..) => None,
            Self::Recorded(head, event) => Some((&head.session, event.number)),
        }
    }
}

/// A gap in an exporter's recording.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordingGap {
    /// The file that shows it.
    pub file: String,
    /// The run; `None` for events about no run.
    pub run: Option<Run>,
    pub missing: MissingPart,
}

/// The part of a recording that is missing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MissingPart {
    /// Everything before this Unix time.
    Beginning(f64),
    /// A gap of so many events.
    Events(u64),
    /// The end: the file is cut short.
    End,
}

/// The lines of one file, in its order.
struct Lines {
    name: String,
    text: Box<dyn BufRead>,
    line: Vec<u8>,
    number: u64,
    /// Bytes that were read, and those of them since the last record.
    n_bytes: u64,
    n_blank: u64,
    /// The head of an exporter's recording.
    head: Option<Rc<RecordingHead>>,
    /// The Unix time of the exporter's first event.
    first_time: Option<f64>,
    n_lost: u64,
    is_cut: bool,
}

impl Lines {
    /// Opens a file, or standard input as `-`; plain, or compressed with gzip or zstd.
    ///
    /// # Errors
    /// The file cannot be opened, or is something else.
    fn open(path: &Path, buffer_bytes: usize) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let opened = unpacked::open(path, buffer_bytes);
        let text = opened.with_context(|| Unread(name.clone()))?;
        Ok(Self {
            name,
            text,
            line: Vec::new(),
            number: 0,
            n_bytes: 0,
            n_blank: 0,
            head: None,
            first_time: None,
            n_lost: 0,
            is_cut: false,
        })
    }

    /// File and line of the last record, for messages.
    fn place(&self) -> String {
        format!("{}: line {}", self.name, self.number)
    }

    /// Returns the next line; `None` at the end. An exporter's recording ends where it is cut
    /// short.
    ///
    /// # Errors
    /// The file cannot be read, or a line is too long or is not one of a recording.
    fn record(&mut self) -> anyhow::Result<Option<RecordingLine>> {
        self.next_record().map_err(|error| {
            let first = self.line.trim_ascii().first().filter(|_| self.number == 1);
            if first.is_some_and(|first| *first != b'{') {
                let reason =
                    "neither a recording nor a summary: its first line is no JSON object";
                return anyhow::Error::msg(reason).context(Unread(self.name.clone()));
            }
            error.context(Unread(self.place()))
        })
    }

    /// Reads the next record like [`Self::record`], without the name of the file in errors.
    fn next_record(&mut self) -> anyhow::Result<Option<RecordingLine>> {
        loop {
            if self.is_cut {
                return Ok(None);
            }
            self.line.clear();
            self.number += 1;
            let limit = LINE_BYTES_MAX + 1;
            let read = self.text.by_ref().take(limit).read_until(b'\n', &mut self.line);
            let n_read = match read {
                Err(_) if self.head.is_some() => {
                    self.is_cut = true;
                    return Ok(None);
                }
                read => read?,
            };
            if n_read == 0 {
                return Ok(None);
            }
            self.count(n_read)?;
            let decoded = self.decode();
            if decoded.is_err() && self.head.is_some() && !self.line.ends_with(b"\n") {
                self.is_cut = true;
                return Ok(None);
            }
            if let Some(line) = decoded? {
                self.n_blank = 0;
                return Ok(Some(line));
            }
            self.n_blank = self.n_blank.saturating_add(u64::try_from(n_read)?);
            anyhow::ensure!(
                self.n_blank <= BLANK_BYTES_MAX,
                "{} bytes without a record exceed {BLANK_BYTES_MAX}",
                self.n_blank
            );
        }
    }

    /// Counts a line of so many bytes.
    fn count(&mut self, n_read: usize) -> anyhow::Result<()> {
        let n_read = u64::try_from(n_read)?;
        anyhow::ensure!(n_read <= LINE_BYTES_MAX, "it exceeds {LINE_BYTES_MAX} bytes");
        self.n_bytes = self.n_bytes.saturating_add(n_read);
        anyhow::ensure!(
            self.n_bytes <= RECORDING_BYTES_MAX,
            "{} bytes, unpacked, exceed {RECORDING_BYTES_MAX}",
            self.n_bytes
        );
        Ok(())
    }

    /// Decodes the line; `None` for a blank one and for a head.
    fn decode(&mut self) -> anyhow::Result<Option<RecordingLine>> {
        let line = self.line.trim_ascii();
        if line.is_empty() {
            return Ok(None);
        }
        let Some(decoded) = decode_line(line) else {
            let (event, time) = decode_recorded(line)?;
            return Ok(Some(RecordingLine::Plain(event, time)));
        };
        let event = match decoded? {
            RecordedLine::Head(head) => {
                self.head = Some(Rc::new(head));
                return Ok(None);
            }
            RecordedLine::Event(event) => event,
        };
        let head = self.head.as_ref().context("the head of the recording is missing")?;
        self.n_lost += event.n_lost;
        let line = RecordingLine::Recorded(Rc::clone(head), event);
        self.first_time = self.first_time.or_else(|| line.time());
        Ok(Some(line))
    }
}

/// A file that is being read, and its next line.
struct RecordingFile {
    lines: Lines,
    first: Option<RecordingLine>,
}

impl RecordingFile {
    fn open(path: &Path, buffer_bytes: usize) -> anyhow::Result<Self> {
        let mut lines = Lines::open(path, buffer_bytes)?;
        let first = lines.record()?;
        Ok(Self { lines, first })
    }
}

/// Returns the recordings among these files. Of a directory, it returns those whose names end
/// in `.jsonl`, `.jsonl.gz` or `.jsonl.zst`, by name; of the directory of a run, those of its
/// latest launch that has any.
///
/// # Errors
/// A directory cannot be read, or has none.
fn recordings<'f>(
    paths: impl IntoIterator<Item = &'f PathBuf>,
) -> anyhow::Result<(Vec<PathBuf>, bool)> {
    let (mut files, mut has_directory) = (Vec::new(), false);
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        has_directory = true;
        let shown = || Unread(path.display().to_string());
        let mut found = recordings_in(path).with_context(shown)?;
        if found.is_empty() {
            let latest = latest_launch(path, |launch| {
                launch.join(LAUNCH_FILE).exists()
                    || recordings_in(launch).is_ok_and(|found| !found.is_empty())
            });
            let folder = latest.as_deref().unwrap_or(path);
            found = recordings_in(folder).with_context(shown)?;
            anyhow::ensure!(!found.is_empty(), NoRecording(folder.display().to_string()));
        }
        files.append(&mut found);
    }
    Ok((files, has_directory))
}

/// Returns the recordings of a directory, by name.
fn recordings_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_named = ENDINGS.iter().any(|end| name.to_string_lossy().ends_with(end));
        if is_named && entry.path().is_file() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Passes every line of the files to `take`, one file after the other as one recording.
/// Exporters' recordings, and the files of a directory, are passed in order of time instead.
/// Returns the gaps.
///
/// # Errors
/// As for [`merged`].
pub fn played<'f>(
    paths: impl IntoIterator<Item = &'f PathBuf>,
    mut take: impl FnMut(RecordingLine) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<RecordingGap>> {
    let (paths, has_directory) = recordings(paths)?;
    let mut rest = paths.iter();
    let Some(path) = rest.next() else { return Ok(Vec::new()) };
    let mut file = RecordingFile::open(path, READ_BUFFER_BYTES)?;
    let is_by_exporter = matches!(file.first, Some(RecordingLine::Recorded(..)));
    if rest.len() > 0 && (has_directory || is_by_exporter) {
        let mut files = vec![file];
        for path in rest {
            files.push(RecordingFile::open(path, SHARED_BUFFER_BYTES)?);
        }
        return merge(files, take);
    }
    let mut known = Vec::new();
    loop {
        let mut next = file.first.take();
        while let Some(line) = next {
            take(line).with_context(|| file.lines.place())?;
            next = file.lines.record()?;
        }
        known.push(file.lines);
        let Some(path) = rest.next() else { return Ok(gaps(&known)) };
        file = RecordingFile::open(path, READ_BUFFER_BYTES)?;
    }
}

/// Passes every line of the files to `take`, as if they were one recording in order of time.
/// Returns the gaps.
///
/// Records with the same time come in order of run and rank. The result thus depends neither on
/// which rank was written first nor on the number of files. A record without a time follows its
/// predecessor in the file. A file without any time comes before the files after it. The events
/// of an exporter come in its order, each once.
///
/// # Errors
/// A file cannot be opened or read, a line is not one of a recording, and the errors of `take`.
pub fn merged<'f>(
    paths: impl IntoIterator<Item = &'f PathBuf>,
    take: impl FnMut(RecordingLine) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<RecordingGap>> {
    let (paths, _) = recordings(paths)?;
    let buffer_bytes = if paths.len() > 1 { SHARED_BUFFER_BYTES } else { READ_BUFFER_BYTES };
    let open = |path: &PathBuf| RecordingFile::open(path, buffer_bytes);
    merge(paths.iter().map(open).collect::<anyhow::Result<_>>()?, take)
}

fn merge(
    files: Vec<RecordingFile>,
    mut take: impl FnMut(RecordingLine) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<RecordingGap>> {
    let mut sources = Vec::new();
    let mut next = BinaryHeap::new();
    for (idx, RecordingFile { lines, first }) in files.into_iter().enumerate() {
        next.extend(first.map(|line| Reverse(NextLine::of(line, 0.0, idx))));
        sources.push(lines);
    }
    let mut group = SameTimeRecords { time: None, events: Vec::new() };
    let mut last: Option<(Rc<RecordingHead>, u64)> = None;
    while let Some(Reverse(NextLine { time, idx, line })) = next.pop() {
        match line {
            RecordingLine::Plain(event, time) => group.take(event, time, &mut take)?,
            RecordingLine::Recorded(head, event) => {
                group.end(&mut take)?;
                let is_known = last.as_ref().is_some_and(|(before, number)| {
                    before.session == head.session && *number == event.number
                });
                if !is_known {
                    last = Some((Rc::clone(&head), event.number));
                    take(RecordingLine::Recorded(head, event))?;
                }
            }
        }
        if let Some(lines) = sources.get_mut(idx) {
            let follower = lines.record()?.map(|line| NextLine::of(line, time, idx));
            next.extend(follower.map(Reverse));
        }
    }
    group.end(&mut take)?;
    Ok(gaps(&sources))
}

/// Returns the gaps in the files of exporters.
fn gaps(files: &[Lines]) -> Vec<RecordingGap> {
    let mut first_parts: BTreeMap<(&str, Option<&Run>), (u32, &Lines)> = BTreeMap::new();
    let mut gaps = Vec::new();
    for lines in files {
        let Some(head) = &lines.head else { continue };
        let gap =
            |missing| RecordingGap { file: lines.name.clone(), run: head.run.clone(), missing };
        let first =
            first_parts.entry((&head.session, head.run.as_ref())).or_insert((head.part, lines));
        if head.part < first.0 {
            *first = (head.part, lines);
        }
        gaps.extend((lines.n_lost > 0).then(|| gap(MissingPart::Events(lines.n_lost))));
        gaps.extend(lines.is_cut.then(|| gap(MissingPart::End)));
    }
    let late = first_parts.into_iter().filter(|(_, (part, _))| *part > 1);
    let beginnings = late.filter_map(|((_, run), (_, lines))| {
        Some(RecordingGap {
            file: lines.name.clone(),
            run: run.cloned(),
            missing: MissingPart::Beginning(lines.first_time?),
        })
    });
    gaps.extend(beginnings);
    gaps
}

/// The next line of a file.
struct NextLine {
    time: f64,
    idx: usize,
    line: RecordingLine,
}

impl NextLine {
    fn of(line: RecordingLine, before: f64, idx: usize) -> Self {
        // Time never falls within a file: a late record stays behind its predecessor.
        let time = line.time().unwrap_or(before).max(before);
        Self { time, idx, line }
    }
}

impl PartialEq for NextLine {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for NextLine {}

impl PartialOrd for NextLine {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NextLine {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_time = self.time.total_cmp(&other.time);
        by_time
            .then_with(|| self.line.number().cmp(&other.line.number()))
            .then(self.idx.cmp(&other.idx))
    }
}

/// The records with the current time.
struct SameTimeRecords {
    time: Option<Seconds>,
    events: Vec<Event>,
}

impl SameTimeRecords {
    fn take(
        &mut self,
        event: Event,
        time: Option<Seconds>,
        take: &mut impl FnMut(RecordingLine) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if time != self.time || self.events.len() >= SAME_TIME_MAX {
            self.end(take)?;
            self.time = time;
        }
        if time.is_none() {
            return take(RecordingLine::Plain(event, time));
        }
        self.events.push(event);
        Ok(())
    }

    fn end(
        &mut self,
        take: &mut impl FnMut(RecordingLine) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.events.sort_by(|a, b| place(a).cmp(&place(b)));
        let time = self.time;
        self.events.drain(..).map(|event| RecordingLine::Plain(event, time)).try_for_each(take)
    }
}

/// The sort key within one time: devices first, so that ranks find their readings.
fn place(event: &Event) -> (Option<(&Run, Rank)>, Option<&GpuUuid>) {
    if let Event::Steps(batch) = event {
        (batch.first().map(|first| (&first.run, first.rank)), None)
    } else if let Event::Reading(sample) = event {
        (None, Some(&sample.device))
    } else {
        (None, None)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use crate::input::recording::{LINE_BYTES_MAX, RecordingLine, merged};
    use stepmem_engine::Event;

    /// Recordings on the disk, removed at the end.
    struct Recordings {
        paths: Vec<PathBuf>,
    }

    impl Recordings {
        fn new(name: &str, texts: &[&str]) -> Self {
            let path = |idx: usize| {
                let file =
                    format!("stepmem-recording-{name}-{idx}-{}.jsonl", std::process::id());
                std::env::temp_dir().join(file)
            };
            let paths: Vec<PathBuf> = (0..texts.len()).map(path).collect();
            for (path, text) in paths.iter().zip(texts) {
                fs::write(path, text).unwrap();
            }
            Self { paths }
        }
    }

    impl Drop for Recordings {
        fn drop(&mut self) {
            self.paths.iter().for_each(|path| fs::remove_file(path).unwrap());
        }
    }

    /// A step as a line; a negative `time` means none.
    fn step(run: &str, rank: u32, step: u32, time: f64) -> String {
        let time = if time < 0.0 { String::new() } else { format!(",\"time\":{time}") };
        format!(
            "{{\"run\":\"{run}\",\"rank\":{rank},\"step\":{step},\"allocated_bytes\":1{time}}}\n"
        )
    }

    fn reading(device: &str, time: f64) -> String {
        format!(
            "{{\"nvml\":true,\"time\":{time},\"device\":\"{device}\",\"used_bytes\":5,\"total_bytes\":9}}\n"
        )
    }

    /// The order of the merged entries: `run/rank/step` and names of devices.
    fn order(name: &str, texts: &[&str]) -> Vec<String> {
        let recordings = Recordings::new(name, texts);
        let mut order = Vec::new();
        let see = |line| {
            order.push(match RecordingLine::into_event(line) {
                Event::Steps(batch) => {
                    let first = &batch[0];
                    format!("{}/{}/{}", first.run, first.rank, first.figures.step.get())
                }
                Event::Reading(sample) => sample.device.to_string(),
                other => panic!("{other:?}"),
            });
            Ok(())
        };
        merged(&recordings.paths, see).unwrap();
        order
    }

    #[test]
    fn files_are_merged_by_time() {
        let a = [step("a", 0, 1, 1.0), step("a", 0, 2, 3.0)].concat();
        let b = [step("b", 0, 1, 2.0), step("b", 0, 2, 4.0)].concat();
        let expected = ["a/0/1", "b/0/1", "a/0/2", "b/0/2"];
        assert_eq!(order("by-time", &[&a, &b]), expected);
        assert_eq!(order("by-time-swapped", &[&b, &a]), expected);
    }

    #[test]
    fn records_of_one_time_come_by_run_and_rank_after_devices() {
        let lines = [
            step("b", 0, 7, 5.0),
            step("a", 10, 7, 5.0),
            reading("GPU-1", 5.0),
            step("a", 9, 7, 5.0),
            reading("GPU-0", 5.0),
        ];
        let expected = ["GPU-0", "GPU-1", "a/9/7", "a/10/7", "b/0/7"];
        assert_eq!(order("one-file", &[&lines.concat()]), expected);
        let apart: Vec<&str> = lines.iter().map(String::as_str).collect();
        assert_eq!(order("a-file-each", &apart), expected);
    }

    #[test]
    fn record_without_a_time_follows_the_one_before_it() {
        let a = [step("a", 0, 1, 2.0), step("a", 0, 2, -1.0), step("a", 0, 3, 4.0)].concat();
        let b = [step("b", 0, 1, 1.0), step("b", 0, 2, 3.0)].concat();
        let expected = ["b/0/1", "a/0/1", "a/0/2", "b/0/2", "a/0/3"];
        assert_eq!(order("without", &[&a, &b]), expected);
    }

    #[test]
    fn file_without_times_comes_first() {
        let timeless = [step("t", 1, 1, -1.0), step("t", 0, 1, -1.0)].concat();
        let a = step("a", 0, 1, 1.0);
        assert_eq!(order("timeless", &[&a, &timeless]), ["t/1/1", "t/0/1", "a/0/1"]);
    }

    #[test]
    fn late_record_keeps_its_place_in_its_file() {
        let a = [step("a", 0, 2, 5.0), step("a", 0, 1, 1.0)].concat();
        let b = step("b", 0, 1, 2.0);
        assert_eq!(order("late", &[&a, &b]), ["b/0/1", "a/0/2", "a/0/1"]);
    }

    #[test]
    fn mistake_is_reported_with_file_and_line() {
        let check = |name: &str, text: &str, expected: &str| {
            let recordings = Recordings::new(name, &[text]);
            let error = merged(&recordings.paths, |_| Ok(())).unwrap_err();
            let path = recordings.paths[0].display();
            assert_eq!(format!("{error:#}"), format!("{path}: line {expected}"));
        };
        let long = format!("{}{}", step("a", 0, 1, 1.0), " ".repeat(1024 * 1024 + 1));
        check("long", &long, &format!("2: it exceeds {LINE_BYTES_MAX} bytes"));
        check("bad", "\n{\"rank\":0}\n", "2: missing field `step` at line 1 column 10");
    }
}
