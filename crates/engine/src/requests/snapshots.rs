//! The memory snapshots of all ranks: requested, reported, and passed on for analysis. The
//! training process takes and writes them; another process reads them.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::requests::causes::{
    AnalysisOutcome, AnalysisRequest, Cause, FoundCause, SnapshotAnalysis, TimelineOutcome,
};
use crate::requests::schedule::{
    AskPlan, EpisodeSettings, EpisodeStep, Episodes, Growth, REPORT_WITHIN, STEPS_MAX,
    SavedEpisodes,
};
use crate::requests::snapshot::{
    AnalysisState, Capture, CaptureOutcome, CaptureReason, CaptureReport, CaptureRequest,
};
use stepmem_types::ids::{RankId, Run};
use stepmem_types::site::SiteVerdict;
use stepmem_types::units::Uptime;

/// Number of snapshots that are listed at most; the oldest that no rank is asked for leaves.
pub const LISTED_MAX: usize = 64;
/// Periods of growth in level shifts that a recording must hold.
const PERIODS: f64 = 3.0;

/// When ranks are asked, and what is read.
#[derive(Clone, Debug)]
pub struct CaptureSettings {
    /// Set when MEMORY RISING and MEMORY CREEP ask for one.
    pub on_creep: bool,
    pub episodes: EpisodeSettings,
    /// The directory that training processes write below, as the exporter sees it; `None` reads
    /// nothing.
    pub read_directory: Option<PathBuf>,
    /// The directory of timelines; `None` draws none.
    pub timeline_directory: Option<PathBuf>,
}

impl Default for CaptureSettings {
    fn default() -> Self {
        let cooldown = Duration::from_hours(1);
        let episodes = EpisodeSettings { steps: 20, periods: PERIODS, run_max: 3, cooldown };
        Self { on_creep: false, episodes, read_directory: None, timeline_directory: None }
    }
}

/// Snapshots that outlast a restart.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct SavedCaptures {
    listed: Vec<Capture>,
    episodes: SavedEpisodes,
}

/// The snapshots of all runs.
#[derive(Debug)]
pub struct Captures {
    settings: CaptureSettings,
    // Invariant: at most LISTED_MAX.
    listed: VecDeque<Capture>,
    episodes: Episodes,
    /// Snapshots that another process shall analyze. Invariant: at most [`LISTED_MAX`].
    to_analyse: VecDeque<AnalysisRequest>,
    n_listed: u64,
    n_written: u64,
    n_failed: u64,
    n_unanswered: u64,
    n_limited: u64,
    n_analyses: [u64; AnalysisOutcome::ALL.len()],
    n_timelines: TimelineCounts,
}

#[derive(Clone, Copy, Debug, Default)]
struct TimelineCounts {
    written: u64,
    failed: u64,
    removed: u64,
}

impl Captures {
    pub fn new(settings: CaptureSettings) -> Self {
        Self {
            episodes: Episodes::new(settings.episodes),
            settings,
            listed: VecDeque::new(),
            to_analyse: VecDeque::new(),
            n_listed: 0,
            n_written: 0,
            n_failed: 0,
            n_unanswered: 0,
            n_limited: 0,
            n_analyses: [0; AnalysisOutcome::ALL.len()],
            n_timelines: TimelineCounts::default(),
        }
    }

    /// Takes growth of a rank, which is asked for a snapshot unless its run has had enough.
    pub fn creeps(&mut self, growth: &Growth<'_>, now: Uptime) {
        if !self.settings.on_creep {
            return;
        }
        match self.episodes.grows(growth, now) {
            EpisodeStep::Ask(plan) => {
                self.ask(CaptureReport::of_creep(growth.rank), plan, now);
            }
            EpisodeStep::Known => self.ask_next(&growth.rank.run, now),
            EpisodeStep::Limited => self.n_limited += 1,
            EpisodeStep::TooLong { period } => self.decline(growth.rank, period, now),
        }
    }

    /// Asks a rank for a snapshot because an operator wants it. Returns the id of the request,
    /// that of the open one if the rank was asked already.
    pub fn demand(&mut self, rank: &RankId, steps: Option<u32>, now: Uptime) -> Box<str> {
        let mut listed = self.listed.iter().map(|listed| &listed.report);
        let open = listed.find(|report| report.outcome.is_open() && report.rank == *rank);
        if let Some(id) = open.and_then(|report| report.id.clone()) {
            return id;
        }
        let plan = AskPlan::of_steps(steps.unwrap_or(self.settings.episodes.steps));
        let asked = CaptureReport::asked(rank.clone(), CaptureReason::Manual);
        self.ask(asked, plan, now)
    }

    /// Lists that a rank is not asked, since its growth comes in level shifts too far apart;
    /// once.
    fn decline(&mut self, rank: &RankId, period: f64, now: Uptime) {
        let error = format!(
            "not asked: growth comes every {period:.0} steps, and three of these exceed the {STEPS_MAX} steps of a \
             recording"
        );
        let is_declined = |listed: &Capture| {
            let outcome = &listed.report.outcome;
            let is_failed = matches!(outcome, CaptureOutcome::Failed { error } if error.starts_with("not asked"));
            is_failed && listed.report.rank == *rank
        };
        if !self.listed.iter().any(is_declined) {
            self.n_limited += 1;
            let outcome = CaptureOutcome::Failed { error: error.into() };
            let asked = CaptureReport::of_creep(rank);
            self.list(CaptureReport { outcome, ..asked }, 0, [now, now]);
        }
    }

    /// Lists a request. Returns its id.
    fn ask(&mut self, asked: CaptureReport, plan: AskPlan, now: Uptime) -> Box<str> {
        // The time keeps ids of an earlier exporter apart.
        let id: Box<str> = format!("{}-{}", now.0.as_millis(), self.n_listed + 1).into();
        let report = CaptureReport { id: Some(id.clone()), ..asked };
        self.list(report, plan.steps, [now, Uptime(now.0 + plan.allowance())]);
        id
    }

    /// Asks the rank that is next about a run's growth, once no rank of the run is to report.
    fn ask_next(&mut self, run: &Run, now: Uptime) {
        let mut listed = self.listed.iter().map(|listed| &listed.report);
        let is_busy = listed.any(|report| report.outcome.is_open() && report.rank.run == *run);
        if !is_busy && let Some((rank, plan)) = self.episodes.next(run, now) {
            self.ask(CaptureReport::of_creep(&rank), plan, now);
        }
    }

    /// Returns the requests to the ranks for which `is_wanted` is true, by the rank and the
    /// time of the request. They stay the same until the ranks report, since an answer may get
    /// lost.
    pub fn requests(&self, is_wanted: impl Fn(&RankId, Uptime) -> bool) -> Vec<CaptureRequest> {
        let waiting = self
            .listed
            .iter()
            .filter(|listed| listed.report.outcome == CaptureOutcome::Waiting)
            .filter(|listed| is_wanted(&listed.report.rank, listed.since));
        waiting
            .filter_map(|listed| {
                Some(CaptureRequest {
                    id: listed.report.id.clone()?,
                    rank: listed.report.rank.clone(),
                    reason: listed.report.reason,
                    steps: listed.steps,
                })
            })
            .collect()
    }

    /// Takes a report; it settles the request that it names, or is listed as new.
    pub fn take(&mut self, report: CaptureReport, now: Uptime) {
        match report.outcome {
            CaptureOutcome::Written { .. } => self.n_written += 1,
            CaptureOutcome::Failed { .. } => self.n_failed += 1,
            CaptureOutcome::Recording { .. }
            | CaptureOutcome::Unanswered
            | CaptureOutcome::Waiting => {}
        }
        let is_over = !report.outcome.is_open();
        let run = report.rank.run.clone();
        let request = self.listed.iter_mut().find(|listed| {
            let of = &listed.report;
            of.id.is_some() && of.id == report.id && of.rank == report.rank
        });
        let number = match request {
            // A report that was overtaken by the one after it adds nothing new.
            Some(listed) if !is_over && !listed.report.outcome.is_open() => return,
            Some(listed) => {
                if !is_over {
                    let allowance = listed.deadline.since(listed.since);
                    listed.deadline = Uptime(now.0 + allowance);
                }
                let reason = listed.report.reason;
                listed.report = CaptureReport { reason, ..report };
                listed.number
            }
            None => self.list(report, 0, [now, Uptime(now.0 + REPORT_WITHIN)]),
        };
        self.request_analysis(number);
        if is_over {
            self.ask_next(&run, now);
        }
    }

    /// Requests the analysis of a snapshot that was written.
    fn request_analysis(&mut self, number: u64) {
        if self.settings.read_directory.is_none() {
            return;
        }
        let Some(listed) = self.listed.iter_mut().find(|listed| listed.number == number) else {
            return;
        };
        let CaptureOutcome::Written { file: Some(file), .. } = &listed.report.outcome else {
            return;
        };
        if listed.analysis.is_none() && self.to_analyse.len() < LISTED_MAX {
            let (file, owner) = (file.clone(), listed.report.owner);
            self.to_analyse.push_back(AnalysisRequest { number, file, owner });
            listed.analysis = Some(AnalysisState::Waiting);
        }
    }

    /// Returns the next snapshot to analyze.
    pub fn next_analysis(&mut self) -> Option<AnalysisRequest> {
        self.to_analyse.pop_front()
    }

    /// Takes the result of an analysis. Returns the cause that it found; `None` for a snapshot
    /// that has left the list.
    pub fn analysed(
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
        let listed = self.listed.iter_mut().find(|listed| listed.number == number)?;
        let verdict = analysis.leak.as_ref().map(|leak| leak.verdict);
        let reason = analysis.reason.as_ref().map(ToString::to_string);
        listed.analysis = Some(AnalysisState::Over { outcome, reason, verdict, timeline });
        let (rank, since) = (listed.report.rank.clone(), listed.since);
        let is_about_growth = listed.report.reason == CaptureReason::Creep;
        let is_short = is_about_growth && verdict == Some(SiteVerdict::InsufficientHistory);
        if is_short && let Some(plan) = self.episodes.longer(&rank) {
            self.ask(CaptureReport::of_creep(&rank), plan, now);
        }
        Some(FoundCause { rank, cause: Cause::Snapshot(Box::new(analysis.clone())), since })
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
    pub fn awaits_analysis(&self) -> bool {
        self.listed.iter().any(|listed| listed.analysis == Some(AnalysisState::Waiting))
    }

    /// Gives up requests that have waited too long, and those whose process has gone, where
    /// `is_present` is false.
    pub fn expire(&mut self, is_present: impl Fn(&RankId, Uptime) -> bool, now: Uptime) {
        let mut runs = Vec::new();
        for listed in &mut self.listed {
            let is_gone = listed.report.outcome == CaptureOutcome::Waiting
                && !is_present(&listed.report.rank, listed.since);
            if is_gone || now > listed.deadline && listed.report.outcome.is_open() {
                listed.report.outcome = CaptureOutcome::Unanswered;
                self.n_unanswered += 1;
                runs.push(listed.report.rank.run.clone());
            }
        }
        for run in runs {
            self.ask_next(&run, now);
        }
    }

    /// Returns the snapshots that are listed, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Capture> {
        self.listed.iter()
    }

    /// Returns how many there were by outcome.
    pub fn results(&self) -> [(&'static str, u64); 4] {
        [
            ("failed", self.n_failed),
            ("limited", self.n_limited),
            ("unanswered", self.n_unanswered),
            ("written", self.n_written),
        ]
    }

    /// Returns how many were analyzed by the outcome; empty where none are read.
    pub fn analyses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let is_on = self.settings.read_directory.is_some();
        let labels = AnalysisOutcome::ALL.into_iter().map(AnalysisOutcome::as_label);
        labels.zip(self.n_analyses).filter(move |_| is_on)
    }

    /// Returns how many timelines there were by outcome; empty where none are
    /// drawn.
    pub fn timelines(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let is_on = self.settings.timeline_directory.is_some();
        let TimelineCounts { written, failed, removed } = self.n_timelines;
        let counts = [("failed", failed), ("removed", removed), ("written", written)];
        counts.into_iter().filter(move |_| is_on)
    }

    /// Returns what outlasts a restart.
    pub fn saved(&self) -> SavedCaptures {
        let listed = self.listed.iter().cloned().collect();
        SavedCaptures { listed, episodes: self.episodes.saved() }
    }

    /// Goes on where an earlier exporter stood. What waited for its analysis waits again; of
    /// what is no longer wanted by the settings, no rank is asked.
    pub fn resume(&mut self, saved: SavedCaptures) {
        self.episodes.resume(saved.episodes);
        for capture in saved.listed.into_iter().take(LISTED_MAX) {
            let Capture { number, report, analysis, .. } = &capture;
            let is_unwanted = report.reason == CaptureReason::Creep && !self.settings.on_creep;
            if report.outcome.is_open() && is_unwanted {
                continue;
            }
            let (number, is_waiting) = (*number, *analysis == Some(AnalysisState::Waiting));
            self.n_listed = self.n_listed.max(number);
            let analysis = analysis.clone().filter(|_| !is_waiting);
            self.listed.push_back(Capture { analysis, ..capture });
            if is_waiting {
                self.request_analysis(number);
            }
        }
    }

    /// Lists a snapshot from its beginning to its deadline. Returns its number.
    fn list(&mut self, report: CaptureReport, steps: u32, span: [Uptime; 2]) -> u64 {
        if self.listed.len() >= LISTED_MAX {
            let is_settled = |listed: &Capture| {
                use CaptureOutcome::{Recording, Waiting};
                !matches!(listed.report.outcome, Waiting | Recording { .. })
            };
            let oldest = self.listed.iter().position(is_settled).unwrap_or(0);
            self.listed.remove(oldest);
        }
        self.n_listed += 1;
        let [since, deadline] = span;
        let number = self.n_listed;
        self.listed.push_back(Capture {
            number,
            report,
            steps,
            since,
            deadline,
            analysis: None,
        });
        number
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CaptureSettings, Captures, LISTED_MAX};
    use crate::requests::causes::{AnalysisOutcome, SnapshotAnalysis};
    use crate::requests::schedule::{Growth, REPORT_WITHIN};
    use crate::requests::snapshot::{CaptureOutcome, CaptureReason, CaptureReport};
    use stepmem_types::ids::{Rank, RankId, Run};
    use stepmem_types::site::{LeakSite, SiteVerdict};
    use stepmem_types::units::Uptime;

    fn captures() -> Captures {
        let read_directory = Some("/snapshots".into());
        Captures::new(CaptureSettings {
            on_creep: true,
            read_directory,
            ..CaptureSettings::default()
        })
    }

    fn who(rank: u64) -> RankId {
        RankId { run: Run::new("llm").unwrap(), rank: Rank::new(rank).unwrap() }
    }

    fn at(seconds: u64) -> Uptime {
        Uptime(Duration::from_secs(seconds))
    }

    fn creeps(captures: &mut Captures, rank: u64, now: Uptime) {
        let rank = who(rank);
        let growth =
            Growth { rank: &rank, bytes_per_step: None, seconds_per_step: None, stairs: None };
        captures.creeps(&growth, now);
    }

    /// The ids of what ranks 3 and 4 are asked for.
    fn asks(captures: &Captures) -> Vec<(u64, Box<str>)> {
        let asked = captures.requests(|_, _| true).into_iter();
        asked.map(|ask| (ask.rank.rank.get().into(), ask.id)).collect()
    }

    fn report(rank: u64, id: Option<&str>, outcome: CaptureOutcome) -> CaptureReport {
        let asked = CaptureReport::asked(who(rank), CaptureReason::Creep);
        CaptureReport { id: id.map(Into::into), outcome, ..asked }
    }

    fn failed() -> CaptureOutcome {
        CaptureOutcome::Failed { error: "no".into() }
    }

    fn written(file: &str) -> CaptureOutcome {
        let path = format!("/app/{file}").into();
        CaptureOutcome::Written { path, file: Some(file.into()), bytes: None }
    }

    fn result(captures: &Captures, name: &str) -> u64 {
        captures.results().into_iter().find(|(label, _)| *label == name).unwrap().1
    }

    #[test]
    fn growing_rank_is_asked_until_it_begins_and_the_next_one_once_it_has_reported() {
        let mut captures = captures();
        creeps(&mut captures, 3, at(0));
        creeps(&mut captures, 4, at(1));
        let [(3, id)] = &asks(&captures)[..] else { panic!("{:?}", asks(&captures)) };
        let id = id.clone();
        captures.take(
            report(3, Some(&id), CaptureOutcome::Recording { events_per_step: None }),
            at(2),
        );
        assert_eq!(asks(&captures), []);
        captures.take(report(3, Some(&id), failed()), at(3));
        // A report that was overtaken changes nothing.
        captures.take(
            report(3, Some(&id), CaptureOutcome::Recording { events_per_step: None }),
            at(4),
        );
        assert_eq!(captures.iter().next().unwrap().report.outcome, failed());
        assert_eq!(asks(&captures).len(), 1);
        assert_eq!(asks(&captures)[0].0, 4);
        assert_eq!((result(&captures, "failed"), result(&captures, "limited")), (1, 0));
    }

    #[test]
    fn written_snapshot_is_analysed_and_one_that_is_too_short_asked_for_again() {
        let mut captures = captures();
        creeps(&mut captures, 3, at(0));
        let (_, id) = asks(&captures)[0].clone();
        captures.take(report(3, Some(&id), written("a.pickle")), at(5));
        let request = captures.next_analysis().unwrap();
        assert_eq!((&*request.file, captures.next_analysis()), ("a.pickle", None));
        let leak = LeakSite {
            verdict: SiteVerdict::InsufficientHistory,
            at: None,
            share_ratio: None,
            bytes_per_step: None,
            steps: 3,
            stack: Vec::new(),
        };
        let outcome = AnalysisOutcome::Analysed;
        let analysis =
            SnapshotAnalysis { leak: Some(leak), ..SnapshotAnalysis::failed(outcome, "") };
        let found = captures.analysed(request.number, &analysis, at(6)).unwrap();
        assert_eq!((found.rank, found.since), (who(3), at(0)));
        let again = captures.requests(|rank, _| *rank == who(3));
        assert_eq!(again.iter().map(|ask| ask.steps).collect::<Vec<_>>(), [60]);
        assert_eq!(captures.analyses().find(|(label, _)| *label == "analysed").unwrap().1, 1);
    }

    #[test]
    fn rank_that_does_not_report_in_time_is_given_up() {
        let mut captures = captures();
        creeps(&mut captures, 3, at(0));
        captures.expire(|_, _| true, Uptime(REPORT_WITHIN));
        assert_eq!(asks(&captures).len(), 1);
        // Twice the 20 steps of a second that are assumed.
        captures.expire(|_, _| true, Uptime(REPORT_WITHIN + Duration::from_secs(41)));
        assert_eq!((asks(&captures).len(), result(&captures, "unanswered")), (0, 1));
    }

    #[test]
    fn no_rank_is_asked_unless_the_setting_says_so_but_on_demand() {
        let mut captures = captures();
        captures.settings.on_creep = false;
        creeps(&mut captures, 3, at(0));
        assert_eq!(asks(&captures), []);
        let id = captures.demand(&who(3), Some(5), at(1));
        assert_eq!(captures.demand(&who(3), None, at(2)), id);
        assert_eq!(asks(&captures), [(3, id)]);
    }

    #[test]
    fn no_number_of_reports_pushes_out_a_request() {
        let mut captures = captures();
        creeps(&mut captures, 3, at(0));
        for rank in 100..300 {
            captures.take(report(rank, None, failed()), at(1));
        }
        assert_eq!(captures.requests(|rank, _| *rank == who(3)).len(), 1);
        assert_eq!(captures.iter().count(), LISTED_MAX);
    }

    #[test]
    fn the_list_forgets_the_oldest() {
        let mut captures = captures();
        for rank in 0..=LISTED_MAX {
            let rank = u64::try_from(rank).unwrap();
            captures.take(report(rank, None, failed()), at(0));
        }
        assert_eq!(captures.iter().count(), LISTED_MAX);
        assert_eq!(captures.iter().next().unwrap().report.rank.rank.get(), 1);
    }
}
