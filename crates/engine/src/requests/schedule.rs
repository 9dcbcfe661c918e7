//! The request schedule: who is asked for a memory snapshot, and for how many steps. One
//! schedule is for one creep of a run. The first rank that grows is asked. Once it has
//! reported, the one that grows fastest of the others is asked.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use stepmem_detect::Signal;
use stepmem_types::ids::{RankId, Run};
use stepmem_types::saved;
use stepmem_types::units::Uptime;

/// The most runs of which it is known what they were asked; the one asked longest ago is
/// forgotten.
pub(crate) const RUNS_MAX: usize = 1024;
/// A rank that was asked and has not reported this long after its steps will not. Its steps are
/// given twice the time that they take by its pace.
pub(crate) const REPORT_WITHIN: Duration = Duration::from_mins(10);
/// A rank is asked to record at most this many steps.
pub const STEPS_MAX: u32 = 1000;
/// Ranks of a run that are asked about one creep.
pub(crate) const GROWTH_RANKS_MAX: usize = 2;
/// Ranks of a run that are asked each for itself, once that was called for.
pub(crate) const EACH_RANKS_MAX: usize = 32;
/// Number of times that a rank is asked about one creep: again when the first recording was too
/// short.
pub(crate) const RANK_REQUESTS_MAX: u32 = 2;
/// A second recording is this much longer than the first.
const LONGER: u32 = 3;
/// Number of level shifts from which their distance is known.
const LEVEL_SHIFTS_MIN: usize = 3;
/// The pace of a rank whose pace is not known, in seconds a step.
const PACE_DEFAULT: f64 = 1.0;
/// The slowest pace that a deadline rests on, in seconds a step.
const PACE_SLOWEST: f64 = 600.0;

/// The limits on requests to runs.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleSettings {
    /// The least number of steps that a rank records.
    pub steps: u32,
    /// Periods of growth in level shifts that a recording must hold.
    pub periods: f64,
    /// Number of creeps that a run is asked about at most.
    pub run_max: u32,
    /// The time from the beginning of one to that of the next.
    pub cooldown: Duration,
}

// Same name as detect::explanations::Growth: that of a window, before anybody asks.
/// Growth of a rank that asks for a snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth<'a> {
    pub rank: &'a RankId,
    /// The memory that grows: the rank's own, or the host's next to a device.
    pub signal: Signal,
    /// The rate at which it grows.
    pub bytes_per_step: Option<f64>,
    /// The duration of its steps.
    pub seconds_per_step: Option<f64>,
    /// Number of level shifts in which it has grown, and their distance in steps.
    pub level_shifts: Option<(usize, f64)>,
}

/// The length of a rank's recording.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct RequestPlan {
    pub steps: u32,
    /// The duration of a step by its pace, or a guess.
    #[serde(deserialize_with = "saved::amounts")]
    pub seconds_per_step: f64,
}

/// The result of a rank's growth.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ScheduleStep {
    /// The rank is asked.
    Ask(RequestPlan),
    /// Another rank of the run is asked about the same, or this one was.
    Known,
    /// The run has had enough.
    Limited,
    /// No recording would be long enough.
    TooLong {
        /// Steps from one rise to the next.
        period: f64,
    },
}

/// Request schedules that outlast a restart.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct SavedSchedule(
    #[serde(deserialize_with = "saved::list::<_, _, RUNS_MAX>")] BTreeMap<Run, RunSchedule>,
);

/// The request schedules of all runs.
#[derive(Debug)]
pub(crate) struct RequestSchedule {
    settings: ScheduleSettings,
    // Invariant: at most RUNS_MAX.
    runs: BTreeMap<Run, RunSchedule>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct RunSchedule {
    n_growths: u32,
    began: Uptime,
    /// Set when the next may begin before its time.
    is_closed: bool,
    /// Set when every rank is asked for itself, and not the fastest for all.
    asks_each: bool,
    // Invariant: at most GROWTH_RANKS_MAX, where each is asked EACH_RANKS_MAX.
    #[serde(deserialize_with = "saved::list::<_, _, EACH_RANKS_MAX>")]
    ranks: Vec<AskedRank>,
    /// The rank that grows fastest of those that were not asked.
    next: Option<NextRank>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct AskedRank {
    rank: RankId,
    asked: Uptime,
    n_asks: u32,
    plan: RequestPlan,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct NextRank {
    rank: RankId,
    #[serde(deserialize_with = "saved::figures")]
    bytes_per_step: f64,
    plan: RequestPlan,
}

impl Growth<'_> {
    /// Returns the steps from one rise to the next, where growth comes in level shifts.
    fn period(&self) -> Option<f64> {
        let (_, distance) =
            self.level_shifts.filter(|(n_shifts, _)| *n_shifts >= LEVEL_SHIFTS_MIN)?;
        Some(distance).filter(|distance| distance.is_finite() && *distance > 1.0)
    }
}

impl AskedRank {
    fn of(rank: &RankId, plan: RequestPlan, asked: Uptime) -> Self {
        Self { rank: rank.clone(), asked, n_asks: 1, plan }
    }
}

impl RequestPlan {
    /// Plans a recording of a rank whose pace is not known.
    pub(crate) fn of_steps(steps: u32) -> Self {
        Self { steps: steps.clamp(1, STEPS_MAX), seconds_per_step: PACE_DEFAULT }
    }

    /// Returns the time after which an ask counts as unanswered.
    pub(crate) fn allowance(self) -> Duration {
        let pace = self.seconds_per_step.clamp(0.0, PACE_SLOWEST);
        let seconds = 2.0 * f64::from(self.steps) * pace;
        REPORT_WITHIN + Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }
}

impl RequestSchedule {
    pub(crate) fn new(settings: ScheduleSettings) -> Self {
        Self { settings, runs: BTreeMap::new() }
    }

    /// Returns the part that outlasts a restart.
    pub(crate) fn saved(&self) -> SavedSchedule {
        SavedSchedule(self.runs.clone())
    }

    /// Goes on where an earlier exporter stood.
    pub(crate) fn resume(&mut self, saved: SavedSchedule) {
        self.runs = saved.0.into_iter().take(RUNS_MAX).collect();
    }

    /// Takes growth of a rank: it begins a request schedule, or belongs to the one that its run
    /// is in.
    pub(crate) fn grows(&mut self, growth: &Growth<'_>, now: Uptime) -> ScheduleStep {
        let plan = match self.plan(growth) {
            Ok(plan) => plan,
            Err(period) => return ScheduleStep::TooLong { period },
        };
        let rank = growth.rank;
        if let Some(run) = self.runs.get_mut(&rank.run)
            && !run.is_closed
            && now.since(run.began) < self.settings.cooldown
        {
            if run.asks_each {
                return run.ask_itself(AskedRank::of(rank, plan, now), self.settings.cooldown);
            }
            let bytes_per_step = growth.bytes_per_step.unwrap_or(0.0);
            run.offer(NextRank { rank: rank.clone(), bytes_per_step, plan });
            return ScheduleStep::Known;
        }
        let asked = AskedRank::of(rank, plan, now);
        let before = self.runs.get(&rank.run).filter(|before| before.asks_each);
        if before.is_some_and(|run| run.was_asked_within(self.settings.cooldown, &asked)) {
            return ScheduleStep::Known;
        }
        let n_before = self.runs.get(&rank.run).map_or(0, |run| run.n_growths);
        if n_before >= self.settings.run_max {
            return ScheduleStep::Limited;
        }
        self.evict_oldest(&rank.run);
        let before = self.runs.remove(&rank.run).filter(|before| before.asks_each);
        let asks_each = before.is_some();
        let mut ranks = before.map(|before| before.ranks).unwrap_or_default();
        ranks.retain(|before| now.since(before.asked) < self.settings.cooldown);
        ranks.truncate(EACH_RANKS_MAX - 1);
        ranks.push(asked);
        let run = RunSchedule {
            n_growths: n_before + 1,
            began: now,
            is_closed: false,
            asks_each,
            ranks,
            next: None,
        };
        self.runs.insert(rank.run.clone(), run);
        ScheduleStep::Ask(plan)
    }

    /// Asks every rank of a run for itself from now on: the result of one of them does not hold
    /// for the others.
    pub(crate) fn ask_each(&mut self, run: &Run) {
        if let Some(run) = self.runs.get_mut(run) {
            run.asks_each = true;
        }
    }

    /// Returns the rank that is to be asked next about a run's growth.
    pub(crate) fn next(&mut self, run: &Run, now: Uptime) -> Option<(RankId, RequestPlan)> {
        let run = self.runs.get_mut(run)?;
        let NextRank { rank, plan, .. } = run.next.take()?;
        run.ranks.truncate(EACH_RANKS_MAX - 1);
        run.ranks.push(AskedRank::of(&rank, plan, now));
        Some((rank, plan))
    }

    /// Ends the present request schedule of a run: the next growth begins another.
    pub(crate) fn close(&mut self, run: &Run) {
        if let Some(run) = self.runs.get_mut(run) {
            run.is_closed = true;
        }
    }

    /// Forgets what a rank was asked in the present request schedule of its run, so that it may
    /// be asked again.
    pub(crate) fn forget(&mut self, rank: &RankId) {
        if let Some(run) = self.runs.get_mut(&rank.run) {
            run.ranks.retain(|asked| asked.rank != *rank);
        }
    }

    /// Returns the longer plan for a rank whose recording was too short; `None` if it was asked
    /// often enough.
    pub(crate) fn longer(&mut self, rank: &RankId) -> Option<RequestPlan> {
        let run = self.runs.get_mut(&rank.run)?;
        let asked = run.ranks.iter_mut().find(|asked| asked.rank == *rank)?;
        if asked.n_asks >= RANK_REQUESTS_MAX {
            return None;
        }
        asked.n_asks += 1;
        asked.plan.steps = asked.plan.steps.saturating_mul(LONGER).min(STEPS_MAX);
        Some(asked.plan)
    }

    /// Returns for how many steps a rank shall record; the period where no recording would be
    /// long enough.
    fn plan(&self, growth: &Growth<'_>) -> Result<RequestPlan, f64> {
        let seconds_per_step = growth.seconds_per_step.unwrap_or(PACE_DEFAULT);
        let least = self.settings.steps;
        let Some(period) = growth.period() else {
            return Ok(RequestPlan { steps: least, seconds_per_step });
        };
        let needed = self.settings.periods * period;
        let steps = (least..=STEPS_MAX).find(|steps| f64::from(*steps) >= needed);
        steps.map(|steps| RequestPlan { steps, seconds_per_step }).ok_or(period)
    }

    fn evict_oldest(&mut self, run: &Run) {
        if !self.runs.contains_key(run) && self.runs.len() >= RUNS_MAX {
            let longest_ago = self.runs.iter().min_by_key(|(_, run)| run.began);
            if let Some(run) = longest_ago.map(|(run, _)| run.clone()) {
                self.runs.remove(&run);
            }
        }
    }
}

impl RunSchedule {
    /// Returns whether the rank of an ask was asked no longer than the cooldown before it.
    fn was_asked_within(&self, cooldown: Duration, ask: &AskedRank) -> bool {
        let is_recent = |before: &&AskedRank| ask.asked.since(before.asked) < cooldown;
        self.ranks.iter().filter(is_recent).any(|before| before.rank == ask.rank)
    }

    /// Asks a rank, unless it was asked lately or too many were.
    fn ask_itself(&mut self, ask: AskedRank, cooldown: Duration) -> ScheduleStep {
        if self.was_asked_within(cooldown, &ask) {
            return ScheduleStep::Known;
        }
        self.ranks.retain(|before| ask.asked.since(before.asked) < cooldown);
        if self.ranks.len() >= EACH_RANKS_MAX {
            return ScheduleStep::Limited;
        }
        let plan = ask.plan;
        self.ranks.push(ask);
        ScheduleStep::Ask(plan)
    }

    /// Takes a rank as the next to ask if it was not asked and grows faster than the one so
    /// far.
    fn offer(&mut self, ask: NextRank) {
        let was_asked = self.ranks.iter().any(|asked| asked.rank == ask.rank);
        let is_first = self.next.as_ref().is_none_or(|next| {
            next.rank == ask.rank || next.bytes_per_step < ask.bytes_per_step
        });
        if !was_asked && is_first && self.ranks.len() < GROWTH_RANKS_MAX {
            self.next = Some(ask);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        Growth, REPORT_WITHIN, RequestPlan, RequestSchedule, ScheduleSettings, ScheduleStep,
    };
    use stepmem_detect::Signal;
    use stepmem_types::ids::{Rank, RankId, Run};
    use stepmem_types::units::Uptime;

    const COOLDOWN: Duration = Duration::from_mins(30);

    fn schedule() -> RequestSchedule {
        let settings =
            ScheduleSettings { steps: 20, periods: 3.0, run_max: 2, cooldown: COOLDOWN };
        RequestSchedule::new(settings)
    }

    fn who(rank: u64) -> RankId {
        RankId { run: Run::new("llm").unwrap(), rank: Rank::new(rank).unwrap() }
    }

    fn growth(rank: &RankId, bytes_per_step: f64) -> Growth<'_> {
        let bytes_per_step = Some(bytes_per_step);
        Growth {
            rank,
            signal: Signal::Allocated,
            bytes_per_step,
            seconds_per_step: Some(60.0),
            level_shifts: None,
        }
    }

    fn plan(steps: u32) -> RequestPlan {
        RequestPlan { steps, seconds_per_step: 60.0 }
    }

    #[test]
    fn of_ranks_that_grow_alike_the_first_and_the_worst_are_asked() {
        let mut schedule = schedule();
        let asked = ScheduleStep::Ask(plan(20));
        assert_eq!(schedule.grows(&growth(&who(1), 5.0), Uptime::default()), asked);
        for (rank, bytes_per_step) in [(1, 9.0), (2, 3.0), (3, 7.0), (4, 5.0)] {
            let rank = who(rank);
            let step = schedule.grows(&growth(&rank, bytes_per_step), Uptime(COOLDOWN / 2));
            assert_eq!(step, ScheduleStep::Known);
        }
        let run = who(0).run;
        assert_eq!(schedule.next(&run, Uptime::default()), Some((who(3), plan(20))));
        schedule.grows(&growth(&who(4), 8.0), Uptime(COOLDOWN / 2));
        assert_eq!(schedule.next(&run, Uptime::default()), None);
    }

    #[test]
    fn a_run_has_so_many_growths_that_begin_the_cooldown_apart() {
        let mut schedule = schedule();
        let rank = who(3);
        let mut at = |n: u32| schedule.grows(&growth(&rank, 1.0), Uptime(COOLDOWN * n));
        assert_eq!(at(0), ScheduleStep::Ask(plan(20)));
        assert_eq!(at(1), ScheduleStep::Ask(plan(20)));
        assert_eq!(at(2), ScheduleStep::Limited);
    }

    #[test]
    fn recording_that_was_too_short_is_repeated_once_for_longer() {
        let mut schedule = schedule();
        let rank = who(3);
        assert_eq!(schedule.longer(&rank), None);
        schedule.grows(&growth(&rank, 1.0), Uptime::default());
        assert_eq!(schedule.longer(&rank), Some(plan(60)));
        assert_eq!(schedule.longer(&rank), None);
        // 60 steps of a minute take an hour.
        assert_eq!(plan(60).allowance(), Duration::from_hours(2) + REPORT_WITHIN);
    }

    #[test]
    fn recording_holds_three_periods_of_level_shifts_or_is_not_asked_for() {
        let rank = who(3);
        let of = |n_shifts: usize, distance: f64| {
            let level_shifts = Some((n_shifts, distance));
            schedule().grows(&Growth { level_shifts, ..growth(&rank, 1.0) }, Uptime::default())
        };
        assert_eq!(of(3, 100.0), ScheduleStep::Ask(plan(300)));
        assert_eq!(of(3, 5.0), ScheduleStep::Ask(plan(20)));
        assert_eq!(of(2, 100.0), ScheduleStep::Ask(plan(20)));
        assert_eq!(of(4, 400.0), ScheduleStep::TooLong { period: 400.0 });
    }
}
