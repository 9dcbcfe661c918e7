//! The state file: what outlasts a restart of the exporter, written whole or not at all, and never trusted when it is
//! broken or from another version.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::analysis::creep::estimator::CreepEstimator;
use crate::analysis::engine::SavedState;
use crate::analysis::rank::tally::Tally;
use crate::store::atomic;

/// What every state file begins with; the version follows, since another one may keep other things.
const MAGIC: &str = concat!("stepmem state ", env!("CARGO_PKG_VERSION"), " 3\n");
/// The bytes between the beginning and the content: the length and the checksum (CRC-32) of the content.
const HEADER_BYTES: usize = 12;
/// What a rank takes in the file beside its estimator and its tally, in bytes at most.
const RANK_BYTES_MAX: usize = CreepEstimator::BYTES_MAX + Tally::BYTES_MAX + 4096;
/// What a state file takes beside its ranks, in bytes at most.
const OTHER_BYTES_MAX: usize = 1024 * 1024;

/// Why a state file was set aside, or not written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file system refused.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// It is no state file of this version.
    #[error("{0} is no state of stepmem {version}", version = env!("CARGO_PKG_VERSION"))]
    Version(String),
    /// It is longer than any state that these settings allow.
    #[error("{path} exceeds {max} bytes")]
    TooLarge {
        /// Which file.
        path: String,
        /// The limit, in bytes.
        max: u64,
    },
    /// It was cut short or changed.
    #[error("{0} is broken: its checksum is not that of its content")]
    Checksum(String),
    /// Its content cannot be read back.
    #[error("{path} cannot be read back: {source}")]
    Content {
        /// Which file.
        path: String,
        /// Why.
        source: postcard::Error,
    },
}

/// The greatest state file of so many ranks, in bytes.
pub fn bytes_max(ranks_max: usize) -> u64 {
    let bytes = ranks_max.saturating_mul(RANK_BYTES_MAX).saturating_add(OTHER_BYTES_MAX);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Reads the state; `None` when there is no file.
///
/// # Errors
/// The file cannot be read, or is not to be trusted; [`set_aside`] it then.
pub fn read(path: &Path, ranks_max: usize) -> Result<Option<SavedState>, StateError> {
    let shown = path.display().to_string();
    let of_io = |source| StateError::Io { path: shown.clone(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(of_io)?,
    };
    let max = bytes_max(ranks_max);
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes).map_err(of_io)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > max {
        return Err(StateError::TooLarge { path: shown, max });
    }
    let Some(rest) = bytes.strip_prefix(MAGIC.as_bytes()) else {
        return Err(StateError::Version(shown));
    };
    match rest.split_at_checked(HEADER_BYTES) {
        Some((header, content)) if *header == header_of(content) => {
            postcard::from_bytes(content)
                .map(Some)
                .map_err(|source| StateError::Content { path: shown, source })
        }
        _ => Err(StateError::Checksum(shown)),
    }
}

/// Writes the state beside its file, and puts it in the file's place once it is on the disk.
///
/// # Errors
/// The file system refused; the file is as it was.
pub fn write(path: &Path, state: &SavedState) -> Result<(), StateError> {
    let shown = path.display().to_string();
    let of_io = |source| StateError::Io { path: shown.clone(), source };
    let content = postcard::to_allocvec(state)
        .map_err(|source| StateError::Content { path: shown.clone(), source })?;
    atomic::replace(path, &[MAGIC.as_bytes(), &header_of(&content), &content]).map_err(of_io)
}

/// Moves a file that is not to be trusted out of the way, and says where to.
///
/// # Errors
/// The file system refused.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = atomic::beside(path, "set-aside");
    fs::rename(path, &aside).map(|()| aside)
}

/// The length and the checksum of a content.
fn header_of(content: &[u8]) -> [u8; HEADER_BYTES] {
    let length = u64::try_from(content.len()).unwrap_or(u64::MAX).to_le_bytes();
    let checksum = crc32fast::hash(content).to_le_bytes();
    let mut header = [0; HEADER_BYTES];
    header.iter_mut().zip(length.into_iter().chain(checksum)).for_each(|(at, byte)| *at = byte);
    header
}
