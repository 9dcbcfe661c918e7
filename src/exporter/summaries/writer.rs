//! Summaries of runs that end or fall silent, and of all runs on shutdown: as files, as a card
//! in the log, and as the container's termination message. Answers requests for summaries.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context;
use tokio::task::JoinHandle;

use crate::config::settings::StartMode;
use crate::exporter::log;
use crate::exporter::notices::{Notice, Notices, PlannedSoFar, SummaryNotice};
use crate::exporter::process_state::has_exited;
use crate::exporter::summaries::directory::{LaunchOfRun, SummaryFolders, WrittenFiles};
use crate::exporter::summaries::launches::{CurrentLaunch, RunLaunches};
use crate::exporter::summaries::termination::{self, TerminationMessage};
use stepmem_engine::{Engine, RunView};
use stepmem_report::summary::Summary;
use stepmem_types::ids::{Rank, Run};
use stepmem_types::step::StepSample;
use stepmem_types::units::Uptime;

/// Maximum number of ranks of all summaries that wait to be written; one summary may always
/// wait.
const WAITING_RANKS_MAX: usize = 8192;

/// The state that summaries are made from.
pub(in crate::exporter) struct SummarySource<'a> {
    pub(in crate::exporter) engine: &'a Engine,
    pub(in crate::exporter) now: Uptime,
    /// The planned restarts of the command, if there is one.
    pub(in crate::exporter) restarts: &'a PlannedSoFar,
}

/// Writes the summaries of runs.
pub(in crate::exporter) struct Summaries {
    folders: Option<SummaryFolders>,
    termination: Option<TerminationMessage>,
    notices: Notices,
    /// True if the pushing processes belong to a command that this exporter runs next to, on
    /// this machine. At the command's end, the summary reports which of them ended without a
    /// report.
    is_of_command: bool,
    /// The runs that go on: they have pushed since the last check, or had a present rank then.
    present: BTreeSet<Run>,
    launches: RunLaunches,
    /// The summaries to be written, the oldest first.
    waiting: Vec<WaitingSummary>,
    /// The launches that have gone on after their summary was written, and the first rank of
    /// each.
    resumed: Vec<(LaunchOfRun, Rank)>,
    writing: Option<JoinHandle<RoundResult>>,
    counts: SummaryCounts,
    is_failing: bool,
}

/// A summary that is to be written.
pub(in crate::exporter) struct WaitingSummary {
    of: LaunchOfRun,
    summary: Summary,
}

/// Counts of summaries by outcome, where they have a directory.
#[derive(Clone, Copy, Debug, Default)]
struct SummaryCounts {
    written: u64,
    failed: u64,
    /// Dropped because too many waited.
    dropped: u64,
    /// Directories of launches that were removed to keep their bound.
    removed: u64,
}

impl Summaries {
    pub(in crate::exporter) fn new(
        folders: Option<SummaryFolders>,
        termination: Option<PathBuf>,
        notices: Notices,
        start: StartMode,
    ) -> Self {
        Self {
            folders,
            termination: termination.map(TerminationMessage::new),
            notices,
            is_of_command: start == StartMode::Command,
            present: BTreeSet::new(),
            launches: RunLaunches::default(),
            waiting: Vec::new(),
            resumed: Vec::new(),
            writing: None,
            counts: SummaryCounts::default(),
            is_failing: false,
        }
    }

    /// Returns the counts of summaries by outcome; none without a directory.
    pub(in crate::exporter) fn results(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let SummaryCounts { written, failed, dropped, removed } = self.counts;
        let counts = [
            ("written", written),
            ("failed", failed),
            ("dropped", dropped),
            ("removed", removed),
        ];
        self.folders.iter().flat_map(move |_| counts)
    }

    /// Returns the summaries, from before a batch, of runs of which the batch may be another
    /// launch.
    pub(in crate::exporter) fn rivals(
        &self,
        known: &SummarySource<'_>,
        batch: &[StepSample],
    ) -> Vec<WaitingSummary> {
        let mut rivals: Vec<WaitingSummary> = Vec::new();
        let of_launches =
            batch.iter().filter_map(|sample| Some((&sample.run, sample.launch.as_ref()?)));
        let mut before = None;
        for of in of_launches {
            if before == Some(of) {
                continue;
            }
            before = Some(of);
            let (run, launch) = of;
            let is_known = rivals.iter().any(|rival| rival.of.run == *run);
            if is_known || !self.launches.is_rival(run, launch) {
                continue;
            }
            let superseded = known.engine.superseded(run, known.now);
            let current = self.launches.get(run);
            if let Some((current, view)) = current.zip(superseded) {
                let of = LaunchOfRun { run: run.clone(), id: current.id() };
                rivals.push(WaitingSummary { of, summary: summary(known, &view) });
            }
        }
        rivals
    }

    /// Returns the current launch of a run.
    pub(in crate::exporter) fn launch_of(&self, run: &Run) -> Option<LaunchOfRun> {
        let current = self.launches.get(run)?;
        Some(LaunchOfRun { run: run.clone(), id: current.id() })
    }

    /// Notes a push of these runs that the engine took; `rivals` are those that it may have
    /// taken over.
    pub(in crate::exporter) fn pushed<'r>(
        &mut self,
        known: &SummarySource<'_>,
        runs: impl Iterator<Item = &'r Run>,
        rivals: Vec<WaitingSummary>,
    ) {
        for run in runs {
            if !self.present.contains(run) {
                self.present.insert(run.clone());
                self.see(known, run);
            }
        }
        for rival in rivals {
            self.see(known, &rival.of.run);
            let current = self.launches.get(&rival.of.run);
            if current.is_some_and(|current| current.id() != rival.of.id) {
                self.wait(rival);
            }
        }
    }

    /// Notes the end of the run. Its summary is built from the state at this time, and written
    /// at once: people read it as soon as their program has ended.
    pub(in crate::exporter) fn ended(&mut self, known: &SummarySource<'_>, run: &Run) {
        self.present.remove(run);
        self.sum_up(known, run, true);
        if self.writing.is_none() {
            self.write();
        }
    }

    /// Writes the summaries of runs that ended or no longer have a present rank, one round at a
    /// time.
    pub(in crate::exporter) async fn keep(
        &mut self,
        known: &SummarySource<'_>,
        present: BTreeSet<Run>,
    ) {
        let gone: Vec<Run> = self.present.difference(&present).cloned().collect();
        for run in gone {
            self.sum_up(known, &run, true);
        }
        let new: Vec<Run> = present.difference(&self.present).cloned().collect();
        for run in new {
            self.see(known, &run);
        }
        self.present = present;
        self.launches.retain(|run| known.engine.launch(run).is_some());
        for run in &self.present.clone() {
            self.resume(known, run);
        }
        if self.writing.as_ref().is_none_or(JoinHandle::is_finished) {
            self.written().await;
            self.write();
        }
    }

    /// Writes the summaries of ended and of ongoing runs, for shutdown.
    pub(in crate::exporter) async fn stop(&mut self, known: &SummarySource<'_>) {
        for run in std::mem::take(&mut self.present) {
            self.sum_up(known, &run, false);
        }
        self.written().await;
        self.write();
    }

    /// Waits for the round in progress. Logs the first of consecutive failures.
    pub(in crate::exporter) async fn written(&mut self) {
        let Some(writing) = self.writing.take() else { return };
        let RoundResult { written, failed, removed, error } =
            writing.await.unwrap_or_else(|error| RoundResult::failure(error.into()));
        self.counts.written += written;
        self.counts.failed += failed;
        self.counts.removed += removed;
        if let (Some(error), false) = (&error, self.is_failing) {
            tracing::warn!(error = format!("{error:#}"), "summary not written");
        }
        self.is_failing = error.is_some();
    }

    fn see(&mut self, known: &SummarySource<'_>, run: &Run) {
        let Some(seen) = known.engine.launch(run) else { return };
        if self.launches.see(run, seen) {
            self.resume(known, run);
        }
    }

    /// Builds the summary of a run that is over, or that goes on while the exporter stops.
    fn sum_up(&mut self, known: &SummarySource<'_>, run: &Run, is_over: bool) {
        self.see(known, run);
        let Some(current) = self.launches.get_mut(run) else { return };
        current.is_over |= is_over;
        let of = LaunchOfRun { run: run.clone(), id: current.id() };
        if is_over {
            // It went on, and ended before that was recorded on the disk.
            self.resumed.retain(|(resumed, _)| *resumed != of);
        }
        let is_last = self.is_of_command && !is_over;
        let view = known.engine.run_without(run, known.now, |pid| is_last && is_gone(pid));
        if let Some(view) = view {
            self.wait(WaitingSummary { of, summary: summary(known, &view) });
        }
    }

    /// Queues a summary, and drops the oldest where too many wait: a disk may hang.
    fn wait(&mut self, waiting: WaitingSummary) {
        // Ranks that end one after another after their run was cut off each yield a newer one.
        self.waiting.retain(|earlier| earlier.of != waiting.of);
        self.waiting.push(waiting);
        let n_ranks = |waiting: &[WaitingSummary]| {
            waiting.iter().map(|waiting| waiting.summary.ranks.len()).sum::<usize>()
        };
        while self.waiting.len() > 1 && n_ranks(&self.waiting) > WAITING_RANKS_MAX {
            self.waiting.remove(0);
            self.counts.dropped += 1;
        }
    }

    /// Notes that the launch of a run goes on, if it was over.
    fn resume(&mut self, known: &SummarySource<'_>, run: &Run) {
        let over = self.launches.get_mut(run).filter(|current| current.is_over);
        if let Some((current, seen)) = over.zip(known.engine.launch(run)) {
            current.is_over = false;
            let of = LaunchOfRun { run: run.clone(), id: current.id() };
            self.resumed.push((of, seen.first_rank));
        }
    }

    /// Starts writing the waiting summaries on a new thread.
    fn write(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let resumed = std::mem::take(&mut self.resumed);
        if waiting.is_empty() && resumed.is_empty() {
            return;
        }
        let (folders, notices) = (self.folders.clone(), self.notices.clone());
        let mut round = Round { folders, notices, resumed, ..Round::default() };
        for waiting in waiting {
            if let Some(message) = &mut self.termination {
                message.add(&waiting.summary);
                round.message = Some(message.draft());
            }
            let current = self.launches.get(&waiting.of.run);
            let current = current.map_or_else(|| waiting.of.id.clone(), CurrentLaunch::id);
            let current = LaunchOfRun { run: waiting.of.run.clone(), id: current };
            round.summaries.push((waiting, current));
        }
        self.writing = Some(tokio::task::spawn_blocking(move || round.write()));
    }
}

/// The summary of a run with ranks that push or have pushed.
pub(in crate::exporter) fn summary(known: &SummarySource<'_>, view: &RunView<'_>) -> Summary {
    let mut summary = Summary::of(view, Some(known.engine.snapshots(view.run)));
    if let Some((so_far, began)) = known.restarts.get() {
        summary.add_restarts(&so_far, began, view.time);
    }
    summary
}

/// Returns whether a process is gone, as far as this machine shows.
fn is_gone(pid: u32) -> bool {
    has_exited(pid) && !has_exited(std::process::id())
}

/// The files to write in one round.
#[derive(Default)]
struct Round {
    folders: Option<SummaryFolders>,
    notices: Notices,
    resumed: Vec<(LaunchOfRun, Rank)>,
    /// The summaries, and the launch of each one's run that is current.
    summaries: Vec<(WaitingSummary, LaunchOfRun)>,
    message: Option<(PathBuf, String)>,
}

/// The result of a round.
#[derive(Default)]
struct RoundResult {
    written: u64,
    failed: u64,
    removed: u64,
    /// The last failure.
    error: Option<anyhow::Error>,
}

impl RoundResult {
    fn failure(error: anyhow::Error) -> Self {
        Self { failed: 1, error: Some(error), ..Self::default() }
    }

    /// Writes a summary, and removes old launches of its run, but not the current one. Returns
    /// its files, or the reason that there are none.
    fn write(
        &mut self,
        folders: &SummaryFolders,
        waiting: &mut WaitingSummary,
        current: &LaunchOfRun,
    ) -> Result<WrittenFiles, String> {
        let WaitingSummary { of, summary } = waiting;
        let files = match folders.write(of, summary) {
            Ok(files) => files,
            Err(error) => {
                self.failed += 1;
                let error = error.context(folders.root.display().to_string());
                let problem = format!("{error:#}");
                self.note(Err(error));
                return Err(problem);
            }
        };
        self.written += 1;
        let (shown, verdict) = (files.folder.display(), &*summary.diagnosis.status);
        tracing::info!(run = %summary.run, folder = %shown, verdict, "summary written");
        let thinned = folders.thin(current, &files.folder);
        self.removed += *thinned.as_ref().unwrap_or(&0);
        self.note(thinned.map(|_| ()).context("old launches not removed"));
        Ok(files)
    }

    /// Records a failure, if the result is one.
    fn note(&mut self, result: anyhow::Result<()>) {
        if let Err(error) = result {
            self.error = Some(error);
        }
    }
}

impl Round {
    /// Writes everything that can be written.
    fn write(self) -> RoundResult {
        let mut result = RoundResult::default();
        for (mut waiting, current) in self.summaries {
            let summary = &waiting.summary;
            let (verdict, card) = (&*summary.diagnosis.status, &*summary.text);
            log::card(&summary.run, verdict, card);
            let folders = self.folders.as_ref();
            let files = folders.map(|to| result.write(to, &mut waiting, &current)).transpose();
            let (files, problem) = match files {
                Ok(files) => (files, None),
                Err(problem) => (None, Some(problem)),
            };
            let notice = SummaryNotice { summary: waiting.summary, files, problem };
            self.notices.send(|| Notice::Summary(Box::new(notice)));
        }
        if let Some(folders) = &self.folders {
            for (of, first_rank) in &self.resumed {
                result.note(folders.mark_going_on(of, *first_rank).map_err(Into::into));
            }
        }
        if let Some((path, text)) = &self.message {
            let written = termination::write(path, text);
            result.note(written.with_context(|| path.display().to_string()));
        }
        result
    }
}
