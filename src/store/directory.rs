//! Directories that neighbors may write to. Operations in an open one stay in it, even if its
//! path changes. No link in it is followed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, linkat, mkdirat, openat, readlinkat,
    renameat, statat, symlinkat, unlinkat,
};

use crate::store::open;

/// The modes of files and directories that others may read, less what the umask takes.
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o777);

/// An open directory.
#[derive(Debug)]
pub struct Directory {
    file: OwnedFd,
    /// The path at which it was opened, for people and for other programs.
    path: PathBuf,
}

/// Kind of an entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Nothing,
    File,
    Directory,
    Link,
    /// A pipe, a socket, a device.
    Other,
}

impl Directory {
    /// Opens the directory at a configured path: its links are followed.
    ///
    /// # Errors
    /// The file system refused.
    pub fn open(path: &Path) -> io::Result<Self> {
        let shown = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file = openat(CWD, shown, flags, Mode::empty())?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Opens a directory in this one.
    ///
    /// # Errors
    /// The file system refused, or it is no directory but a link or a file
    /// ([`ErrorKind::NotADirectory`]).
    pub fn inner(&self, name: &str) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = self.path.join(name);
        let words = match (openat(&self.file, name, flags, Mode::empty()), self.found(name)) {
            (Ok(file), _) => return Ok(Self { file, path }),
            (Err(_), EntryKind::Link) => "is a link, which is not followed",
            (Err(_), EntryKind::File | EntryKind::Other) => "is not a directory",
            (Err(error), EntryKind::Nothing | EntryKind::Directory) => return Err(error.into()),
        };
        Err(io::Error::new(ErrorKind::NotADirectory, format!("{} {words}", path.display())))
    }

    /// Opens a directory in this one, and creates it if nothing has its name.
    ///
    /// # Errors
    /// As of [`Self::inner`].
    pub fn made_inner(&self, name: &str) -> io::Result<Self> {
        match self.make(name) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            Ok(()) | Err(_) => self.inner(name),
        }
    }

    /// Creates a directory in this one.
    ///
    /// # Errors
    /// The file system refused, or something has its name.
    pub fn make(&self, name: &str) -> io::Result<()> {
        Ok(mkdirat(&self.file, name, FOLDER_MODE)?)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its own name.
    pub fn name(&self) -> Option<&str> {
        self.path.file_name()?.to_str()
    }

    /// Returns the kind of the entry of this name.
    pub fn found(&self, name: impl AsRef<OsStr>) -> EntryKind {
        let Ok(stat) = self.stat(name.as_ref()) else { return EntryKind::Nothing };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Link,
            _ => EntryKind::Other,
        }
    }

    /// Returns device and inode of a regular file in it.
    pub fn identity(&self, name: impl AsRef<OsStr>) -> Option<(u64, u64)> {
        let stat = self.stat(name.as_ref()).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        is_file.then_some((stat.st_dev, stat.st_ino))
    }

    fn stat(&self, name: &OsStr) -> io::Result<Stat> {
        Ok(statat(&self.file, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Returns the names in it, in no order.
    ///
    /// # Errors
    /// The file system refused.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.file)? {
            let name = entry?.file_name().to_bytes().to_owned();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// Opens a regular file in it for reading, without waiting for anyone.
    ///
    /// # Errors
    /// The file system refused, or it is a link, a pipe or a directory.
    pub fn open_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.file, name, flags, Mode::empty())?);
        if file.metadata()?.is_file() {
            Ok(file)
        } else {
            Err(io::Error::other("it is not a regular file"))
        }
    }

    /// Reads a regular file in it, of at most so many bytes.
    ///
    /// # Errors
    /// As of [`Self::open_file`], or the file is longer.
    pub fn read(&self, name: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = self.open_file(name)?;
        file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > bytes_max {
            return Err(io::Error::other(format!("{name} exceeds {bytes_max} bytes")));
        }
        Ok(bytes)
    }

    /// Writes a file under a name that nothing has, down to the disk. Leaves nothing behind
    /// when that fails.
    ///
    /// # Errors
    /// The file system refused.
    pub fn create(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.file, name, flags, FILE_MODE)?);
        let written = parts.iter().try_for_each(|part| file.write_all(part));
        if let Err(error) = written.and_then(|()| file.sync_all()) {
            // On a full disk, the written part takes the last bytes.
            self.remove_file(name).ok();
            return Err(error);
        }
        Ok(())
    }

    /// Creates a file that only this user reads, under a name that nothing has, to append to
    /// it.
    ///
    /// # Errors
    /// The file system refused, or something has the name.
    pub fn new_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::APPEND
            | OFlags::WRONLY
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(open::PRIVATE_MODE);
        Ok(File::from(openat(&self.file, name, flags, mode)?))
    }

    /// Renames a file in it, and replaces any entry that has the new name.
    ///
    /// # Errors
    /// The file system refused, or a directory has the name.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.file, from, &self.file, to)?)
    }

    /// Gives a file in it a second name that nothing has.
    ///
    /// # Errors
    /// The file system refused, or something has the name.
    pub fn link(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(linkat(&self.file, from, &self.file, to, AtFlags::empty())?)
    }

    /// Gives a file elsewhere a second name in it that nothing has.
    ///
    /// # Errors
    /// As of [`Self::link`].
    pub fn link_from(&self, path: &Path, name: &OsStr) -> io::Result<()> {
        Ok(linkat(CWD, path, &self.file, name, AtFlags::empty())?)
    }

    /// Moves a file from elsewhere on the same disk.
    ///
    /// # Errors
    /// As of [`Self::rename`].
    pub fn move_from(&self, path: &Path, name: &OsStr) -> io::Result<()> {
        Ok(renameat(CWD, path, &self.file, name)?)
    }

    /// Creates a symbolic link in it.
    ///
    /// # Errors
    /// The file system refused, or something has the name.
    pub fn symlink(&self, target: &Path, name: &str) -> io::Result<()> {
        Ok(symlinkat(target, &self.file, name)?)
    }

    /// Returns the target of a symbolic link in it.
    ///
    /// # Errors
    /// The file system refused, or it is no link ([`ErrorKind::InvalidInput`]).
    pub fn read_link(&self, name: &str) -> io::Result<PathBuf> {
        let target = readlinkat(&self.file, name, Vec::new())?;
        Ok(PathBuf::from(OsStr::from_bytes(target.to_bytes())))
    }

    /// Removes a file or a link from it.
    ///
    /// # Errors
    /// The file system refused.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unlinkat(&self.file, name.as_ref(), AtFlags::empty())?)
    }

    /// Removes an empty directory from it.
    ///
    /// # Errors
    /// The file system refused, or it is not empty.
    pub fn remove_inner(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.file, name, AtFlags::REMOVEDIR)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;
    use std::os::unix::fs::symlink;

    use crate::store::directory::{Directory, EntryKind};

    #[test]
    fn open_directory_stays_the_one_that_was_opened_and_links_are_not_followed() {
        let root =
            std::env::temp_dir().join(format!("stepmem-directory-{}", std::process::id()));
        fs::remove_dir_all(&root).ok();
        fs::create_dir_all(root.join("of-others")).unwrap();
        fs::write(root.join("of-others/secret"), "secret").unwrap();
        let directory = Directory::open(&root).unwrap();
        let own = directory.made_inner("own").unwrap();
        // A neighbor puts a link where the directory was.
        fs::rename(root.join("own"), root.join("moved")).unwrap();
        symlink(root.join("of-others"), root.join("own")).unwrap();
        own.create("file", &[b"a", b"b"]).unwrap();
        own.rename("file", "renamed").unwrap();
        assert_eq!(fs::read(root.join("moved/renamed")).unwrap(), b"ab");
        assert_eq!(own.names().unwrap(), ["renamed"]);
        own.remove_file("renamed").unwrap();
        assert_eq!(fs::read_dir(root.join("of-others")).unwrap().count(), 1);
        let error = directory.made_inner("own").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotADirectory);
        assert!(error.to_string().ends_with("own is a link, which is not followed"), "{error}");
        assert_eq!(directory.found("own"), EntryKind::Link);
        symlink(root.join("of-others/secret"), root.join("moved/link")).unwrap();
        assert!(own.read("link", 100).is_err() && own.create("link", &[b"x"]).is_err());
        assert_eq!((own.identity("link"), own.found("none")), (None, EntryKind::Nothing));
        assert!(directory.remove_inner("own").is_err());
        assert_eq!(fs::read(root.join("of-others/secret")).unwrap(), b"secret");
        fs::remove_dir_all(root).unwrap();
    }
}
