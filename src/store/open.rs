//! Files that neighbors may have tampered with: opened without following a link, without
//! waiting, and only if they have the expected type and owner.

use std::fmt::{self, Display, Formatter};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The name of a file in the error about it: an argument names it, and it cannot be read or
/// written, or is something else than a command takes.
#[derive(Debug)]
pub struct Unread(pub String);

impl Display for Unread {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The error about a directory where a file is needed.
pub const IS_DIRECTORY: &str = "is a directory: name a file";

/// The mode of files that only this user reads.
pub const PRIVATE_MODE: u32 = 0o600;

/// The link by which the kubelet replaces all files of a mounted secret at once.
const KUBELET_LINK: &str = "..data";

/// Opens a regular file of this user for reading.
///
/// # Errors
/// The file system refused, or the path is a link, a pipe, a device, a directory, or another
/// user's file.
pub fn own_file(path: &Path) -> io::Result<(File, Metadata)> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC))
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.uid() != geteuid().as_raw() {
        let text =
            format!("it belongs to uid {}, not to the user of this process", metadata.uid());
        return Err(io::Error::other(text));
    }
    Ok((file, metadata))
}

/// Opens a regular file of at most so many bytes and reads it. Follows links, such as those of
/// mounted secrets.
///
/// # Errors
/// The file system refused, or the path leads to a pipe, a device, a directory, or a longer
/// file.
pub fn read_regular(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags(OFlags::NONBLOCK | OFlags::CLOEXEC))
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > bytes_max {
        return Err(io::Error::other(format!("it exceeds {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// Returns the mode of a file that every user of this machine may read, by its own mode and
/// those of the directories above it. `None` for other files, and for a file that cannot be
/// examined. `None` also in a volume of the kubelet: only the containers that mount it reach
/// it, and their processes without root can read it by no other mode.
pub fn public_mode(path: &Path) -> Option<u32> {
    let is_of_kubelet = |folder: &Path| {
        folder.join(KUBELET_LINK).symlink_metadata().is_ok_and(|it| it.is_symlink())
    };
    if path.parent().is_some_and(is_of_kubelet) {
        return None;
    }
    let path = path.canonicalize().ok()?;
    let mode = |path: &Path| Some(path.metadata().ok()?.mode() & 0o7777);
    let own = mode(&path).filter(|mode| mode & 0o004 != 0)?;
    let mut folders = path.ancestors().skip(1);
    folders.all(|folder| mode(folder).is_some_and(|mode| mode & 0o001 != 0)).then_some(own)
}

/// Opens a file to lock it; creates it if there is none.
///
/// # Errors
/// The file system refused, or the path is a link or no regular file.
pub fn lock_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(PRIVATE_MODE)
        .custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC))
        .open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is not a regular file"))
    }
}

/// Opens a regular file that exists, to append to it. Returns its length, too. Follows links.
///
/// # Errors
/// The file system refused, or the path leads to a pipe, a device or a directory.
pub fn for_appending(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new()
        .append(true)
        .custom_flags(flags(OFlags::NONBLOCK | OFlags::CLOEXEC))
        .open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() {
        Ok((file, metadata.len()))
    } else {
        Err(io::Error::other("it is not a regular file"))
    }
}

/// Opens a file that a person named, to replace what it has. Follows links. A pipe or a device is
/// taken, too, as of `>(jq …)`.
///
/// # Errors
/// The file system refused, or nobody reads the pipe.
pub fn to_replace(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(flags(OFlags::NONBLOCK | OFlags::CLOEXEC))
        .open(path)
        .map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NXIO) => io::Error::other("nobody reads the pipe"),
            _ => error,
        })?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Creates a file that does not exist yet, instead of any that an earlier attempt left.
///
/// # Errors
/// The file system refused.
pub fn fresh_file(path: &Path, mode: u32) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .custom_flags(flags(OFlags::NOFOLLOW | OFlags::CLOEXEC))
        .open(path)
}

/// Creates a file to append to it.
///
/// # Errors
/// The file system refused, or the name is taken, also by a link or a pipe.
pub fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create_new(true)
        .mode(PRIVATE_MODE)
        .custom_flags(flags(OFlags::NOFOLLOW | OFlags::CLOEXEC))
        .open(path)
}

fn flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}
