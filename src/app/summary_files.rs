//! When summaries are written, and how they are answered: of a run that ended or fell silent, of all at the stop.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::analysis::engine::Engine;
use crate::model::ids::Run;
use crate::model::units::Uptime;
use crate::output::web::{SummaryFormat, SummaryRequest};
use crate::report::summary::Summary;
use crate::store::atomic;

/// The longest name of a run's directory, in bytes; file systems take 255.
const NAME_BYTES_MAX: usize = 200;

/// What summaries are made of.
pub(super) struct SummarySource<'a> {
    pub(super) engine: &'a Engine,
    pub(super) now: Uptime,
}

/// The summaries of the runs, and the directory they are written to, if there is one.
pub(super) struct Summaries {
    directory: Option<PathBuf>,
    /// The runs that pushed since the last look, or had a present rank then.
    present: BTreeSet<Run>,
    /// The runs whose summary is to be written.
    due: BTreeSet<Run>,
    writing: Option<JoinHandle<anyhow::Result<()>>>,
    is_failing: bool,
}

impl Summaries {
    pub(super) fn new(directory: Option<PathBuf>) -> Self {
        Self {
            directory,
            present: BTreeSet::new(),
            due: BTreeSet::new(),
            writing: None,
            is_failing: false,
        }
    }

    /// A rank of the run pushed.
    pub(super) fn pushed(&mut self, run: &Run) {
        if !self.present.contains(run) {
            self.present.insert(run.clone());
        }
    }

    /// A rank of the run, or all of it, ended.
    pub(super) fn ended(&mut self, run: &Run) {
        self.due.insert(run.clone());
    }

    /// Writes the summaries of runs that ended, or that no rank is present of any more, one round at a time.
    pub(super) async fn keep(&mut self, known: &SummarySource<'_>, present: BTreeSet<Run>) {
        let gone = self.present.difference(&present).cloned();
        self.due.extend(gone);
        self.present = present;
        if self.writing.as_ref().is_none_or(JoinHandle::is_finished) {
            self.written().await;
            self.write(known);
        }
    }

    /// Writes the summaries of what ended and of every run that goes on.
    pub(super) async fn stop(&mut self, known: &SummarySource<'_>) {
        let going_on = std::mem::take(&mut self.present);
        self.due.extend(going_on);
        self.written().await;
        self.write(known);
    }

    /// Begins to write what is due, on a thread of its own.
    fn write(&mut self, known: &SummarySource<'_>) {
        let due = std::mem::take(&mut self.due);
        let Some(directory) = self.directory.clone().filter(|_| !due.is_empty()) else {
            return;
        };
        let summaries: Vec<Summary> =
            due.iter().filter_map(|run| summary(known, run)).collect();
        self.writing = Some(tokio::task::spawn_blocking(move || {
            summaries.iter().try_for_each(|summary| write(&directory, summary))
        }));
    }

    /// Waits for what is being written, and says when that begins or ends to fail.
    pub(super) async fn written(&mut self) {
        let Some(writing) = self.writing.take() else { return };
        let result = writing.await.map_err(anyhow::Error::from).and_then(|result| result);
        if let (Err(error), false) = (&result, self.is_failing) {
            tracing::warn!(error = format!("{error:#}"), "summary not written");
        }
        self.is_failing = result.is_err();
    }
}

/// Answers a request for the summary of a run; one that is not held gets no answer.
pub(super) fn answer(known: &SummarySource<'_>, request: SummaryRequest) {
    let SummaryRequest { run, format, answer } = request;
    let found = Run::new(&run).ok().and_then(|run| summary(known, &run));
    let Some(summary) = found else { return };
    // Many ranks make a long text, which the engine does not wait for.
    drop(tokio::task::spawn_blocking(move || respond(&summary, format, answer)));
}

fn respond(summary: &Summary, format: SummaryFormat, answer: oneshot::Sender<String>) {
    let text = match format {
        SummaryFormat::Json => serde_json::to_string(summary).unwrap_or_default(),
        SummaryFormat::Text => summary.text.clone(),
    };
    // Who asked may have gone.
    answer.send(text).ok();
}

/// The summary of a run that pushes, or did.
fn summary(known: &SummarySource<'_>, run: &Run) -> Option<Summary> {
    let report = known.engine.run(run, known.now)?;
    Some(Summary::of(&report, Some(known.engine.snapshots(run))))
}

fn write(directory: &Path, summary: &Summary) -> anyhow::Result<()> {
    let folder = directory.join(folder_name(&summary.run));
    fs::create_dir_all(&folder)?;
    let json = serde_json::to_vec_pretty(summary)?;
    atomic::replace(&folder.join("final_summary.txt"), &[summary.text.as_bytes()])?;
    // Last, so that whoever waits for it finds both.
    atomic::replace(&folder.join("final_summary.json"), &[&json, b"\n"])?;
    let (shown, verdict) = (folder.display(), summary.diagnosis.status);
    tracing::info!(run = %summary.run, folder = %shown, verdict, "summary written");
    Ok(())
}

/// A run's name as one of a directory: what is no letter, digit, `-`, `_` or inner dot stands as `%` and two digits; a
/// long one is cut and ends in the checksum of the whole.
fn folder_name(run: &Run) -> String {
    let mut name = String::new();
    for (idx, byte) in run.as_str().bytes().enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if is_plain || (byte == b'.' && idx > 0) {
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
    use crate::app::summary_files::folder_name;
    use crate::model::ids::Run;

    #[test]
    fn name_of_a_run_stays_within_its_directory() {
        let name = |run: &str| folder_name(&Run::new(run).unwrap());
        assert_eq!(name("my-run_1.2"), "my-run_1.2");
        assert_eq!(name(".."), "%2E.");
        assert_eq!(name("../a b"), "%2E.%2Fa%20b");
        let (a, b) =
            (name(&format!("{}a", "ü".repeat(60))), name(&format!("{}b", "ü".repeat(60))));
        assert!(a.len() < 255 && a != b, "{a} {b}");
    }
}
