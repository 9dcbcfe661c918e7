//! Annotations by GitHub's workflow commands: `::error file=…,line=…,title=…::message`, a line
//! each.

use crate::annotations::place::{Directories, Place};
use crate::policy::IssueSeverity;
use crate::summary::card::about;
use crate::summary::model::{Issue, Summary};
use stepmem_types::format::clean::shortened;

/// Annotations of one severity; GitHub shows no more of a step.
pub(super) const ANNOTATIONS_MAX: usize = 10;
/// Characters of the title of an annotation, before they are escaped.
pub(super) const TITLE_CHARS_MAX: usize = 255;
/// Characters of the evidence of an annotation, and of its advice; GitHub cuts a message of more
/// than 4,096.
pub(super) const SENTENCE_CHARS_MAX: usize = 1536;

/// Returns the issues of the runs as workflow commands, and a line that reports how many did
/// not fit.
pub fn workflow_commands(runs: &[&Summary], directories: Directories<'_>) -> String {
    let mut text = String::new();
    let mut n_left = 0_usize;
    for severity in [IssueSeverity::Crit, IssueSeverity::Warn, IssueSeverity::Info] {
        let of_run = |run| wrong(run).map(move |issue| (run, issue));
        let found = runs.iter().copied().flat_map(of_run);
        let found: Vec<(&Summary, &Issue)> =
            found.filter(|(_, issue)| issue.severity == severity).collect();
        let (shown, left) = found.split_at(found.len().min(ANNOTATIONS_MAX));
        text.extend(shown.iter().map(|(run, issue)| command(run, issue, directories)));
        n_left += left.len();
    }
    if n_left > 0 {
        text.extend([format!("stepmem: findings that are not annotated: {n_left}\n")]);
    }
    text
}

/// Returns the issues of a run in which something is wrong, the worst first.
pub(super) fn wrong(run: &Summary) -> impl Iterator<Item = &Issue> {
    run.issues.iter().filter(|issue| issue.is_wrong())
}

fn command(run: &Summary, issue: &Issue, directories: Directories<'_>) -> String {
    let name = match issue.severity {
        IssueSeverity::Crit => "error",
        IssueSeverity::Warn => "warning",
        IssueSeverity::Info => "notice",
    };
    let place =
        Place::of(issue, directories).map_or_else(String::new, |Place { file, line }| {
            let line = line.map_or_else(String::new, |line| format!("line={line},"));
            format!("file={},{line}", property(&file))
        });
    let title = shortened(&about(issue), TITLE_CHARS_MAX);
    let sentence = shortened(&issue.summary, SENTENCE_CHARS_MAX);
    let next = shortened(&issue.action, SENTENCE_CHARS_MAX);
    let message = format!("Run {}: {sentence}.\nNext: {next}", shortened_name(run));
    format!("::{name} {place}title={}::{}\n", property(&title), data(&message))
}

/// Returns the name of a run, which has a bound of its own.
pub(super) fn shortened_name(run: &Summary) -> String {
    shortened(run.run.as_str(), TITLE_CHARS_MAX)
}

/// Escapes the message of a command.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes the value of a property of a command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
