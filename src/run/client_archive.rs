//! The Python client that is embedded in the program: a directory of modules, written to a
//! place where it can stay. Tools that open the files of running modules (`trace`, coverage,
//! debuggers) find them there.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::run::client_use;
use crate::run::private_directory;

/// `sitecustomize` and the modules of `stepmem`, as build.rs listed them: the path and the
/// content of each.
const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/client.rs"));
/// The directory in which Python keeps compiled modules. They cannot be compared with the
/// embedded files, so each start removes them.
const COMPILED: &str = "__pycache__";
/// Permissions of the group and of others.
const OF_OTHERS: u32 = 0o077;

/// Maximum number of attempts to write the client, if others remove it meanwhile.
const TRIES: usize = 3;

/// The path of the client, and the reason that it is not at a place where it could stay. Nobody
/// removes it while this value exists.
pub(super) struct Installed {
    pub(super) path: PathBuf,
    pub(super) problem: Option<String>,
    /// Absent on a file system without locks.
    _held: Option<File>,
}

/// Writes the client below the user's cache directory, or else below that of the session,
/// unless it is already there. Otherwise writes it below the directory of this command, and
/// removes it with that. Its name has its content's hash: processes of another version keep
/// their own client.
///
/// # Errors
/// There is no directory that it may be in, or it cannot be written: the reason of the first.
pub(super) fn install(of_command: Option<&Path>) -> io::Result<Installed> {
    let name = format!("{}{}", client_use::PREFIX, hash());
    let mut first = None;
    for place in private_directory::of_user() {
        let put = private_directory::owned(&place).and_then(|place| put(&place, &name));
        match put {
            Ok((path, held)) => {
                if let Some(place) = path.parent() {
                    client_use::remove_unused(place, name.as_ref());
                }
                return Ok(Installed { path, problem: None, _held: held });
            }
            Err(error) => {
                first.get_or_insert_with(|| private_directory::named(&place, &error));
            }
        }
    }
    let reason = first.unwrap_or_else(|| {
        "neither HOME nor XDG_CACHE_HOME is set, and the user has no home directory".to_owned()
    });
    let advice = "set XDG_CACHE_HOME to a directory that only you can write to";
    match of_command
        .map(|place| private_directory::owned(place).and_then(|place| put(&place, &name)))
    {
        Some(Ok((path, held))) => {
            let place = path.display();
            let problem =
                format!("the client is in {place} while the command runs: {reason}; {advice}");
            Ok(Installed { path, problem: Some(problem), _held: held })
        }
        _ => Err(io::Error::other(format!("{reason}; {advice}"))),
    }
}

fn hash() -> String {
    let mut hash = Context::new(&SHA256);
    for (name, content) in FILES {
        hash.update(name.as_bytes());
        hash.update(&content.len().to_le_bytes());
        hash.update(content);
    }
    private_directory::hex(hash.finish().as_ref().iter().take(8))
}

/// Ensures that the client is below this directory, and holds it. Returns its path.
fn put(place: &Path, name: &str) -> io::Result<(PathBuf, Option<File>)> {
    let path = place.join(name);
    if path.as_os_str().as_bytes().contains(&b':') {
        return Err(io::Error::other(format!("{} cannot be in PYTHONPATH", path.display())));
    }
    for _ in 1..TRIES {
        if !is_whole(&path) {
            write(&path)?;
        }
        if let Ok(held) = client_use::hold(&path) {
            return Ok((path, Some(held)));
        }
    }
    if !is_whole(&path) {
        write(&path)?;
    }
    Ok((path, None))
}

/// Returns the directories of the client at this path, each before those below it, and the
/// names of their entries.
fn directories(path: &Path) -> BTreeMap<PathBuf, BTreeSet<&'static str>> {
    let mut found: BTreeMap<PathBuf, BTreeSet<&str>> = BTreeMap::new();
    for (name, _) in FILES {
        let mut directory = path.to_owned();
        for entry in name.split('/') {
            let below = directory.join(entry);
            found.entry(directory).or_default().insert(entry);
            directory = below;
        }
    }
    found
}

/// Returns whether the directory belongs to this user alone and has exactly the client's files.
fn is_whole(path: &Path) -> bool {
    let directories = directories(path);
    for directory in directories.keys() {
        // Another process may be about to write there.
        fs::remove_dir_all(directory.join(COMPILED)).ok();
    }
    let is_same = |(name, content): &(&str, &[u8])| {
        let file = path.join(name);
        is_ours(&file, fs::Metadata::is_file)
            && fs::read(file).is_ok_and(|found| found == *content)
    };
    directories.iter().all(|(directory, names)| has_only(directory, names))
        && FILES.iter().all(is_same)
}

/// Returns whether a directory belongs to this user alone and has only these entries, apart
/// from compiled modules.
fn has_only(directory: &Path, names: &BTreeSet<&str>) -> bool {
    let is_known = |name: &OsString| {
        name == COMPILED || name.to_str().is_some_and(|name| names.contains(name))
    };
    is_ours(directory, fs::Metadata::is_dir)
        && fs::read_dir(directory).is_ok_and(|mut entries| {
            entries.all(|entry| entry.is_ok_and(|entry| is_known(&entry.file_name())))
        })
}

/// Returns whether an entry is of this kind and belongs to this user, and nobody else may enter
/// or read it.
fn is_ours(path: &Path, is_of_kind: fn(&fs::Metadata) -> bool) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| {
        is_of_kind(&metadata)
            && metadata.uid() == rustix::process::geteuid().as_raw()
            && metadata.mode() & OF_OTHERS == 0
    })
}

/// Writes the client next to the path and moves it there as a whole: others may be about to
/// read or write it.
fn write(path: &Path) -> io::Result<()> {
    let fresh = path.with_extension(private_directory::random_name()?);
    let written = write_files(&fresh).and_then(|()| take_place(&fresh, path));
    // Either the earlier content, or the new content that could not be moved.
    remove(&fresh);
    written
}

fn write_files(fresh: &Path) -> io::Result<()> {
    for directory in directories(fresh).keys() {
        DirBuilder::new().mode(0o700).create(directory)?;
    }
    for (name, content) in FILES {
        let mut file: File = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(fresh.join(name))?;
        file.write_all(content)?;
    }
    Ok(())
}

/// Moves the directory to the path, and swaps it with an existing one, so that no process finds
/// the path empty.
fn take_place(fresh: &Path, path: &Path) -> io::Result<()> {
    let Err(error) = fs::rename(fresh, path) else { return Ok(()) };
    // Another run was faster.
    if is_whole(path) {
        return Ok(());
    }
    if fs::symlink_metadata(path).is_err() {
        return Err(error);
    }
    if renameat_with(CWD, fresh, CWD, path, RenameFlags::EXCHANGE).is_ok() {
        return Ok(());
    }
    // Not every file system can swap.
    let aside = path.with_extension(private_directory::random_name()?);
    fs::rename(path, &aside)?;
    let moved = fs::rename(fresh, path);
    remove(&aside);
    moved
}

fn remove(path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
        fs::remove_dir_all(path).ok();
    } else {
        fs::remove_file(path).ok();
    }
}
