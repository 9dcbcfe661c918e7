//! The Python client that travels inside the program: an archive, written to where it can stay.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};

use crate::app::launch::folder;

/// Modules `sitecustomize` and `stepmem`, as build.rs packed them.
const ARCHIVE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/client.zip"));

/// Writes the archive below the user's cache directory, unless it is there. Its name has its content's hash: processes
/// of another version keep theirs.
///
/// # Errors
/// There is no directory that it may be in, or it cannot be written.
pub(super) fn install() -> io::Result<PathBuf> {
    let hash = digest(&SHA256, ARCHIVE);
    let hash = folder::hex(hash.as_ref().iter().take(8));
    let path = folder::of_user()?.join(format!("client-{hash}.zip"));
    if path.as_os_str().as_bytes().contains(&b':') {
        return Err(io::Error::other(format!("{} cannot be in PYTHONPATH", path.display())));
    }
    if !is_whole(&path) {
        write(&path)?;
    }
    Ok(path)
}

/// Returns whether the file is this user's and has the archive's content.
fn is_whole(path: &Path) -> bool {
    let is_ours = |metadata: fs::Metadata| {
        metadata.is_file() && metadata.uid() == rustix::process::geteuid().as_raw()
    };
    fs::symlink_metadata(path).is_ok_and(is_ours)
        && fs::read(path).is_ok_and(|content| content == ARCHIVE)
}

/// Writes the archive beside the path and moves it there: others may be about to read or write it.
fn write(path: &Path) -> io::Result<()> {
    let fresh = path.with_extension(folder::random_name()?);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    let written = file.write_all(ARCHIVE).and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        fs::remove_file(&fresh).ok();
    }
    written
}
