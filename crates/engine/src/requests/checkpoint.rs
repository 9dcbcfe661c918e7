//! The ask to write a checkpoint before memory runs out.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use stepmem_types::units::{Count, Uptime};

/// The time before the end of memory from which ranks are asked to checkpoint, by default.
pub(crate) const CHECKPOINT_BEFORE: Duration = Duration::from_mins(10);

/// The longest reason of an ask, in bytes.
pub(crate) const REASON_BYTES_MAX: usize = 512;

/// The memory of a run runs out soon, by a finding of one of its ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointDue {
    /// The rank and the words of the finding, at most `REASON_BYTES_MAX` bytes.
    pub reason: Box<str>,
    /// The lower bound of the seconds until then, where it is known.
    pub seconds_left: Option<f64>,
    /// The lower bound of the steps until then, where they are known.
    pub steps_left: Option<f64>,
    /// The time within which a rank is asked once.
    pub every: Duration,
}

impl CheckpointDue {
    /// Returns whether its memory runs out sooner, as far as that is known.
    pub(crate) fn is_sooner_than(&self, other: &Self) -> bool {
        let seconds = |of: &Self| of.seconds_left.unwrap_or(f64::INFINITY);
        seconds(self) < seconds(other)
    }
}

/// The last ask of a rank's present process.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct CheckpointAsk {
    pub since: Uptime,
    /// The newest step of the push whose answer had it.
    step: Count,
}

impl CheckpointAsk {
    pub(crate) fn new(since: Uptime, step: Count) -> Self {
        Self { since, step }
    }

    /// Returns the ask that the answer to a push has, whose records are of the steps from
    /// `first` to `last`. `before` is the last one of the rank.
    ///
    /// A client pushes a record again whose answer it did not get: that has the same ask again.
    pub(crate) fn of_answer(
        before: Option<Self>,
        (first, last): (Count, Count),
        every: Duration,
        now: Uptime,
    ) -> Option<Self> {
        let earlier = before.filter(|of| now.since(of.since) < every);
        earlier.map_or(Some(Self::new(now, last)), |of| (first <= of.step).then_some(of))
    }
}

/// Returns the rank and the words of a finding, shortened.
pub(crate) fn reason(subject: &str, sentence: &str) -> Box<str> {
    let mut reason = format!("{subject}: {sentence}");
    if reason.len() > REASON_BYTES_MAX {
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
    }
    reason.into_boxed_str()
}
