//! The state file: parts that outlast a restart of the exporter. It is written as a whole or
//! not at all, with one part in memory at a time. A file that is broken, too large, from
//! another version or another user is never trusted.
//!
//! Its content, in order: the magic line; the parts (the length of each as four bytes, then its
//! content); four zero bytes; and the checksum (CRC-32) of everything after the magic line.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::store::{atomic, open};

/// The first bytes of every state file. A version reads only its own files: another one may
/// keep different values.
pub const MAGIC: &str = concat!("stepmem state ", env!("CARGO_PKG_VERSION"), " 53\n");
/// The first bytes of every version's.
const NAME: &str = "stepmem state ";
/// The names that files are set aside under.
pub const ASIDE_MAX: u32 = 16;
/// The bytes of a length or a checksum.
const WORD_BYTES: usize = 4;

/// Reasons that a state file is set aside, or was not written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file system refused, or the file was not written by this user's exporter.
    #[error("{path}: {source}")]
    Io { path: String, source: io::Error },
    /// The file is not a state file of this version.
    #[error("{0} is not a state file of stepmem {version}", version = env!("CARGO_PKG_VERSION"))]
    Version(String),
    /// The file is longer than the settings allow for any state.
    #[error("{path} exceeds {max} bytes")]
    TooLarge {
        path: String,
        /// The limit, in bytes.
        max: u64,
    },
    /// The file was cut short or changed.
    #[error("{0} is broken: its checksum is not that of its content")]
    Checksum(String),
    /// A part cannot be read back.
    #[error("{path} cannot be read back: {source}")]
    Content { path: String, source: postcard::Error },
    /// A value in it is out of range.
    #[error("{path} cannot be used: {reason}")]
    Invalid {
        path: String,
        /// The value, and its range.
        reason: String,
    },
}

/// The maximum size of a state, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct StateLimits {
    pub file_bytes_max: u64,
    pub part_bytes_max: usize,
}

/// Reads the parts of a file; `take` gets them in order. Returns whether there is a file. The
/// parts count only once this has returned.
///
/// # Errors
/// The file cannot be read, or not be trusted; [`set_aside`] it then.
pub fn read<T: DeserializeOwned>(
    path: &Path,
    limits: StateLimits,
    take: impl FnMut(T) -> Result<(), String>,
) -> Result<bool, StateError> {
    let shown = path.display().to_string();
    let of_io = |source| StateError::Io { path: shown.clone(), source };
    let (file, metadata) = match open::own_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened.map_err(of_io)?,
    };
    if metadata.len() > limits.file_bytes_max {
        return Err(StateError::TooLarge { path: shown, max: limits.file_bytes_max });
    }
    read_from(file, path, limits, take)
}

/// Reads the parts of a file's bytes, as [`read`] does. `path` is their origin, for messages.
///
/// # Errors
/// The bytes cannot be read, or not be trusted.
pub fn read_from<T: DeserializeOwned>(
    source: impl Read,
    path: &Path,
    limits: StateLimits,
    mut take: impl FnMut(T) -> Result<(), String>,
) -> Result<bool, StateError> {
    let shown = path.display().to_string();
    let of_io = |source| StateError::Io { path: shown.clone(), source };
    let mut file = BufReader::new(source.take(limits.file_bytes_max));
    let mut magic = [0; MAGIC.len()];
    match file.read_exact(&mut magic) {
        Ok(()) if magic == *MAGIC.as_bytes() => {}
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(of_io(error)),
        _ => return Err(StateError::Version(shown)),
    }
    let broken = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => StateError::Checksum(shown.clone()),
        _ => of_io(error),
    };
    let mut checksum = crc32fast::Hasher::new();
    let mut part = Vec::new();
    loop {
        let word = word(&mut file).map_err(broken)?;
        checksum.update(&word);
        let length = usize::try_from(u32::from_le_bytes(word)).unwrap_or(usize::MAX);
        if length == 0 {
            break;
        }
        if length > limits.part_bytes_max {
            return Err(StateError::Checksum(shown));
        }
        part.resize(length, 0);
        file.read_exact(&mut part).map_err(broken)?;
        checksum.update(&part);
        let invalid = |reason| StateError::Invalid { path: shown.clone(), reason };
        // That of another file.
        drop(stepmem_types::refused::reason());
        let read = postcard::take_from_bytes::<T>(&part).map_err(|source| {
            let content = || StateError::Content { path: shown.clone(), source };
            stepmem_types::refused::reason().map_or_else(content, invalid)
        })?;
        let (value, []) = read else { return Err(StateError::Checksum(shown)) };
        take(value).map_err(invalid)?;
    }
    let word = word(&mut file).map_err(broken)?;
    let is_whole =
        word == checksum.finalize().to_le_bytes() && file.read(&mut [0]).map_err(of_io)? == 0;
    if is_whole { Ok(true) } else { Err(StateError::Checksum(shown)) }
}

fn word(file: &mut impl Read) -> io::Result<[u8; WORD_BYTES]> {
    let mut word = [0; WORD_BYTES];
    file.read_exact(&mut word).map(|()| word)
}

/// Returns the bytes of a part.
///
/// # Errors
/// It cannot be written.
pub fn part(value: &impl Serialize) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_allocvec(value)
}

/// A state file that is being written, next to the one that it replaces.
#[derive(Debug)]
pub struct StateWriter {
    path: PathBuf,
    fresh: PathBuf,
    file: BufWriter<File>,
    checksum: crc32fast::Hasher,
}

impl StateWriter {
    /// Creates the new file.
    ///
    /// # Errors
    /// The file system refused.
    pub fn create(path: &Path) -> Result<Self, StateError> {
        let fresh = atomic::beside(path, "new");
        let created = open::fresh_file(&fresh, open::PRIVATE_MODE).and_then(|file| {
            let mut file = BufWriter::new(file);
            file.write_all(MAGIC.as_bytes()).map(|()| file)
        });
        let file = created.map_err(|source| Self::error(path, source))?;
        Ok(Self { path: path.to_owned(), fresh, file, checksum: crc32fast::Hasher::new() })
    }

    /// Adds a part of at least one byte.
    ///
    /// # Errors
    /// The file system refused.
    pub fn add(&mut self, part: &[u8]) -> Result<(), StateError> {
        let length = u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes();
        [&length[..], part].into_iter().try_for_each(|bytes| self.put(bytes))
    }

    /// Replaces the file by the new one, once its bytes are on the disk.
    ///
    /// # Errors
    /// The file system refused; the file is unchanged.
    pub fn finish(mut self) -> Result<(), StateError> {
        self.put(&[0; WORD_BYTES])?;
        let checksum = self.checksum.clone().finalize().to_le_bytes();
        self.put(&checksum)?;
        let written = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        written
            .and_then(|()| fs::rename(&self.fresh, &self.path))
            .map_err(|source| Self::error(&self.path, source))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        self.checksum.update(bytes);
        self.file.write_all(bytes).map_err(|source| Self::error(&self.path, source))
    }

    fn error(path: &Path, source: io::Error) -> StateError {
        StateError::Io { path: path.display().to_string(), source }
    }
}

/// Renames a file that cannot be trusted, and returns its new path. A state that was set aside
/// before gives way; a file that never was one does not.
///
/// # Errors
/// The file system refused, or [`ASIDE_MAX`] files that are none have the names.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let names = (1..=ASIDE_MAX).map(|n| match n {
        1 => "set-aside".to_owned(),
        n => format!("set-aside-{n}"),
    });
    let free = names
        .map(|name| atomic::beside(path, &name))
        .find(|aside| !aside.exists() || is_state(aside));
    let aside = free.ok_or(io::ErrorKind::AlreadyExists)?;
    fs::rename(path, &aside).map(|()| aside)
}

/// Returns whether a file is empty, or begins as a state of any version.
fn is_state(path: &Path) -> bool {
    let mut begin = Vec::new();
    let length = u64::try_from(NAME.len()).unwrap_or(u64::MAX);
    let read =
        open::own_file(path).and_then(|(file, _)| file.take(length).read_to_end(&mut begin));
    read.is_ok() && (begin.is_empty() || begin == NAME.as_bytes())
}

/// Returns the number of processes of this boot that ended while they resumed this state, and
/// not because they were told to. A mark that cannot be read, or of another boot, counts none.
pub fn unclean_ends(path: &Path) -> u32 {
    let mark = open::own_file(&atomic::beside(path, RESUMING)).and_then(|(file, _)| {
        let mut mark = String::new();
        file.take(MARK_BYTES_MAX).read_to_string(&mut mark).map(|_| mark)
    });
    let mark = mark.unwrap_or_default();
    let Some((boot, n_ends)) = mark.trim_end().split_once(' ') else { return 0 };
    if boot == boot_id() { n_ends.parse().unwrap_or_default() } else { 0 }
}

/// Marks a state as being resumed: a process that ends with the mark in place ended uncleanly,
/// for the `n_ends`-th time.
///
/// # Errors
/// The file system refused.
pub fn begin_resuming(path: &Path, n_ends: u32) -> io::Result<()> {
    let mark = format!("{} {n_ends}\n", boot_id());
    atomic::replace(&atomic::beside(path, RESUMING), &[mark.as_bytes()])
}

/// Takes the mark away: the state did not end the process.
///
/// # Errors
/// The file system refused.
pub fn end_resuming(path: &Path) -> io::Result<()> {
    match fs::remove_file(atomic::beside(path, RESUMING)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the kernel's name of this boot: all containers of a machine see the same. Empty where
/// there is none.
fn boot_id() -> String {
    let id = open::read_regular(Path::new(BOOT_ID), MARK_BYTES_MAX).unwrap_or_default();
    String::from_utf8_lossy(&id).trim().to_owned()
}

/// The extension of the mark of a state that is being resumed.
const RESUMING: &str = "resuming";
/// The longest mark that is read, in bytes.
const MARK_BYTES_MAX: u64 = 256;
/// The file in which the kernel names the boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::{Path, PathBuf};

    use crate::store::state::{
        MAGIC, StateError, StateLimits, StateWriter, WORD_BYTES, part, read,
    };

    /// A path that does not exist yet; `name` distinguishes tests.
    fn path(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("stepmem-state-{name}-{}", std::process::id()));
        fs::remove_file(&path).ok();
        path
    }

    fn write(path: &Path, values: &[(u64, String)]) {
        let mut writer = StateWriter::create(path).unwrap();
        for value in values {
            writer.add(&part(value).unwrap()).unwrap();
        }
        writer.finish().unwrap();
    }

    fn values() -> Vec<(u64, String)> {
        vec![(7, "a run".to_owned()), (u64::MAX, String::new()), (0, "x".repeat(5000))]
    }

    fn all(path: &Path, file_bytes_max: u64) -> Result<Option<Vec<(u64, String)>>, StateError> {
        let mut values = Vec::new();
        let limits = StateLimits { file_bytes_max, part_bytes_max: 6000 };
        let take = |value| {
            values.push(value);
            Ok(())
        };
        let is_there = read(path, limits, take)?;
        Ok(is_there.then_some(values))
    }

    #[test]
    fn parts_come_back_as_they_were_written() {
        let path = path("back");
        assert!(matches!(all(&path, 10_000), Ok(None)));
        write(&path, &values());
        assert_eq!(all(&path, 10_000).unwrap(), Some(values()));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn file_of_the_greatest_size_is_read_and_a_longer_one_refused() {
        let path = path("bound");
        write(&path, &[(9, String::new())]);
        let n_bytes = u64::try_from(MAGIC.len() + 3 * WORD_BYTES + 2).unwrap();
        assert_eq!(all(&path, n_bytes).unwrap(), Some(vec![(9, String::new())]));
        let error = all(&path, n_bytes - 1).unwrap_err();
        assert!(matches!(error, StateError::TooLarge { max, .. } if max == n_bytes - 1));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn file_with_one_wrong_bit_or_a_cut_anywhere_is_refused() {
        let path = path("bit");
        write(&path, &values());
        let good = fs::read(&path).unwrap();
        for at in (0..good.len()).step_by(7) {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            fs::write(&path, bytes).unwrap();
            assert!(all(&path, 10_000).is_err(), "bit of byte {at}");
            fs::write(&path, &good[..at]).unwrap();
            assert!(all(&path, 10_000).is_err(), "cut at {at}");
        }
        fs::write(&path, [&good[..], b"x"].concat()).unwrap();
        assert!(matches!(all(&path, 10_000), Err(StateError::Checksum(_))));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn links_are_not_followed() {
        let (path, link) = (path("target"), path("link"));
        write(&path, &values());
        symlink(&path, &link).unwrap();
        assert!(matches!(all(&link, 10_000), Err(StateError::Io { .. })));
        // The write replaces the link, not its target.
        write(&link, &[]);
        assert_eq!(all(&path, 10_000).unwrap(), Some(values()));
        assert_eq!(all(&link, 10_000).unwrap(), Some(Vec::new()));
        fs::remove_file(path).unwrap();
        fs::remove_file(link).unwrap();
    }
}
