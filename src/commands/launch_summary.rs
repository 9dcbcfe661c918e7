//! Reads the directory of a launch, in which each exporter has written the summary of its
//! ranks.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::input::recording::{NoRecording, SOUGHT};
use crate::store::launches::latest_launch;
use crate::store::open::Unread;
use stepmem_report::summary::{Summary, merged};

/// The largest summary, in bytes: 65,536 ranks of 2 KiB.
pub(super) const SUMMARY_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// The summary that a directory is searched for, in an error.
const SUMMARY: &str = "summary (final_summary.json)";

/// Returns the summary at a path: a file, or the directory of a launch or run.
///
/// # Errors
/// There is none, or it cannot be read.
pub(super) fn at(path: &Path) -> anyhow::Result<Summary> {
    let shown = path.display();
    if path.is_dir() {
        let summary = of_folder(path)?;
        let absent = || Unread(format!("{shown}: the directory has no {SUMMARY}"));
        return summary.with_context(absent);
    }
    read(path).with_context(|| Unread(shown.to_string()))
}

/// Returns the summary of a launch from its directory, or of the latest one from the directory
/// of its run; `None` if there is none.
///
/// # Errors
/// A summary cannot be read, or they are not of one launch.
pub(super) fn of_folder(folder: &Path) -> anyhow::Result<Option<Summary>> {
    let shown = || Unread(folder.display().to_string());
    let mut paths = summaries(folder).with_context(shown)?;
    if paths.is_empty() {
        let has_summary = |path: &Path| summaries(path).is_ok_and(|found| !found.is_empty());
        if let Some(latest) = latest_launch(folder, has_summary) {
            paths = summaries(&latest).with_context(shown)?;
        }
    }
    if paths.is_empty() {
        return Ok(None);
    }
    let parts =
        paths.iter().map(|path| read(path).with_context(|| Unread(path.display().to_string())));
    let parts = parts.collect::<anyhow::Result<Vec<Summary>>>()?;
    merged(parts).map(Some).with_context(shown)
}

/// Returns the error about a directory without a summary, whose recordings could not be
/// summarized either.
pub(super) fn without_summary(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref() {
        Some(NoRecording(folder)) => anyhow::Error::msg(Unread(format!(
            "{folder}: the directory has no {SUMMARY} and no {SOUGHT}"
        ))),
        None => error.context("there is no summary"),
    }
}

/// Returns the files of summaries: `final_summary.json`, `final_summary.HOST.rankN.json`.
fn summaries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("final_summary.") && path.extension().is_some_and(|it| it == "json")
        {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> anyhow::Result<Summary> {
    let mut text = String::new();
    File::open(path)?.take(SUMMARY_BYTES_MAX + 1).read_to_string(&mut text)?;
    let length = u64::try_from(text.len())?;
    anyhow::ensure!(length <= SUMMARY_BYTES_MAX, "a summary exceeds {SUMMARY_BYTES_MAX} bytes");
    serde_json::from_str(&text).context("not a summary of this version of stepmem")
}
