//! Directories of `run`: a private one for the socket, which goes with it, and one for the client, which stays.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom, SystemRandom};

use crate::config::environment;

/// The longest path of a Unix socket, in bytes; the system's limit less the final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
const SOCKET: &str = "push.sock";

/// Where a private directory is created: the first of these that works.
const TEMPORARY: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// A directory that no other user can enter, removed with all it has when this goes.
#[derive(Debug)]
pub(super) struct PrivateFolder(PathBuf);

impl PrivateFolder {
    /// Creates one whose path has room for a socket.
    ///
    /// # Errors
    /// There is no such place; the last error.
    pub(super) fn create() -> io::Result<Self> {
        let of_user = ["XDG_RUNTIME_DIR", "TMPDIR"].into_iter().filter_map(environment::path);
        let places = of_user.chain(TEMPORARY.into_iter().map(PathBuf::from));
        let mut result = Err(io::Error::other("no directory for a socket"));
        for place in places {
            result = Self::create_in(&place);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn create_in(place: &Path) -> io::Result<Self> {
        let path = place.join(format!("stepmem-{}", random_name()?));
        if path.join(SOCKET).as_os_str().as_bytes().len() > SOCKET_PATH_BYTES_MAX {
            return Err(io::Error::other(format!(
                "{} is too long for a socket",
                path.display()
            )));
        }
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Where its socket goes.
    pub(super) fn socket(&self) -> PathBuf {
        self.0.join(SOCKET)
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // What is left there does no harm.
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Returns twelve hex digits that cannot be foreseen.
pub(super) fn random_name() -> io::Result<String> {
    let mut bytes = [0; 6];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| io::Error::other("the system has no random numbers"))?;
    Ok(hex(&bytes))
}

/// Returns two hex digits a byte.
pub(super) fn hex<'b>(bytes: impl IntoIterator<Item = &'b u8>) -> String {
    bytes.into_iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Returns a directory of this user that stays, created if need be: `stepmem` in the cache directory, or else in that of
/// the session.
///
/// # Errors
/// Each is missing, belongs to another user, or lies below a directory that everybody may write to; the last error.
pub(super) fn of_user() -> io::Result<PathBuf> {
    let cache = environment::path("XDG_CACHE_HOME")
        .or_else(|| environment::home().map(|home| home.join(".cache")));
    let places = [cache, environment::path("XDG_RUNTIME_DIR")];
    let mut result = Err(io::Error::other(
        "neither HOME nor XDG_CACHE_HOME is set, and the user has no home directory",
    ));
    for place in places.into_iter().flatten() {
        let path = place.join("stepmem");
        result = owned(&path).map_err(|error| match error.raw_os_error() {
            Some(_) => io::Error::other(format!("{}: {error}", path.display())),
            None => error,
        });
        if result.is_ok() {
            break;
        }
    }
    result
}

fn owned(path: &Path) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let path = fs::canonicalize(path)?;
    for place in path.ancestors() {
        if fs::metadata(place)?.mode() & 0o002 != 0 {
            return Err(io::Error::other(format!(
                "everybody may write to {}",
                place.display()
            )));
        }
    }
    if fs::metadata(&path)?.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("{} belongs to another user", path.display())));
    }
    fs::set_permissions(&path, Permissions::from_mode(0o700))?;
    Ok(path)
}
