//! Heap-scan requests to ranks that grow: who is asked to find out which of its tensors are
//! kept, and the outcome. The training process scans.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::requests::causes::{HoldersOutcome, HoldersReport};
use crate::requests::schedule::{
    AskPlan, EpisodeSettings, EpisodeStep, Episodes, Growth, SavedEpisodes,
};
use stepmem_types::ids::{RankId, Run};
use stepmem_types::units::Uptime;

/// Number of heap scans that are known at most; the oldest is forgotten.
pub const LOOKS_MAX: usize = 64;
/// Steps between the two scans of one request, at the least.
const STEPS: u32 = 20;
/// Heap scans of a run, at most: enough for a week, and each costs some 40 ms.
const RUN_MAX: u32 = 1000;
/// Periods of growth in level shifts that lie between the two scans. The objects that grew are
/// then watched for two more.
const PERIODS: f64 = 1.0;

/// A heap-scan request.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct LookRequest {
    /// The id that its report names.
    pub id: Box<str>,
    pub rank: RankId,
    /// Steps between the two scans, at the least.
    pub steps: u32,
    /// Growth of the memory that it is about, and whether that is the host's; known when the
    /// rank is asked.
    #[serde(skip)]
    pub bytes_per_step: Option<f64>,
    #[serde(skip)]
    pub is_on_host: bool,
}

/// The outcome of a heap scan.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum LookState {
    /// The rank was asked.
    Waiting,
    /// It has begun to scan.
    Began,
    Over,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Look {
    request: LookRequest,
    since: Uptime,
    deadline: Uptime,
    state: LookState,
    /// Set when it was asked for before the growth was a finding.
    is_early: bool,
}

impl Look {
    /// Returns whether a report answers it.
    fn is_of(&self, report: &HoldersReport) -> bool {
        report.id.as_deref() == Some(&*self.request.id) && self.request.rank == report.rank
    }
}

/// Heap scans that outlast a restart.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct SavedLooks {
    listed: Vec<Look>,
    episodes: SavedEpisodes,
}

/// The heap scans of all runs.
#[derive(Debug)]
pub struct Looks {
    is_on: bool,
    episodes: Episodes,
    // Invariant: at most LOOKS_MAX.
    listed: VecDeque<Look>,
    n_asked: u64,
    n_named: u64,
    n_none: u64,
    n_gave_up: u64,
    n_failed: u64,
    n_unanswered: u64,
}

impl Looks {
    /// Creates an empty list; `is_on`: whether growth asks for a heap scan.
    pub fn new(is_on: bool, cooldown: Duration) -> Self {
        let settings =
            EpisodeSettings { steps: STEPS, periods: PERIODS, run_max: RUN_MAX, cooldown };
        Self {
            is_on,
            episodes: Episodes::new(settings),
            listed: VecDeque::new(),
            n_asked: 0,
            n_named: 0,
            n_none: 0,
            n_gave_up: 0,
            n_failed: 0,
            n_unanswered: 0,
        }
    }

    /// Takes suspected growth of a rank. The rank is asked for a heap scan, so that the holder
    /// is known when the growth is a finding.
    pub fn suspects(&mut self, growth: &Growth<'_>, now: Uptime) {
        self.grows(growth, true, now);
    }

    /// Takes growth of a rank whose incarnation began at `began`, at the growth's beginning and
    /// while it lasts. The rank is asked for a heap scan unless one goes on, or its run has had
    /// enough.
    pub fn creeps(&mut self, growth: &Growth<'_>, began: Option<Uptime>, now: Uptime) {
        if began.is_some_and(|began| self.were_of_earlier_lives(growth.rank, began)) {
            self.episodes.forget(growth.rank);
        }
        self.grows(growth, false, now);
    }

    fn grows(&mut self, growth: &Growth<'_>, is_early: bool, now: Uptime) {
        let goes_on =
            |look: &Look| look.state != LookState::Over && look.request.rank == *growth.rank;
        if !self.is_on || self.listed.iter().any(goes_on) {
            return;
        }
        match self.episodes.grows(growth, now) {
            EpisodeStep::Ask(plan) => {
                self.ask(growth.rank, plan, now);
                if let Some(asked) = self.listed.back_mut() {
                    asked.is_early = is_early;
                }
            }
            EpisodeStep::Known => self.ask_next(&growth.rank.run, now),
            EpisodeStep::Limited | EpisodeStep::TooLong { .. } => {}
        }
    }

    /// Returns whether a rank was asked, and only before its incarnation began: its present
    /// holders are not known.
    fn were_of_earlier_lives(&self, rank: &RankId, began: Uptime) -> bool {
        let mut looks = self.listed.iter().filter(|look| look.request.rank == *rank).peekable();
        looks.peek().is_some() && looks.all(|look| look.since < began)
    }

    /// Returns the requests to the ranks for which `is_wanted` is true, by the rank and the
    /// time of the request. They stay the same until the ranks begin, since an answer may get
    /// lost.
    pub fn requests(&self, is_wanted: impl Fn(&RankId, Uptime) -> bool) -> Vec<LookRequest> {
        let waiting = self.listed.iter().filter(|look| look.state == LookState::Waiting);
        let wanted = waiting.filter(|look| is_wanted(&look.request.rank, look.since));
        wanted.map(|look| look.request.clone()).collect()
    }

    /// Takes a report. Returns since when what it names is known: when the rank was asked, or
    /// now.
    pub fn take(&mut self, report: &HoldersReport, now: Uptime) -> Uptime {
        let look = self.listed.iter_mut().find(|look| look.is_of(report));
        let since = look.as_ref().map_or(now, |look| look.since);
        let is_over = report.outcome != HoldersOutcome::Began;
        if let Some(look) = look {
            if look.state == LookState::Over {
                return since;
            }
            look.state = if is_over { LookState::Over } else { LookState::Began };
            let is_named = matches!(report.outcome, HoldersOutcome::Named(_));
            if is_over && look.is_early && !is_named {
                self.episodes.close(&report.rank.run);
            }
        }
        match &report.outcome {
            HoldersOutcome::Began => {}
            HoldersOutcome::Named(holders) => {
                self.n_named += 1;
                // A bound withholds the page of its own rank alone.
                if holders.first().is_some_and(|holder| holder.fill.is_some()) {
                    self.episodes.ask_each(&report.rank.run);
                }
            }
            HoldersOutcome::Nothing => self.n_none += 1,
            HoldersOutcome::GaveUp { .. } => self.n_gave_up += 1,
            HoldersOutcome::Failed { .. } => self.n_failed += 1,
        }
        if is_over {
            self.ask_next(&report.rank.run, now);
        }
        since
    }

    /// Gives up heap scans that have waited too long, and those whose process has gone, where
    /// `is_present` is false.
    pub fn expire(&mut self, is_present: impl Fn(&RankId, Uptime) -> bool, now: Uptime) {
        let mut runs = Vec::new();
        for look in &mut self.listed {
            if look.state == LookState::Over {
                continue;
            }
            if now > look.deadline || !is_present(&look.request.rank, look.since) {
                look.state = LookState::Over;
                self.n_unanswered += 1;
                runs.push(look.request.rank.run.clone());
            }
        }
        for run in runs {
            self.ask_next(&run, now);
        }
    }

    /// Returns how many there were by outcome.
    pub fn results(&self) -> [(&'static str, u64); 5] {
        [
            ("failed", self.n_failed),
            ("gave_up", self.n_gave_up),
            ("named", self.n_named),
            ("none", self.n_none),
            ("unanswered", self.n_unanswered),
        ]
    }

    /// Returns what outlasts a restart.
    pub fn saved(&self) -> SavedLooks {
        let listed = self.listed.iter().cloned().collect();
        SavedLooks { listed, episodes: self.episodes.saved() }
    }

    /// Goes on where an earlier exporter stood, unless the settings no longer want it.
    pub fn resume(&mut self, saved: SavedLooks) {
        self.episodes.resume(saved.episodes);
        if self.is_on {
            self.listed = saved.listed.into_iter().take(LOOKS_MAX).collect();
        }
    }

    fn ask(&mut self, rank: &RankId, plan: AskPlan, now: Uptime) {
        if self.listed.len() >= LOOKS_MAX {
            self.listed.pop_front();
        }
        self.n_asked += 1;
        // The time keeps ids of an earlier exporter apart.
        let id = format!("{}-h{}", now.0.as_millis(), self.n_asked).into();
        let request = LookRequest {
            id,
            rank: rank.clone(),
            steps: plan.steps,
            bytes_per_step: None,
            is_on_host: false,
        };
        let deadline = Uptime(now.0 + plan.allowance());
        self.listed.push_back(Look {
            request,
            since: now,
            deadline,
            state: LookState::Waiting,
            is_early: false,
        });
    }

    /// Asks the rank that is next about a run's growth, once no rank of the run is to report.
    fn ask_next(&mut self, run: &Run, now: Uptime) {
        let is_busy = self
            .listed
            .iter()
            .any(|look| look.state != LookState::Over && look.request.rank.run == *run);
        if !is_busy && let Some((rank, plan)) = self.episodes.next(run, now) {
            self.ask(&rank, plan, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{LookRequest, Looks};
    use crate::requests::causes::{HoldersOutcome, HoldersReport, LOOKS_COOLDOWN};
    use crate::requests::schedule::Growth;
    use stepmem_types::ids::{Rank, RankId, Run};
    use stepmem_types::site::{Fill, SiteText, TensorHolder};
    use stepmem_types::units::{Bytes, Count, Uptime};

    fn rank() -> RankId {
        RankId { run: Run::new("llm").unwrap(), rank: Rank::new(3).unwrap() }
    }

    fn at(seconds: u64) -> Uptime {
        Uptime(Duration::from_secs(seconds))
    }

    /// Lets the rank, whose incarnation began at a second, grow.
    fn creep(looks: &mut Looks, began: u64, seconds: u64) {
        let rank = rank();
        let growth =
            Growth { rank: &rank, bytes_per_step: None, seconds_per_step: None, stairs: None };
        looks.creeps(&growth, Some(at(began)), at(seconds));
    }

    fn bounded() -> TensorHolder {
        let count = |n| Count::new(n).unwrap();
        TensorHolder {
            name: SiteText::new("`replay`").unwrap(),
            kind: SiteText::new("deque").unwrap(),
            at: None,
            tensors: count(1),
            bytes: Bytes::new(8).unwrap(),
            tensors_per_step: 1.0,
            bytes_per_step: 8.0,
            step: None,
            since_step: None,
            fill: Some(Fill {
                items: count(1),
                items_max: count(9),
                items_per_step: 1.0,
                is_own: true,
            }),
        }
    }

    fn report(request: &LookRequest, outcome: HoldersOutcome) -> HoldersReport {
        HoldersReport {
            rank: rank(),
            instance: None,
            is_known: false,
            id: Some(request.id.clone()),
            outcome,
            first_step: None,
            last_step: None,
        }
    }

    #[test]
    fn figures_are_renewed_every_ten_minutes_while_growth_lasts() {
        let mut looks = Looks::new(true, LOOKS_COOLDOWN);
        let mut asked_at = Vec::new();
        for seconds in (0..3600).step_by(60) {
            creep(&mut looks, 0, seconds);
            for request in looks.requests(|_, _| true) {
                asked_at.push(seconds);
                looks.take(&report(&request, HoldersOutcome::Nothing), at(seconds));
            }
        }
        assert_eq!(asked_at, [0, 600, 1200, 1800, 2400, 3000]);
    }

    #[test]
    fn rank_that_restarted_is_asked_again_at_once_and_then_every_ten_minutes() {
        let mut looks = Looks::new(true, LOOKS_COOLDOWN);
        let mut asked_at = Vec::new();
        for seconds in (0..1800).step_by(60) {
            // The incarnation that began at the start ends after its heap scan has begun.
            let began = if seconds < 120 { 0 } else { 100 };
            looks.expire(|_, since| since >= at(began), at(seconds));
            creep(&mut looks, began, seconds);
            for request in looks.requests(|_, _| true) {
                asked_at.push(seconds);
                let is_cut = seconds == 0;
                let outcome =
                    if is_cut { HoldersOutcome::Began } else { HoldersOutcome::Nothing };
                looks.take(&report(&request, outcome), at(seconds));
            }
        }
        assert_eq!(asked_at, [0, 120, 600, 1200]);
        assert!(looks.results().contains(&("unanswered", 1)));
    }

    #[test]
    fn each_rank_of_a_run_with_a_bound_is_asked_once_in_ten_minutes() {
        let mut looks = Looks::new(true, LOOKS_COOLDOWN);
        let run = Run::new("llm").unwrap();
        let ranks: Vec<RankId> =
            (0..5).map(|n| RankId { run: run.clone(), rank: Rank::new(n).unwrap() }).collect();
        let mut asked_at = vec![Vec::new(); ranks.len()];
        for seconds in (0..2400).step_by(60) {
            for rank in &ranks {
                let growth =
                    Growth { rank, bytes_per_step: None, seconds_per_step: None, stairs: None };
                looks.creeps(&growth, Some(at(0)), at(seconds));
            }
            // A report may let the next rank be asked at once.
            while let Some(request) = looks.requests(|_, _| true).pop() {
                let rank = request.rank.clone();
                let idx = ranks.iter().position(|of| *of == rank).unwrap();
                asked_at[idx].push(seconds);
                let outcome = HoldersOutcome::Named(vec![bounded()]);
                looks.take(&HoldersReport { rank, ..report(&request, outcome) }, at(seconds));
            }
        }
        for asked_at in &asked_at {
            assert!((4..=5).contains(&asked_at.len()), "{asked_at:?}");
            let mut pauses = asked_at.iter().zip(&asked_at[1..]).map(|(a, b)| b - a);
            assert!(pauses.all(|pause| pause >= 600), "{asked_at:?}");
        }
    }

    #[test]
    fn rank_is_asked_until_it_begins_and_its_report_is_dated_by_the_request() {
        let mut looks = Looks::new(true, LOOKS_COOLDOWN);
        creep(&mut looks, 0, 1);
        let asked = looks.requests(|of, _| *of == rank());
        let [request] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!(looks.take(&report(request, HoldersOutcome::Began), at(2)), at(1));
        assert_eq!(looks.requests(|of, _| *of == rank()), []);
        assert_eq!(looks.take(&report(request, HoldersOutcome::Nothing), at(3)), at(1));
        looks.expire(|_, _| true, at(100_000));
        let results = looks.results();
        assert!(results.contains(&("none", 1)) && results.contains(&("unanswered", 0)));
    }
}
