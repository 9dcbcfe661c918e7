//! The life of a rank: which records count, and which begin a new life. Figures are not looked at, but for the fall of
//! live memory that shows a resumed run.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::model::step::{Phase, StepSample};
use crate::model::units::{Bytes, Count};

/// How far a step may fall back, without a time of its own or a newer attempt, and still be a late push: more than
/// a client's batches overtake one another, fewer than lie between two checkpoints.
pub const STEP_FALLBACK_TOLERANCE: u64 = 32;
/// A push that resumes a run on the very next step shows as a fall of allocated below this share of its last value…
const RESUME_FALL_RATIO: f64 = 0.75;
/// …after a gap of more than this many seconds…
const RESUME_GAP_SECONDS: f64 = 30.0;
/// …and of more than this many times the usual gap.
const RESUME_GAP_RATIO: f64 = 15.0;

/// What becomes of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordVerdict {
    Accepted,
    /// It is used, and begins a new life of the rank.
    Restarted,
    /// Its step was seen before.
    Duplicate,
    /// A later step was seen before.
    Late,
}

/// Which pushes are new, and which begin a new life.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Lifecycle {
    /// What the newest accepted push of this life was; `None` before one.
    newest: Option<Newest>,
    /// The usual gap between two train pushes, in seconds; `None` before there was one.
    usual_gap: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Newest {
    attempt: Count,
    time: f64,
    /// The step of the last train push, and what was allocated at its end.
    train: Option<(Count, Bytes)>,
}

impl Lifecycle {
    /// Forgets the life so far; the usual gap between steps stays.
    pub fn begin_life(&mut self) {
        self.newest = None;
    }

    /// Judges a record by what came before it; `time` is when its step ended, as a Unix time.
    pub fn judge(&self, sample: &StepSample, time: f64) -> RecordVerdict {
        let Some(newest) = self.newest else { return RecordVerdict::Accepted };
        if sample.attempt != newest.attempt {
            let is_new = sample.attempt > newest.attempt;
            return if is_new { RecordVerdict::Restarted } else { RecordVerdict::Late };
        }
        let is_newer = time > newest.time;
        if sample.phase != Phase::Train {
            return if is_newer { RecordVerdict::Accepted } else { RecordVerdict::Late };
        }
        let Some((last_step, last_allocated)) = newest.train else {
            return RecordVerdict::Accepted;
        };
        match sample.step.cmp(&last_step) {
            Ordering::Equal => RecordVerdict::Duplicate,
            Ordering::Less => {
                let tolerance = if sample.time.is_some() { 0 } else { STEP_FALLBACK_TOLERANCE };
                let fall = last_step.get() - sample.step.get();
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
                    && sample.allocated.as_f64() < RESUME_FALL_RATIO * last_allocated.as_f64();
                if is_resumed { RecordVerdict::Restarted } else { RecordVerdict::Accepted }
            }
        }
    }

    /// Takes in a record that was accepted.
    pub fn advance(&mut self, sample: &StepSample, time: f64) {
        let train = if sample.phase == Phase::Train {
            if let Some(newest) = self.newest {
                let gap = (time - newest.time).max(0.0);
                self.usual_gap = match self.usual_gap {
                    Some(usual) => Some(usual + 0.02 * (gap.min(5.0 * usual) - usual)),
                    None => Some(gap).filter(|gap| *gap > 0.0),
                };
            }
            Some((sample.step, sample.allocated))
        } else {
            self.newest.and_then(|newest| newest.train)
        };
        self.newest = Some(Newest { attempt: sample.attempt, time, train });
    }
}
