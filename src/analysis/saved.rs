//! What outlasts a restart of the exporter. How it is written is decided elsewhere.

use serde::{Deserialize, Serialize};

use crate::analysis::acks::SavedAck;
use crate::analysis::creep::estimator::CreepEstimator;
use crate::analysis::diagnosis::DiagnosisKind;
use crate::analysis::findings::{ActiveFinding, Findings};
use crate::analysis::processes::{PROCESSES_JUDGED_MAX, ProcessTable};
use crate::analysis::rank::tally::Tally;
use crate::analysis::ranks::{ENDED_MAX, SavedRanks};
use crate::model::ids::SubjectId;
use crate::model::units::Uptime;

/// What a rank takes beside its estimator and its tally, in bytes at most.
const RANK_BYTES_MAX: usize = CreepEstimator::BYTES_MAX + Tally::BYTES_MAX + 4096;
/// What an ended rank takes, in bytes at most.
const ENDED_BYTES_MAX: usize = CreepEstimator::RELEASED_BYTES_MAX + Tally::BYTES_MAX + 4096;
/// What is saved beside ranks and processes, in bytes at most.
const OTHER_BYTES_MAX: usize = 1024 * 1024;

/// What outlasts a restart of the exporter: the state of all ranks and processes, since when findings hold, and what
/// was acknowledged.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SavedState {
    /// The Unix time at which the uptime was 0.
    pub started: f64,
    /// The uptime at which this was saved.
    pub uptime: Uptime,
    pub ranks: SavedRanks,
    /// The processes that do not push.
    pub processes: ProcessTable,
    /// Since when findings hold.
    pub findings: Vec<SavedFinding>,
    pub acks: Vec<SavedAck>,
}

impl SavedState {
    /// Returns the greatest size of a state of so many ranks, in bytes.
    pub fn bytes_max(ranks_max: usize) -> usize {
        ranks_max
            .saturating_add(PROCESSES_JUDGED_MAX)
            .saturating_mul(RANK_BYTES_MAX)
            .saturating_add(ENDED_MAX * ENDED_BYTES_MAX)
            .saturating_add(OTHER_BYTES_MAX)
    }
}

/// Since when a finding holds.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SavedFinding {
    subject: SubjectId,
    kind: String,
    since: f64,
}

impl SavedFinding {
    /// Returns what is to be saved of a finding.
    pub fn of(active: &ActiveFinding) -> Self {
        let ActiveFinding { finding, since } = active;
        let kind = finding.kind.label().to_owned();
        Self { subject: finding.subject.clone(), kind, since: *since }
    }

    /// Sets since when the finding has held, if it holds again.
    pub fn restore(&self, findings: &mut Findings) {
        if let Some(kind) = DiagnosisKind::from_label(&self.kind) {
            findings.set_since(&self.subject, kind, self.since);
        }
    }
}
