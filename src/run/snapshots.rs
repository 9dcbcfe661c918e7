//! The place to which processes of the command write memory snapshots: below the directory that
//! their user named, or else below one next to the summaries. From the latter, each snapshot
//! moves into the directory of its launch.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::config::environment;
use crate::config::settings::Settings;
use crate::run::private_directory;

/// The variable by which a user names the directory.
const DIRECTORY: &str = "STEPMEM_SNAPSHOT_DIRECTORY";

/// The directory below which snapshots are written.
#[derive(Debug)]
pub(super) struct SnapshotPlace {
    path: PathBuf,
    /// True if it was created for this command.
    is_own: bool,
}

impl SnapshotPlace {
    /// Finds or creates the directory.
    ///
    /// # Errors
    /// It cannot be created, or there are no summaries next to which it could be.
    pub(super) fn create(summary_dir: Option<&Path>) -> io::Result<Self> {
        if let Some(named) = environment::text(DIRECTORY) {
            return Ok(Self { path: std::path::absolute(named)?, is_own: false });
        }
        let root = summary_dir.ok_or_else(|| {
            io::Error::other("neither a directory of summaries nor STEPMEM_SNAPSHOT_DIRECTORY")
        })?;
        fs::create_dir_all(root)?;
        let name = format!(".snapshots-{}", private_directory::random_name()?);
        let path = std::path::absolute(root)?.join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path, is_own: true })
    }

    /// Has the exporter request snapshots and read them there.
    pub(super) fn set(&self, settings: &mut Settings) {
        settings.snapshots.on_creep = true;
        settings.snapshots.read_directory.get_or_insert_with(|| self.path.clone());
        settings.snapshot_staging = self.is_own.then(|| self.path.clone());
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory if it was created for this command. Returns its path if a snapshot
    /// in it has no other place.
    pub(super) fn close(self) -> Option<PathBuf> {
        if !self.is_own {
            return None;
        }
        for entry in fs::read_dir(&self.path).ok()?.flatten() {
            if entry.metadata().is_ok_and(|metadata| metadata.nlink() > 1) {
                fs::remove_file(entry.path()).ok();
            }
        }
        fs::remove_dir(&self.path).err().map(|_| self.path)
    }
}
