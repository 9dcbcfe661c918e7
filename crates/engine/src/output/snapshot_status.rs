//! The status of one memory snapshot.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::requests::snapshot::{AnalysisState, Snapshot, SnapshotOutcome};
use crate::requests::tracker::Listed;
use stepmem_types::ids::RankId;
use stepmem_types::site::SiteVerdict;
use stepmem_types::units::{Bytes, Count};

/// A memory snapshot that was asked for or reported.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SnapshotStatus {
    /// The id of the request; absent for a snapshot that was not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The rank that it is of.
    #[serde(flatten)]
    pub rank: RankId,
    /// The reason that it is taken: `creep`, `oom` or `manual`.
    pub reason: Cow<'static, str>,
    /// The outcome: `waiting`, `recording`, `written`, `failed` or `unanswered`.
    pub outcome: Cow<'static, str>,
    /// The time when it was asked for, or reported without being asked for, as a Unix time.
    pub since: f64,
    /// The last step that it shows.
    pub step: Option<Count>,
    /// The path, as the training process sees it; the name alone if it lies next to the
    /// summary.
    pub path: Option<String>,
    /// The size of the file.
    pub bytes: Option<Bytes>,
    /// The reason that there is none.
    pub error: Option<String>,
    /// The outcome of its analysis: `waiting`, or the outcome as in `snapshot_analyses_total`;
    /// absent where none is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analysis: Option<Cow<'static, str>>,
    /// The reason why it was not analyzed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analysis_error: Option<String>,
    /// The result on growth: a line that leaks, or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<SiteVerdict>,
    /// The id of its timeline, which `/snapshots/ID` serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<String>,
}

impl SnapshotStatus {
    /// Returns its outcome in a sentence, unless it was analyzed.
    pub fn note(&self) -> Option<String> {
        let error = self.error.as_deref().unwrap_or("unknown error");
        let path = self.path.as_deref().unwrap_or("unknown path");
        let reason = self.analysis_error.as_deref().unwrap_or("unknown reason");
        Some(match (&*self.outcome, self.analysis.as_deref()) {
            ("waiting", _) => "A memory snapshot was requested.".to_owned(),
            ("recording", _) => "A memory snapshot is being recorded.".to_owned(),
            ("unanswered", _) => {
                "A memory snapshot was requested, but did not arrive.".to_owned()
            }
            ("failed", _) => format!("No memory snapshot: {error}."),
            (_, None) => format!(
                "A memory snapshot was written to {path}; the exporter reads it where --snapshot.read-directory is set \
                 and the client reports its place below STEPMEM_SNAPSHOT_DIRECTORY."
            ),
            (_, Some("waiting")) => "A memory snapshot is being analyzed.".to_owned(),
            (_, Some("analysed")) => return None,
            (_, Some(outcome)) => {
                format!("The memory snapshot {path} was not analyzed ({outcome}): {reason}.")
            }
        })
    }

    /// A snapshot; `since` is a Unix time.
    pub fn of(listed: &Listed<Snapshot>, since: f64) -> Self {
        let snapshot = &listed.of;
        let (path, bytes, error) = match &snapshot.outcome {
            SnapshotOutcome::Written { path, bytes, .. } => (Some(path), *bytes, None),
            SnapshotOutcome::Failed { error } => (None, None, Some(error)),
            SnapshotOutcome::Waiting
            | SnapshotOutcome::Recording { .. }
            | SnapshotOutcome::Unanswered => (None, None, None),
        };
        let (analysis, analysis_error, verdict, timeline) = match &snapshot.analysis {
            Some(AnalysisState::Waiting) => (Some("waiting"), None, None, None),
            Some(AnalysisState::Over { outcome, reason, verdict, timeline }) => {
                (Some(outcome.as_label()), reason.clone(), *verdict, timeline.as_deref())
            }
            None => (None, None, None, None),
        };
        Self {
            id: listed.id.as_deref().map(str::to_owned),
            rank: listed.rank.clone(),
            reason: snapshot.reason.as_label().into(),
            outcome: snapshot.outcome.as_label().into(),
            since,
            step: snapshot.step,
            path: path.map(ToString::to_string),
            bytes,
            error: error.map(ToString::to_string),
            analysis: analysis.map(Cow::Borrowed),
            analysis_error,
            verdict,
            timeline: timeline.map(str::to_owned),
        }
    }
}
