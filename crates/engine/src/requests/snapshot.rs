//! One memory snapshot of a rank: why it is taken, what becomes of it, and where its analysis
//! stands.

use serde::{Deserialize, Serialize};

use crate::requests::causes::AnalysisOutcome;
use crate::requests::tracker::{Progress, RequestKind, Requested, SnapshotReason, UNANSWERED};
use stepmem_types::ids::RankId;
use stepmem_types::launch::Instance;
use stepmem_types::saved;
use stepmem_types::site::SiteVerdict;
use stepmem_types::units::{Bytes, Count};

/// The outcome of growth whose rank is not asked: its run has had enough, or no recording would
/// be long enough.
pub(crate) const LIMITED: &str = "limited";
/// The longest path that is taken, in bytes.
pub(crate) const PATH_BYTES_MAX: usize = 1024;
/// The longest error that is taken, in bytes.
pub(crate) const ERROR_BYTES_MAX: usize = 512;

/// The longest id of a timeline that is read back, in bytes.
const TIMELINE_ID_BYTES_MAX: usize = 128;

/// The outcome of a snapshot.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum SnapshotOutcome {
    /// The rank was asked and has not reported yet.
    Waiting,
    /// The rank has begun to record.
    Recording {
        /// Allocations and frees in a step, once one was recorded.
        events_per_step: Option<Count>,
    },
    Written {
        /// The path, as the training process sees it.
        #[serde(deserialize_with = "saved::texts::<_, _, PATH_BYTES_MAX>")]
        path: Box<str>,
        /// The path relative to the directory that it wrote below.
        #[serde(deserialize_with = "saved::texts::<_, _, PATH_BYTES_MAX>")]
        file: Option<Box<str>>,
        /// The size of the file.
        bytes: Option<Bytes>,
    },
    /// The snapshot could not be taken or written.
    Failed {
        #[serde(deserialize_with = "saved::texts::<_, _, ERROR_BYTES_MAX>")]
        error: Box<str>,
    },
    /// The rank did not report in time.
    Unanswered,
}

impl SnapshotOutcome {
    /// Returns the name of the outcome in the status.
    pub fn as_label(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Recording { .. } => "recording",
            Self::Written { .. } => "written",
            Self::Failed { .. } => "failed",
            Self::Unanswered => UNANSWERED,
        }
    }
}

/// A training process's report of a snapshot.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SnapshotReport {
    pub rank: RankId,
    /// The process that reports it; `None` where it does not name itself.
    pub instance: Option<Instance>,
    /// Id of the request; `None` for a snapshot that the trainer took by itself.
    pub id: Option<Box<str>>,
    /// The reason that it was taken.
    pub reason: SnapshotReason,
    /// The last step that it shows.
    pub step: Option<Count>,
    /// The outcome; never [`SnapshotOutcome::Waiting`].
    pub outcome: SnapshotOutcome,
    /// The user id of the process that reports it, where that is known.
    pub owner: Option<u32>,
}

/// The state of the analysis of a snapshot.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum AnalysisState {
    Waiting,
    /// The analysis is over; its result on lines is in the table of causes.
    Over {
        outcome: AnalysisOutcome,
        #[serde(deserialize_with = "saved::texts::<_, _, ERROR_BYTES_MAX>")]
        reason: Option<String>,
        verdict: Option<SiteVerdict>,
        /// The id of its timeline.
        #[serde(deserialize_with = "saved::texts::<_, _, TIMELINE_ID_BYTES_MAX>")]
        timeline: Option<Box<str>>,
    },
}

/// A memory snapshot of a rank.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Snapshot {
    /// The reason that it is taken.
    pub reason: SnapshotReason,
    /// The last step that it shows.
    pub step: Option<Count>,
    pub outcome: SnapshotOutcome,
    /// The user id of the process that reported it, where that is known.
    pub owner: Option<u32>,
    /// The state of its analysis; `None` where nothing is read.
    pub analysis: Option<AnalysisState>,
}

impl Snapshot {
    /// A snapshot that a rank is asked for.
    pub fn asked(reason: SnapshotReason) -> Self {
        let outcome = SnapshotOutcome::Waiting;
        Self { reason, step: None, outcome, owner: None, analysis: None }
    }
}

impl Requested for Snapshot {
    const OUTCOMES: &'static [&'static str] = &["failed", LIMITED, UNANSWERED, "written"];

    fn id_mark(&self) -> &'static str {
        ""
    }

    fn kind(&self) -> RequestKind {
        RequestKind::Snapshot { reason: self.reason }
    }

    fn progress(&self) -> Progress {
        match self.outcome {
            SnapshotOutcome::Waiting => Progress::Waiting,
            SnapshotOutcome::Recording { .. } => Progress::Begun,
            SnapshotOutcome::Written { .. }
            | SnapshotOutcome::Failed { .. }
            | SnapshotOutcome::Unanswered => Progress::Over,
        }
    }

    fn give_up(&mut self) {
        self.outcome = SnapshotOutcome::Unanswered;
    }
}
