//! The line of code that an issue names, as a path that GitHub finds in the repository.

use std::path::{Component, Path, PathBuf};

use crate::summary::model::{Issue, IssueEvidence};
use stepmem_engine::Evidence;
use stepmem_types::site::{CodeLine, LeakSite, SiteText, SiteVerdict};

/// The longest path that is written, in characters; a longer one is left out, since a part of a
/// path leads nowhere.
pub(super) const FILE_CHARS_MAX: usize = 1024;
/// Stands in a text for the part of it that was cut.
const CUT: char = '…';

/// The directories that paths are relative to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Directories<'a> {
    /// The copy of the repository; `None` if it is not known.
    pub workspace: Option<&'a Path>,
    /// The directory in which the command was started.
    pub current: Option<&'a Path>,
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The path below the workspace, else the whole one.
    pub(super) file: String,
    pub(super) line: Option<u64>,
}

impl Place {
    /// Returns the line that an issue names: the first that is in the workspace, else the first.
    pub(super) fn of(issue: &Issue, directories: Directories<'_>) -> Option<Self> {
        let named = || lines(&issue.evidence).into_iter().filter(is_file);
        let found = |(file, line): (&SiteText, Option<u64>)| {
            let path = absolute(file.as_str(), directories.current);
            let own = path.strip_prefix(directories.workspace?).ok()?.to_str()?.to_owned();
            (!own.is_empty()).then_some(Self { file: own, line })
        };
        let first = named().next();
        let first = first.map(|(file, line)| Self { file: file.as_str().to_owned(), line });
        let place = named().find_map(found).or(first)?;
        let is_short = place.file.chars().nth(FILE_CHARS_MAX).is_none();
        is_short.then_some(place)
    }
}

/// Returns the lines that evidence names, the one to look at first.
fn lines(evidence: &IssueEvidence) -> Vec<(&SiteText, Option<u64>)> {
    let IssueEvidence::Finding(evidence) = evidence else { return Vec::new() };
    if let Evidence::OutOfMemory(error) = evidence {
        return error.site.iter().filter_map(|site| line(&site.at)).collect();
    }
    let Some(growth) = evidence.growth() else { return Vec::new() };
    let holder = growth.holder.iter().filter_map(|holder| line(holder.at.as_ref()?));
    let leak = growth.site.iter().filter(|site| site.verdict == SiteVerdict::Leak);
    holder.chain(leak.flat_map(|site| of_leak(site))).collect()
}

/// Returns the line that leaks, and those that called it.
fn of_leak(site: &LeakSite) -> impl Iterator<Item = (&SiteText, Option<u64>)> {
    let stack = site.stack.iter().map(|frame| (&frame.file, Some(frame.line)));
    site.at.iter().filter_map(line).chain(stack)
}

fn line(at: &CodeLine) -> Option<(&SiteText, Option<u64>)> {
    Some((at.file.as_ref()?, at.line.filter(|line| *line > 0)))
}

/// Returns whether a name is that of a file: Python names what has none `<string>`, and a name
/// that was cut leads nowhere.
fn is_file((file, _): &(&SiteText, Option<u64>)) -> bool {
    !file.as_str().starts_with('<') && !file.as_str().contains(CUT)
}

/// Returns a path from the root without `.` and `..`, by its words alone.
fn absolute(file: &str, current: Option<&Path>) -> PathBuf {
    let mut path = PathBuf::new();
    for part in current.unwrap_or(Path::new("")).join(file).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                path.pop();
            }
            part => path.push(part),
        }
    }
    path
}
