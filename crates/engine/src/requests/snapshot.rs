//! One memory snapshot of a rank: why it is taken, what becomes of it, and where its analysis
//! stands.

use serde::{Deserialize, Serialize};

use crate::requests::causes::AnalysisOutcome;
use crate::requests::heap_scans::LookRequest;
use stepmem_types::ids::RankId;
use stepmem_types::launch::Instance;
use stepmem_types::site::SiteVerdict;
use stepmem_types::units::{Bytes, Count, Uptime};

/// The longest path that is taken, in bytes.
pub const PATH_BYTES_MAX: usize = 1024;
/// The longest error that is taken, in bytes.
pub const ERROR_BYTES_MAX: usize = 512;

/// A request for a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureRequest {
    /// The id that its report names.
    pub id: Box<str>,
    pub rank: RankId,
    /// Why it is asked.
    pub reason: CaptureReason,
    /// For how many steps to record.
    pub steps: u32,
}

/// A request to a training process in the answer to its records.
#[derive(Clone, Debug, PartialEq)]
pub enum RankRequest {
    /// A memory snapshot.
    Snapshot(CaptureRequest),
    /// A heap scan of its live objects.
    Holders(LookRequest),
}

/// Why a snapshot was taken.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum CaptureReason {
    /// The exporter asked, on MEMORY RISING or MEMORY CREEP.
    Creep,
    /// The device was full.
    Oom,
    /// The program or an operator wanted it.
    Manual,
}

impl CaptureReason {
    /// Its name in the status.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Creep => "creep",
            Self::Oom => "oom",
            Self::Manual => "manual",
        }
    }
}

/// The outcome of a snapshot.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum CaptureOutcome {
    /// The rank was asked and has not reported yet.
    Waiting,
    /// The rank has begun to record.
    Recording {
        /// Allocations and frees in a step, once one was recorded.
        events_per_step: Option<Count>,
    },
    Written {
        /// Where, as the training process sees it.
        path: Box<str>,
        /// The same, relative to the directory that it wrote below.
        file: Option<Box<str>>,
        /// Its size.
        bytes: Option<Bytes>,
    },
    /// It could not be taken or written.
    Failed { error: Box<str> },
    /// The rank did not report in time.
    Unanswered,
}

impl CaptureOutcome {
    /// Its name in the status.
    pub fn as_label(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Recording { .. } => "recording",
            Self::Written { .. } => "written",
            Self::Failed { .. } => "failed",
            Self::Unanswered => "unanswered",
        }
    }

    /// Returns whether a report is still to come.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Waiting | Self::Recording { .. })
    }
}

/// A training process's report of a snapshot.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CaptureReport {
    pub rank: RankId,
    /// The process that reports it; `None` where it does not name itself.
    pub instance: Option<Instance>,
    /// Id of the request; `None` for a snapshot that the trainer took by itself.
    pub id: Option<Box<str>>,
    /// Why it was taken.
    pub reason: CaptureReason,
    /// The last step that it shows.
    pub step: Option<Count>,
    /// Its outcome; never [`CaptureOutcome::Waiting`].
    pub outcome: CaptureOutcome,
    /// The user id of the process that reports it, where that is known.
    pub owner: Option<u32>,
}

/// Where the analysis of a snapshot stands.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum AnalysisState {
    Waiting,
    /// It is over; its result on lines is in the table of causes.
    Over {
        outcome: AnalysisOutcome,
        reason: Option<String>,
        verdict: Option<SiteVerdict>,
        /// The id of its timeline.
        timeline: Option<Box<str>>,
    },
}

/// One snapshot that is listed.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Capture {
    /// Identifies a listed snapshot.
    pub number: u64,
    /// The report, or what will be reported.
    pub report: CaptureReport,
    /// For how many steps the rank was asked to record; 0 of a snapshot that was not asked for.
    pub steps: u32,
    /// When it was asked for, or reported if it was not asked for.
    pub since: Uptime,
    /// When its report must have come.
    pub(crate) deadline: Uptime,
    /// Where its analysis stands; `None` where nothing is read.
    pub analysis: Option<AnalysisState>,
}

impl CaptureReport {
    /// A snapshot that a rank is asked for.
    pub fn asked(rank: RankId, reason: CaptureReason) -> Self {
        Self {
            rank,
            instance: None,
            id: None,
            reason,
            step: None,
            outcome: CaptureOutcome::Waiting,
            owner: None,
        }
    }

    /// A snapshot that a rank is asked for because it grows.
    pub fn of_creep(rank: &RankId) -> Self {
        Self::asked(rank.clone(), CaptureReason::Creep)
    }
}
