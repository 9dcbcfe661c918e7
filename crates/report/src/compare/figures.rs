//! The figures of a run that a comparison uses, from a summary of ours or of TraceML's. A
//! figure that the summary lacks is absent.

use std::collections::BTreeSet;

use crate::policy::{IssueSeverity, PolicyName};
use crate::summary::model::Issue;
use stepmem_engine::Basis;
use stepmem_types::end::EndOutcome;
use stepmem_types::ids::GpuUuid;

/// The figures of one run that a comparison takes: of a summary, or of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct RunFigures {
    /// The policy that its issues were judged by.
    pub policy: PolicyName,
    /// The name of the run; `None` in a summary of TraceML's without one.
    pub run: Option<String>,
    /// The setup, which must be that of the other run.
    pub setup: RunSetup,
    /// The run's issues; empty when nothing was wrong.
    pub issues: Vec<RunIssue>,
    /// The name of its diagnosis on pages.
    pub status: String,
    /// Set when there is anything to compare.
    pub has_data: bool,
    /// Set when it ran long enough for creep to be judged.
    pub is_judged: bool,
    /// The train steps of the rank that came furthest.
    pub steps: Option<f64>,
    /// The highest live memory at the end of a step.
    pub allocated: RunPeak,
    /// The highest peak of live memory.
    pub peak_allocated: RunPeak,
    /// The highest peak of what the allocator held.
    pub peak_reserved: RunPeak,
    /// The highest peak by its rank's capacity.
    pub pressure_ratio: Option<f64>,
    /// The least headroom of a rank.
    pub headroom: Option<RunHeadroom>,
    /// The least host memory that is left next to the device of a rank.
    pub host_headroom: Option<RunHostHeadroom>,
    /// The growth of the rank that grows fastest.
    pub growth: Option<RunGrowth>,
    /// The skew between its ranks.
    pub skew: Option<RunSkew>,
    /// The rank of its diagnosis, or the one with the highest peak.
    pub worst_rank: Option<u64>,
    /// Number of ranks that were lost or never pushed.
    pub n_lost: Option<u64>,
    /// Out-of-memory errors of all ranks.
    pub n_ooms: Option<u64>,
    /// The line that leaks, as a memory snapshot or a search of host memory shows it.
    pub leaking_line: Option<LeakingLine>,
    /// Set when a rank still pushed when the summary was written.
    pub is_going_on: bool,
    /// The run's end, where ranks announced that.
    pub end: Option<RunEnd>,
    /// Ascending; empty where the summary has none.
    pub ranks: Vec<RankFigures>,
}

/// The setup that two runs share if a difference of their memory is one of the program. Absent
/// or empty where unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunSetup {
    /// Number of ranks: as the run reports it, else those that pushed.
    pub world_size: Option<u64>,
    /// `the host` and `a GPU`.
    pub device_kinds: BTreeSet<String>,
    /// Models of the devices, as NVML names them.
    pub device_models: BTreeSet<String>,
    /// Least capacity of a rank, in bytes.
    pub capacity_min: Option<f64>,
    /// Greatest capacity of a rank, in bytes.
    pub capacity_max: Option<f64>,
    /// Name of the workload, where the user declared one.
    pub workload: Option<String>,
}

/// The worst end that a rank of a run announced.
#[derive(Clone, Debug, PartialEq)]
pub struct RunEnd {
    pub outcome: EndOutcome,
    /// The ranks that ended so.
    pub ranks: Vec<u64>,
}

/// The kinds of data that have rows of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct RankFigures {
    pub rank: u64,
    /// The names of its issues on pages, the worst first.
    pub issues: Vec<String>,
    /// The highest live memory at the end of a step.
    pub allocated: RunPeak,
    /// The highest peak of live memory.
    pub peak_allocated: RunPeak,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RunIssue {
    /// The name of the issue in labels.
    pub kind: String,
    /// The name of the issue on pages.
    pub status: String,
    /// The severity of the issue.
    pub severity: IssueSeverity,
    pub ranks: Vec<u64>,
}

/// The line at which memory that grows is allocated, or kept.
#[derive(Clone, Debug, PartialEq)]
pub struct LeakingLine {
    pub at: String,
    /// The object that is made or filled there, where only that is known.
    pub holder: Option<String>,
}

impl LeakingLine {
    /// Returns the line as the subject of a sentence, and its verb.
    pub(super) fn subject(&self) -> (String, &'static str) {
        let Self { at, holder } = self;
        match holder {
            None => (format!("the line {at}"), "leaks"),
            Some(holder) => (format!("what {holder} of {at} holds"), "grows"),
        }
    }
}

impl RunIssue {
    /// Returns those of some issues that something is wrong by.
    pub(super) fn of_all(issues: &[Issue]) -> Vec<Self> {
        let wrong = issues.iter().filter(|issue| issue.is_wrong());
        let of = |issue: &Issue| Self {
            kind: issue.kind.label().to_owned(),
            status: issue.status.to_string(),
            severity: issue.severity,
            ranks: issue.ranks.iter().map(|rank| rank.get().into()).collect(),
        };
        wrong.map(of).collect()
    }
}

/// Returns `the host` and `a GPU`, as far as ranks are on them.
pub(super) fn device_kinds<'a>(devices: impl Iterator<Item = &'a GpuUuid>) -> BTreeSet<String> {
    devices.map(|of| if of.is_host() { "the host" } else { "a GPU" }.to_owned()).collect()
}

/// A peak over ranks and steps, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunPeak {
    /// The true maximum.
    pub max: Option<f64>,
    /// The greatest mean of a rank, which is all that TraceML writes.
    pub mean: Option<f64>,
    /// The deviation of a step of that rank from its neighbors.
    pub noise: Option<f64>,
}

impl RunPeak {
    /// Returns whether the run has any of it.
    pub fn is_known(&self) -> bool {
        self.max.or(self.mean).is_some()
    }
}

/// The headroom of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunHeadroom {
    /// The size of the headroom, in bytes.
    pub bytes: f64,
    /// The memory that it rests on.
    pub basis: Basis,
}

/// The host memory that is left next to the device of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunHostHeadroom {
    /// The size of the headroom, in bytes.
    pub bytes: f64,
    /// The host memory that the rank may use, in bytes.
    pub total_bytes: f64,
}

/// The growth of live memory of a rank, in bytes per step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunGrowth {
    /// Set when it rises or creeps.
    pub is_growing: bool,
    pub slope: f64,
    /// The 95 % interval of the slope.
    pub interval: Option<SlopeInterval>,
}

impl RunGrowth {
    /// Returns the growth of the rank that grows fastest, of those that rise or creep if there is
    /// one.
    pub(super) fn fastest(ranks: impl Iterator<Item = Self>) -> Option<Self> {
        ranks.max_by(|a, b| a.is_growing.cmp(&b.is_growing).then(a.slope.total_cmp(&b.slope)))
    }
}

/// A 95 % interval, in bytes per step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlopeInterval {
    pub lower: f64,
    pub upper: f64,
}

/// (worst - median) / median over the ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunSkew {
    /// The skew, a ratio.
    pub ratio: f64,
    /// Set when it is of means over the steps, as TraceML's is, rather than of peaks.
    pub is_of_means: bool,
}

/// The reason that a document is not a summary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is neither a summary of stepmem nor TraceML's final_summary.json: {0}")]
pub struct NotASummary(pub String);

#[cfg(test)]
impl RunFigures {
    /// A run with this peak and no other figure.
    pub fn of_peak(peak_allocated: RunPeak) -> Self {
        Self {
            policy: PolicyName::Stepmem,
            run: None,
            setup: RunSetup::default(),
            issues: Vec::new(),
            status: "BALANCED".to_owned(),
            has_data: true,
            is_judged: true,
            steps: None,
            allocated: RunPeak::default(),
            peak_allocated,
            peak_reserved: RunPeak::default(),
            pressure_ratio: None,
            headroom: None,
            host_headroom: None,
            growth: None,
            skew: None,
            worst_rank: None,
            n_lost: None,
            n_ooms: None,
            is_going_on: false,
            end: None,
            ranks: Vec::new(),
            leaking_line: None,
        }
    }
}
