//! A snapshot's file: read in pieces, decompressed if necessary, and its progress shown on a
//! terminal.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read, Write};
use std::path::Path;

use anyhow::Context;
use flate2::bufread::MultiGzDecoder;

use crate::store::open::{IS_DIRECTORY, Unread};
use crate::store::zstd::ZstdFrames;
use stepmem_snapshot::{
    Machine, SNIFF_BYTES, Snapshot, Unreadable, Wrapping, check_pickle, finish, wrapping,
};
use stepmem_types::format::clean::shortened;
use stepmem_types::format::units::whole_bytes;

/// Bytes of a file that are in memory at a time.
const WINDOW_BYTES: usize = 1 << 18;
/// Size in bytes above which the progress of reading a file is shown on a terminal.
const PROGRESS_BYTES_MIN: u64 = 64 << 20;
/// Bytes between two figures of progress.
const PROGRESS_STEP_BYTES: u64 = 16 << 20;
/// Characters of a path in an error.
const PATH_CHARS: usize = 200;

/// A file that is not a readable snapshot.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct NotASnapshot {
    path: String,
    /// The reason, in a few words.
    pub reason: String,
}

/// Returns a path in the form for an error and a page.
pub fn shown(path: &Path) -> String {
    shortened(&path.to_string_lossy(), PATH_CHARS)
}

/// Reads a file, a window at a time, and decompresses it if necessary. Also returns its size on
/// the disk.
///
/// # Errors
/// [`NotASnapshot`], or the file cannot be read.
pub fn read(path: &Path, unpacked_max: u64) -> anyhow::Result<(Snapshot, u64)> {
    let shown = || shown(path);
    let file = File::open(path).with_context(|| Unread(shown()))?;
    let metadata = file.metadata().with_context(|| Unread(shown()))?;
    if metadata.is_dir() {
        return Err(NotASnapshot { path: shown(), reason: IS_DIRECTORY.to_owned() }.into());
    }
    let mut progress = ReadProgress::new(metadata.len());
    let file = Counted { file, progress: &mut progress };
    let result = unpack(file, unpacked_max);
    progress.clear();
    match result {
        Ok(snapshot) => Ok((snapshot, metadata.len())),
        Err(ReadError::Io(error)) => Err(anyhow::Error::new(error).context(Unread(shown()))),
        Err(other) => Err(NotASnapshot { path: shown(), reason: other.to_string() }.into()),
    }
}

/// Reasons that a file was not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("{0}")]
    Io(io::Error),
    #[error("{0}")]
    Unreadable(#[from] Unreadable),
    #[error("its {0} data is damaged or truncated at byte {1} of the unpacked data: {2}")]
    Damaged(&'static str, u64, io::Error),
    #[error("it has more than {0} bytes unpacked; --unpacked-max raises the limit")]
    TooLarge(u64),
}

pub(super) fn unpack(file: impl Read, unpacked_max: u64) -> Result<Snapshot, ReadError> {
    let mut file = BufReader::with_capacity(WINDOW_BYTES, file);
    let mut head = Vec::with_capacity(SNIFF_BYTES);
    let limit = u64::try_from(SNIFF_BYTES).unwrap_or(0);
    file.by_ref().take(limit).read_to_end(&mut head).map_err(ReadError::Io)?;
    let wrapping = wrapping(&head)?;
    let whole = head.chain(file);
    match wrapping {
        Wrapping::Plain => parse(whole, unpacked_max, None),
        Wrapping::Gzip => parse(MultiGzDecoder::new(whole), unpacked_max, Some("gzip")),
        Wrapping::Zstd => parse(ZstdFrames::new(whole), unpacked_max, Some("zstd")),
    }
}

/// Feeds the content to the machine. `format`: the file's compression.
fn parse(
    mut source: impl Read,
    unpacked_max: u64,
    format: Option<&'static str>,
) -> Result<Snapshot, ReadError> {
    let mut window = vec![0; WINDOW_BYTES];
    let mut machine = Machine::default();
    let (mut held, mut n_read) = (0, 0_u64);
    let mut is_checked = false;
    while !machine.is_done() {
        let Some(vacant) = window.get_mut(held..) else { break };
        let more = match source.read(vacant) {
            Ok(0) => break,
            Ok(more) => more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(match format {
                    Some(format) => ReadError::Damaged(format, n_read, error),
                    None => ReadError::Io(error),
                });
            }
        };
        n_read += u64::try_from(more).unwrap_or(u64::MAX);
        if n_read > unpacked_max {
            return Err(ReadError::TooLarge(unpacked_max));
        }
        held += more;
        let filled = window.get(..held).unwrap_or(&[]);
        if !is_checked && held >= 2 {
            check_pickle(filled)?;
            is_checked = true;
        }
        let used = machine.feed(filled)?;
        window.copy_within(used..held, 0);
        held -= used;
    }
    Ok(finish(machine, held)?)
}

/// A file whose reads are counted.
struct Counted<'a> {
    file: File,
    progress: &'a mut ReadProgress,
}

impl Read for Counted<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n_read = self.file.read(out)?;
        self.progress.add(u64::try_from(n_read).unwrap_or(0));
        Ok(n_read)
    }
}

/// The progress of reading a large file, on a terminal.
struct ReadProgress {
    whole: u64,
    done: u64,
    shown: Option<u64>,
    is_on: bool,
}

impl ReadProgress {
    fn new(whole: u64) -> Self {
        let is_on = whole > PROGRESS_BYTES_MIN && io::stderr().is_terminal();
        Self { whole, done: 0, shown: None, is_on }
    }

    fn add(&mut self, n_bytes: u64) {
        self.done += n_bytes;
        let step = self.done / PROGRESS_STEP_BYTES;
        if self.is_on && self.shown != Some(step) {
            self.shown = Some(step);
            let percent = u128::from(self.done) * 100 / u128::from(self.whole.max(1));
            write!(io::stderr(), "\rreading {percent}% of {} ", whole_bytes(self.whole)).ok();
        }
    }

    fn clear(&self) {
        if self.shown.is_some() {
            write!(io::stderr(), "\r{:40}\r", "").ok();
        }
    }
}
