//! Recordings: their lines, one file after the other or several as one in order of time. What they mean is not known
//! here.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::input::push::wire::recorded::{RecordingEntry, decode_recorded};
use crate::model::ids::{GpuUuid, Rank, Run};
use crate::model::units::Seconds;

/// The longest line that is read, in bytes.
pub const LINE_BYTES_MAX: u64 = 1024 * 1024;
/// The buffer between a recording and its lines, in bytes.
pub const READ_BUFFER_BYTES: usize = 256 * 1024;
/// The same when several are read at once.
const SHARED_BUFFER_BYTES: usize = 16 * 1024;
/// How many records of one time are put in order; ranks beyond that keep the order of the files.
const SAME_TIME_MAX: usize = 8192;

/// The records of one file, in its order.
pub struct Lines {
    name: String,
    text: Box<dyn BufRead>,
    line: Vec<u8>,
    number: u64,
}

impl Lines {
    /// Opens a file, or standard input as `-`.
    ///
    /// # Errors
    /// There is no such file.
    pub fn open(path: &Path, buffer_bytes: usize) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let text: Box<dyn Read> = if path == Path::new("-") {
            Box::new(io::stdin().lock())
        } else {
            Box::new(File::open(path).with_context(|| name.clone())?)
        };
        let text = Box::new(BufReader::with_capacity(buffer_bytes, text));
        Ok(Self { name, text, line: Vec::new(), number: 0 })
    }

    /// Where the last record stands, for a message.
    pub fn place(&self) -> String {
        format!("{}: line {}", self.name, self.number)
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read, a line is too long, or is neither a push record nor a reading.
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

/// Shows every record of the files to `take`, as if they were one recording that came in order of time.
///
/// Records of one time come in order of run and rank, so that it does not matter which rank was written first, nor
/// into how many files a recording was split. A record without a time follows the one before it in its file; a file
/// without any time comes before the files after it.
///
/// # Errors
/// As of [`Lines::record`], or what `take` says.
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
        // Time does not fall within a file: what comes late stays behind what it came after.
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

/// Records of one time, until another comes.
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

/// Where a record stands among those of its time: devices first, so that ranks find what was read of them.
fn place(record: &RecordingEntry) -> (Option<(&Run, Rank)>, Option<&GpuUuid>) {
    match record {
        RecordingEntry::Step(sample) => (Some((&sample.run, sample.rank)), None),
        RecordingEntry::Gpu(sample, _) => (None, Some(&sample.device)),
    }
}
