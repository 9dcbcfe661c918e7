//! Whether this process may write where it has to write later. Nothing is created.

use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, FsWord, PROC_SUPER_MAGIC, accessat, statfs};

/// The type of the file system at `/sys`.
const SYSFS_MAGIC: FsWord = 0x6265_6572;

/// Checks that files can be created in a directory, or below the nearest one above it that
/// exists, in which it would be created.
///
/// # Errors
/// The file system refuses, or what exists is no directory.
pub fn below(path: &Path) -> io::Result<()> {
    let mut place = path;
    loop {
        match std::fs::metadata(place) {
            Ok(_) => return inside(place),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        match place.parent() {
            Some(parent) if parent != Path::new("") => place = parent,
            _ => return inside(Path::new(".")),
        }
    }
}

/// Checks that a file can be created in the directory of its path, which must exist.
///
/// # Errors
/// The file system refuses, or the path is a directory.
pub fn file(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|of_path| of_path.is_dir()) {
        return Err(ErrorKind::IsADirectory.into());
    }
    match path.parent() {
        Some(parent) if parent != Path::new("") => inside(parent),
        _ => inside(Path::new(".")),
    }
}

fn inside(directory: &Path) -> io::Result<()> {
    if !std::fs::metadata(directory)?.is_dir() {
        return Err(ErrorKind::NotADirectory.into());
    }
    // They let root write anywhere, and make nothing.
    if [PROC_SUPER_MAGIC, SYSFS_MAGIC].contains(&statfs(directory)?.f_type) {
        let words = format!("nothing can be made in {}", directory.display());
        return Err(io::Error::new(ErrorKind::Unsupported, words));
    }
    let access = Access::WRITE_OK | Access::EXEC_OK;
    Ok(accessat(CWD, directory, access, AtFlags::EACCESS)?)
}
