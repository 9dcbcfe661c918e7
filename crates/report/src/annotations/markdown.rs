//! The summary of a job in GitHub's Markdown: what is wrong in each run, why the exit code is
//! what it is, and the card. No text of others is read as Markdown or HTML.

use crate::annotations::workflow_commands::{shortened_name, wrong};
use crate::gate::GateVerdict;
use crate::summary::card::{self, about};
use crate::summary::model::{Issue, Summary};
use stepmem_types::claims::Sentence;
use stepmem_types::format::clean::{clean, shortened};

/// Bytes that one command adds to the summary of its job.
pub(super) const MARKDOWN_BYTES_MAX: usize = 65_536;
/// Characters of one text of others, before they are escaped.
pub(super) const TEXT_CHARS_MAX: usize = 1024;
/// The bytes that the last line takes at most.
const LAST_LINE_BYTES: usize = 128;

/// Returns the summary of the runs of a command, the worst first; `verdict` is that of
/// `--fail-on` where it decided the exit code.
pub fn markdown(runs: &[&Summary], verdict: Option<&GateVerdict>) -> String {
    let mut page = MarkdownPage::default();
    if runs.is_empty() {
        page.add("### stepmem: nothing was watched\n\nThe log gives the reason.\n");
    }
    for run in runs {
        page.add(&verdicts(run));
        page.add(&figures(run));
    }
    for reason in verdict.into_iter().flat_map(reasons) {
        page.add(&format!("\n{reason}\n"));
    }
    page.finish()
}

/// A text within [`MARKDOWN_BYTES_MAX`].
#[derive(Default)]
struct MarkdownPage {
    text: String,
    /// True if a part did not fit.
    is_cut: bool,
}

impl MarkdownPage {
    /// Adds a part after an empty line, if it fits.
    fn add(&mut self, part: &str) {
        if self.text.len() + part.len() + LAST_LINE_BYTES < MARKDOWN_BYTES_MAX {
            self.text.extend(["\n", part]);
        } else {
            self.is_cut = true;
        }
    }

    fn finish(mut self) -> String {
        if self.is_cut {
            self.text += "\nThe rest is in the log.\n";
        }
        self.text
    }
}

fn verdicts(run: &Summary) -> String {
    let issue = &run.diagnosis;
    let title = markdown_text(&about(issue));
    let name = markdown_text(&shortened_name(run));
    let mut text = format!("### stepmem: {title}\n\nRun {name}\n\n");
    text.extend(wrong(run).map(|issue| item(&about(issue), issue)));
    if !issue.is_wrong() {
        text += &item("Why", issue);
    }
    text
}

fn item(title: &str, issue: &Issue) -> String {
    let [title, why, next] = [title, &issue.summary, &issue.action].map(markdown_text);
    format!("- **{title}**: {why}\\.\n  Next: {next}\n")
}

/// Returns the card of a run, folded.
fn figures(run: &Summary) -> String {
    let card = card::render(run);
    let lines = card.lines().map(|line| html(&clean(line)) + "\n");
    let lines: String = lines.collect();
    format!("<details><summary>Figures</summary>\n\n<pre>\n{lines}</pre>\n\n</details>\n")
}

/// Returns the reasons that the exit code is not the command's, or what grew although it is.
fn reasons(verdict: &GateVerdict) -> Vec<String> {
    let before = match verdict.exit_code() {
        0 => String::new(),
        code => format!("**Exit code {code}**: "),
    };
    let shown = |reason: &Sentence| format!("{before}{}", markdown_text(reason.words()));
    verdict.sentences().iter().map(shown).collect()
}

/// Returns a text of which nothing is read as Markdown or HTML, in one line.
fn markdown_text(text: &str) -> String {
    let mut shown = String::new();
    for c in shortened(text, TEXT_CHARS_MAX).chars() {
        match c {
            '&' | '<' | '>' => shown += &html(c.encode_utf8(&mut [0; 4])),
            c if c.is_ascii_punctuation() => shown.extend(['\\', c]),
            c => shown.push(c),
        }
    }
    shown
}

/// Returns a text of which nothing is read as HTML.
fn html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
