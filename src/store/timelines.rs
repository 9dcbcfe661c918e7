//! The folder of drawn snapshots: one document each, the newest few. Another process writes
//! into a file that is opened here, and a document counts once it is complete. All operations
//! use the opened folder, so renaming a directory of its path moves nothing.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};

/// Maximum number of documents that are kept; beyond it, the oldest is removed.
pub const TIMELINES_MAX: usize = 16;
/// The longest document, in bytes.
pub const TIMELINE_BYTES_MAX: u64 = 5_000_000;
/// The message of the process that writes a document once it is complete.
pub const DRAWN: &str = "drawn";
/// The longest id, in bytes.
const ID_BYTES: usize = 40;
/// The document that is being written.
const UNFINISHED: &str = "unfinished";
const ENDING: &str = ".html";
const PRIVATE_FOLDER: u32 = 0o700;
/// The permissions that others must not have for the folder: to write.
const WRITABLE: u32 = 0o022;

/// A folder of documents that this user alone writes.
#[derive(Debug)]
pub struct TimelineFolder {
    folder: OwnedFd,
}

impl TimelineFolder {
    /// Opens a folder, or creates it. It is neither one of `foreign`, which others write, nor
    /// below one.
    ///
    /// # Errors
    /// The file system refused, others may write there, or it is another user's.
    pub fn open(path: &Path, foreign: &[&Path]) -> io::Result<Self> {
        match DirBuilder::new().mode(PRIVATE_FOLDER).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let real = path.canonicalize()?;
        for other in foreign {
            let of_other = other.canonicalize().unwrap_or_else(|_| (*other).to_owned());
            if real.starts_with(&of_other) {
                let text = format!("it is below {}, where others write", other.display());
                return Err(io::Error::other(text));
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&real, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&folder)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other(format!("it belongs to user {}", stat.st_uid)));
        }
        if stat.st_mode & WRITABLE != 0 {
            let text = format!("others may write there (mode {:o})", stat.st_mode & 0o7777);
            return Err(io::Error::other(text));
        }
        Ok(Self { folder })
    }

    /// Opens a file for the next document, instead of one that was not finished.
    ///
    /// # Errors
    /// The file system refused.
    pub fn begin(&self) -> io::Result<File> {
        self.remove(UNFINISHED)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(File::from(rustix::fs::openat(&self.folder, UNFINISHED, flags, mode)?))
    }

    /// Keeps the begun document under an id, and removes the oldest beyond [`TIMELINES_MAX`].
    /// Returns the number removed.
    ///
    /// # Errors
    /// The file system refused, or the document is empty or too long.
    pub fn keep(&self, id: &str) -> io::Result<u64> {
        let stat = rustix::fs::statat(&self.folder, UNFINISHED, AtFlags::SYMLINK_NOFOLLOW)?;
        if size(&stat).is_none() {
            self.remove(UNFINISHED)?;
            return Err(io::Error::other("the document is empty or too long"));
        }
        let name = file_name(id).ok_or_else(|| io::Error::other("the id is none"))?;
        rustix::fs::renameat(&self.folder, UNFINISHED, &self.folder, &name)?;
        let mut names = self.names()?;
        names.sort_unstable();
        let n_extra = names.len().saturating_sub(TIMELINES_MAX);
        let oldest = names.iter().take(n_extra);
        oldest.map(|name| self.remove(name).map(|()| 1)).sum()
    }

    /// Removes the document that was begun.
    ///
    /// # Errors
    /// The file system refused.
    pub fn discard(&self) -> io::Result<()> {
        self.remove(UNFINISHED)
    }

    /// Opens a document by its id. Returns it with its length in bytes; `None` if there is
    /// none.
    pub fn document(&self, id: &str) -> Option<(File, u64)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(&self.folder, file_name(id)?, flags, Mode::empty()).ok()?;
        let n_bytes = size(&rustix::fs::fstat(&file).ok()?)?;
        Some((File::from(file), n_bytes))
    }

    /// Returns the file names of the documents.
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.folder)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.strip_suffix(ENDING).is_some_and(|id| file_name(id).is_some()) {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The size of a document; `None` for other files.
fn size(stat: &Stat) -> Option<u64> {
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let n_bytes = u64::try_from(stat.st_size).ok()?;
    (is_file && (1..=TIMELINE_BYTES_MAX).contains(&n_bytes)).then_some(n_bytes)
}

/// The name of the file of an id, which is made of digits and `-`. In the order of names, older
/// ones come first.
fn file_name(id: &str) -> Option<String> {
    let is_id = (1..=ID_BYTES).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    is_id.then(|| format!("{id}{ENDING}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::{Path, PathBuf};

    use super::{TIMELINE_BYTES_MAX, TIMELINES_MAX, TimelineFolder};

    /// An empty folder that is removed with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("stepmem-timelines-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn refused(path: &Path, foreign: &[&Path]) -> String {
        TimelineFolder::open(path, foreign).unwrap_err().to_string()
    }

    #[test]
    fn the_newest_documents_are_kept_and_only_whole_ones_are_read() {
        let scratch = Scratch::new("kept");
        let path = scratch.0.join("own");
        let folder = TimelineFolder::open(&path, &[]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(path.join("of-a-person.html"), "x").unwrap();
        let n_documents = TIMELINES_MAX + 3;
        let mut n_removed = 0;
        for n in 0..n_documents {
            folder.begin().unwrap().write_all(format!("{n}").as_bytes()).unwrap();
            assert!(folder.document("unfinished").is_none());
            n_removed += folder.keep(&format!("17-{n:06}")).unwrap();
        }
        assert_eq!((n_removed, fs::read_dir(&path).unwrap().count()), (3, TIMELINES_MAX + 1));
        assert!(folder.document("17-000002").is_none());
        let (mut file, n_bytes) = folder.document("17-000003").unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), n_bytes), ("3", 1));
        for id in ["", "..", "../own/17-000003", "17-000003.html", "of-a-person", "a"] {
            assert!(folder.document(id).is_none(), "{id}");
        }

        folder.begin().unwrap();
        assert!(folder.keep("18-000001").is_err(), "an empty one");
        folder.begin().unwrap().set_len(TIMELINE_BYTES_MAX + 1).unwrap();
        assert!(folder.keep("18-000001").is_err(), "one that is too long");
        folder.begin().unwrap();
        folder.discard().unwrap();
        assert!(!path.join("unfinished").exists());
        symlink(path.join("17-000003.html"), path.join("19-1.html")).unwrap();
        assert!(folder.document("19-1").is_none(), "a link");
    }

    #[test]
    fn folder_that_others_write_is_refused() {
        let scratch = Scratch::new("refused");
        let shared = scratch.0.join("shared");
        fs::create_dir(&shared).unwrap();
        let below = refused(&shared.join("own"), &[&shared]);
        assert!(below.contains("where others write"), "{below}");
        assert!(refused(&shared, &[&shared]).contains("where others write"));
        symlink(&shared, scratch.0.join("link")).unwrap();
        let through = refused(&scratch.0.join("link/own"), &[&shared]);
        assert!(through.contains("where others write"), "{through}");
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused(&shared, &[]).contains("mode 777"));
        TimelineFolder::open(&scratch.0.join("shared-not"), &[&shared]).unwrap();
    }

    #[test]
    fn folder_that_was_moved_away_is_the_one_that_is_written() {
        let scratch = Scratch::new("moved");
        let path = scratch.0.join("own");
        let folder = TimelineFolder::open(&path, &[]).unwrap();
        fs::rename(&path, scratch.0.join("moved")).unwrap();
        fs::create_dir(&path).unwrap();
        folder.begin().unwrap().write_all(b"1").unwrap();
        folder.keep("1").unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        assert!(folder.document("1").is_some());
    }
}
