//! The use of clients: each `run` holds its own, and removes those that no `run` has used for
//! long.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::exporter::clock::Clock;
use crate::run::private_directory;

/// Days without use after which a client of another version is removed. Daemons that outlive
/// their `run` read it, too.
pub const UNUSED_DAYS_MAX: u64 = 30;
/// Prefix of the names of clients, also of those that are being written or removed.
pub(super) const PREFIX: &str = "client-";

/// Sets the time of a client's last use to now. While the result is held, no other `run`
/// removes the client.
///
/// # Errors
/// It is gone or being removed, or the file system does not support locks.
pub(super) fn hold(client: &Path) -> io::Result<File> {
    let held = open(client)?;
    flock(&held, FlockOperation::NonBlockingLockShared)?;
    let named = fs::symlink_metadata(client)?;
    let ours = held.metadata()?;
    if (named.dev(), named.ino()) != (ours.dev(), ours.ino()) {
        return Err(io::Error::other("it was replaced"));
    }
    held.set_modified(now())?;
    Ok(held)
}

/// Removes the clients below a directory that no `run` holds or has used for long, except for
/// the one of this name.
pub(super) fn remove_unused(place: &Path, ours: &OsStr) {
    let Ok(entries) = fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name != ours && name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            // A client that cannot be removed stays.
            remove(&entry.path()).ok();
        }
    }
}

/// Removes a client if it is unused. It is renamed first: a `run` that begins finds all of it,
/// or nothing.
fn remove(client: &Path) -> io::Result<()> {
    let claimed = open(client)?;
    flock(&claimed, FlockOperation::NonBlockingLockExclusive)?;
    let unused = now().duration_since(claimed.metadata()?.modified()?);
    let unused_max = Duration::from_hours(24 * UNUSED_DAYS_MAX);
    if unused.is_ok_and(|unused| unused > unused_max) {
        let aside = client.with_extension(private_directory::random_name()?);
        fs::rename(client, &aside)?;
        fs::remove_dir_all(&aside)?;
    }
    Ok(())
}

/// Opens a directory that is not a link.
fn open(client: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(client)
}

fn now() -> SystemTime {
    let since = Duration::try_from_secs_f64(Clock::unix_time()).unwrap_or_default();
    UNIX_EPOCH + since
}
