//! Summaries of runs that end or fall silent, and of all on shutdown: as files, as a card in the log and as the
//! container's termination message. Answers requests for them.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::JoinHandle;

use crate::analysis::engine::Engine;
use crate::app::termination::{self, TerminationMessage};
use crate::model::ids::Run;
use crate::model::units::Uptime;
use crate::output::web::{SummaryFormat, SummaryRequest};
use crate::report::summary::model::Summary;
use crate::store::atomic;

/// The longest directory name of a run, in bytes; file systems allow 255.
const NAME_BYTES_MAX: usize = 200;

/// The state that summaries are made from.
pub(super) struct SummarySource<'a> {
    pub(super) engine: &'a Engine,
    pub(super) now: Uptime,
}

/// Writes the summaries of runs.
pub(super) struct Summaries {
    directory: Option<PathBuf>,
    termination: Option<TerminationMessage>,
    /// The runs that have pushed since the last check, or had a present rank then.
    present: BTreeSet<Run>,
    /// The runs whose summary is due.
    due: BTreeSet<Run>,
    writing: Option<JoinHandle<anyhow::Result<()>>>,
    is_failing: bool,
}

impl Summaries {
    pub(super) fn new(directory: Option<PathBuf>, termination: Option<PathBuf>) -> Self {
        Self {
            directory,
            termination: termination.map(TerminationMessage::new),
            present: BTreeSet::new(),
            due: BTreeSet::new(),
            writing: None,
            is_failing: false,
        }
    }

    /// Notes a push of the run.
    pub(super) fn pushed(&mut self, run: &Run) {
        if !self.present.contains(run) {
            self.present.insert(run.clone());
        }
    }

    /// Notes the end of the run or of one of its ranks.
    pub(super) fn ended(&mut self, run: &Run) {
        self.due.insert(run.clone());
    }

    /// Writes the summaries of runs that ended or have no present rank any more, one round at a time.
    pub(super) async fn keep(&mut self, known: &SummarySource<'_>, present: BTreeSet<Run>) {
        let gone = self.present.difference(&present).cloned();
        self.due.extend(gone);
        self.present = present;
        if self.writing.as_ref().is_none_or(JoinHandle::is_finished) {
            self.written().await;
            self.write(known);
        }
    }

    /// Writes the summaries of ended and of ongoing runs, for shutdown.
    pub(super) async fn stop(&mut self, known: &SummarySource<'_>) {
        let going_on = std::mem::take(&mut self.present);
        self.due.extend(going_on);
        self.written().await;
        self.write(known);
    }

    /// Starts writing what is due, on a thread of its own. A run that is still present goes to its file only.
    fn write(&mut self, known: &SummarySource<'_>) {
        let due = std::mem::take(&mut self.due);
        let mut round = Round { directory: self.directory.clone(), ..Round::default() };
        for run in due {
            let is_over = !self.present.contains(&run);
            if self.directory.is_none() && !is_over {
                continue;
            }
            let Some(summary) = summary(known, &run) else { continue };
            if let (Some(message), true) = (&mut self.termination, is_over) {
                message.add(&summary);
                round.message = Some(message.draft());
            }
            round.summaries.push((summary, is_over));
        }
        if !round.summaries.is_empty() {
            self.writing = Some(tokio::task::spawn_blocking(move || round.write()));
        }
    }

    /// Waits for the round in progress. Logs the first of consecutive failures.
    pub(super) async fn written(&mut self) {
        let Some(writing) = self.writing.take() else { return };
        let result = writing.await.map_err(anyhow::Error::from).and_then(|result| result);
        if let (Err(error), false) = (&result, self.is_failing) {
            tracing::warn!(error = format!("{error:#}"), "summary not written");
        }
        self.is_failing = result.is_err();
    }
}

/// Answers a request for the summary of a run. Drops the request if the run is unknown.
/// `turn` ends once the reader has it.
pub(super) fn answer(
    known: &SummarySource<'_>,
    request: SummaryRequest,
    turn: OwnedSemaphorePermit,
) {
    if request.answer.is_closed() {
        return;
    }
    let SummaryRequest { run, format, answer } = request;
    let found = Run::new(&run).ok().and_then(|run| summary(known, &run));
    let Some(summary) = found else { return };
    // Formatting many ranks takes long; the engine does not wait for it.
    drop(tokio::task::spawn_blocking(move || {
        respond(&summary, format, answer);
        drop((summary, turn));
    }));
}

fn respond(summary: &Summary, format: SummaryFormat, answer: oneshot::Sender<String>) {
    let text = match format {
        SummaryFormat::Json => serde_json::to_string(summary).unwrap_or_default(),
        SummaryFormat::Text => summary.text.clone(),
    };
    // The reader may have left.
    answer.send(text).ok();
}

/// The summary of a run with ranks that push or have pushed.
fn summary(known: &SummarySource<'_>, run: &Run) -> Option<Summary> {
    let report = known.engine.run(run, known.now)?;
    Some(Summary::of(&report, Some(known.engine.snapshots(run))))
}

/// What is written at a time.
#[derive(Default)]
struct Round {
    directory: Option<PathBuf>,
    /// The summaries, and whether their runs are over.
    summaries: Vec<(Summary, bool)>,
    message: Option<(PathBuf, String)>,
}

impl Round {
    /// Writes everything that can be written.
    ///
    /// # Errors
    /// The last failure.
    fn write(self) -> anyhow::Result<()> {
        let mut result = Ok(());
        for (summary, is_over) in &self.summaries {
            if *is_over {
                let (verdict, card) = (&*summary.diagnosis.status, &*summary.text);
                tracing::info!(run = %summary.run, verdict, "summary\n{card}");
            }
            if let Some(directory) = &self.directory {
                result = write(directory, summary).and(result);
            }
        }
        if let Some((path, text)) = &self.message {
            let written = termination::write(path, text);
            result = written.with_context(|| path.display().to_string()).and(result);
        }
        result
    }
}

fn write(directory: &Path, summary: &Summary) -> anyhow::Result<()> {
    let folder = directory.join(folder_name(&summary.run));
    fs::create_dir_all(&folder)?;
    let json = serde_json::to_vec_pretty(summary)?;
    atomic::replace(&folder.join("final_summary.txt"), &[summary.text.as_bytes()])?;
    // Written last, so that a reader that waits for it finds both files.
    atomic::replace(&folder.join("final_summary.json"), &[&json, b"\n"])?;
    let (shown, verdict) = (folder.display(), &*summary.diagnosis.status);
    tracing::info!(run = %summary.run, folder = %shown, verdict, "summary written");
    Ok(())
}

/// The directory name of a run: every byte but letters, digits, `-`, `_` and inner dots becomes `%` and two digits.
/// A long name is truncated and ends in the checksum of the whole.
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
