//! The container's termination message, which `kubectl describe pod` shows: the verdict of
//! every run that ended.

use std::cmp::Reverse;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use stepmem_report::IssueSeverity;
use stepmem_report::summary::{self, Summary};
use stepmem_types::ids::Run;

/// The longest message that Kubernetes keeps of a container, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// Maximum number of runs in the message; those with the least trouble are left out.
pub const RUNS_MAX: usize = 16;
/// The last line of a message that is cut.
const CUT: &str = "…\n";

/// The message, which is written again when a run ends.
pub(in crate::exporter) struct TerminationMessage {
    path: PathBuf,
    /// The worst first, of equally bad ones the newest first.
    verdicts: Vec<Verdict>,
}

struct Verdict {
    run: Run,
    severity: Option<IssueSeverity>,
    text: String,
}

impl TerminationMessage {
    pub(in crate::exporter) fn new(path: PathBuf) -> Self {
        Self { path, verdicts: Vec::new() }
    }

    /// Adds the verdict of a run that ended; it replaces an earlier one.
    pub(in crate::exporter) fn add(&mut self, summary: &Summary) {
        let verdict = Verdict {
            run: summary.run.clone(),
            severity: summary.worst(),
            text: summary::verdicts(summary),
        };
        self.verdicts.retain(|earlier| earlier.run != verdict.run);
        self.verdicts.insert(0, verdict);
        self.verdicts.sort_by_key(|verdict| Reverse(verdict.severity));
        self.verdicts.truncate(RUNS_MAX);
    }

    /// Returns the path and the text to write.
    pub(in crate::exporter) fn draft(&self) -> (PathBuf, String) {
        let texts: Vec<&str> =
            self.verdicts.iter().map(|verdict| verdict.text.as_str()).collect();
        (self.path.clone(), cut(&texts.join("\n")))
    }
}

/// Writes the message. Kubernetes mounts the file, so that it cannot be replaced by another.
pub(in crate::exporter) fn write(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?
        .write_all(text.as_bytes())
}

/// The whole lines that fit.
fn cut(text: &str) -> String {
    if text.len() <= MESSAGE_BYTES_MAX {
        return text.to_owned();
    }
    let mut short = String::new();
    for line in text.split_inclusive('\n') {
        if short.len() + line.len() + CUT.len() > MESSAGE_BYTES_MAX {
            break;
        }
        short.push_str(line);
    }
    short.push_str(CUT);
    short
}

#[cfg(test)]
mod tests {
    use super::{CUT, MESSAGE_BYTES_MAX, cut};

    #[test]
    fn long_message_is_cut_after_a_line() {
        assert_eq!(cut("a\nb\n"), "a\nb\n");
        let line = format!("{}\n", "ü".repeat(50));
        let short = cut(&line.repeat(99));
        assert!(
            short.len() <= MESSAGE_BYTES_MAX
                && short.len() > MESSAGE_BYTES_MAX - 2 * line.len()
        );
        assert_eq!(short, format!("{}{CUT}", line.repeat(short.len() / line.len())));
    }
}
