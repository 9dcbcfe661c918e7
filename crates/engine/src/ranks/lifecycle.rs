//! The lifecycle of a rank: which records count, and which begin a new incarnation. Figures are
//! not used, but for the fall of live memory that shows a resumed run.

use std::cmp::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ranks::name_conflicts::{Claim, Holder};
use stepmem_forecast::stats::median::median;
use stepmem_types::end::EndReport;
use stepmem_types::launch::{Instance, Launch};
use stepmem_types::saved;
use stepmem_types::step::{Phase, StepSample, StepUnit};
use stepmem_types::units::{Bytes, Count, Uptime};

/// The largest fall of a step, without a time of its own or a newer attempt, of a record that
/// is only late. It is more than a client's batches overtake one another, and fewer than lie
/// between two checkpoints.
pub(crate) const STEP_FALLBACK_TOLERANCE: u64 = 32;
/// A process that was silent for less is live…
pub(crate) const LIVE_SILENCE_MIN: Duration = Duration::from_secs(10);
/// …and so is one that was silent for less than this many times its usual pause.
pub(crate) const LIVE_PAUSES: u32 = 5;
/// The number of late records in a row that show that the newest record is the odd one: the
/// next newer record begins an incarnation.
pub(crate) const LATES_IN_A_ROW: u32 = 20;
/// A process changes the unit that it counts at most so often: calls or steps that warm up, then
/// replays of graphs, then steps.
pub(crate) const UNIT_CHANGES_MAX: u8 = 2;
/// A push that resumes a run on the very next step shows as a fall of allocated below this
/// share of its last value…
const RESUME_FALL_RATIO: f64 = 0.75;
/// …after a gap of more than this many seconds…
const RESUME_GAP_SECONDS: f64 = 30.0;
/// …and of more than this many times the usual gap.
const RESUME_GAP_RATIO: f64 = 15.0;
/// A process that is refused should ask again after at least this long…
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
/// …and at most this.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);
/// Number of pauses of which the usual one is the median.
const PAUSES: usize = 8;

/// The outcome of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordVerdict {
    Accepted,
    /// The record is used, and begins a new incarnation of the rank.
    Restarted,
    /// The step was seen before.
    Duplicate,
    /// A later step was seen before, or another process is live.
    Late,
}

/// The time when a record or an end arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The uptime.
    pub now: Uptime,
    /// The time when the record's step ended, or the end arrived, as a Unix time.
    pub time: f64,
}

/// The state that shows which records are new, and which begin a new incarnation.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Lifecycle {
    /// The newest accepted record of this incarnation; `None` before one.
    newest: Option<Newest>,
    /// The usual gap between two train pushes, in seconds; `None` before there was one.
    #[serde(deserialize_with = "saved::amounts")]
    usual_gap: Option<f64>,
    /// The last pauses between pushes of this process, as they arrived, in seconds.
    #[serde(deserialize_with = "saved::spans")]
    pauses: [f64; PAUSES],
    #[serde(deserialize_with = "saved::counts")]
    n_pauses: usize,
    lates_in_a_row: u32,
    /// The number of times that the process began to count another unit.
    unit_changes: u8,
    /// Set when the end of this incarnation was announced.
    is_ended: bool,
}

/// The origin of an incarnation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Origin<'a> {
    pub attempt: Count,
    /// The launch, where it is reported.
    pub launch: Option<&'a Launch>,
    /// The time when its first record came.
    pub began: Uptime,
    /// The time when the step of that record ended, as a Unix time.
    pub began_time: f64,
}

// Same name as detect::intervals::Newest: there it is intervals, here a record.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Newest {
    attempt: Count,
    #[serde(deserialize_with = "saved::times")]
    time: f64,
    arrived: Uptime,
    /// The step of the last train push, and what was allocated at its end.
    train: Option<(Count, Bytes)>,
    /// Set when the newest accepted record was one by time.
    is_by_time: bool,
    instance: Option<Instance>,
    launch: Option<Launch>,
    pid: Option<u32>,
    /// The Unix time at which the incarnation began.
    #[serde(deserialize_with = "saved::times")]
    began: f64,
    /// The time when its first record arrived.
    began_at: Uptime,
}

impl Newest {
    /// An incarnation that begins.
    fn begun(arrival: Arrival) -> Self {
        Self {
            attempt: Count::default(),
            time: arrival.time,
            arrived: arrival.now,
            train: None,
            is_by_time: false,
            instance: None,
            launch: None,
            pid: None,
            began: arrival.time,
            began_at: arrival.now,
        }
    }
}

impl Lifecycle {
    /// Forgets the incarnation so far; the usual gap between steps stays.
    pub(crate) fn begin_incarnation(&mut self) {
        *self = Self { usual_gap: self.usual_gap, ..Self::default() };
    }

    /// Returns whether the process of a record, which is newer than all of them, has counted before.
    pub(crate) fn counts_before(&self, sample: &StepSample, time: f64) -> bool {
        let newest = self.newest.as_ref().filter(|newest| newest.train.is_some());
        newest.is_some_and(|newest| {
            newest.instance == sample.instance
                && newest.attempt == sample.identity.attempt
                && time > newest.time
        })
    }

    /// Returns whether the process may count another unit from now on: calls only come first, and
    /// two that take turns are not two programs' loops.
    pub(crate) fn may_begin(&self, unit: StepUnit) -> bool {
        !unit.is_calls() && self.unit_changes < UNIT_CHANGES_MAX
    }

    /// Forgets what the process has counted so far: it counts another unit from now on.
    pub(crate) fn begin_unit(&mut self) {
        self.unit_changes = self.unit_changes.saturating_add(1);
        if let Some(newest) = &mut self.newest {
            newest.train = None;
        }
        self.usual_gap = None;
    }

    /// Records that the incarnation has ended.
    pub fn end(&mut self) {
        self.is_ended = true;
    }

    /// Returns whether the incarnation's end was announced, and no newer record came.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Returns whether the process can be expected to push again. It did not end, and was
    /// silent for at most [`LIVE_SILENCE_MIN`] or [`LIVE_PAUSES`] times its usual pause.
    pub fn is_live(&self, now: Uptime) -> bool {
        let Some(newest) = &self.newest else { return false };
        let silence = now.since(newest.arrived);
        !self.is_ended && (silence <= LIVE_SILENCE_MIN || silence <= self.silence_max())
    }

    /// Returns whether a record comes from another process than the live one, which it does not
    /// supersede.
    pub fn is_foreign(&self, sample: &StepSample, now: Uptime) -> bool {
        let Some(newest) = &self.newest else { return false };
        let is_other = newest.instance.zip(sample.instance).is_some_and(|(a, b)| a != b);
        // A process that only samples, as one that starts the training one, yields to steps.
        if newest.train.is_none() && newest.is_by_time && sample.phase == Phase::Train {
            return false;
        }
        is_other && sample.identity.attempt <= newest.attempt && self.is_live(now)
    }

    /// Returns the live process with which a record's process is in a name conflict: a foreign
    /// one. An earlier attempt of the same launch is none: its records are merely late.
    pub(crate) fn holder_against(&self, sample: &StepSample, now: Uptime) -> Option<Holder> {
        let newest = self.newest.as_ref().filter(|_| self.is_foreign(sample, now))?;
        let is_of_launch = newest.launch.is_some() && newest.launch == sample.launch;
        if is_of_launch && sample.identity.attempt < newest.attempt {
            return None;
        }
        let silence = now.since(newest.arrived);
        let left = self.silence_max().saturating_sub(silence);
        let usual = 2 * self.usual_pause();
        Some(Holder {
            claim: Claim {
                pid: newest.pid,
                attempt: newest.attempt.get(),
                started: newest.began,
            },
            pushed: newest.arrived,
            retry_after: left.min(usual).clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX),
        })
    }

    /// Returns whether the incarnation is that of a process: that of any, where its own never
    /// named itself.
    pub fn is_of(&self, instance: Option<Instance>) -> bool {
        let own = self.newest.as_ref().and_then(|newest| newest.instance);
        own.is_none() || own == instance
    }

    /// Returns whether the incarnation's process names itself, and by this name.
    pub fn is_named(&self, instance: Option<Instance>) -> bool {
        let own = self.newest.as_ref().and_then(|newest| newest.instance);
        own.is_some() && own == instance
    }

    /// Returns the attempt and the launch of the incarnation, and when it began; `None` before
    /// one.
    pub fn origin(&self) -> Option<Origin<'_>> {
        let newest = self.newest.as_ref()?;
        let launch = newest.launch.as_ref();
        let (began, began_time) = (newest.began_at, newest.began);
        Some(Origin { attempt: newest.attempt, launch, began, began_time })
    }

    /// Returns whether the incarnation's process is live and not known to be of a launch.
    pub(crate) fn is_live_of_another(&self, launch: Option<&Launch>, now: Uptime) -> bool {
        let live = self.newest.as_ref().filter(|_| self.is_live(now));
        live.is_some_and(|newest| newest.launch.is_none() || newest.launch.as_ref() != launch)
    }

    /// Judges a record by what came before it, with the announced end of the incarnation.
    pub fn judge(
        &self,
        sample: &StepSample,
        arrival: Arrival,
        end: Option<&EndReport>,
    ) -> RecordVerdict {
        let Some(newest) = &self.newest else { return RecordVerdict::Accepted };
        if self.is_foreign(sample, arrival.now) {
            return RecordVerdict::Late;
        }
        if newest.instance.zip(sample.instance).is_some_and(|(a, b)| a != b) {
            return RecordVerdict::Restarted;
        }
        let verdict = if sample.identity.attempt == newest.attempt {
            self.judge_step(newest, sample, arrival.time)
        } else {
            self.judge_attempt(newest, sample, arrival.time)
        };
        // A record after the end of an incarnation belongs to another, unless the end overtook
        // it.
        let is_overtaken =
            end.is_some_and(|end| end.is_after(sample.figures.step, arrival.time));
        if self.is_ended && verdict == RecordVerdict::Accepted && !is_overtaken {
            return RecordVerdict::Restarted;
        }
        verdict
    }

    /// Judges a record of a unit that its process may not count any more: late, unless there is
    /// nothing else any more, as where one rank's name serves two programs in turn.
    pub(crate) fn judge_stray(&self) -> RecordVerdict {
        if self.is_ended || self.lates_in_a_row >= LATES_IN_A_ROW {
            RecordVerdict::Restarted
        } else {
            RecordVerdict::Late
        }
    }

    fn judge_attempt(&self, newest: &Newest, sample: &StepSample, time: f64) -> RecordVerdict {
        let is_other = newest.pid.zip(sample.identity.pid).is_some_and(|(a, b)| a != b);
        let is_same = newest.instance.is_some() && newest.instance == sample.instance;
        let is_over =
            is_other || is_same || self.is_ended || self.lates_in_a_row >= LATES_IN_A_ROW;
        if sample.identity.attempt > newest.attempt || (is_over && time > newest.time) {
            RecordVerdict::Restarted
        } else {
            RecordVerdict::Late
        }
    }

    fn judge_step(&self, newest: &Newest, sample: &StepSample, time: f64) -> RecordVerdict {
        let is_newer = time > newest.time;
        if sample.phase != Phase::Train {
            return if is_newer { RecordVerdict::Accepted } else { RecordVerdict::Late };
        }
        let Some((last_step, last_allocated)) = newest.train else {
            return RecordVerdict::Accepted;
        };
        match sample.figures.step.cmp(&last_step) {
            Ordering::Equal => RecordVerdict::Duplicate,
            Ordering::Less => {
                let is_timed = sample.time.is_some();
                let tolerance = if is_timed { 0 } else { STEP_FALLBACK_TOLERANCE };
                let fall = last_step.get() - sample.figures.step.get();
                if is_newer && fall > tolerance {
                    RecordVerdict::Restarted
                } else {
                    RecordVerdict::Late
                }
            }
            Ordering::Greater => {
                let gap = time - newest.time;
                let is_resumed = gap > RESUME_GAP_SECONDS
                    && gap > RESUME_GAP_RATIO * self.usual_gap.unwrap_or(0.0)
                    && sample.figures.allocated.as_f64()
                        < RESUME_FALL_RATIO * last_allocated.as_f64();
                if is_resumed { RecordVerdict::Restarted } else { RecordVerdict::Accepted }
            }
        }
    }

    /// Takes in a late record.
    pub fn ignore(&mut self) {
        self.lates_in_a_row = self.lates_in_a_row.saturating_add(1);
    }

    /// Takes in a record that was accepted.
    pub fn advance(&mut self, sample: &StepSample, arrival: Arrival) {
        let Arrival { now, time } = arrival;
        self.lates_in_a_row = 0;
        let is_train = sample.phase == Phase::Train;
        let before = self.newest.as_ref().map(|newest| (newest.arrived, newest.time));
        if let Some((arrived, before)) = before {
            self.learn_pause(now.since(arrived));
            if is_train {
                self.learn_gap((time - before).max(0.0));
            }
        }
        let newest = self.newest.get_or_insert_with(|| Newest::begun(arrival));
        newest.attempt = sample.identity.attempt;
        newest.time = time;
        newest.arrived = now;
        if is_train {
            newest.train = Some((sample.figures.step, sample.figures.allocated));
        }
        newest.is_by_time = sample.phase.is_by_time();
        newest.instance = sample.instance.or(newest.instance);
        if sample.launch.is_some() && sample.launch != newest.launch {
            newest.launch.clone_from(&sample.launch);
        }
        newest.pid = sample.identity.pid.or(newest.pid);
    }

    fn learn_pause(&mut self, pause: Duration) {
        if pause.is_zero() {
            return;
        }
        if let Some(slot) = self.pauses.get_mut(self.n_pauses % PAUSES) {
            *slot = pause.as_secs_f64();
        }
        self.n_pauses = self.n_pauses.saturating_add(1);
    }

    fn learn_gap(&mut self, gap: f64) {
        self.usual_gap = match self.usual_gap {
            Some(usual) => Some(usual + 0.02 * (gap.min(5.0 * usual) - usual)),
            None => Some(gap).filter(|gap| *gap > 0.0),
        };
    }

    /// Returns the time that the process may be silent and still be live.
    fn silence_max(&self) -> Duration {
        LIVE_SILENCE_MIN.max(self.usual_pause().saturating_mul(LIVE_PAUSES))
    }

    /// Returns the usual pause between two arrivals of records: the median of the last ones.
    pub(crate) fn usual_pause(&self) -> Duration {
        let mut pauses = self.pauses;
        let n_pauses = self.n_pauses.min(PAUSES);
        let usual = pauses.get_mut(..n_pauses).and_then(median).unwrap_or(0.0);
        Duration::try_from_secs_f64(usual).unwrap_or_default()
    }
}
