//! Recordings: reads their lines, and merges several files by time. Does not interpret them.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::input::push::wire::recorded::{RecordingEntry, decode_recorded};
use crate::input::unpacked;
use crate::model::ids::{GpuUuid, Rank, Run};
use crate::model::units::Seconds;

/// The longest line, in bytes.
pub const LINE_BYTES_MAX: u64 = 1024 * 1024;
/// Size of the read buffer, in bytes.
pub const READ_BUFFER_BYTES: usize = 256 * 1024;
/// Size of each read buffer when several files are read at once, in bytes.
const SHARED_BUFFER_BYTES: usize = 16 * 1024;
/// Maximum number of records with the same time that are sorted; further ones keep the order of the files.
const SAME_TIME_MAX: usize = 8192;

/// The records of one file, in its order.
pub struct Lines {
    name: String,
    text: Box<dyn BufRead>,
    line: Vec<u8>,
    number: u64,
}

impl Lines {
    /// Opens a file, or standard input as `-`; plain, or compressed with gzip or zstd.
    ///
    /// # Errors
    /// The file cannot be opened, or is something else.
    pub fn open(path: &Path, buffer_bytes: usize) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let text = unpacked::open(path, buffer_bytes).with_context(|| name.clone())?;
        Ok(Self { name, text, line: Vec::new(), number: 0 })
    }

    /// File and line of the last record, for messages.
    pub fn place(&self) -> String {
        format!("{}: line {}", self.name, self.number)
    }

    /// Returns the next record; `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read, or a line is too long or neither a push record nor a reading.
    pub fn record(&mut self) -> anyhow::Result<Option<RecordingEntry>> {
        loop {
            self.line.clear();
            self.number += 1;
            let limit = LINE_BYTES_MAX + 1;
            let read = self.text.by_ref().take(limit).read_until(b'\n', &mut self.line);
            if read.with_context(|| self.place())? == 0 {
                return Ok(None);
            }
            anyhow::ensure!(
                u64::try_from(self.line.len())? <= LINE_BYTES_MAX,
                "{}: line {} exceeds {LINE_BYTES_MAX} bytes",
                self.name,
                self.number
            );
            let record = self.line.trim_ascii();
            if !record.is_empty() {
                let recorded = decode_recorded(record).with_context(|| self.place())?;
                return Ok(Some(recorded));
            }
        }
    }
}

/// Passes every record of the files to `take`, as if they were one recording in order of time.
///
/// Records with the same time come in order of run and rank, so that the result does not depend on which rank was
/// written first, nor on the number of files. A record without a time follows its predecessor in the file; a file
/// without any time comes before the files after it.
///
/// # Errors
/// As for [`Lines::record`], and the errors of `take`.
pub fn merged<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    mut take: impl FnMut(RecordingEntry) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let files: Vec<&PathBuf> = files.into_iter().collect();
    let buffer_bytes = if files.len() > 1 { SHARED_BUFFER_BYTES } else { READ_BUFFER_BYTES };
    let mut sources = files
        .iter()
        .map(|path| Lines::open(path, buffer_bytes))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut next = BinaryHeap::new();
    for (idx, lines) in sources.iter_mut().enumerate() {
        next.extend(lines.record()?.map(|record| Reverse(NextRecord::of(record, 0.0, idx))));
    }
    let mut group = SameTimeRecords { time: None, records: Vec::new() };
    while let Some(Reverse(NextRecord { time, idx, record })) = next.pop() {
        group.take(record, &mut take)?;
        if let Some(lines) = sources.get_mut(idx) {
            let follower =
                lines.record().map(|record| Some(NextRecord::of(record?, time, idx)))?;
            next.extend(follower.map(Reverse));
        }
    }
    group.end(&mut take)
}

/// The next record of a file.
struct NextRecord {
    time: f64,
    idx: usize,
    record: RecordingEntry,
}

impl NextRecord {
    fn of(record: RecordingEntry, before: f64, idx: usize) -> Self {
        // Time never falls within a file: a late record stays behind its predecessor.
        let time = record.time().map_or(before, Seconds::get).max(before);
        Self { time, idx, record }
    }
}

impl PartialEq for NextRecord {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for NextRecord {}

impl PartialOrd for NextRecord {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NextRecord {
    fn cmp(&self, other: &Self) -> Ordering {
        self.time.total_cmp(&other.time).then(self.idx.cmp(&other.idx))
    }
}

/// The records with the current time.
struct SameTimeRecords {
    time: Option<Seconds>,
    records: Vec<RecordingEntry>,
}

impl SameTimeRecords {
    fn take(
        &mut self,
        record: RecordingEntry,
        take: &mut impl FnMut(RecordingEntry) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if record.time() != self.time || self.records.len() >= SAME_TIME_MAX {
            self.end(take)?;
            self.time = record.time();
        }
        if self.time.is_none() {
            return take(record);
        }
        self.records.push(record);
        Ok(())
    }

    fn end(
        &mut self,
        take: &mut impl FnMut(RecordingEntry) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.records.sort_by(|a, b| place(a).cmp(&place(b)));
        self.records.drain(..).try_for_each(take)
    }
}

/// The sort key within one time: devices first, so that ranks find their readings.
fn place(record: &RecordingEntry) -> (Option<(&Run, Rank)>, Option<&GpuUuid>) {
    match record {
        RecordingEntry::Step(sample) => (Some((&sample.run, sample.rank)), None),
        RecordingEntry::Gpu(sample, _) => (None, Some(&sample.device)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use crate::input::push::wire::recorded::RecordingEntry;
    use crate::input::recording::{LINE_BYTES_MAX, merged};

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

    /// A step as a line; `time`: none below zero.
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
        let see = |entry| {
            order.push(match entry {
                RecordingEntry::Step(sample) => {
                    format!("{}/{}/{}", sample.run, sample.rank, sample.step.get())
                }
                RecordingEntry::Gpu(sample, _) => sample.device.to_string(),
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
        check("long", &long, &format!("2 exceeds {LINE_BYTES_MAX} bytes"));
        check("bad", "\n{\"rank\":0}\n", "2: missing field `step` at line 1 column 10");
    }
}
