//! Reads the directory of a launch, in which each exporter has written the summary of its ranks.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::commands::compare::SUMMARY_BYTES_MAX;
use crate::report::summary::merge::merged;
use crate::report::summary::model::Summary;

/// The link to the directory that was written last, in that of a run.
const LATEST: &str = "latest";

/// Returns the summary of a launch from its directory, or of the latest one from the directory of its run; `None` if there
/// is none.
///
/// # Errors
/// A summary cannot be read, or they are not of one launch.
pub(super) fn of_folder(folder: &Path) -> anyhow::Result<Option<Summary>> {
    let shown = || folder.display().to_string();
    let mut paths = summaries(folder).with_context(shown)?;
    if paths.is_empty() && folder.join(LATEST).is_dir() {
        paths = summaries(&folder.join(LATEST)).with_context(shown)?;
    }
    if paths.is_empty() {
        return Ok(None);
    }
    let parts = paths.iter().map(|path| read(path).with_context(|| path.display().to_string()));
    let parts = parts.collect::<anyhow::Result<Vec<Summary>>>()?;
    merged(parts).map(Some).with_context(shown)
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
