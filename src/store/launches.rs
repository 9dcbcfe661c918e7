//! The directories of a run's launches: one per launch, named after its start, and shared by all exporters of the launch.
//!
//! `RUN/TIME/launch.json` names the launch. `RUN/.launches/LAUNCH` links to its directory: a link is made once, so that
//! exporters that make a directory at the same moment agree on one. `RUN/latest` links to the directory that was
//! written last, and so does `latest` next to the runs, of all of them.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::store::atomic;

/// The file that names a launch in its directory.
const LAUNCH_FILE: &str = "launch.json";
/// The directory of the links from launches to their directories.
const CLAIMS: &str = ".launches";
/// The link to the directory that was written last, of a run and of all runs.
pub const LATEST: &str = "latest";
/// The largest file that names a launch, in bytes.
const LAUNCH_FILE_BYTES_MAX: u64 = 4096;
/// From this bound on, the launch before the current one stays, too: a rerun is compared with it.
const KEEPS_BEFORE_MIN: usize = 3;
/// How many launches of one run may begin in one second.
const SAME_SECOND_MAX: u32 = 1000;
/// How often a directory is looked for while others make and remove it.
const TRIES_MAX: u32 = 16;

/// What distinguishes one launch of a run from the others.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct LaunchId {
    /// Its name, of letters, digits, `.`, `_`, `:` and `-`; where its processes report none, its start distinguishes it.
    pub launch: Option<String>,
    /// When its first record ended, as a Unix time in whole milliseconds.
    pub began: f64,
}

impl LaunchId {
    /// Returns the file name of its link.
    fn claim(&self) -> String {
        self.launch.clone().unwrap_or_else(|| format!("@{:.3}", self.began))
    }
}

/// Ids are equal if their links are: a start that is read back from a file may differ in its last bit.
impl PartialEq for LaunchId {
    fn eq(&self, other: &Self) -> bool {
        self.claim() == other.claim()
    }
}

/// The directory of one run.
#[derive(Clone, Debug)]
pub struct RunFolder {
    path: PathBuf,
}

/// What may be removed when there are more launches than are kept.
pub trait Removal {
    /// Returns whether the launch of a directory is known to have ended.
    fn has_ended(&self, id: &LaunchId, folder: &Path) -> bool;

    /// Returns whether a file of this name in such a directory is ours.
    fn is_own(&self, name: &str) -> bool;
}

impl RunFolder {
    /// The directory at `path`, which need not exist.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns the directory of a launch, and makes it if no exporter has. `time` is its start in UTC, as
    /// `2026-11-21T16-43-11`; a second launch of that second gets `-2` behind it.
    ///
    /// # Errors
    /// The file system refused.
    pub fn launch(&self, id: &LaunchId, time: &str) -> io::Result<PathBuf> {
        for _ in 0..TRIES_MAX {
            if let Some(folder) = self.claimed(id)? {
                return Ok(folder);
            }
            let found = self.launches()?.into_iter().find(|(_, of)| of == id);
            let is_new = found.is_none();
            let folder = match found {
                Some((folder, _)) => folder,
                None => self.make(id, time)?,
            };
            match self.claim(id, &folder) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    if is_new {
                        // Another exporter was first; its directory is the one.
                        fs::remove_file(folder.join(LAUNCH_FILE))?;
                        fs::remove_dir(&folder)?;
                    }
                }
                // A file system without links: exporters agree unless they make the directory at the same moment.
                Err(error) if has_no_links(&error) => return Ok(folder),
                claimed => return claimed.map(|()| folder),
            }
        }
        Err(io::Error::other("the directory of the launch changes all the time"))
    }

    /// Points `latest` at a directory of a launch.
    ///
    /// # Errors
    /// The file system refused, or `latest` is not a link.
    pub fn point_latest(&self, folder: &Path) -> io::Result<()> {
        let Some(name) = folder.file_name() else { return Ok(()) };
        let link = self.path.join(LATEST);
        if fs::read_link(&link).is_err_and(|error| error.kind() == ErrorKind::InvalidInput) {
            let words = format!("{} is not a link", link.display());
            return Err(io::Error::new(ErrorKind::AlreadyExists, words));
        }
        replace_link(&link, Path::new(name))
    }

    /// Removes the oldest launches that have ended until there are at most `max`. Returns how many went. `current` stays
    /// whatever its state; so does the one before it if `max` is at least `KEEPS_BEFORE_MIN`. A directory stays if a
    /// file in it is not ours.
    ///
    /// # Errors
    /// The file system refused.
    pub fn thin(&self, max: usize, current: &Path, removal: &impl Removal) -> io::Result<u64> {
        let mut launches = self.launches()?;
        let mut n_too_many = launches.len().saturating_sub(max);
        launches.retain(|(folder, _)| folder != current);
        launches.sort_by(|(a, _), (b, _)| a.cmp(b));
        if max >= KEEPS_BEFORE_MIN {
            launches.pop();
        }
        let mut n_removed = 0;
        for (folder, id) in launches {
            if n_too_many == 0 {
                break;
            }
            if removal.has_ended(&id, &folder) {
                self.remove(&folder, &id, removal)?;
                n_removed += 1;
                n_too_many -= 1;
            }
        }
        Ok(n_removed)
    }

    fn remove(&self, folder: &Path, id: &LaunchId, removal: &impl Removal) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let is_file = entry.file_type()?.is_file();
            if is_file && entry.file_name().to_str().is_some_and(|name| removal.is_own(name)) {
                fs::remove_file(entry.path())?;
            }
        }
        let claim = self.path.join(CLAIMS).join(id.claim());
        let is_linked =
            fs::read_link(&claim).is_ok_and(|to| to.file_name() == folder.file_name());
        if is_linked {
            fs::remove_file(claim)?;
        }
        fs::remove_file(folder.join(LAUNCH_FILE))?;
        match fs::remove_dir(folder) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            result => result,
        }
    }

    /// Returns every directory of a launch, in no order.
    fn launches(&self) -> io::Result<Vec<(PathBuf, LaunchId)>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let is_named = entry.file_name().to_str().is_some_and(is_time);
            if is_named && entry.file_type()?.is_dir() {
                let folder = entry.path();
                found.extend(id_of(&folder).map(|id| (folder, id)));
            }
        }
        Ok(found)
    }

    /// Returns the directory that the launch's link leads to, and makes it anew if someone has removed it.
    fn claimed(&self, id: &LaunchId) -> io::Result<Option<PathBuf>> {
        let claim = self.path.join(CLAIMS).join(id.claim());
        let Ok(target) = fs::read_link(&claim) else { return Ok(None) };
        let name =
            target.file_name().and_then(|name| name.to_str()).filter(|name| is_time(name));
        let Some(name) = name else {
            fs::remove_file(claim)?;
            return Ok(None);
        };
        let folder = self.path.join(name);
        fs::create_dir_all(&folder)?;
        let of = id_of(&folder);
        if of.is_none() {
            write_id(&folder, id)?;
        }
        if of.is_none_or(|of| of == *id) {
            return Ok(Some(folder));
        }
        fs::remove_file(claim)?;
        Ok(None)
    }

    /// Links the launch to its directory.
    fn claim(&self, id: &LaunchId, folder: &Path) -> io::Result<()> {
        let Some(name) = folder.file_name() else { return Ok(()) };
        let claims = self.path.join(CLAIMS);
        fs::create_dir_all(&claims)?;
        symlink(Path::new("..").join(name), claims.join(id.claim()))
    }

    /// Makes a directory of its own for a launch.
    fn make(&self, id: &LaunchId, time: &str) -> io::Result<PathBuf> {
        fs::create_dir_all(&self.path)?;
        for n in 1..=SAME_SECOND_MAX {
            let name = if n == 1 { time.to_owned() } else { format!("{time}-{n}") };
            let folder = self.path.join(name);
            match fs::create_dir(&folder) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    let written = write_id(&folder, id);
                    if written.is_err() {
                        fs::remove_dir(&folder)?;
                    }
                    return written.map(|()| folder);
                }
            }
        }
        Err(io::Error::other(format!("{SAME_SECOND_MAX} launches of {time} have directories")))
    }
}

/// Points `ROOT/latest` at a directory of a launch, `ROOT/RUN/TIME`: the last one of any run. Several exporters may do so at once.
///
/// # Errors
/// The file system refused, or `latest` is something else than a link to a launch.
pub fn point_latest_of_all(root: &Path, folder: &Path) -> io::Result<()> {
    let Ok(target) = folder.strip_prefix(root) else { return Ok(()) };
    let link = root.join(LATEST);
    let is_ours = match fs::read_link(&link) {
        Ok(before) => is_launch(&before),
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    if !is_ours {
        let words = format!("{} is not a link to a launch, and stays as it is", link.display());
        return Err(io::Error::new(ErrorKind::AlreadyExists, words));
    }
    replace_link(&link, target)
}

/// Returns whether a path is that of a launch below the directory of all runs: `RUN/TIME`.
fn is_launch(path: &Path) -> bool {
    let names: Vec<&str> =
        path.components().map_while(|name| name.as_os_str().to_str()).collect();
    matches!(names.as_slice(), [run, time] if *run != ".." && is_time(time))
}

/// Makes or replaces a link, at once.
fn replace_link(link: &Path, target: &Path) -> io::Result<()> {
    if fs::read_link(link).is_ok_and(|before| before == target) {
        return Ok(());
    }
    let fresh = link.with_file_name(format!(".{LATEST}.{}.new", unique()));
    symlink(target, &fresh)?;
    fs::rename(&fresh, link)
}

/// Writes a file of several writers: each stages its bytes under a name of its own.
///
/// # Errors
/// The file system refused; the file is unchanged.
pub fn replace_shared(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let fresh = atomic::stage_as(&staged(path), parts)?;
    fs::rename(fresh, path)
}

/// Writes a file unless it exists; whether it did not.
///
/// # Errors
/// The file system refused.
pub fn create_shared(path: &Path, parts: &[&[u8]]) -> io::Result<bool> {
    let fresh = atomic::stage_as(&staged(path), parts)?;
    let result = match fs::hard_link(&fresh, path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) if has_no_links(&error) && !path.exists() => {
            return fs::rename(fresh, path).map(|()| true);
        }
        Err(error) => Err(error),
    };
    fs::remove_file(fresh)?;
    result
}

/// The name that this process stages a file under; it ends in `.new`.
fn staged(path: &Path) -> PathBuf {
    atomic::beside(path, &format!("{}.new", unique()))
}

/// Digits that no other process has: on a shared disk, process ids repeat.
pub fn unique() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// Whether the file system has no links, in a directory in which files can be made.
fn has_no_links(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported)
}

fn write_id(folder: &Path, id: &LaunchId) -> io::Result<()> {
    let json = serde_json::to_vec(id)?;
    replace_shared(&folder.join(LAUNCH_FILE), &[&json, b"\n"])
}

/// Returns the launch that a directory is of; `None` if it does not say so.
fn id_of(folder: &Path) -> Option<LaunchId> {
    let mut text = String::new();
    let file = File::open(folder.join(LAUNCH_FILE)).ok()?;
    file.take(LAUNCH_FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Whether a name is that of a launch's directory: `2026-11-21T16-43-11`, or that with a number behind it.
fn is_time(name: &str) -> bool {
    const FORM: &[u8] = b"0000-00-00T00-00-00";
    let (time, rest) = name.as_bytes().split_at_checked(FORM.len()).unwrap_or_default();
    let fits = |(form, byte): (&u8, &u8)| match form {
        b'0' => byte.is_ascii_digit(),
        _ => byte == form,
    };
    let is_numbered = rest.split_first().is_none_or(|(dash, number)| {
        *dash == b'-' && !number.is_empty() && number.iter().all(u8::is_ascii_digit)
    });
    time.len() == FORM.len() && FORM.iter().zip(time).all(fits) && is_numbered
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::sync::Barrier;
    use std::thread;

    use crate::store::launches::{LaunchId, Removal, RunFolder, create_shared, is_time};

    const TIME: &str = "2026-11-21T16-43-11";

    /// A directory that does not exist yet; `name` distinguishes tests.
    fn fresh(name: &str) -> PathBuf {
        let path = std::env::temp_dir()
            .join(format!("stepmem-launches-{name}-{}", std::process::id()));
        fs::remove_dir_all(&path).ok();
        path
    }

    fn id(launch: &str) -> LaunchId {
        LaunchId { launch: Some(launch.to_owned()), began: 1.0 }
    }

    fn name(folder: &Path) -> &str {
        folder.file_name().unwrap().to_str().unwrap()
    }

    struct All;

    impl Removal for All {
        fn has_ended(&self, id: &LaunchId, _: &Path) -> bool {
            id.launch.as_deref() != Some("live")
        }

        fn is_own(&self, name: &str) -> bool {
            name == "ours"
        }
    }

    #[test]
    fn launch_finds_its_directory_again_and_another_of_that_second_gets_its_own() {
        let path = fresh("again");
        let run = RunFolder::new(path.clone());
        let first = run.launch(&id("a"), TIME).unwrap();
        assert_eq!(name(&first), TIME);
        assert_eq!(name(&run.launch(&id("b"), TIME).unwrap()), format!("{TIME}-2"));
        assert_eq!(run.launch(&id("a"), "2027-01-01T00-00-00").unwrap(), first);
        // Without its link, by the launch that stands in it.
        fs::remove_dir_all(path.join(".launches")).unwrap();
        assert_eq!(run.launch(&id("a"), "2027-01-01T00-00-00").unwrap(), first);
        // Someone removed it.
        fs::remove_dir_all(&first).unwrap();
        assert_eq!(run.launch(&id("a"), "2027-01-01T00-00-00").unwrap(), first);
        let unnamed = |began| LaunchId { launch: None, began };
        let one = run.launch(&unnamed(7.25), TIME).unwrap();
        assert_eq!(run.launch(&unnamed(7.25), TIME).unwrap(), one);
        assert_ne!(run.launch(&unnamed(7.5), TIME).unwrap(), one);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn exporters_that_make_it_at_once_agree_on_one() {
        let path = fresh("race");
        for round in 0..50 {
            let run = RunFolder::new(path.clone());
            let barrier = Barrier::new(4);
            let launch = id(&format!("launch-{round}"));
            let make = |n: u32| {
                barrier.wait();
                run.launch(&launch, &format!("2026-11-21T16-43-{n:02}")).unwrap()
            };
            let found: BTreeSet<PathBuf> = thread::scope(|scope| {
                let makers: Vec<_> = (0..4).map(|n| scope.spawn(move || make(n))).collect();
                makers.into_iter().map(|maker| maker.join().unwrap()).collect()
            });
            assert_eq!(found.len(), 1, "{found:?}");
        }
        let n_folders = fs::read_dir(&path).unwrap().count();
        assert_eq!(n_folders, 51, "one a launch, and the links");
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn oldest_that_may_go_goes_without_what_is_not_ours() {
        let path = fresh("thin");
        let run = RunFolder::new(path.clone());
        let make = |launch: &str, second: u32| {
            let time = format!("2026-11-21T16-43-{second:02}");
            let folder = run.launch(&id(launch), &time).unwrap();
            fs::write(folder.join("ours"), "").unwrap();
            folder
        };
        let live = make("live", 1);
        let (noted, plain) = (make("noted", 2), make("plain", 3));
        fs::write(noted.join("notes.txt"), "mine").unwrap();
        let last = make("last", 4);
        // A directory that is not a launch's is none of ours.
        fs::create_dir(path.join("2020-01-01T00-00-00")).unwrap();
        assert_eq!(run.thin(1, &last, &All).unwrap(), 2);
        assert!(live.join("ours").exists() && last.join("ours").exists());
        assert!(noted.join("notes.txt").exists() && !noted.join("ours").exists());
        assert!(!plain.exists() && path.join("2020-01-01T00-00-00").exists());
        assert_eq!(run.thin(1, &last, &All).unwrap(), 0, "the other one is live");
        make("live", 1);
        let before = make("before", 5);
        let last = make("newest", 6);
        assert_eq!(run.thin(3, &last, &All).unwrap(), 1);
        assert!(live.exists() && before.exists() && last.exists());
        assert!(!path.join(".launches/plain").is_symlink());
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn latest_is_a_link_that_moves_and_never_replaces_anything_else() {
        let path = fresh("latest");
        let run = RunFolder::new(path.clone());
        for launch in ["a", "b", "a"] {
            let folder = run.launch(&id(launch), TIME).unwrap();
            run.point_latest(&folder).unwrap();
            assert_eq!(fs::read_link(path.join("latest")).unwrap(), Path::new(name(&folder)));
        }
        fs::remove_file(path.join("latest")).unwrap();
        fs::write(path.join("latest"), "mine").unwrap();
        let folder = run.launch(&id("a"), TIME).unwrap();
        let error = run.point_latest(&folder).unwrap_err();
        assert!(error.to_string().contains("is not a link"), "{error}");
        assert_eq!(fs::read(path.join("latest")).unwrap(), b"mine");
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn shared_file_is_created_once() {
        let path = fresh("shared");
        fs::create_dir_all(&path).unwrap();
        let file = path.join("file");
        assert!(create_shared(&file, &[b"a"]).unwrap());
        assert!(!create_shared(&file, &[b"b"]).unwrap());
        assert_eq!(fs::read(&file).unwrap(), b"a");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn directories_of_launches_are_known_by_their_names() {
        for name in [TIME, "2026-11-21T16-43-11-2", "2026-11-21T16-43-11-999"] {
            assert!(is_time(name), "{name}");
        }
        for name in ["", "latest", "2026-11-21", "2026-11-21T16:43:11", "2026-11-21T16-43-11-"]
        {
            assert!(!is_time(name), "{name}");
        }
    }

    #[test]
    fn launch_without_a_name_is_the_same_when_it_is_read_back() {
        for idx in 0..1000 {
            let began = f64::from(1_795_347_375) + f64::from(idx) / 1000.0;
            let id = LaunchId { launch: None, began };
            let written = serde_json::to_string(&id).unwrap();
            assert_eq!(serde_json::from_str::<LaunchId>(&written).unwrap(), id, "{written}");
        }
        let next = LaunchId { launch: None, began: 2.001 };
        assert_ne!(LaunchId { launch: None, began: 2.0 }, next);
    }
}
