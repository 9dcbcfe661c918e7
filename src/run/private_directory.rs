//! Directories of `run`: a private one for the socket, which is removed with it, and one for
//! the client, which stays.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom, SystemRandom};

use crate::config::environment;

/// The longest path of a Unix socket, in bytes: the system's limit less the final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
const SOCKET: &str = "push.sock";
/// Permission of everybody to create and remove entries of a directory, and the flag that
/// limits it to one's own entries.
const EVERYBODY_WRITES: u32 = 0o002;
const STICKY: u32 = 0o1000;
const ROOT: u32 = 0;
/// The ids that this process's user namespace knows, and the one that it shows for all others.
const KNOWN_IDS: &str = "/proc/self/uid_map";
const UNKNOWN_ID: &str = "/proc/sys/kernel/overflowuid";

/// The places for a private directory: the first of these that works.
const TEMPORARY: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// A directory that no other user can enter. It is removed with its content when this value is
/// dropped.
#[derive(Debug)]
pub(super) struct PrivateFolder(PathBuf);

impl PrivateFolder {
    /// Creates a directory whose path leaves space for a socket's name.
    ///
    /// # Errors
    /// No place works; the last error.
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

    /// The path of its socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.0.join(SOCKET)
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // A directory that cannot be removed does no harm.
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Returns twelve hex digits that cannot be predicted.
pub(super) fn random_name() -> io::Result<String> {
    let mut bytes = [0; 6];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| io::Error::other("the system has no random numbers"))?;
    Ok(hex(&bytes))
}

/// Returns two hex digits per byte.
pub(super) fn hex<'b>(bytes: impl IntoIterator<Item = &'b u8>) -> String {
    bytes.into_iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Returns directories for files that stay: `stepmem` in the user's cache directory, and in
/// that of the session.
pub(super) fn of_user() -> Vec<PathBuf> {
    let cache = environment::path("XDG_CACHE_HOME")
        .or_else(|| environment::home().map(|home| home.join(".cache")));
    let places = [cache, environment::path("XDG_RUNTIME_DIR")];
    places.into_iter().flatten().map(|place| place.join("stepmem")).collect()
}

/// Returns an error in readable form, with the path unless it already names one.
pub(super) fn named(path: &Path, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(_) => format!("{}: {error}", path.display()),
        None => error.to_string(),
    }
}

/// Ensures that there is a directory of this user alone, which nobody else can replace. Returns
/// its path without links.
///
/// # Errors
/// It cannot be created, belongs to another user, or another user can replace a part of its
/// path.
pub(super) fn owned(path: &Path) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let path = fs::canonicalize(path)?;
    let owners = Owners::new();
    let mut below = None;
    for place in path.ancestors() {
        let part = PathPart::of(&fs::metadata(place)?);
        if let Some(why) = part.replaceable(below, owners) {
            return Err(io::Error::other(format!("{why} {}", place.display())));
        }
        below = Some(part);
    }
    if fs::metadata(&path)?.uid() != owners.us {
        return Err(io::Error::other(format!("{} belongs to another user", path.display())));
    }
    fs::set_permissions(&path, Permissions::from_mode(0o700))?;
    Ok(path)
}

/// The possible owners, apart from root, of the directories above one of this program.
#[derive(Clone, Copy, Debug)]
struct Owners {
    us: u32,
    /// See [`unmapped`].
    unmapped: Option<u32>,
}

impl Owners {
    fn new() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let unmapped = unmapped(&read(KNOWN_IDS), &read(UNKNOWN_ID));
        Self { us: rustix::process::geteuid().as_raw(), unmapped }
    }
}

/// Returns the owner that a user namespace shows for root outside of it, as in a container
/// without privileges. `None` where a user may have that id, such as nobody (65534), under
/// which a machine's services run.
fn unmapped(known: &str, unknown: &str) -> Option<u32> {
    let id: u32 = unknown.trim().parse().ok()?;
    let ranges: Vec<_> = known.lines().map(range).collect::<Option<_>>()?;
    let may_be_known = ranges.is_empty() || ranges.iter().any(|ids| ids.contains(&id.into()));
    (!may_be_known).then_some(id)
}

/// Returns the ids of a line of `uid_map`: the first id, the first id outside, and their
/// number.
fn range(line: &str) -> Option<Range<u64>> {
    let words: Vec<u64> =
        line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
    match words[..] {
        [first, _, n] => Some(first..first.saturating_add(n)),
        _ => None,
    }
}

/// A directory on the path to one of this program's directories.
#[derive(Clone, Copy, Debug)]
struct PathPart {
    uid: u32,
    mode: u32,
}

impl PathPart {
    fn of(metadata: &fs::Metadata) -> Self {
        Self { uid: metadata.uid(), mode: metadata.mode() }
    }

    /// Returns the reason that another user than these can replace `below` in this directory,
    /// if one can.
    fn replaceable(self, below: Option<Self>, owners: Owners) -> Option<&'static str> {
        if self.mode & EVERYBODY_WRITES == 0 {
            return (!self.is_of(owners)).then_some("another user owns");
        }
        // In a sticky directory, only the owner of an entry and that of the directory can
        // replace the entry.
        let is_kept = self.mode & STICKY != 0
            && self.is_of(owners)
            && below.is_some_and(|below| below.is_of(owners));
        (!is_kept).then_some("everybody may write to")
    }

    fn is_of(self, owners: Owners) -> bool {
        [owners.us, ROOT].contains(&self.uid) || owners.unmapped == Some(self.uid)
    }
}

#[cfg(test)]
mod tests {
    use crate::run::private_directory::{Owners, PathPart, unmapped};

    const US: u32 = 1000;
    const OTHER: u32 = 1001;
    const NOBODY: u32 = 65534;
    const OWNERS: Owners = Owners { us: US, unmapped: None };
    const IN_NAMESPACE: Owners = Owners { unmapped: Some(NOBODY), ..OWNERS };

    fn check(owners: Owners, uid: u32, mode: u32, below: u32) -> bool {
        let (part, below) = (PathPart { uid, mode }, PathPart { uid: below, mode: 0o700 });
        part.replaceable(Some(below), owners).is_none()
    }

    #[test]
    fn directory_is_ours_where_no_other_user_can_replace_it() {
        for (owners, owner) in [(OWNERS, US), (OWNERS, 0), (IN_NAMESPACE, NOBODY)] {
            assert!(check(owners, owner, 0o755, US));
            assert!(check(owners, owner, 0o1777, US));
            assert!(check(owners, owner, 0o1777, 0));
            assert!(!check(owners, owner, 0o1777, OTHER));
            assert!(!check(owners, owner, 0o777, US));
        }
        for other in [OTHER, NOBODY] {
            for mode in [0o755, 0o700, 0o1777, 0o777] {
                assert!(!check(OWNERS, other, mode, US), "{other} {mode:o}");
            }
        }
        let last = PathPart { uid: US, mode: 0o1777 };
        assert!(last.replaceable(None, OWNERS).is_some());
    }

    #[test]
    fn owner_that_stands_for_unknown_ones_is_none_where_a_user_may_have_its_id() {
        let machine = "         0          0 4294967295\n";
        let apptainer = "      1000       1000          1\n";
        let podman = "         0       1000          1\n         1     100000      65536\n";
        for (known, owner) in [
            (machine, None),
            (apptainer, Some(NOBODY)),
            (podman, None),
            ("", None),
            ("0 0", None),
        ] {
            assert_eq!(unmapped(known, "65534\n"), owner, "{known}");
        }
        assert_eq!(unmapped(apptainer, ""), None);
    }
}
