//! The state file: one value that outlasts a restart of the exporter, written whole or not at all. A file that is broken,
//! too large or from another version is never trusted.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::store::atomic;

/// The first bytes of every state file. A version reads only its own files: another one may keep other things.
const MAGIC: &str = concat!("stepmem state ", env!("CARGO_PKG_VERSION"), " 4\n");
/// The bytes between the beginning and the content: the length and the checksum (CRC-32) of the content.
const HEADER_BYTES: usize = 12;

/// Why a state file is set aside, or was not written.
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
    /// It is not a state file of this version.
    #[error("{0} is not a state file of stepmem {version}", version = env!("CARGO_PKG_VERSION"))]
    Version(String),
    /// It is longer than the settings allow any state to be.
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

/// Reads the value of a file of at most `bytes_max` bytes; `None` when the file does not exist.
///
/// # Errors
/// The file cannot be read, or not be trusted; [`set_aside`] it then.
pub fn read<T: DeserializeOwned>(path: &Path, bytes_max: u64) -> Result<Option<T>, StateError> {
    let shown = path.display().to_string();
    let of_io = |source| StateError::Io { path: shown.clone(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(of_io)?,
    };
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(of_io)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > bytes_max {
        return Err(StateError::TooLarge { path: shown, max: bytes_max });
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

/// Writes a value beside its file, and replaces the file once the bytes are on the disk.
///
/// # Errors
/// The file system refused; the file is unchanged.
pub fn write(path: &Path, value: &impl Serialize) -> Result<(), StateError> {
    let shown = path.display().to_string();
    let of_io = |source| StateError::Io { path: shown.clone(), source };
    let content = postcard::to_allocvec(value)
        .map_err(|source| StateError::Content { path: shown.clone(), source })?;
    atomic::replace(path, &[MAGIC.as_bytes(), &header_of(&content), &content]).map_err(of_io)
}

/// Moves a file that cannot be trusted out of the way, and returns its new path.
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use crate::store::state::{HEADER_BYTES, MAGIC, StateError, read, write};

    /// A path that does not exist yet; `name` distinguishes tests.
    fn path(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("stepmem-state-{name}-{}", std::process::id()));
        fs::remove_file(&path).ok();
        path
    }

    #[test]
    fn value_comes_back_as_it_was_written() {
        let path = path("back");
        assert!(matches!(read::<u8>(&path, 1000), Ok(None)));
        let value = (7_u64, "a run".to_owned(), vec![0.5_f64, f64::MAX]);
        write(&path, &value).unwrap();
        assert_eq!(read(&path, 1000).unwrap(), Some(value));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn file_of_the_greatest_size_is_read_and_a_longer_one_refused() {
        let path = path("bound");
        write(&path, &9_u8).unwrap();
        let n_bytes = u64::try_from(MAGIC.len() + HEADER_BYTES + 1).unwrap();
        assert_eq!(read(&path, n_bytes).unwrap(), Some(9_u8));
        let error = read::<u8>(&path, n_bytes - 1).unwrap_err();
        assert!(matches!(error, StateError::TooLarge { max, .. } if max == n_bytes - 1));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn file_with_one_wrong_bit_is_refused() {
        let path = path("bit");
        write(&path, &[1_u32, 2, 3]).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(matches!(read::<[u32; 3]>(&path, 1000), Err(StateError::Checksum(_))));
        fs::remove_file(path).unwrap();
    }
}
