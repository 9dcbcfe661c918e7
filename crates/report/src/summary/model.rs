//! The types of `final_summary.json`, to write and to read. Unknown values are absent. A key of
//! ours that is removed or changes its meaning bumps [`SCHEMA_VERSION`].

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::policy::{IssueSeverity, PeakMetric, PolicyName};
use crate::summary::planned::PlannedRestarts;
use stepmem_detect::{Signal, Stage};
use stepmem_engine::lifetime::{Bands, Moment};
use stepmem_engine::status::SnapshotStatus;
use stepmem_engine::{Basis, DiagnosisKind, Evidence, HostView, LimitOrigin};
use stepmem_types::claims::{Sentence, Statement};
use stepmem_types::end::EndReport;
use stepmem_types::ids::{GpuUuid, Rank, Run};
use stepmem_types::launch::Launch;
use stepmem_types::step::StepUnit;
use stepmem_types::units::{Bytes, Count};

/// Schema version of stepmem's own keys.
pub(crate) const SCHEMA_VERSION: u32 = 3;

/// A run, summed up: `final_summary.json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Summary {
    /// The program that wrote it.
    pub generator: Generator,
    /// `stepmem`.
    pub policy: PolicyName,
    /// The time when the last record came, or the summary was asked for: RFC 3339.
    pub generated_at: String,
    /// The name of the run.
    pub run: Run,
    /// The launch of the run, where its processes report it.
    pub launch: Option<Launch>,
    /// The workload that the user declared (`--workload`); runs of different ones are not
    /// compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The run's latest attempt, which the summary covers.
    pub attempt: Count,
    /// The planned restarts that led to it; absent without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_restarts: Option<PlannedRestarts>,
    /// The time from the first to the last train step, in seconds.
    pub duration_s: Option<f64>,
    /// The worst issue.
    pub diagnosis: Issue,
    /// Every issue, the worst first; never empty.
    pub issues: Vec<Issue>,
    /// The figures of the run by metric.
    pub metrics: BTreeMap<PeakMetric, RunMetric>,
    /// The ranks that pushed, and those that did not.
    pub coverage: Coverage,
    /// The rank that the diagnosis is about, else that of the highest peak.
    pub worst_rank: Option<Rank>,
    /// Every rank, ascending.
    pub ranks: Vec<RankSummary>,
    /// The memory snapshots that were asked for or reported, the oldest first; absent in a
    /// recording.
    pub snapshots: Option<Vec<SnapshotStatus>>,
    /// The card, `final_summary.txt`.
    pub text: String,
    /// The statements of the card, in its order.
    pub statements: Vec<Statement>,
}

impl Summary {
    /// Returns the worst severity of what is wrong; `None` if nothing is.
    pub fn worst(&self) -> Option<IssueSeverity> {
        let wrong = self.issues.iter().filter(|issue| issue.is_wrong());
        wrong.map(|issue| issue.severity).max()
    }
}

/// The program that wrote a summary.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Generator {
    /// `stepmem`.
    pub name: Cow<'static, str>,
    pub version: Cow<'static, str>,
    /// Schema version of our own keys.
    pub schema_version: u32,
}

/// A diagnosis and its ranks; `E` is its evidence, which is decoded by its kind.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Issue<E = IssueEvidence> {
    /// The diagnosis, or the absence of one.
    pub kind: IssueKind,
    /// The name of the issue on pages.
    pub status: Cow<'static, str>,
    /// The severity of the issue, by the worst of its ranks.
    pub severity: IssueSeverity,
    /// The evidence in a sentence.
    pub summary: String,
    /// The first thing to check.
    pub action: Cow<'static, str>,
    /// The figure that it is about.
    pub metric: Cow<'static, str>,
    /// `memory`, as TraceML has it; absent when nothing is wrong.
    pub phase: Option<Cow<'static, str>>,
    /// Orders its ranks: a ratio, or bytes of growth.
    pub score: Option<f64>,
    /// (worst - median) / median over the ranks' peaks: a ratio.
    pub skew_pct: Option<f64>,
    /// The ranks, the worst first.
    pub ranks: Vec<Rank>,
    /// The figures behind it, of the worst rank.
    pub evidence: E,
    /// The statements of its sentence and of its action, one by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<Statement>,
}

impl<'de> Deserialize<'de> for Issue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let of = Issue::<Value>::deserialize(deserializer)?;
        Ok(Self {
            evidence: IssueEvidence::decode(&of.kind, &of.evidence),
            kind: of.kind,
            status: of.status,
            severity: of.severity,
            summary: of.summary,
            action: of.action,
            metric: of.metric,
            phase: of.phase,
            score: of.score,
            skew_pct: of.skew_pct,
            ranks: of.ranks,
            statements: of.statements,
        })
    }
}

impl Issue {
    /// Returns whether something is wrong, rather than nothing found or nothing known.
    pub fn is_wrong(&self) -> bool {
        self.phase.is_some()
    }

    /// Returns its sentence and its action, with what they state.
    pub fn told(&self) -> (Sentence, Sentence) {
        Sentence::read_with_advice(&self.summary, &self.action, &self.statements)
    }
}

/// The name of an issue: a diagnosis, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IssueKind {
    /// A diagnosis that holds, or held at the end.
    Diagnosis(DiagnosisKind),
    /// Nothing is wrong.
    Balanced,
    /// Nothing is wrong so far, but no rank ran long enough for creep to be judged.
    TooFewSteps,
    /// No train step was pushed.
    NoData,
    /// A diagnosis that a later version made.
    Other(Box<str>),
}

impl IssueKind {
    /// Returns the name in labels.
    pub fn label(&self) -> &str {
        match self {
            Self::Diagnosis(kind) => kind.label(),
            Self::Balanced => "BALANCED",
            Self::TooFewSteps => "TOO_FEW_STEPS",
            Self::NoData => "NO_DATA",
            Self::Other(label) => label,
        }
    }

    fn from_label(label: &str) -> Self {
        match label {
            "BALANCED" => Self::Balanced,
            "TOO_FEW_STEPS" => Self::TooFewSteps,
            "NO_DATA" => Self::NoData,
            _ => DiagnosisKind::from_label(label)
                .map_or_else(|| Self::Other(label.into()), Self::Diagnosis),
        }
    }
}

impl Serialize for IssueKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.label())
    }
}

impl<'de> Deserialize<'de> for IssueKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from_label(&Cow::<str>::deserialize(deserializer)?))
    }
}

/// The figures behind an issue.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum IssueEvidence {
    /// The evidence of a diagnosis that holds by the last figures.
    Finding(Evidence),
    /// A peak near the capacity, of a time before the last figures.
    PastPeak(PastPeak),
    /// A peak far below the other ranks'.
    LowPeak(LowPeak),
    /// The figures of a run without an issue.
    Neutral(Neutral),
    /// The evidence of a version with other figures.
    Other(Value),
}

/// A past peak near the capacity.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct PastPeak {
    pub pressure_ratio: f64,
    /// The memory that the peak is of: `allocated` or `reserved`.
    pub basis: Basis,
    pub capacity_bytes: u64,
    /// The first step that had it; absent outside train steps.
    pub step: Option<u64>,
}

/// A peak far below the other ranks'.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct LowPeak {
    /// The rank's highest peak by the median of the others', less 1: negative.
    pub peak_imbalance_ratio: f64,
    /// The median of the other ranks' peaks.
    pub median_bytes: f64,
}

/// A run in which nothing is wrong, or nothing is known.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Neutral {
    /// The train steps of the rank that came furthest.
    pub steps_used: u64,
    /// The rank with the highest peak.
    pub worst_rank: Option<Rank>,
}

impl IssueEvidence {
    /// Decodes the figures of an issue, which do not name their kind.
    fn decode(kind: &IssueKind, json: &Value) -> Self {
        let known = match kind {
            IssueKind::Diagnosis(kind) => {
                let finding = Evidence::decode(*kind, json).map(Self::Finding).ok();
                finding.or_else(|| match kind.of_own() {
                    DiagnosisKind::HighPressure => read(json).map(Self::PastPeak),
                    DiagnosisKind::Imbalance => read(json).map(Self::LowPeak),
                    _ => None,
                })
            }
            IssueKind::Balanced | IssueKind::TooFewSteps | IssueKind::NoData => {
                read(json).map(Self::Neutral)
            }
            IssueKind::Other(_) => None,
        };
        known.unwrap_or_else(|| Self::Other(json.clone()))
    }
}

fn read<T: DeserializeOwned>(json: &Value) -> Option<T> {
    T::deserialize(json).ok()
}

/// The figures of the run by one metric: TraceML's keys, with true maxima over the whole
/// attempt.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RunMetric {
    pub metric: PeakMetric,
    pub steps_used: u64,
    pub first_step: u64,
    pub completed_step: u64,
    pub ranks_seen: usize,
    pub ranks_used: usize,
    pub incomplete: bool,
    pub worst_peak_bytes: f64,
    pub median_peak_bytes: f64,
    pub worst_rank: Rank,
    pub skew_ratio: f64,
    pub skew_pct: f64,
    pub pressure_frac: Option<f64>,
    pub trend: RunMetricTrend,
}

/// The three levels of the rank that grew most, and whether live memory of the run grows.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct RunMetricTrend {
    pub eligible: bool,
    pub rank: Option<Rank>,
    pub baseline_avg_bytes: Option<f64>,
    pub mid_avg_bytes: Option<f64>,
    pub recent_avg_bytes: Option<f64>,
    pub overall_abs_delta_bytes: Option<f64>,
    pub overall_worst_growth_pct: Option<f64>,
    pub overall_median_growth_pct: Option<f64>,
    pub trend_window_steps: Option<u64>,
    /// The slope of that rank's live memory, also where the metric is of reserved memory: not
    /// TraceML's.
    pub allocated_slope_bytes_per_step: Option<f64>,
    pub early: bool,
    pub confirmed: bool,
}

/// The ranks that pushed, and those that did not.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Coverage {
    /// World size reported by the run.
    pub ranks_expected: Option<u32>,
    pub ranks_seen: usize,
    /// Ranks that never pushed here, of those expected: the first 64, ascending. Where a job has
    /// several exporters, another may have them.
    pub ranks_missing: Vec<u32>,
    /// Number of ranks that never pushed here.
    pub n_ranks_missing: u32,
    /// Ranks that stopped while others went on, or without announcing their end.
    pub ranks_lost: Vec<LostRank>,
    /// Number of ranks that ran long enough for creep to be judged.
    pub ranks_judged: usize,
    /// Number of restarts of ranks without a new attempt, over all ranks.
    pub restarts: u64,
    /// The first train step and when it ended.
    pub first: Option<Moment>,
    /// The last train step and when it ended.
    pub last: Option<Moment>,
}

impl Coverage {
    /// Returns the number of ranks of the run: as it reports, else those that pushed.
    pub fn world_size(&self) -> Option<u64> {
        let seen = u64::try_from(self.ranks_seen).ok();
        self.ranks_expected.map(u64::from).or(seen).filter(|n| *n > 0)
    }
}

/// A rank that stopped before the others, or without announcing its end.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct LostRank {
    pub rank: Rank,
    /// The last train step, and when it ended.
    pub last: Option<Moment>,
    /// Silent, or behind the others.
    pub state: RankOutcome,
}

/// The state of a rank when the summary was made.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RankOutcome {
    /// The rank pushes.
    Pushing,
    /// The rank announced its end.
    Ended,
    /// The rank fell silent with all other ranks of its run, which is over.
    #[serde(rename = "ended_unannounced")]
    Unannounced,
    /// The rank has not pushed for longer than a rank may be silent.
    Silent,
    /// The rank stopped long before the others.
    Behind,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RankSummary {
    pub rank: Rank,
    /// The rank within the node.
    pub local_rank: Option<Rank>,
    pub node_rank: Option<Rank>,
    pub device: Option<GpuUuid>,
    /// Model of the device, where NVML names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_model: Option<String>,
    pub state: RankOutcome,
    /// The end of the rank, as its process reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<EndReport>,
    /// The unit that the rank counts, where that is not steps.
    #[serde(default, skip_serializing_if = "StepUnit::is_steps")]
    pub unit: StepUnit,
    /// Train steps of its last incarnation.
    pub steps: u64,
    /// The train steps of its last incarnation whose memory its client did not read.
    pub unread_steps: u64,
    /// The samples by time that the rank sent while it took no steps.
    pub samples: u64,
    /// Seconds that it went on after its last step without another; `None` if it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_without_steps: Option<f64>,
    /// The first of them.
    pub first: Option<Moment>,
    /// The last of them.
    pub last: Option<Moment>,
    /// Number of its restarts.
    pub restarts: u32,
    /// The kinds of the issues that it is in.
    pub issues: Vec<IssueKind>,
    /// Live memory at the end of train steps.
    pub allocated: Option<FigureSummary>,
    /// The peak within train steps; `None` where no step's is known.
    pub peak_allocated: Option<FigureSummary>,
    /// Memory held by the allocator at the end of train steps.
    pub reserved: Option<FigureSummary>,
    /// The peak of that within train steps; `None` where no step's is known.
    pub peak_reserved: Option<FigureSummary>,
    pub capacity_bytes: Option<Bytes>,
    /// The origin of the capacity; absent where it is its device's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_set_by: Option<LimitOrigin>,
    /// The rank's highest peak by its capacity.
    pub pressure_ratio: Option<f64>,
    /// Capacity less what others hold less what it uses by `headroom_basis`, in bytes.
    pub headroom_bytes: Option<f64>,
    /// The maximum of allocated since its process began.
    pub high_water_allocated_bytes: Option<Bytes>,
    /// Bytes left until its growth ends in out-of-memory: less than `headroom_bytes` by the
    /// cache that the allocator would not give back. Absent where nothing grows.
    pub growth_headroom_bytes: Option<f64>,
    /// The memory that the headroom rests on.
    pub headroom_basis: Option<Basis>,
    /// The rank's highest peak by the median of the others', less 1. The exporter's
    /// `imbalance_ratio` is the same of recent peaks.
    pub peak_imbalance_ratio: Option<f64>,
    /// The share of reserved that was not in use at the peak of the last train step.
    pub fragmentation_ratio: Option<f64>,
    /// The rank's host memory beyond that of its process; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Box<HostView>>,
    /// Memory of its process outside its allocator, in bytes.
    pub outside_allocator_bytes: Option<f64>,
    /// The movement of live memory.
    pub trend: Option<RankTrend>,
    /// The rate at which reserved memory that no larger batch explains rises steadily; absent where
    /// it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_rise_bytes_per_step: Option<f64>,
    /// The rank's records by phase.
    pub phases: BTreeMap<Cow<'static, str>, PhaseSummary>,
    /// Out-of-memory errors since its process started.
    pub ooms: Option<Count>,
    /// Failed mallocs that flushed the cache, since its process started.
    pub alloc_retries: Option<Count>,
    /// Live memory as means over equal parts of its steps, in bytes.
    pub series_bytes: Vec<f64>,
}

impl RankSummary {
    /// Returns whether its capacity limits more than its memory: what its process maps.
    pub(crate) fn is_limited_beyond_memory(&self) -> bool {
        matches!(self.capacity_set_by, Some(LimitOrigin::Data | LimitOrigin::AddressSpace))
    }

    /// Returns whether its figures are about host memory.
    pub fn is_host(&self) -> bool {
        self.device.as_ref().is_some_and(GpuUuid::is_host)
    }
}

/// A figure over the train steps of a rank.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct FigureSummary {
    pub max_bytes: u64,
    /// The first step that had it.
    pub max_step: u64,
    pub mean_bytes: f64,
    pub last_bytes: u64,
    /// The distance of a step from its neighbors, in bytes.
    pub noise_bytes: Option<f64>,
}

/// The movement of a rank's live memory.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RankTrend {
    pub signal: Signal,
    /// The stage while growth holds.
    pub stage: Option<GrowthStage>,
    pub slope_bytes_per_step: Option<f64>,
    /// The lower end of its 95 % interval.
    pub slope_lower_bytes_per_step: Option<f64>,
    /// The upper end of its 95 % interval.
    pub slope_upper_bytes_per_step: Option<f64>,
    /// The slope in time.
    pub slope_bytes_per_second: Option<f64>,
    /// Set when it rises in a straight line, however little that is of the memory left.
    pub is_straight: bool,
    /// Growth since the onset.
    pub growth_bytes: Option<f64>,
    /// The step at which growth began.
    pub onset_step: Option<f64>,
    /// The time when growth began, as a Unix time.
    pub onset_time: Option<f64>,
    /// The last growth that crept and ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<EndedTrend>,
    /// The detector's confidence, 0 to 1.
    pub confidence_ratio: Option<f64>,
    /// Steps until the headroom is used up; `None` when that is not known within a factor of three.
    pub oom_eta_steps: Option<f64>,
    /// Seconds until then.
    pub oom_eta_seconds: Option<f64>,
    /// Early, middle and late level.
    pub bands: Option<Bands>,
}

/// Growth that crept and ended.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct EndedTrend {
    pub growth_bytes: f64,
    /// The step at which it last rose; absent of growth by time.
    pub level_since_step: Option<f64>,
    /// The time when it last rose, as a Unix time.
    pub level_since_time: f64,
}

/// The name of growth while it holds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GrowthStage {
    Rising,
    Creeping,
}

impl From<Stage> for GrowthStage {
    fn from(stage: Stage) -> Self {
        match stage {
            Stage::Rising => Self::Rising,
            Stage::Creeping => Self::Creeping,
        }
    }
}

/// The records of one phase of a rank.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PhaseSummary {
    /// Number of records.
    pub records: u64,
    /// The greatest known peak of allocated memory.
    pub peak_bytes: Option<Bytes>,
}
