//! Requests to ranks of one kind: who is asked, until it reports or is given up. A request
//! repeats in the responses to a rank until the rank reports, since a response may be lost.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::requests::checkpoint::CheckpointDue;
use crate::requests::schedule::{
    Growth, RequestPlan, RequestSchedule, SavedSchedule, ScheduleSettings, ScheduleStep,
};
use stepmem_detect::Signal;
use stepmem_types::ids::{RankId, Run};
use stepmem_types::saved;
use stepmem_types::units::Uptime;

/// Number of requests of a kind that are listed at most. The oldest that is over leaves, or the
/// oldest if none is.
pub(crate) const LISTED_MAX: usize = 64;

/// The longest id of a request to a rank, in bytes.
pub(crate) const REQUEST_ID_BYTES_MAX: usize = 64;

/// The outcome of a request that was given up.
pub(crate) const UNANSWERED: &str = "unanswered";

/// The progress of a request.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Progress {
    /// The rank was asked and has not reported yet.
    Waiting,
    /// The rank has begun.
    Begun,
    Over,
}

/// A request to a training process in the answer to its records.
#[derive(Clone, Debug, PartialEq)]
pub struct RankRequest {
    /// The id that its report names.
    pub id: Box<str>,
    /// The rank that is asked.
    pub rank: RankId,
    /// The number of steps to record, or the least between two scans.
    pub steps: u32,
    /// The task, with its figures.
    pub kind: RequestKind,
}

/// The task that a rank is asked to do.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestKind {
    /// Record and write a memory snapshot.
    Snapshot {
        /// The reason, which the file's report repeats.
        reason: SnapshotReason,
    },
    /// Scan its live objects for what holds the memory that grows.
    Holders {
        /// Growth of that memory.
        bytes_per_step: Option<f64>,
        /// The memory that grows.
        signal: Signal,
        /// Set when it is the host's.
        is_on_host: bool,
        /// Set when an operator wants the line that allocates it.
        wants_lines: bool,
    },
    /// Read what its allocator has given out and what is free.
    Malloc,
    /// Write a checkpoint: memory runs out soon.
    Checkpoint(Box<CheckpointDue>),
}

/// The reason that a snapshot was taken.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum SnapshotReason {
    /// The exporter asked, on MEMORY RISING or MEMORY CREEP.
    Creep,
    /// The device was full.
    Oom,
    /// The program or an operator wanted it.
    Manual,
}

impl SnapshotReason {
    /// Returns the name of the reason in the status.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Creep => "creep",
            Self::Oom => "oom",
            Self::Manual => "manual",
        }
    }
}

/// A request of one kind, and what becomes of it.
pub(crate) trait Requested {
    /// The outcomes that are counted.
    const OUTCOMES: &'static [&'static str];

    /// Returns the mark that distinguishes its ids from those of other trackers.
    fn id_mark(&self) -> &'static str;

    fn kind(&self) -> RequestKind;

    fn progress(&self) -> Progress;

    /// Ends it without a report.
    fn give_up(&mut self);
}

/// A request that is listed, or a report that was not asked for.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Listed<T> {
    /// The number in its list, ascending.
    #[serde(deserialize_with = "saved::counts")]
    pub number: u64,
    /// The id that its report names; `None` of one that was not asked for.
    #[serde(deserialize_with = "saved::texts::<_, _, REQUEST_ID_BYTES_MAX>")]
    pub id: Option<Box<str>>,
    pub rank: RankId,
    /// Number of steps that the rank is asked for; 0 if it was not asked.
    pub steps: u32,
    /// The time when it was asked for, or reported if it was not asked for.
    pub since: Uptime,
    /// The time when its report must have come.
    pub deadline: Uptime,
    pub of: T,
}

/// Requests that outlast a restart.
#[derive(Debug, Deserialize, Serialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub struct SavedRequests<T> {
    #[serde(deserialize_with = "saved::list::<_, _, LISTED_MAX>")]
    listed: Vec<Listed<T>>,
    schedule: SavedSchedule,
}

impl<T> Default for SavedRequests<T> {
    fn default() -> Self {
        Self { listed: Vec::new(), schedule: SavedSchedule::default() }
    }
}

/// The requests of one kind to the ranks of all runs.
#[derive(Debug)]
pub(crate) struct RequestTracker<T> {
    pub schedule: RequestSchedule,
    /// Asked of a rank because it grows.
    of_growth: T,
    // Invariant: at most LISTED_MAX.
    listed: VecDeque<Listed<T>>,
    n_listed: u64,
    outcomes: BTreeMap<&'static str, u64>,
}

impl<T: Requested + Clone> RequestTracker<T> {
    /// Creates an empty tracker; `of_growth` is asked of a rank because it grows.
    pub(crate) fn new(settings: ScheduleSettings, of_growth: T) -> Self {
        Self {
            schedule: RequestSchedule::new(settings),
            of_growth,
            listed: VecDeque::new(),
            n_listed: 0,
            outcomes: T::OUTCOMES.iter().map(|outcome| (*outcome, 0)).collect(),
        }
    }

    /// Takes growth of a rank. The rank is asked for `of`, or the next one of its run is asked,
    /// unless the run has had enough.
    pub(crate) fn grows(&mut self, growth: &Growth<'_>, of: T, now: Uptime) -> ScheduleStep {
        let step = self.schedule.grows(growth, now);
        match &step {
            ScheduleStep::Ask(plan) => drop(self.ask((growth.rank.clone(), *plan), of, now)),
            ScheduleStep::Known => self.ask_next(&growth.rank.run, now),
            ScheduleStep::Limited | ScheduleStep::TooLong { .. } => {}
        }
        step
    }

    /// Lists a request. Returns its id.
    pub(crate) fn ask(
        &mut self,
        (rank, plan): (RankId, RequestPlan),
        of: T,
        now: Uptime,
    ) -> Box<str> {
        // The time keeps ids of an earlier exporter apart.
        let (millis, number) = (now.0.as_millis(), self.n_listed + 1);
        let id: Box<str> = format!("{millis}-{}{number}", of.id_mark()).into();
        let deadline = Uptime(now.0 + plan.allowance());
        let (steps, asked) = (plan.steps, Some(id.clone()));
        self.list(Listed { number, id: asked, rank, steps, since: now, deadline, of });
        id
    }

    /// Asks the rank that is next about a run's growth, once no rank of the run is to report.
    pub(crate) fn ask_next(&mut self, run: &Run, now: Uptime) {
        if !self.open().any(|open| open.rank.run == *run)
            && let Some(next) = self.schedule.next(run, now)
        {
            self.ask(next, self.of_growth.clone(), now);
        }
    }

    /// Lists what was not asked for, under the next number. Returns the number.
    pub(crate) fn list(&mut self, listed: Listed<T>) -> u64 {
        if self.listed.len() >= LISTED_MAX {
            let is_over = |listed: &Listed<T>| listed.of.progress() == Progress::Over;
            let oldest = self.listed.iter().position(is_over).unwrap_or(0);
            self.listed.remove(oldest);
        }
        self.n_listed += 1;
        self.listed.push_back(Listed { number: self.n_listed, ..listed });
        self.n_listed
    }

    /// Returns the requests whose report is still to come.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Listed<T>> {
        self.listed.iter().filter(|listed| listed.of.progress() != Progress::Over)
    }

    /// Returns the requests that wait for ranks that `accepts` allows, by the rank and the time
    /// of the request.
    pub(crate) fn waiting(
        &self,
        accepts: impl Fn(&RankId, Uptime) -> bool,
    ) -> impl Iterator<Item = RankRequest> {
        let waiting = self.open().filter(|open| open.of.progress() == Progress::Waiting);
        waiting.filter(move |open| accepts(&open.rank, open.since)).filter_map(|open| {
            let Listed { id, rank, steps, of, .. } = open;
            let (id, rank) = (id.clone()?, rank.clone());
            Some(RankRequest { id, rank, steps: *steps, kind: of.kind() })
        })
    }

    /// Counts an outcome; one that is not in [`Requested::OUTCOMES`] is none yet.
    pub(crate) fn count(&mut self, outcome: &str) {
        if let Some(count) = self.outcomes.get_mut(outcome) {
            *count += 1;
        }
    }

    /// Returns the number of requests by outcome.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.outcomes.iter().map(|(outcome, count)| (*outcome, *count))
    }

    /// Returns the request that a report of a rank names.
    pub(crate) fn named(&mut self, id: Option<&str>, rank: &RankId) -> Option<&mut Listed<T>> {
        let id = id?;
        self.listed.iter_mut().find(|of| of.id.as_deref() == Some(id) && of.rank == *rank)
    }

    /// Gives up the requests that have waited too long, and those for which `is_gone` is true:
    /// their process has gone.
    pub(crate) fn expire(&mut self, is_gone: impl Fn(&Listed<T>) -> bool, now: Uptime) {
        let mut runs = Vec::new();
        for listed in &mut self.listed {
            let is_open = listed.of.progress() != Progress::Over;
            if is_open && (now > listed.deadline || is_gone(listed)) {
                listed.of.give_up();
                runs.push(listed.rank.run.clone());
            }
        }
        for run in runs {
            self.count(UNANSWERED);
            self.ask_next(&run, now);
        }
    }

    /// Returns the requests and reports that are listed, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Listed<T>> {
        self.listed.iter()
    }

    /// Returns the requests and reports that are listed, to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Listed<T>> {
        self.listed.iter_mut()
    }

    /// Returns the part that outlasts a restart.
    pub(crate) fn saved(&self) -> SavedRequests<T> {
        let listed = self.listed.iter().cloned().collect();
        SavedRequests { listed, schedule: self.schedule.saved() }
    }

    /// Goes on where an earlier exporter stood, with the requests for which `is_kept` is true.
    pub(crate) fn resume(
        &mut self,
        saved: SavedRequests<T>,
        is_kept: impl Fn(&Listed<T>) -> bool,
    ) {
        self.schedule.resume(saved.schedule);
        let kept = saved.listed.into_iter().take(LISTED_MAX).filter(is_kept);
        self.listed = kept.collect();
        let numbers = self.listed.iter().map(|listed| listed.number);
        self.n_listed = numbers.max().unwrap_or(0);
    }
}
