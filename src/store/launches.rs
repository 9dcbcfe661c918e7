//! The directories of a run's launches: one per launch, named after its start, and shared by
//! all exporters of the launch.
//!
//! `RUN/TIME/launch.json` names the launch. `RUN/.launches/LAUNCH` links to its directory. A
//! link is created once, so that exporters that create a directory at the same moment agree on
//! one. `RUN/latest` links to the directory that was written last. `latest` next to the runs
//! does the same for all runs. No other link is followed below the directory of all runs, to
//! which neighbors may write.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::store::directory::{Directory, EntryKind};

/// The file that names a launch in its directory.
pub const LAUNCH_FILE: &str = "launch.json";
/// The directory of the links from launches to their directories.
const CLAIMS: &str = ".launches";
/// The link to the directory that was written last, of a run and of all runs.
pub const LATEST: &str = "latest";
/// The largest file that names a launch, in bytes.
const LAUNCH_FILE_BYTES_MAX: u64 = 4096;
/// The bound from which on the launch before the current one stays, too: a rerun is compared
/// with it.
const KEEPS_BEFORE_MIN: usize = 3;
/// Maximum number of launches of one run that may begin in one second.
const SAME_SECOND_MAX: u32 = 1000;
/// Maximum number of attempts to find a directory while others create and remove it.
const TRIES_MAX: u32 = 16;

/// Length of the time that the name of a launch's directory begins with: `2026-11-21T16-43-11`.
const TIME_LENGTH: usize = 19;

/// Returns the directory of a run's latest launch that has what is sought: the target of the
/// link, else the newest by its name.
pub fn latest_launch(folder: &Path, has_it: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let linked = folder.join(LATEST);
    if linked.is_dir() && has_it(&linked) {
        return Some(linked);
    }
    let launches = fs::read_dir(folder).ok()?.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        (name.len() >= TIME_LENGTH && name.starts_with(|first: char| first.is_ascii_digit()))
            .then_some(entry.path())
    });
    launches.filter(|path| has_it(path)).max_by(|a, b| launch_order(a).cmp(&launch_order(b)))
}

/// Returns a key that puts launches in the order of their start: those of one second are
/// numbered.
fn launch_order(path: &Path) -> (String, u32) {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let (time, number) = name.split_at_checked(TIME_LENGTH).unwrap_or((name, ""));
    (time.to_owned(), number.trim_start_matches('-').parse().unwrap_or(1))
}

/// The identity of a launch among those of its run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct LaunchId {
    /// The launch's name, of letters, digits, `.`, `_`, `:` and `-`. `None` where its processes
    /// report none: its start identifies it.
    pub launch: Option<String>,
    /// The time when its first record ended, as a Unix time in whole milliseconds.
    pub began: f64,
}

impl LaunchId {
    /// Returns the file name of its link.
    fn claim(&self) -> String {
        self.launch.clone().unwrap_or_else(|| format!("@{:.3}", self.began))
    }
}

/// Ids are equal if their links are: a start that is read back from a file may differ in its
/// last bit.
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

/// The rule for removal when there are more launches than are kept.
pub trait Removal {
    /// Returns whether the launch of a directory is known to have ended.
    fn has_ended(&self, id: &LaunchId, folder: &Directory) -> bool;

    /// Returns whether a file of this name in such a directory was written by an exporter.
    fn is_own(&self, name: &str) -> bool;
}

impl RunFolder {
    /// The directory at `path`, which need not exist.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns the directory of a launch, and creates it if no exporter has. `time` is its
    /// start in UTC, as `2026-11-21T16-43-11`; a second launch of that second gets the suffix
    /// `-2`.
    ///
    /// # Errors
    /// The file system refused, or a link has the name of the run.
    pub fn launch(&self, id: &LaunchId, time: &str) -> io::Result<Directory> {
        let (parent, name) = self.place()?;
        fs::create_dir_all(parent)?;
        let run = Directory::open(parent)?.made_inner(name)?;
        for _ in 0..TRIES_MAX {
            if let Some(folder) = claimed(&run, id)? {
                return Ok(folder);
            }
            let found = launches(&run)?.into_iter().find(|(_, of)| of == id);
            let is_new = found.is_none();
            let folder = match found.map(|(name, _)| run.inner(&name)) {
                // Its exporter has removed it since, as another one was first.
                Some(Err(error)) if error.kind() == ErrorKind::NotFound => continue,
                Some(folder) => folder?,
                None => make(&run, id, time)?,
            };
            match claim(&run, id, &folder) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists && is_new => {
                    // Another exporter was first: it chose this directory or its own.
                    if claimed(&run, id)?.is_some_and(|of| of.name() == folder.name()) {
                        return Ok(folder);
                    }
                    folder.remove_file(LAUNCH_FILE)?;
                    run.remove_inner(folder.name().unwrap_or_default())?;
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                // A file system without links: exporters agree unless they create the directory
                // at the same moment.
                Err(error) if has_no_links(&error) => return Ok(folder),
                claimed => return claimed.map(|()| folder),
            }
        }
        Err(io::Error::other("the directory of the launch changes all the time"))
    }

    /// Returns the directory of all runs, and the run's name in it.
    fn place(&self) -> io::Result<(&Path, &str)> {
        let name = self.path.file_name().and_then(|name| name.to_str());
        let place = self.path.parent().zip(name);
        place.ok_or_else(|| io::Error::other("the directory of the run has no name"))
    }

    fn open(&self) -> io::Result<Directory> {
        let (parent, name) = self.place()?;
        Directory::open(parent)?.inner(name)
    }

    /// Points `latest` at a directory of a launch.
    ///
    /// # Errors
    /// The file system refused, or `latest` is not a link.
    pub fn point_latest(&self, folder: &Directory) -> io::Result<()> {
        let Some(name) = folder.name() else { return Ok(()) };
        let run = self.open()?;
        if run.read_link(LATEST).is_err_and(|error| error.kind() == ErrorKind::InvalidInput) {
            let words = format!("{} is not a link", run.path().join(LATEST).display());
            return Err(io::Error::new(ErrorKind::AlreadyExists, words));
        }
        replace_latest(&run, Path::new(name))
    }

    /// Removes the oldest launches that have ended until there are at most `max`. Returns the
    /// number removed. `current` always stays. So does the one before it if `max` is at least
    /// `KEEPS_BEFORE_MIN`. A directory stays if it has a file that no exporter wrote.
    ///
    /// # Errors
    /// The file system refused.
    pub fn thin(&self, max: usize, current: &Path, removal: &impl Removal) -> io::Result<u64> {
        let run = match self.open() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
            run => run?,
        };
        let mut launches = launches(&run)?;
        let mut n_too_many = launches.len().saturating_sub(max);
        let current = current.file_name().and_then(|name| name.to_str());
        launches.retain(|(name, _)| Some(&**name) != current);
        launches.sort_by(|(a, _), (b, _)| a.cmp(b));
        if max >= KEEPS_BEFORE_MIN {
            launches.pop();
        }
        let mut n_removed = 0;
        for (name, id) in launches {
            if n_too_many == 0 {
                break;
            }
            let folder = run.inner(&name)?;
            if removal.has_ended(&id, &folder) {
                remove(&run, &folder, &id, removal)?;
                n_removed += 1;
                n_too_many -= 1;
            }
        }
        Ok(n_removed)
    }
}

fn remove(
    run: &Directory,
    folder: &Directory,
    id: &LaunchId,
    removal: &impl Removal,
) -> io::Result<()> {
    for name in folder.names()? {
        let is_own = name.to_str().is_some_and(|name| removal.is_own(name));
        if is_own && folder.found(&name) == EntryKind::File {
            folder.remove_file(name)?;
        }
    }
    let name = folder.name().unwrap_or_default();
    if let Ok(claims) = run.inner(CLAIMS) {
        let claim = id.claim();
        let to = claims.read_link(&claim);
        if to.is_ok_and(|to| to.file_name().is_some_and(|to| to == name)) {
            claims.remove_file(claim)?;
        }
    }
    folder.remove_file(LAUNCH_FILE)?;
    match run.remove_inner(name) {
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
        result => result,
    }
}

/// Returns the name and the id of every launch's directory of a run, in no order.
fn launches(run: &Directory) -> io::Result<Vec<(String, LaunchId)>> {
    let mut found = Vec::new();
    for name in run.names()? {
        let Some(name) = name.to_str().filter(|name| is_time(name)) else { continue };
        if let Ok(folder) = run.inner(name) {
            found.extend(id_of(&folder).map(|id| (name.to_owned(), id)));
        }
    }
    Ok(found)
}

/// Returns the directory that the launch's link leads to, and creates it again if someone has
/// removed it.
fn claimed(run: &Directory, id: &LaunchId) -> io::Result<Option<Directory>> {
    let Ok(claims) = run.inner(CLAIMS) else { return Ok(None) };
    let Ok(target) = claims.read_link(&id.claim()) else { return Ok(None) };
    let name = target.file_name().and_then(|name| name.to_str()).filter(|name| is_time(name));
    let folder = match name.map(|name| run.made_inner(name)) {
        Some(Err(error)) if error.kind() != ErrorKind::NotADirectory => return Err(error),
        Some(Ok(folder)) => folder,
        Some(Err(_)) | None => {
            claims.remove_file(id.claim())?;
            return Ok(None);
        }
    };
    let of = id_of(&folder);
    if of.is_none() {
        write_id(&folder, id)?;
    }
    if of.is_none_or(|of| of == *id) {
        return Ok(Some(folder));
    }
    claims.remove_file(id.claim())?;
    Ok(None)
}

/// Links the launch to its directory.
fn claim(run: &Directory, id: &LaunchId, folder: &Directory) -> io::Result<()> {
    let Some(name) = folder.name() else { return Ok(()) };
    let claims = match run.made_inner(CLAIMS) {
        // A foreign file has the name.
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(ErrorKind::Unsupported.into());
        }
        claims => claims?,
    };
    claims.symlink(&Path::new("..").join(name), &id.claim())
}

/// Creates a new directory for a launch.
fn make(run: &Directory, id: &LaunchId, time: &str) -> io::Result<Directory> {
    for n in 1..=SAME_SECOND_MAX {
        let name = if n == 1 { time.to_owned() } else { format!("{time}-{n}") };
        match run.make(&name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(()) => {
                let folder = run.inner(&name)?;
                let written = write_id(&folder, id);
                if written.is_err() {
                    run.remove_inner(&name)?;
                }
                return written.map(|()| folder);
            }
        }
    }
    Err(io::Error::other(format!("{SAME_SECOND_MAX} launches of {time} have directories")))
}

/// Points `ROOT/latest` at a directory of a launch, `ROOT/RUN/TIME`: the last one of any run.
/// Several exporters may do so at once.
///
/// # Errors
/// The file system refused, or `latest` is something else than a link to a launch.
pub fn point_latest_of_all(root: &Path, folder: &Path) -> io::Result<()> {
    let Ok(target) = folder.strip_prefix(root) else { return Ok(()) };
    let all = Directory::open(root)?;
    let is_ours = match all.read_link(LATEST) {
        Ok(before) => is_launch(&before),
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    if !is_ours {
        let place = root.join(LATEST);
        let words =
            format!("{} is not a link to a launch, and stays as it is", place.display());
        return Err(io::Error::new(ErrorKind::AlreadyExists, words));
    }
    replace_latest(&all, target)
}

/// Returns whether a path is that of a launch below the directory of all runs: `RUN/TIME`.
fn is_launch(path: &Path) -> bool {
    let names: Vec<&str> =
        path.components().map_while(|name| name.as_os_str().to_str()).collect();
    matches!(names.as_slice(), [run, time] if *run != ".." && is_time(time))
}

/// Creates or replaces the link of a directory, at once.
fn replace_latest(of: &Directory, target: &Path) -> io::Result<()> {
    if of.read_link(LATEST).is_ok_and(|before| before == target) {
        return Ok(());
    }
    let fresh = format!(".{LATEST}.{}.new", unique());
    of.symlink(target, &fresh)?;
    let renamed = of.rename(&fresh, LATEST);
    if renamed.is_err() {
        of.remove_file(fresh).ok();
    }
    renamed
}

/// Writes a file of several writers: each stages its bytes under a unique name.
///
/// # Errors
/// The file system refused; the file is unchanged.
pub fn replace_shared(folder: &Directory, name: &str, parts: &[&[u8]]) -> io::Result<()> {
    let fresh = staged(folder, name, parts)?;
    let renamed = folder.rename(&fresh, name);
    if renamed.is_err() {
        folder.remove_file(fresh).ok();
    }
    renamed
}

/// Writes a file unless something has its name. Returns whether it did.
///
/// # Errors
/// The file system refused.
pub fn create_shared(folder: &Directory, name: &str, parts: &[&[u8]]) -> io::Result<bool> {
    let fresh = staged(folder, name, parts)?;
    let result = match folder.link(&fresh, name) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) if has_no_links(&error) && folder.found(name) == EntryKind::Nothing => {
            return folder.rename(&fresh, name).map(|()| true);
        }
        Err(error) => Err(error),
    };
    folder.remove_file(fresh)?;
    result
}

/// Writes a file under a name that no other process uses for staging; it ends in `.new`.
/// Returns the name.
fn staged(folder: &Directory, name: &str, parts: &[&[u8]]) -> io::Result<String> {
    let fresh = format!("{name}.{}.new", unique());
    folder.create(&fresh, parts)?;
    Ok(fresh)
}

/// Returns digits that no other process has: on a shared disk, process ids repeat.
pub fn unique() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// Returns whether the error means that the file system has no links, in a directory in which
/// files can be created.
fn has_no_links(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported)
}

fn write_id(folder: &Directory, id: &LaunchId) -> io::Result<()> {
    let json = serde_json::to_vec(id)?;
    replace_shared(folder, LAUNCH_FILE, &[&json, b"\n"])
}

/// Returns the launch of a directory; `None` if the directory names none.
fn id_of(folder: &Directory) -> Option<LaunchId> {
    let json = folder.read(LAUNCH_FILE, LAUNCH_FILE_BYTES_MAX).ok()?;
    let id: LaunchId = serde_json::from_slice(&json).ok()?;
    // A name that cannot lead to a file outside.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    let is_name = |name: &str| name.bytes().all(is_plain) && !["", ".", ".."].contains(&name);
    id.launch.as_deref().is_none_or(is_name).then_some(id)
}

/// Returns whether a name is that of a launch's directory: `2026-11-21T16-43-11`, or that with
/// a number after it.
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
    use std::path::PathBuf;
    use std::sync::Barrier;
    use std::thread;

    use crate::store::directory::Directory;
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

    fn name(folder: &Directory) -> &str {
        folder.name().unwrap()
    }

    struct All;

    impl Removal for All {
        fn has_ended(&self, id: &LaunchId, _: &Directory) -> bool {
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
        assert_eq!(name(&run.launch(&id("a"), "2027-01-01T00-00-00").unwrap()), name(&first));
        // Without its link, by the launch that its file names.
        fs::remove_dir_all(path.join(".launches")).unwrap();
        assert_eq!(name(&run.launch(&id("a"), "2027-01-01T00-00-00").unwrap()), name(&first));
        // Someone removed it.
        fs::remove_dir_all(first.path()).unwrap();
        assert_eq!(name(&run.launch(&id("a"), "2027-01-01T00-00-00").unwrap()), name(&first));
        let unnamed = |began| LaunchId { launch: None, began };
        let one = run.launch(&unnamed(7.25), TIME).unwrap();
        assert_eq!(name(&run.launch(&unnamed(7.25), TIME).unwrap()), name(&one));
        assert_ne!(name(&run.launch(&unnamed(7.5), TIME).unwrap()), name(&one));
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
                let folder = run.launch(&launch, &format!("2026-11-21T16-43-{n:02}")).unwrap();
                // It is the one at its path, not one that was removed there.
                folder.create(&n.to_string(), &[]).unwrap();
                assert!(folder.path().join(n.to_string()).is_file());
                folder.path().to_owned()
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
            fs::write(folder.path().join("ours"), "").unwrap();
            folder.path().to_owned()
        };
        let live = make("live", 1);
        let (noted, plain) = (make("noted", 2), make("plain", 3));
        fs::write(noted.join("notes.txt"), "mine").unwrap();
        let last = make("last", 4);
        // A directory that is not a launch's stays.
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
    fn launch_of_a_forged_name_is_none_and_links_are_not_followed() {
        let path = fresh("forged");
        let run = RunFolder::new(path.clone());
        let folder = run.launch(&id("a"), TIME).unwrap();
        for forged in ["..", ".", "../../x", "a/b", ""] {
            let json = serde_json::to_vec(&id(forged)).unwrap();
            fs::write(folder.path().join("launch.json"), json).unwrap();
            assert!(super::id_of(&folder).is_none(), "{forged}");
        }
        // The launch's own directory became a link, and so did the directory of claims.
        let elsewhere = fresh("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::remove_dir_all(folder.path()).unwrap();
        std::os::unix::fs::symlink(&elsewhere, folder.path()).unwrap();
        assert_eq!(name(&run.launch(&id("a"), TIME).unwrap()), format!("{TIME}-2"));
        fs::remove_dir_all(path.join(".launches")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, path.join(".launches")).unwrap();
        assert_eq!(name(&run.launch(&id("a"), TIME).unwrap()), format!("{TIME}-2"));
        assert_eq!(name(&run.launch(&id("b"), TIME).unwrap()), format!("{TIME}-3"));
        fs::remove_dir_all(&path).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        let error = run.launch(&id("a"), TIME).unwrap_err();
        assert!(error.to_string().contains("is a link, which is not followed"), "{error}");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
        fs::remove_file(path).unwrap();
        fs::remove_dir(elsewhere).unwrap();
    }

    #[test]
    fn shared_file_is_created_once() {
        let path = fresh("shared");
        fs::create_dir_all(&path).unwrap();
        let folder = Directory::open(&path).unwrap();
        assert!(create_shared(&folder, "file", &[b"a"]).unwrap());
        assert!(!create_shared(&folder, "file", &[b"b"]).unwrap());
        assert_eq!(fs::read(path.join("file")).unwrap(), b"a");
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
