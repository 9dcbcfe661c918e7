//! Looks at the live objects of a rank that grows: who is asked to look at which of its tensors are kept, and what became
//! of that. The training process looks.

use std::collections::VecDeque;
use std::time::Duration;

use crate::analysis::episodes::{AskPlan, EpisodeSettings, EpisodeStep, Episodes, Growth};
use crate::analysis::sites::{HoldersOutcome, HoldersReport};
use crate::model::ids::{RankId, Run};
use crate::model::units::Uptime;

/// How many looks are known at most; the oldest is forgotten.
pub const LOOKS_MAX: usize = 64;
/// Steps between the two looks of one request, at the least.
const STEPS: u32 = 20;
/// Creeps that a run is asked about at most: a look costs little.
const RUN_MAX: u32 = 8;
const COOLDOWN: Duration = Duration::from_mins(10);

/// A request to look at live objects.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LookRequest {
    /// What its report names.
    pub id: Box<str>,
    pub rank: RankId,
    /// Steps between the two looks, at the least.
    pub steps: u32,
}

/// What became of a look.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LookState {
    /// The rank was asked.
    Waiting,
    /// It has begun to look.
    Began,
    Over,
}

#[derive(Debug)]
struct Look {
    request: LookRequest,
    since: Uptime,
    deadline: Uptime,
    state: LookState,
}

/// The looks of all runs.
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
    /// No look so far; `is_on`: whether growth asks for one.
    pub fn new(is_on: bool) -> Self {
        let settings = EpisodeSettings { steps: STEPS, run_max: RUN_MAX, cooldown: COOLDOWN };
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

    /// Takes growth of a rank, which is asked to look unless its run has had enough.
    pub fn creeps(&mut self, growth: &Growth<'_>, now: Uptime) {
        if !self.is_on {
            return;
        }
        match self.episodes.grows(growth, now) {
            EpisodeStep::Ask(plan) => self.ask(growth.rank, plan, now),
            EpisodeStep::Known => self.ask_next(&growth.rank.run, now),
            EpisodeStep::Limited | EpisodeStep::TooLong { .. } => {}
        }
    }

    /// Returns what these ranks are asked for; the same until they begin, since an answer may get lost.
    pub fn requests(&self, ranks: &[RankId]) -> Vec<LookRequest> {
        let waiting = self.listed.iter().filter(|look| look.state == LookState::Waiting);
        let requests = waiting.map(|look| &look.request);
        requests.filter(|request| ranks.contains(&request.rank)).cloned().collect()
    }

    /// Takes a report. Returns since when what it names is known: when the rank was asked, or now.
    pub fn take(&mut self, report: &HoldersReport, now: Uptime) -> Uptime {
        let look = self.listed.iter_mut().find(|look| {
            report.id.as_deref() == Some(&*look.request.id) && look.request.rank == report.rank
        });
        let since = look.as_ref().map_or(now, |look| look.since);
        let is_over = report.outcome != HoldersOutcome::Began;
        if let Some(look) = look {
            if look.state == LookState::Over {
                return since;
            }
            look.state = if is_over { LookState::Over } else { LookState::Began };
        }
        match &report.outcome {
            HoldersOutcome::Began => {}
            HoldersOutcome::Named(_) => self.n_named += 1,
            HoldersOutcome::Nothing => self.n_none += 1,
            HoldersOutcome::GaveUp { .. } => self.n_gave_up += 1,
            HoldersOutcome::Failed { .. } => self.n_failed += 1,
        }
        if is_over {
            self.ask_next(&report.rank.run, now);
        }
        since
    }

    /// Gives up looks that have waited too long.
    pub fn expire(&mut self, now: Uptime) {
        let mut runs = Vec::new();
        for look in &mut self.listed {
            if look.state != LookState::Over && now > look.deadline {
                look.state = LookState::Over;
                self.n_unanswered += 1;
                runs.push(look.request.rank.run.clone());
            }
        }
        for run in runs {
            self.ask_next(&run, now);
        }
    }

    /// Returns how many there were by what became of them.
    pub fn results(&self) -> [(&'static str, u64); 5] {
        [
            ("failed", self.n_failed),
            ("gave_up", self.n_gave_up),
            ("named", self.n_named),
            ("none", self.n_none),
            ("unanswered", self.n_unanswered),
        ]
    }

    fn ask(&mut self, rank: &RankId, plan: AskPlan, now: Uptime) {
        if self.listed.len() >= LOOKS_MAX {
            self.listed.pop_front();
        }
        self.n_asked += 1;
        // The time keeps ids of an earlier exporter apart.
        let id = format!("{}-h{}", now.0.as_millis(), self.n_asked).into();
        let request = LookRequest { id, rank: rank.clone(), steps: plan.steps };
        let deadline = Uptime(now.0 + plan.allowance());
        self.listed.push_back(Look {
            request,
            since: now,
            deadline,
            state: LookState::Waiting,
        });
    }

    /// Asks the rank that is next about a run's growth, once no rank of the run is to report.
    fn ask_next(&mut self, run: &Run, now: Uptime) {
        let is_busy = self
            .listed
            .iter()
            .any(|look| look.state != LookState::Over && look.request.rank.run == *run);
        if !is_busy && let Some((rank, plan)) = self.episodes.next(run) {
            self.ask(&rank, plan, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Looks;
    use crate::analysis::episodes::Growth;
    use crate::analysis::sites::{HoldersOutcome, HoldersReport};
    use crate::model::ids::{Rank, RankId, Run};
    use crate::model::units::Uptime;

    #[test]
    fn rank_is_asked_until_it_begins_and_its_report_is_dated_by_the_request() {
        let rank = RankId { run: Run::new("llm").unwrap(), rank: Rank::new(3).unwrap() };
        let at = |seconds| Uptime(Duration::from_secs(seconds));
        let growth =
            Growth { rank: &rank, bytes_per_step: None, seconds_per_step: None, stairs: None };
        let mut looks = Looks::new(true);
        looks.creeps(&growth, at(1));
        let asked = looks.requests(std::slice::from_ref(&rank));
        let [request] = &asked[..] else { panic!("{asked:?}") };
        let report = |outcome| HoldersReport {
            rank: rank.clone(),
            instance: None,
            id: Some(request.id.clone()),
            outcome,
            first_step: None,
            last_step: None,
        };
        assert_eq!(looks.take(&report(HoldersOutcome::Began), at(2)), at(1));
        assert_eq!(looks.requests(std::slice::from_ref(&rank)), []);
        assert_eq!(looks.take(&report(HoldersOutcome::Nothing), at(3)), at(1));
        looks.expire(at(100_000));
        let results = looks.results();
        assert!(results.contains(&("none", 1)) && results.contains(&("unanswered", 0)));
    }
}
