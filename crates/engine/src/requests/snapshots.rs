//! The memory snapshots of all ranks: requested, reported, and passed on for analysis. The
//! training process takes and writes them; another process reads them.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use crate::requests::causes::{
    AnalysisOutcome, AnalysisRequest, Cause, FoundCause, SnapshotAnalysis, TimelineOutcome,
};
use crate::requests::schedule::{
    Growth, REPORT_WITHIN, RequestPlan, STEPS_MAX, ScheduleSettings, ScheduleStep,
};
use crate::requests::snapshot::{
    AnalysisState, LIMITED, Snapshot, SnapshotOutcome, SnapshotReport,
};
use crate::requests::tracker::{
    LISTED_MAX, Listed, Progress, RequestTracker, Requested, SavedRequests, SnapshotReason,
};
use stepmem_detect::Signal;
use stepmem_types::ids::RankId;
use stepmem_types::site::SiteVerdict;
use stepmem_types::units::Uptime;

/// Periods of growth in level shifts that a recording must hold.
const PERIODS: f64 = 3.0;

/// The settings of when ranks are asked, and what is read.
#[derive(Clone, Debug)]
pub struct SnapshotSettings {
    /// Set when MEMORY RISING and MEMORY CREEP ask for one.
    pub on_creep: bool,
    /// The settings of how often, and for how many steps.
    pub schedule: ScheduleSettings,
    /// The directory that training processes write below, as the exporter sees it; `None` reads
    /// nothing.
    pub read_directory: Option<PathBuf>,
    /// The directory of timelines; `None` draws none.
    pub timeline_directory: Option<PathBuf>,
}

impl Default for SnapshotSettings {
    fn default() -> Self {
        let cooldown = Duration::from_hours(1);
        let schedule = ScheduleSettings { steps: 20, periods: PERIODS, run_max: 3, cooldown };
        Self { on_creep: false, schedule, read_directory: None, timeline_directory: None }
    }
}

/// The snapshots of all runs.
#[derive(Debug)]
pub(crate) struct Snapshots {
    settings: SnapshotSettings,
    pub requests: RequestTracker<Snapshot>,
    /// Snapshots that another process shall analyze. Invariant: at most [`LISTED_MAX`].
    to_analyze: VecDeque<AnalysisRequest>,
    n_analyses: [u64; AnalysisOutcome::ALL.len()],
    n_timelines: TimelineCounts,
}

#[derive(Clone, Copy, Debug, Default)]
struct TimelineCounts {
    written: u64,
    failed: u64,
    removed: u64,
}

impl Snapshots {
    pub(crate) fn new(settings: SnapshotSettings) -> Self {
        Self {
            requests: RequestTracker::new(
                settings.schedule,
                Snapshot::asked(SnapshotReason::Creep),
            ),
            settings,
            to_analyze: VecDeque::new(),
            n_analyses: [0; AnalysisOutcome::ALL.len()],
            n_timelines: TimelineCounts::default(),
        }
    }

    /// Takes growth of a rank, which is asked for a snapshot unless its run has had enough.
    pub(crate) fn creeps(&mut self, growth: &Growth<'_>, now: Uptime) {
        if !self.settings.on_creep {
            return;
        }
        match self.requests.grows(growth, Snapshot::asked(SnapshotReason::Creep), now) {
            ScheduleStep::Ask(_) | ScheduleStep::Known => {}
            ScheduleStep::Limited => self.requests.count(LIMITED),
            ScheduleStep::TooLong { period } => self.decline(growth.rank, period, now),
        }
    }

    /// Asks a rank for a snapshot because an operator wants it. Returns the id of the request,
    /// that of the open one if the rank was asked already.
    pub(crate) fn want(&mut self, rank: &RankId, steps: Option<u32>, now: Uptime) -> Box<str> {
        let open = self.requests.open().find(|open| open.rank == *rank);
        if let Some(id) = open.and_then(|open| open.id.clone()) {
            return id;
        }
        let plan = RequestPlan::of_steps(steps.unwrap_or(self.settings.schedule.steps));
        self.requests.ask((rank.clone(), plan), Snapshot::asked(SnapshotReason::Manual), now)
    }

    /// Lists that a rank is not asked, since its growth comes in level shifts too far apart;
    /// once.
    fn decline(&mut self, rank: &RankId, period: f64, now: Uptime) {
        let error = format!(
            "not requested: growth comes every {period:.0} steps, and three of these exceed the {STEPS_MAX} steps of a \
             recording"
        );
        let is_declined = |listed: &Listed<Snapshot>| {
            let outcome = &listed.of.outcome;
            let is_failed = matches!(outcome, SnapshotOutcome::Failed { error } if error.starts_with("not requested"));
            is_failed && listed.rank == *rank
        };
        if !self.requests.iter().any(is_declined) {
            self.requests.count(LIMITED);
            let outcome = SnapshotOutcome::Failed { error: error.into() };
            let of = Snapshot { outcome, ..Snapshot::asked(SnapshotReason::Creep) };
            let (rank, id) = (rank.clone(), None);
            let (since, deadline) = (now, now);
            self.requests.list(Listed { number: 0, id, rank, steps: 0, since, deadline, of });
        }
    }

    /// Takes a report; it settles the request that it names, or is listed as new.
    pub(crate) fn take(&mut self, report: SnapshotReport, now: Uptime) {
        self.requests.count(report.outcome.as_label());
        let SnapshotReport { rank, id, reason, step, outcome, owner, .. } = report;
        let of = Snapshot { reason, step, outcome, owner, analysis: None };
        let is_over = of.progress() == Progress::Over;
        let run = rank.run.clone();
        let number = match self.requests.named(id.as_deref(), &rank) {
            // A report that was overtaken by the one after it adds nothing new.
            Some(listed) if !is_over && listed.of.progress() == Progress::Over => return,
            Some(listed) => {
                if !is_over {
                    let allowance = listed.deadline.since(listed.since);
                    listed.deadline = Uptime(now.0 + allowance);
                }
                let (reason, analysis) = (listed.of.reason, listed.of.analysis.take());
                listed.of = Snapshot { reason, analysis, ..of };
                listed.number
            }
            None => {
                let deadline = Uptime(now.0 + REPORT_WITHIN);
                let since = now;
                self.requests.list(Listed {
                    number: 0,
                    id,
                    rank,
                    steps: 0,
                    since,
                    deadline,
                    of,
                })
            }
        };
        self.request_analysis(number);
        if is_over {
            self.requests.ask_next(&run, now);
        }
    }

    /// Requests the analysis of a snapshot that was written.
    fn request_analysis(&mut self, number: u64) {
        if self.settings.read_directory.is_none() {
            return;
        }
        let mut listed = self.requests.iter_mut();
        let Some(Listed { of, .. }) = listed.find(|listed| listed.number == number) else {
            return;
        };
        let SnapshotOutcome::Written { file: Some(file), .. } = &of.outcome else { return };
        if of.analysis.is_none() && self.to_analyze.len() < LISTED_MAX {
            let (file, owner) = (file.clone(), of.owner);
            self.to_analyze.push_back(AnalysisRequest { number, file, owner });
            of.analysis = Some(AnalysisState::Waiting);
        }
    }

    /// Returns the next snapshot to analyze.
    pub(crate) fn next_analysis(&mut self) -> Option<AnalysisRequest> {
        self.to_analyze.pop_front()
    }

    /// Takes the result of an analysis. Returns the cause that it found; `None` for a snapshot
    /// that has left the list.
    pub(crate) fn analyzed(
        &mut self,
        number: u64,
        analysis: &SnapshotAnalysis,
        now: Uptime,
    ) -> Option<FoundCause> {
        let outcome = analysis.outcome;
        let idx = AnalysisOutcome::ALL.iter().position(|of| *of == outcome);
        if let Some(count) = idx.and_then(|idx| self.n_analyses.get_mut(idx)) {
            *count += 1;
        }
        let timeline = self.count_timeline(analysis.timeline.as_ref());
        let listed = self.requests.iter_mut().find(|listed| listed.number == number)?;
        let verdict = analysis.leak.as_ref().map(|leak| leak.verdict);
        let reason = analysis.reason.as_ref().map(ToString::to_string);
        listed.of.analysis = Some(AnalysisState::Over { outcome, reason, verdict, timeline });
        let (rank, since) = (listed.rank.clone(), listed.since);
        let is_about_growth = listed.of.reason == SnapshotReason::Creep;
        let is_short = is_about_growth && verdict == Some(SiteVerdict::InsufficientHistory);
        if is_short && let Some(plan) = self.requests.schedule.longer(&rank) {
            self.requests.ask(
                (rank.clone(), plan),
                Snapshot::asked(SnapshotReason::Creep),
                now,
            );
        }
        let cause = Cause::Snapshot(Box::new(analysis.clone()));
        Some(FoundCause { rank, cause, signal: Signal::Allocated, since })
    }

    /// Counts what became of a timeline. Returns its id.
    fn count_timeline(&mut self, timeline: Option<&TimelineOutcome>) -> Option<Box<str>> {
        match timeline? {
            TimelineOutcome::Written { id, n_removed } => {
                self.n_timelines.written += 1;
                self.n_timelines.removed += n_removed;
                Some(id.clone())
            }
            TimelineOutcome::Failed => {
                self.n_timelines.failed += 1;
                None
            }
        }
    }

    /// Returns whether a snapshot is being analyzed or waits for it.
    pub(crate) fn awaits_analysis(&self) -> bool {
        self.requests.iter().any(|listed| listed.of.analysis == Some(AnalysisState::Waiting))
    }

    /// Gives up requests that have waited too long, and those that wait for a process that has
    /// gone, where `is_present` is false.
    pub(crate) fn expire(&mut self, is_present: impl Fn(&RankId, Uptime) -> bool, now: Uptime) {
        let is_gone = |listed: &Listed<Snapshot>| {
            let is_waiting = listed.of.progress() == Progress::Waiting;
            is_waiting && !is_present(&listed.rank, listed.since)
        };
        self.requests.expire(is_gone, now);
    }

    /// Returns the number of analyzed snapshots by outcome; empty where none are read.
    pub(crate) fn analyses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let is_on = self.settings.read_directory.is_some();
        let labels = AnalysisOutcome::ALL.into_iter().map(AnalysisOutcome::as_label);
        labels.zip(self.n_analyses).filter(move |_| is_on)
    }

    /// Returns the number of timelines by outcome; empty where none are drawn.
    pub(crate) fn timelines(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let is_on = self.settings.timeline_directory.is_some();
        let TimelineCounts { written, failed, removed } = self.n_timelines;
        let counts = [("failed", failed), ("removed", removed), ("written", written)];
        counts.into_iter().filter(move |_| is_on)
    }

    /// Goes on where an earlier exporter stood. What waited for its analysis waits again; of
    /// what is no longer wanted by the settings, no rank is asked.
    pub(crate) fn resume(&mut self, saved: SavedRequests<Snapshot>) {
        let is_on = self.settings.on_creep;
        self.requests.resume(saved, |Listed { of, .. }| {
            is_on || of.reason != SnapshotReason::Creep || of.progress() == Progress::Over
        });
        let is_waiting =
            |listed: &&mut Listed<Snapshot>| listed.of.analysis == Some(AnalysisState::Waiting);
        let mut waiting = Vec::new();
        for listed in self.requests.iter_mut().filter(is_waiting) {
            listed.of.analysis = None;
            waiting.push(listed.number);
        }
        for number in waiting {
            self.request_analysis(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{SnapshotSettings, Snapshots};
    use crate::requests::causes::{AnalysisOutcome, SnapshotAnalysis};
    use crate::requests::schedule::{Growth, REPORT_WITHIN};
    use crate::requests::snapshot::{SnapshotOutcome, SnapshotReport};
    use crate::requests::tracker::{LISTED_MAX, SnapshotReason};
    use stepmem_detect::Signal;
    use stepmem_types::ids::{Rank, RankId, Run};
    use stepmem_types::site::{LeakSite, SiteVerdict};
    use stepmem_types::units::Uptime;

    fn snapshots() -> Snapshots {
        let read_directory = Some("/snapshots".into());
        Snapshots::new(SnapshotSettings {
            on_creep: true,
            read_directory,
            ..SnapshotSettings::default()
        })
    }

    fn who(rank: u64) -> RankId {
        RankId { run: Run::new("llm").unwrap(), rank: Rank::new(rank).unwrap() }
    }

    fn at(seconds: u64) -> Uptime {
        Uptime(Duration::from_secs(seconds))
    }

    fn creeps(snapshots: &mut Snapshots, rank: u64, now: Uptime) {
        let rank = who(rank);
        let growth = Growth {
            rank: &rank,
            signal: Signal::Allocated,
            bytes_per_step: None,
            seconds_per_step: None,
            level_shifts: None,
        };
        snapshots.creeps(&growth, now);
    }

    /// The ids of what ranks 3 and 4 are asked for.
    fn asks(snapshots: &Snapshots) -> Vec<(u64, Box<str>)> {
        let asked = snapshots.requests.waiting(|_, _| true);
        asked.map(|ask| (ask.rank.rank.get().into(), ask.id)).collect()
    }

    fn report(rank: u64, id: Option<&str>, outcome: SnapshotOutcome) -> SnapshotReport {
        SnapshotReport {
            rank: who(rank),
            instance: None,
            id: id.map(Into::into),
            reason: SnapshotReason::Creep,
            step: None,
            outcome,
            owner: None,
        }
    }

    fn failed() -> SnapshotOutcome {
        SnapshotOutcome::Failed { error: "no".into() }
    }

    fn written(file: &str) -> SnapshotOutcome {
        let path = format!("/app/{file}").into();
        SnapshotOutcome::Written { path, file: Some(file.into()), bytes: None }
    }

    fn result(snapshots: &Snapshots, name: &str) -> u64 {
        snapshots.requests.outcomes().find(|(label, _)| *label == name).unwrap().1
    }

    #[test]
    fn growing_rank_is_asked_until_it_begins_and_the_next_one_once_it_has_reported() {
        let mut snapshots = snapshots();
        creeps(&mut snapshots, 3, at(0));
        creeps(&mut snapshots, 4, at(1));
        let [(3, id)] = &asks(&snapshots)[..] else { panic!("{:?}", asks(&snapshots)) };
        let id = id.clone();
        snapshots.take(
            report(3, Some(&id), SnapshotOutcome::Recording { events_per_step: None }),
            at(2),
        );
        assert_eq!(asks(&snapshots), []);
        snapshots.take(report(3, Some(&id), failed()), at(3));
        // A report that was overtaken changes nothing.
        snapshots.take(
            report(3, Some(&id), SnapshotOutcome::Recording { events_per_step: None }),
            at(4),
        );
        assert_eq!(snapshots.requests.iter().next().unwrap().of.outcome, failed());
        assert_eq!(asks(&snapshots).len(), 1);
        assert_eq!(asks(&snapshots)[0].0, 4);
        assert_eq!((result(&snapshots, "failed"), result(&snapshots, "limited")), (1, 0));
    }

    #[test]
    fn written_snapshot_is_analyzed_and_one_that_is_too_short_asked_for_again() {
        let mut snapshots = snapshots();
        creeps(&mut snapshots, 3, at(0));
        let (_, id) = asks(&snapshots)[0].clone();
        snapshots.take(report(3, Some(&id), written("a.pickle")), at(5));
        let request = snapshots.next_analysis().unwrap();
        assert_eq!((&*request.file, snapshots.next_analysis()), ("a.pickle", None));
        let leak = LeakSite::without_line(SiteVerdict::InsufficientHistory, 3);
        let outcome = AnalysisOutcome::Analysed;
        let analysis =
            SnapshotAnalysis { leak: Some(leak), ..SnapshotAnalysis::failed(outcome, "") };
        let found = snapshots.analyzed(request.number, &analysis, at(6)).unwrap();
        assert_eq!((found.rank, found.since), (who(3), at(0)));
        let again = snapshots.requests.waiting(|rank, _| *rank == who(3));
        assert_eq!(again.map(|ask| ask.steps).collect::<Vec<_>>(), [60]);
        assert_eq!(snapshots.analyses().find(|(label, _)| *label == "analysed").unwrap().1, 1);
    }

    #[test]
    fn rank_that_does_not_report_in_time_is_given_up() {
        let mut snapshots = snapshots();
        creeps(&mut snapshots, 3, at(0));
        snapshots.expire(|_, _| true, Uptime(REPORT_WITHIN));
        assert_eq!(asks(&snapshots).len(), 1);
        // Twice the 20 steps of a second that are assumed.
        snapshots.expire(|_, _| true, Uptime(REPORT_WITHIN + Duration::from_secs(41)));
        assert_eq!((asks(&snapshots).len(), result(&snapshots, "unanswered")), (0, 1));
    }

    #[test]
    fn no_rank_is_asked_unless_the_setting_says_so_but_on_demand() {
        let mut snapshots = snapshots();
        snapshots.settings.on_creep = false;
        creeps(&mut snapshots, 3, at(0));
        assert_eq!(asks(&snapshots), []);
        let id = snapshots.want(&who(3), Some(5), at(1));
        assert_eq!(snapshots.want(&who(3), None, at(2)), id);
        assert_eq!(asks(&snapshots), [(3, id)]);
    }

    #[test]
    fn no_number_of_reports_pushes_out_a_request() {
        let mut snapshots = snapshots();
        creeps(&mut snapshots, 3, at(0));
        for rank in 100..300 {
            snapshots.take(report(rank, None, failed()), at(1));
        }
        assert_eq!(snapshots.requests.waiting(|rank, _| *rank == who(3)).count(), 1);
        assert_eq!(snapshots.requests.iter().count(), LISTED_MAX);
    }

    #[test]
    fn the_list_forgets_the_oldest() {
        let mut snapshots = snapshots();
        for rank in 0..=LISTED_MAX {
            let rank = u64::try_from(rank).unwrap();
            snapshots.take(report(rank, None, failed()), at(0));
        }
        assert_eq!(snapshots.requests.iter().count(), LISTED_MAX);
        assert_eq!(snapshots.requests.iter().next().unwrap().rank.rank.get(), 1);
    }
}
