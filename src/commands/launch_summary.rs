//! Reads the directory of a launch, in which each exporter has written the summary of its
//! ranks.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;

use stepmem_report::summary::merge::merged;
use stepmem_report::summary::model::Summary;

/// The largest summary, in bytes: 65,536 ranks of 2 KiB.
pub(super) const SUMMARY_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// The link to the directory that was written last, in that of a run.
const LATEST: &str = "latest";
/// Length of the time that the name of a launch's directory begins with: `2026-11-21T16-43-11`.
const TIME_LENGTH: usize = 19;

/// Returns the summary at a path: a file, or the directory of a launch or run.
///
/// # Errors
/// There is none, or it cannot be read.
pub(super) fn at(path: &Path) -> anyhow::Result<Summary> {
    let shown = || path.display().to_string();
    if path.is_dir() {
        return of_folder(path)?.with_context(|| format!("{}: there is no summary", shown()));
    }
    read(path).with_context(shown)
}

/// Returns the summary of a launch from its directory, or of the latest one from the directory
/// of its run; `None` if there is none.
///
/// # Errors
/// A summary cannot be read, or they are not of one launch.
pub(super) fn of_folder(folder: &Path) -> anyhow::Result<Option<Summary>> {
    let shown = || folder.display().to_string();
    let mut paths = summaries(folder).with_context(shown)?;
    if paths.is_empty()
        && let Some(latest) = latest(folder)
    {
        paths = summaries(&latest).with_context(shown)?;
    }
    if paths.is_empty() {
        return Ok(None);
    }
    let parts = paths.iter().map(|path| read(path).with_context(|| path.display().to_string()));
    let parts = parts.collect::<anyhow::Result<Vec<Summary>>>()?;
    merged(parts).map(Some).with_context(shown)
}

/// Returns the directory of a run's latest launch: the target of the link, else the newest by
/// its name.
fn latest(folder: &Path) -> Option<PathBuf> {
    let linked = folder.join(LATEST);
    if linked.is_dir() && summaries(&linked).is_ok_and(|found| !found.is_empty()) {
        return Some(linked);
    }
    let launches = fs::read_dir(folder).ok()?.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        (name.len() >= TIME_LENGTH && name.starts_with(|first: char| first.is_ascii_digit()))
            .then_some(entry.path())
    });
    let has_summary = |path: &PathBuf| summaries(path).is_ok_and(|found| !found.is_empty());
    launches.filter(has_summary).max_by(|a, b| launch_order(a).cmp(&launch_order(b)))
}

/// Returns a key that puts launches in the order of their start: those of one second are
/// numbered.
fn launch_order(path: &Path) -> (String, u32) {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let (time, number) = name.split_at_checked(TIME_LENGTH).unwrap_or((name, ""));
    (time.to_owned(), number.trim_start_matches('-').parse().unwrap_or(1))
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
