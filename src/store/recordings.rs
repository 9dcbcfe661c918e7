//! The files of recordings: appended to in whole frames, and found again by their names after a
//! restart.
//!
//! `NAME.lifeN.jsonl.zst` is the first file of a run in the Nth session of an exporter on its
//! directory, `NAME.lifeN.2.jsonl.zst` the second. `.lifeN`, which that exporter holds locked,
//! is its claim on the number. Exporters that share a directory have different numbers, and
//! none removes a file that another one still writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::store::directory::{Directory, EntryKind};
use crate::store::open;

/// The ending of every file.
const ENDING: &str = ".jsonl.zst";
/// Prefix of a claim, and the part of a name that has the session's number.
const CLAIM: &str = ".life";
/// Maximum number of names that are tried for one file or claim.
const TRIES_MAX: u32 = 10_000;
/// Mode of a directory that is created.
const FOLDER_MODE: u32 = 0o700;

/// A recording that is being written.
#[derive(Debug)]
pub struct OpenRecording {
    path: PathBuf,
    file: File,
    bytes: u64,
}

/// A recording that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedRecording {
    pub path: PathBuf,
    pub bytes: u64,
}

impl OpenRecording {
    /// Creates the file of this part, or of the next one whose name is free; `part` becomes
    /// that one.
    ///
    /// # Errors
    /// The file system refused.
    pub fn create(folder: &Directory, stem: &str, part: &mut u32) -> io::Result<Self> {
        let mut result = Err(taken(folder.path()));
        for _ in 0..TRIES_MAX {
            let name = name(stem, *part);
            let path = folder.path().join(&name);
            result = folder.new_file(&name).map(|file| Self { path, file, bytes: 0 });
            match &result {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => *part += 1,
                _ => break,
            }
        }
        result
    }

    /// Appends a frame.
    ///
    /// # Errors
    /// The file system refused; the file is as it was before.
    pub fn append(&mut self, frame: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(frame);
        match &written {
            Ok(()) => self.bytes += u64::try_from(frame.len()).unwrap_or(u64::MAX),
            // The written part of the frame would hide the frames after it.
            Err(_) => self.file.set_len(self.bytes)?,
        }
        written
    }

    /// Returns the length of the recording, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn close(self) -> ClosedRecording {
        ClosedRecording { path: self.path, bytes: self.bytes }
    }
}

fn name(stem: &str, part: u32) -> String {
    if part > 1 { format!("{stem}.{part}{ENDING}") } else { format!("{stem}{ENDING}") }
}

fn taken(folder: &Path) -> io::Error {
    io::Error::other(format!("{}: {TRIES_MAX} names are taken", folder.display()))
}

/// Returns whether a file of this name is the recording of a launch whose first file is
/// `STEM.jsonl.zst`, or that of another exporter of it, `STEM-2.jsonl.zst`.
pub fn is_of_launch(file: &str, stem: &str) -> bool {
    let rest = file.strip_suffix(ENDING).and_then(|name| name.strip_prefix(stem));
    rest.is_some_and(|rest| {
        let (writer, part) = rest.split_once('.').map_or((rest, None), |(a, b)| (a, Some(b)));
        let is_number = |text: &str| number(text).is_some_and(|number| number > 1);
        let is_writer = writer.is_empty() || writer.strip_prefix('-').is_some_and(is_number);
        is_writer && part.is_none_or(is_number)
    })
}

fn number(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| is_plain)
}

/// Creates the first file of a launch in its directory: `STEM.jsonl.zst`, or `STEM-2.jsonl.zst`
/// if another exporter writes the first. Returns it and its stem.
///
/// # Errors
/// The file system refused.
pub fn create_in_launch(folder: &Directory, stem: &str) -> io::Result<(OpenRecording, String)> {
    for writer in 1..=TRIES_MAX {
        let stem = if writer > 1 { format!("{stem}-{writer}") } else { stem.to_owned() };
        // The first file of another exporter may have been removed.
        if folder.found(name(&stem, 2)) != EntryKind::Nothing {
            continue;
        }
        let name = name(&stem, 1);
        let path = folder.path().join(&name);
        match folder.new_file(&name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(file) => return Ok((OpenRecording { path, file, bytes: 0 }, stem)),
        }
    }
    Err(taken(folder.path()))
}

/// The directory of recordings in one session of an exporter.
#[derive(Debug)]
pub struct RecordingFolder {
    folder: Directory,
    session: u64,
    /// Locked for as long as this value exists.
    _claim: File,
}

impl RecordingFolder {
    /// Claims the next session on a directory, which is created if necessary. Also returns the
    /// files of sessions that are over, the oldest first.
    ///
    /// # Errors
    /// The file system refused.
    pub fn claim(path: &Path) -> io::Result<(Self, Vec<ClosedRecording>)> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)?;
        let found = Found::read(path)?;
        let mut session = found.sessions.last().copied().unwrap_or_default();
        for _ in 0..TRIES_MAX {
            session += 1;
            let claim = match open::new_file(&path.join(format!("{CLAIM}{session}"))) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                claim => claim?,
            };
            // Without locks on this file system, files of earlier sessions count as being
            // written.
            flock(&claim, FlockOperation::NonBlockingLockExclusive).ok();
            let folder = Self { folder: Directory::open(path)?, session, _claim: claim };
            let closed = folder.closed(found);
            return Ok((folder, closed));
        }
        Err(taken(path))
    }

    pub fn folder(&self) -> &Directory {
        &self.folder
    }

    /// Returns the stem of the files of this name in this session.
    pub fn stem(&self, name: &str) -> String {
        format!("{name}{CLAIM}{}", self.session)
    }

    /// Returns the files of sessions that are over, and removes the claims of these sessions.
    fn closed(&self, found: Found) -> Vec<ClosedRecording> {
        let is_over = |session: &u64| *session < self.session && self.is_over(*session);
        let over: BTreeSet<u64> = found.sessions.into_iter().filter(is_over).collect();
        for session in &over {
            // The next session checks a claim that stays.
            fs::remove_file(self.folder.path().join(format!("{CLAIM}{session}"))).ok();
        }
        let files = found.files.into_iter().filter(|((session, ..), _)| over.contains(session));
        files.map(|(_, file)| file).collect()
    }

    fn is_over(&self, session: u64) -> bool {
        let path = self.folder.path().join(format!("{CLAIM}{session}"));
        if path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return true;
        }
        open::lock_file(&path)
            .is_ok_and(|claim| flock(&claim, FlockOperation::NonBlockingLockExclusive).is_ok())
    }
}

/// The content of a directory of recordings.
struct Found {
    sessions: BTreeSet<u64>,
    /// The files by session, part and name.
    files: BTreeMap<(u64, u64, String), ClosedRecording>,
}

impl Found {
    fn read(folder: &Path) -> io::Result<Self> {
        let mut found = Self { sessions: BTreeSet::new(), files: BTreeMap::new() };
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if let Some(session) = name.strip_prefix(CLAIM).and_then(number) {
                found.sessions.insert(session);
                continue;
            }
            let Some((session, part)) = session_and_part(&name) else { continue };
            found.sessions.insert(session);
            // It may have been removed meanwhile.
            let Ok(metadata) = entry.path().symlink_metadata() else { continue };
            if metadata.is_file() {
                let file = ClosedRecording { path: entry.path(), bytes: metadata.len() };
                found.files.insert((session, part, name), file);
            }
        }
        Ok(found)
    }
}

/// Returns the numbers in the name of a file.
fn session_and_part(file: &str) -> Option<(u64, u64)> {
    let name = file.strip_suffix(ENDING)?;
    let session = |name: &str| name.rsplit_once(CLAIM).and_then(|(_, session)| number(session));
    if let Some(session) = session(name) {
        return Some((session, 1));
    }
    let (name, part) = name.rsplit_once('.')?;
    Some((session(name)?, number(part)?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use crate::store::directory::Directory;

    use super::{
        OpenRecording, RecordingFolder, create_in_launch, is_of_launch, session_and_part,
    };

    /// A directory that does not exist yet; `name` distinguishes tests.
    fn fresh(name: &str) -> PathBuf {
        let path = std::env::temp_dir()
            .join(format!("stepmem-recorded-{name}-{}", std::process::id()));
        fs::remove_dir_all(&path).ok();
        path
    }

    #[test]
    fn names_are_read_from_their_end() {
        assert_eq!(session_and_part("llm.life3.jsonl.zst"), Some((3, 1)));
        assert_eq!(session_and_part("llm.7.life3.12.jsonl.zst"), Some((3, 12)));
        assert_eq!(session_and_part("a.life9.life4.jsonl.zst"), Some((4, 1)));
        for other in [
            "llm.jsonl.zst",
            "llm.life3.jsonl",
            "llm.life03.jsonl.zst",
            "llm.life3.x.jsonl.zst",
        ] {
            assert_eq!(session_and_part(other), None, "{other}");
        }
        for own in [
            "steps.jsonl.zst",
            "steps.2.jsonl.zst",
            "steps-3.jsonl.zst",
            "steps-3.14.jsonl.zst",
        ] {
            assert!(is_of_launch(own, "steps"), "{own}");
        }
        for other in [
            "steps.jsonl",
            "steps.1.jsonl.zst",
            "steps-.jsonl.zst",
            "steps-a.jsonl.zst",
            "mysteps.jsonl.zst",
        ] {
            assert!(!is_of_launch(other, "steps"), "{other}");
        }
    }

    #[test]
    fn exporters_on_one_directory_have_lives_of_their_own_and_leave_each_others_files() {
        let path = fresh("sessions");
        let (first, closed) = RecordingFolder::claim(&path).unwrap();
        assert_eq!((first.stem("llm").as_str(), closed.len()), ("llm.life1", 0));
        let mut part = 1;
        let mut file =
            OpenRecording::create(first.folder(), &first.stem("llm"), &mut part).unwrap();
        file.append(b"frame").unwrap();
        let (second, closed) = RecordingFolder::claim(&path).unwrap();
        assert_eq!((second.stem("llm").as_str(), closed.len()), ("llm.life2", 0));
        drop((first, second));
        let (third, closed) = RecordingFolder::claim(&path).unwrap();
        assert_eq!(third.stem("llm"), "llm.life3");
        assert_eq!(closed, [file.close()]);
        let mode = |name: &str| fs::metadata(path.join(name)).unwrap().permissions().mode();
        assert_eq!(mode("llm.life1.jsonl.zst") & 0o777, 0o600);
        assert_eq!(mode("") & 0o777, 0o700);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn name_that_is_taken_is_neither_followed_nor_waited_for() {
        let path = fresh("taken");
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("target"), "mine").unwrap();
        symlink(path.join("target"), path.join("llm.life1.jsonl.zst")).unwrap();
        let pipe = std::process::Command::new("mkfifo")
            .arg(path.join("llm.life1.2.jsonl.zst"))
            .status()
            .unwrap();
        assert!(pipe.success());
        let mut part = 1;
        let mut file =
            OpenRecording::create(&Directory::open(&path).unwrap(), "llm.life1", &mut part)
                .unwrap();
        file.append(b"frame").unwrap();
        assert_eq!(part, 3);
        assert_eq!(fs::read(path.join("target")).unwrap(), b"mine");
        // The pipe and the link are not removed to make space.
        let (_, closed) = RecordingFolder::claim(&path).unwrap();
        assert_eq!(closed, [file.close()]);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn exporters_of_a_launch_have_files_of_their_own() {
        let path = fresh("launch");
        fs::create_dir_all(&path).unwrap();
        let stem = || create_in_launch(&Directory::open(&path).unwrap(), "steps").unwrap().1;
        assert_eq!((stem(), stem()), ("steps".to_owned(), "steps-2".to_owned()));
        // The first file of the first one was removed, and it writes the second.
        fs::rename(path.join("steps.jsonl.zst"), path.join("steps.2.jsonl.zst")).unwrap();
        assert_eq!(stem(), "steps-3");
        fs::remove_dir_all(path).unwrap();
    }
}
