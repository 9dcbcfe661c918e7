//! The files of summaries: `DIR/RUN/TIME/final_summary.{txt,json}`, a directory per launch.
//! Several exporters of one launch share its directory. The first to write takes those names.
//! Another one uses `final_summary.HOST.rankN.{txt,json}`, by its host and its first rank.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::store::directory::{Directory, EntryKind};
use crate::store::launches::{
    LATEST, LaunchId, Removal, RunFolder, create_shared, point_latest_of_all, replace_shared,
};
use crate::store::recordings::is_of_launch;
use stepmem_report::summary::{self, RankOutcome, Summary};
use stepmem_types::format::units::rfc3339;
use stepmem_types::ids::{Rank, Run};

/// The name of the files of a summary, without what follows the first dot.
const STEM: &str = "final_summary";
/// The name of the files of a launch's recording, without what follows the first dot.
pub(crate) const RECORDING_STEM: &str = "steps";
/// The name, without what follows the first dot, of the files that show that a launch has gone
/// on after its summary was written.
const GOING_ON: &str = "going-on";
/// The longest directory name of a run, in bytes; file systems allow 255.
const NAME_BYTES_MAX: usize = 200;
/// The longest name of a machine, in characters; longer ones are cut.
const HOST_CHARS_MAX: usize = 64;
/// The largest summary that is read back, in bytes.
const WRITTEN_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// The directory of all summaries.
#[derive(Clone, Debug)]
pub(crate) struct SummaryFolders {
    pub(crate) root: PathBuf,
    /// Number of launches of a run that are kept.
    launches_max: usize,
    /// The directory from which snapshots move next to the summary, on the same disk.
    staging: Option<PathBuf>,
    /// The name of this machine in names of files.
    host: String,
}

/// The place at which a summary was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrittenFiles {
    pub(crate) folder: PathBuf,
    /// The names of the files without `.txt` and `.json`.
    pub(crate) name: String,
    /// The reason that the link to the last launch of all runs does not lead here, if it does
    /// not.
    pub(crate) note: Option<String>,
}

impl WrittenFiles {
    /// Returns the part of the names that differs from other exporters of the launch:
    /// `.HOST.rankN`, or nothing.
    pub(crate) fn suffix(&self) -> &str {
        self.name.strip_prefix(STEM).unwrap_or_default()
    }
}

/// The identity of a summary: one launch of one run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LaunchOfRun {
    pub(crate) run: Run,
    pub(crate) id: LaunchId,
}

impl SummaryFolders {
    /// Returns the directory at `root`, if there is to be one; snapshots move there from
    /// `staging`.
    pub(crate) fn new(
        root: Option<PathBuf>,
        launches_max: usize,
        staging: Option<PathBuf>,
    ) -> Option<Self> {
        root.map(|root| Self { root, launches_max, staging, host: host() })
    }

    /// Writes a summary, and returns its directory. Snapshots that move there have their names
    /// in it.
    ///
    /// # Errors
    /// The file system refused.
    pub(crate) fn write(
        &self,
        of: &LaunchOfRun,
        summary: &mut Summary,
    ) -> anyhow::Result<WrittenFiles> {
        let run = self.run_folder(&of.run);
        let folder = launch_folder(&run, &of.id)?;
        if let Some(staging) = &self.staging {
            gather(summary, staging, &folder);
        }
        let json = [&*serde_json::to_vec_pretty(summary)?, b"\n"].concat();
        let ranks: BTreeSet<Rank> = summary.ranks.iter().map(|rank| rank.rank).collect();
        let files = SummaryBytes { text: summary.text.as_bytes(), json: &json };
        let mut name = STEM.to_owned();
        if !files.write_first(&folder, &ranks)? {
            let first = ranks.first().copied().unwrap_or_default();
            name = format!("{STEM}.{}.rank{first}", self.host);
            files.replace(&folder, &name)?;
        }
        for rank in &ranks {
            match folder.remove_file(format!("{GOING_ON}.rank{rank}")) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                result => result?,
            }
        }
        if let Err(error) = run.point_latest(&folder) {
            tracing::warn!(%error, run = %of.run, "the link to the newest summary is not renewed");
        }
        let folder = folder.path().to_owned();
        let note = point_latest_of_all(&self.root, &folder).err().map(|error| {
            tracing::info!(%error, "link to the last launch not written");
            error.to_string()
        });
        Ok(WrittenFiles { folder, name, note })
    }

    /// Returns the directory of a launch, and creates it if necessary.
    ///
    /// # Errors
    /// The file system refused.
    pub(crate) fn of_launch(&self, of: &LaunchOfRun) -> io::Result<Directory> {
        launch_folder(&self.run_folder(&of.run), &of.id)
    }

    /// Records that a launch is going on, after a summary that reports its end.
    ///
    /// # Errors
    /// The file system refused.
    pub(crate) fn mark_going_on(&self, of: &LaunchOfRun, first: Rank) -> io::Result<()> {
        let folder = launch_folder(&self.run_folder(&of.run), &of.id)?;
        replace_shared(&folder, &format!("{GOING_ON}.rank{first}"), &[])
    }

    /// Removes the oldest launches of a run that ended, beyond those that are kept. Returns the
    /// number removed.
    ///
    /// # Errors
    /// The file system refused.
    pub(crate) fn thin(&self, current: &LaunchOfRun, folder: &Path) -> io::Result<u64> {
        let removal = EndedLaunches { current: &current.id };
        self.run_folder(&current.run).thin(self.launches_max, folder, &removal)
    }

    fn run_folder(&self, run: &Run) -> RunFolder {
        RunFolder::new(self.root.join(folder_name(run)))
    }
}

/// Moves the snapshots of a run next to its summary. An analysis may still read them at their
/// old place, where a link stays if the disk supports links.
fn gather(summary: &mut Summary, staging: &Path, folder: &Directory) {
    let mut is_changed = false;
    for snapshot in summary.snapshots.iter_mut().flatten() {
        let staged = snapshot.path.as_deref().map(Path::new);
        let Some(staged) = staged.filter(|path| path.parent() == Some(staging)) else {
            continue;
        };
        let Some(name) = staged.file_name() else { continue };
        match moved(staged, folder, name) {
            Ok(true) => {
                snapshot.path = Some(name.to_string_lossy().into_owned());
                is_changed = true;
            }
            Ok(false) => {}
            // The summary is worth more than the place of a file.
            Err(error) => {
                let place = folder.path().join(name);
                tracing::warn!(%error, place = %place.display(), "snapshot not moved");
            }
        }
    }
    if is_changed {
        summary::put(summary);
    }
}

/// Moves a file into a directory. Returns whether it is there; another file of that name stays.
fn moved(staged: &Path, folder: &Directory, name: &OsStr) -> io::Result<bool> {
    let metadata = fs::symlink_metadata(staged).ok().filter(fs::Metadata::is_file);
    let file = metadata.map(|metadata| (metadata.dev(), metadata.ino()));
    let Some(file) = file else { return Ok(folder.identity(name).is_some()) };
    match folder.link_from(staged, name) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Ok(folder.identity(name) == Some(file))
        }
        Err(_) => folder.move_from(staged, name).map(|()| true),
    }
}

/// Returns the name of this machine in the form for file names: letters, digits, `-` and `_`.
fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let name: String = name.trim().chars().take(HOST_CHARS_MAX).map(plain).collect();
    if name.is_empty() { "host".to_owned() } else { name }
}

fn launch_folder(run: &RunFolder, id: &LaunchId) -> io::Result<Directory> {
    run.launch(id, &rfc3339(id.began).trim_end_matches('Z').replace(':', "-"))
}

/// The two files of a summary.
struct SummaryBytes<'a> {
    text: &'a [u8],
    json: &'a [u8],
}

impl SummaryBytes<'_> {
    /// Writes the files under the first names, unless those are another exporter's, with other
    /// ranks. Returns whether it did.
    fn write_first(&self, folder: &Directory, ranks: &BTreeSet<Rank>) -> io::Result<bool> {
        let [text, json] = names(STEM);
        // No exporter writes links: links by others are replaced.
        if [&text, &json].iter().any(|name| folder.found(name) == EntryKind::Link) {
            return self.replace(folder, STEM).map(|()| true);
        }
        if folder.found(&json) != EntryKind::Nothing {
            let is_own = WrittenSummary::read(folder, &json)
                .is_some_and(|of| of.ranks.iter().any(|rank| ranks.contains(&rank.rank)));
            return if is_own { self.replace(folder, STEM).map(|()| true) } else { Ok(false) };
        }
        // Of several exporters, the one that creates the first file has the names.
        if !create_shared(folder, &text, &[self.text])? {
            return Ok(false);
        }
        replace_shared(folder, &json, &[self.json]).map(|()| true)
    }

    /// Replaces the files.
    fn replace(&self, folder: &Directory, stem: &str) -> io::Result<()> {
        let [text, json] = names(stem);
        replace_shared(folder, &text, &[self.text])?;
        // Written last, so that a reader that waits for it finds both files.
        replace_shared(folder, &json, &[self.json])
    }
}

/// Returns the names of the two files.
fn names(stem: &str) -> [String; 2] {
    [format!("{stem}.txt"), format!("{stem}.json")]
}

/// The part of a written summary that shows its ranks, and which of them ended.
#[derive(Deserialize)]
struct WrittenSummary {
    ranks: Vec<WrittenRank>,
    coverage: WrittenCoverage,
}

#[derive(Deserialize)]
struct WrittenRank {
    rank: Rank,
    state: RankOutcome,
}

#[derive(Deserialize)]
struct WrittenCoverage {
    ranks_expected: Option<u32>,
}

impl WrittenSummary {
    /// Reads a summary; `None` where it cannot be read.
    fn read(folder: &Directory, name: &str) -> Option<Self> {
        let file = BufReader::new(folder.open_file(name).ok()?.take(WRITTEN_BYTES_MAX));
        serde_json::from_reader(file).ok()
    }
}

/// Removes the launches all of whose ranks are known to have ended.
struct EndedLaunches<'a> {
    /// The launch that is current here.
    current: &'a LaunchId,
}

impl Removal for EndedLaunches<'_> {
    fn has_ended(&self, id: &LaunchId, folder: &Directory) -> bool {
        id != self.current && has_ended(folder) == Some(true)
    }

    fn is_own(&self, name: &str) -> bool {
        if is_of_launch(name, RECORDING_STEM) {
            return true;
        }
        let mut parts: Vec<&str> = name.split('.').collect();
        // The name of a partial write ends in digits and `new`.
        if parts.last() == Some(&"new") {
            parts.truncate(parts.len().saturating_sub(2));
        }
        let is_rank = |part: &str| is_numbered(part, "rank");
        match parts.as_slice() {
            [STEM, "txt" | "json"] => true,
            [STEM, rank, "txt" | "json"]
            | [STEM, _, rank, "txt" | "json"]
            | [GOING_ON, rank] => is_rank(rank),
            _ => is_snapshot(name),
        }
    }
}

/// Returns whether a file has the name of a snapshot that a client wrote:
/// `RUN_creep_rank3_step120.pickle`.
fn is_snapshot(name: &str) -> bool {
    let Some(words) = name.strip_suffix(".pickle") else { return false };
    let parts: Vec<&str> = words.split('_').collect();
    let is_of_rank = |rank, step| is_numbered(rank, "rank") && is_numbered(step, "step");
    match parts.as_slice() {
        [_, .., rank, step] if is_of_rank(rank, step) => true,
        [_, .., rank, step, number] => is_of_rank(rank, step) && is_numbered(number, ""),
        _ => false,
    }
}

/// Returns whether a part of a name is a word with digits behind it.
fn is_numbered(part: &str, word: &str) -> bool {
    let digits = part.strip_prefix(word).unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
}

/// Returns whether every rank of a launch ended, by the summaries in its directory; `None`
/// where they leave that open.
fn has_ended(folder: &Directory) -> Option<bool> {
    let mut ended = BTreeSet::new();
    let mut n_expected = None;
    for name in folder.names().ok()? {
        let name = name.into_string().ok()?;
        if name.starts_with(GOING_ON) {
            return Some(false);
        }
        let parts: Vec<&str> = name.split('.').collect();
        if !matches!(
            parts.as_slice(),
            [STEM, "json"] | [STEM, _, "json"] | [STEM, _, _, "json"]
        ) {
            continue;
        }
        let summary = WrittenSummary::read(folder, &name)?;
        n_expected = n_expected.max(summary.coverage.ranks_expected);
        for WrittenRank { rank, state } in summary.ranks {
            if !matches!(state, RankOutcome::Ended | RankOutcome::Unannounced) {
                return Some(false);
            }
            ended.insert(rank);
        }
    }
    let n_ended = u32::try_from(ended.len()).ok()?;
    Some(n_ended > 0 && n_expected.is_none_or(|expected| n_ended >= expected))
}

/// The directory name of a run: every byte but letters, digits, `-`, `_` and inner dots becomes
/// `%` and two digits. A long name is truncated and ends in the checksum of the whole.
pub(crate) fn folder_name(run: &Run) -> String {
    let mut name = String::new();
    for (idx, byte) in run.as_str().bytes().enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        // The link to the last launch has this name.
        let is_first_of_link = idx == 0 && run.as_str() == LATEST;
        if (is_plain && !is_first_of_link) || (byte == b'.' && idx > 0) {
            name.push(char::from(byte));
        } else {
            write!(name, "%{byte:02X}").ok();
        }
    }
    if name.len() > NAME_BYTES_MAX {
        name.truncate(NAME_BYTES_MAX);
        write!(name, "~{:08x}", crc32fast::hash(run.as_str().as_bytes())).ok();
    }
    name
}

#[cfg(test)]
mod tests {
    use crate::exporter::summaries::directory::{EndedLaunches, folder_name};
    use crate::store::launches::{LaunchId, Removal};
    use stepmem_types::ids::Run;

    #[test]
    fn name_of_a_run_stays_within_its_directory() {
        let name = |run: &str| folder_name(&Run::new(run).unwrap());
        assert_eq!(name("my-run_1.2"), "my-run_1.2");
        assert_eq!(name(".."), "%2E.");
        assert_eq!(name("latest"), "%6Catest");
        assert_eq!(name("../a b"), "%2E.%2Fa%20b");
        assert_eq!(name("train.py~2"), "train.py%7E2");
        let (a, b) =
            (name(&format!("{}a", "ü".repeat(60))), name(&format!("{}b", "ü".repeat(60))));
        assert!(a.len() < 255 && a != b, "{a} {b}");
    }

    #[test]
    fn only_files_that_are_written_here_are_removed() {
        let removal = EndedLaunches { current: &LaunchId { launch: None, began: 0.0 } };
        for name in [
            "final_summary.json",
            "final_summary.txt",
            "final_summary.rank8.json",
            "final_summary.rank8.txt",
            "final_summary.node-7.rank8.json",
            "final_summary.json.00c0ffee00c0ffee.new",
            "going-on.rank0",
            "train-1122-101112-7_creep_rank3_step120.pickle",
            "my_run_oom_attempt1_rank0_step7_2.pickle",
            "steps.jsonl.zst",
            "steps-2.3.jsonl.zst",
        ] {
            assert!(removal.is_own(name), "{name}");
        }
        for name in [
            "notes.txt",
            "final_summary",
            "final_summary.md",
            "final_summary-old.json",
            "final_summary.rank8.html",
            "final_summary.rank.json",
            "going-on",
            "final_summary.ranks.json",
            "rank3_step120.pickle",
            "model_rank3.pickle",
            "model_rank3_step120_weights.pickle",
            "rank3_step120_weights_last_epoch.pickle",
            "steps.jsonl",
            "my-steps.jsonl.zst",
        ] {
            assert!(!removal.is_own(name), "{name}");
        }
    }
}
