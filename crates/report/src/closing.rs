//! The terminal output of `stepmem run`: a finding in a line, and at the end the summaries,
//! where they are and what to do next.

use crate::gate::GateVerdict;
use crate::summary::card;
use crate::summary::model::Summary;
use stepmem_engine::status::SnapshotStatus;
use stepmem_engine::{Severity, Transition};
use stepmem_types::claims::Sentence;
use stepmem_types::format::clean::clean;
use stepmem_types::format::page::{Color, Indent, Page};

/// Runs that are shown with a whole card, at most.
const CARDS_MAX: usize = 4;

/// A run at the end of the command.
#[derive(Clone, Debug)]
pub struct ClosingRun<'a> {
    /// The summary, from which all lines about the run follow.
    pub summary: &'a Summary,
    /// The files of the summary, if they were written.
    pub files: Option<ClosingFiles<'a>>,
    /// The reason that they were not written, if they should have been.
    pub problem: Option<&'a str>,
}

/// The files of a summary.
#[derive(Clone, Debug)]
pub struct ClosingFiles<'a> {
    /// The folder that the files are in, as people read it.
    pub folder: String,
    /// The name of the files without `.txt` and `.json`.
    pub name: &'a str,
    /// Reason for which no link leads to them, if none does.
    pub note: Option<&'a str>,
}

/// Returns a finding as one line.
pub fn finding_line(finding: &Transition, is_colored: bool) -> String {
    let title = finding.kind.about().title;
    let color = is_colored.then(|| color_of(finding.severity));
    let title = color.map_or_else(|| title.to_owned(), |color| color.paint(title));
    let (severity, subject) = (finding.severity.as_label(), finding.subject.to_string());
    let sentence = finding.evidence.sentence();
    format!("stepmem: {title} ({severity}), {}: {}\n", clean(&subject), clean(sentence.words()))
}

/// Returns that a finding holds no more as one line.
pub fn cleared_line(finding: &Transition) -> String {
    let title = finding.kind.about().title;
    format!("stepmem: {title} cleared, {}\n", clean(&finding.subject.to_string()))
}

/// Returns the cards of the runs, the worst first, with their files and the next step, for a
/// terminal of so many columns.
pub fn closing(runs: &[ClosingRun<'_>], columns: Option<usize>) -> String {
    let mut text = String::new();
    let (shown, others) = runs.split_at(runs.len().min(CARDS_MAX));
    for ClosingRun { summary, files, problem } in shown {
        let mut page = Page::default().within(columns);
        if let Some(ClosingFiles { folder, name, note }) = files {
            page.blank();
            page.line(&format!("Written to {folder}/{name}.txt and .json"));
            if let Some(note) = note {
                page.paragraph(Indent::hanging(2), &format!("Note: {note}."));
            }
            let coverage = &summary.coverage;
            if coverage.n_ranks_missing > 0 {
                page.line(&format!(
                    "Another copy of stepmem run may have the other ranks; all that share the directory: stepmem summary {folder}"
                ));
            }
            let next = if summary.diagnosis.is_wrong() { "a fix" } else { "a later run" };
            page.line(&format!(
                "Compare with {next}: stepmem compare {folder}/{name}.json NEW/final_summary.json"
            ));
            if let Some(name) = summary.snapshots.iter().flatten().find_map(beside) {
                page.line(&format!("Look closer: stepmem snapshot show {folder}/{name}"));
            }
        }
        if let Some(problem) = problem {
            page.blank();
            page.paragraph(
                Indent::hanging(2),
                &format!("The summary is not written: {problem}"),
            );
        }
        text.extend(["\n", &card::render_within(summary, columns), &page.into_text()]);
    }
    let mut page = Page::default().within(columns);
    for ClosingRun { summary, files, .. } in others {
        let place = files.as_ref().map_or(String::new(), |files| format!(": {}", files.folder));
        let words = format!("{}: {}{place}", summary.run.as_str(), summary.diagnosis.status);
        page.paragraph(Indent::hanging(0), &words);
    }
    text + &page.into_text()
}

/// Returns the way in which the command ended; nothing if it succeeded.
pub fn ended_line(code: u8, signal: Option<&str>) -> Option<String> {
    Some(match signal {
        _ if code == 0 => return None,
        Some(signal) => format!("stepmem: the command was killed ({signal})\n"),
        None => format!("stepmem: the command ended with exit code {code}\n"),
    })
}

/// Returns that the kernel killed processes that are not known to be ranks.
pub fn oom_kills_line(n: u64) -> String {
    let processes = if n == 1 { "a process".to_owned() } else { format!("{n} processes") };
    format!(
        "stepmem: the kernel killed {processes} of the command for lack of memory (oom_kill of the control group rose)\n"
    )
}

/// Returns the reasons that the exit code is not the command's, or what grew although it is, a
/// line each.
pub fn gate_lines(verdict: &GateVerdict) -> String {
    let why = match verdict.exit_code() {
        0 => String::new(),
        code => format!("exit code {code}: "),
    };
    let line = |reason: &Sentence| format!("stepmem: {why}{}\n", clean(reason.words()));
    verdict.sentences().iter().map(line).collect()
}

/// Returns the name of a snapshot that lies next to the summary.
fn beside(snapshot: &SnapshotStatus) -> Option<&str> {
    snapshot.path.as_deref().filter(|path| !path.contains('/'))
}

/// A variable of the environment because of which nothing is pushed to this command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeptAway {
    /// `STEPMEM_DISABLED`.
    Disabled,
    /// `STEPMEM_PUSH_URL`.
    Elsewhere,
}

/// Returns the reason that there is no summary, as far as traces of Python processes and the
/// environment show.
pub fn unwatched(has_python: bool, has_torch: bool, by: Option<KeptAway>) -> String {
    let reason = match (has_python, has_torch) {
        (true, _) if by == Some(KeptAway::Disabled) => {
            "STEPMEM_DISABLED is set, which turns the client off"
        }
        (true, _) if by == Some(KeptAway::Elsewhere) => {
            "STEPMEM_PUSH_URL is set, so what ranks report goes to another exporter, if one is there"
        }
        (_, true) => {
            "PyTorch was imported, but none of its optimizers stepped (stepmem.step() reports steps of any kind)"
        }
        (true, false) => {
            "Python ran, but imported no PyTorch, nor reported steps itself (stepmem.step() reports steps of any kind)"
        }
        (false, false) => {
            "no Python started that could be watched (CPython 3.9 or newer; python -I, -E and -S hide the client)"
        }
    };
    format!("stepmem: nothing was watched: {reason}\n")
}

/// Returns the color that a severity has on a terminal.
pub(crate) fn color_of(severity: Severity) -> Color {
    match severity {
        Severity::Critical => Color::Red,
        Severity::Warning => Color::Yellow,
        Severity::Info => Color::Cyan,
    }
}
