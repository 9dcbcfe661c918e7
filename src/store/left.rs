//! The small files that the ranks of a command leave in a directory of its launch.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// The longest of them that is read, in bytes.
pub const LEFT_BYTES_MAX: u64 = 4096;

/// Returns the files of one kind, `KIND-RANK.json`, by rank.
pub fn files(folder: &Path, kind: &str) -> Vec<(u64, PathBuf)> {
    let rank_of = |path: &Path| -> Option<u64> {
        let name = path.file_name()?.to_str()?.strip_suffix(".json")?;
        name.strip_prefix(kind)?.strip_prefix('-')?.parse().ok()
    };
    let paths = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = paths.map(|entry| entry.path());
    let mut files: Vec<(u64, PathBuf)> =
        paths.filter_map(|path| Some((rank_of(&path)?, path))).collect();
    files.sort();
    files
}

/// Returns the content of the file of one kind of the lowest rank; `None` without one that can
/// be read.
pub fn of_lowest<T: DeserializeOwned>(folder: &Path, kind: &str) -> Option<T> {
    let (_, path) = files(folder, kind).into_iter().next()?;
    serde_json::from_slice(&read(&path, LEFT_BYTES_MAX).ok()?).ok()
}

/// Reads a file of at most `bytes_max` bytes.
///
/// # Errors
/// The file system refused, or the file is longer.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut text)?;
    if u64::try_from(text.len()).is_ok_and(|bytes| bytes <= bytes_max) {
        Ok(text)
    } else {
        Err(io::Error::other(format!("it is longer than {bytes_max} bytes")))
    }
}
