//! A job as an engine knows it that keeps the recorded set. What that set lacks has no field
//! here, or is absent; what depends on the times of scrapes stands under `sampled`.

use std::borrow::Cow;

use serde::Serialize;

use crate::job::launches::JobLaunch;
use crate::summary::model::Issue;
use stepmem_engine::{DiagnosisKind, Severity};
use stepmem_types::end::EndOutcome;
use stepmem_types::ids::{GpuUuid, Rank, Run};
use stepmem_types::site::short_path;
use stepmem_types::step::StepUnit;

/// A launch of a run, by its latest attempt.
#[derive(Clone, Debug, Serialize)]
pub struct Job {
    /// The name of the run.
    pub run: Run,
    /// The launch, and the times at which it was seen.
    #[serde(flatten)]
    pub launch: JobLaunch,
    /// The other launches of the run in the time that was asked for, the earliest first.
    pub other_launches: Vec<JobLaunch>,
    /// The worst issue.
    pub diagnosis: Issue,
    /// The findings that held when their ranks were last scraped, by diagnosis, the worst
    /// first; one that nothing is wrong without any. Never empty.
    pub issues: Vec<Issue>,
    /// World size reported by the run.
    pub ranks_expected: Option<u64>,
    /// Ranks that were never scraped, of those expected: the first 64, ascending.
    pub ranks_missing: Vec<u32>,
    /// Number of ranks that were never scraped.
    pub n_ranks_missing: u32,
    /// (worst - median) / median over the ranks' recent peaks.
    pub imbalance_ratio: Option<f64>,
    /// Every rank, ascending.
    pub ranks: Vec<JobRank>,
    /// The warnings of the engine: the answer may lack data.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct JobRank {
    pub rank: Rank,
    pub pod: Option<String>,
    pub device: Option<GpuUuid>,
    pub local_rank: Option<Rank>,
    pub node_rank: Option<Rank>,
    pub attempt: Option<u64>,
    /// The unit that it counts; absent of steps.
    #[serde(skip_serializing_if = "StepUnit::is_steps")]
    pub unit: StepUnit,
    /// The time of the last scrape, as a Unix time.
    pub last_scrape: f64,
    /// The time of the last push, as a Unix time; absent of launches that overlap.
    pub last_push: Option<f64>,
    /// The highest peak of live memory, evaluation included; absent of launches that overlap.
    pub peak_allocated_bytes: Option<f64>,
    /// The slope of live memory.
    pub slope: Option<JobSlope>,
    /// The end of the rank; absent while it goes on, and where no scrape saw it.
    pub end: Option<JobEnd>,
    /// Seconds until out of memory; absent of a rank that ended, and of a launch that is over.
    pub oom_eta_seconds: Option<f64>,
    pub sampled: JobSample,
    /// The worst first.
    pub findings: Vec<JobFinding>,
}

/// The end of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct JobEnd {
    /// The time of the end, as a Unix time.
    pub time: f64,
    pub outcome: EndOutcome,
}

/// The figures of the last scrape of a rank: what was between scrapes does not show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct JobSample {
    pub step: Option<u64>,
    pub allocated_bytes: Option<f64>,
    pub reserved_bytes: Option<f64>,
}

/// The rate at which a signal grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct JobSlope {
    pub bytes_per_step: Option<f64>,
    /// The lower end of its 95 % interval, while it grows.
    pub lower_bytes_per_step: Option<f64>,
    /// The upper end of its 95 % interval, while it grows.
    pub upper_bytes_per_step: Option<f64>,
    /// The slope in time, of a rank that is judged by time.
    pub bytes_per_second: Option<f64>,
}

/// A finding of a rank.
#[derive(Clone, Debug, Serialize)]
pub struct JobFinding {
    pub kind: DiagnosisKind,
    /// The name of the diagnosis on pages.
    pub status: Cow<'static, str>,
    pub severity: Severity,
    /// The time when the finding began to hold, as a Unix time.
    pub since: Option<f64>,
    /// The time when the finding was last scraped, as a Unix time; absent if it held until the
    /// rank's last scrape.
    pub until: Option<f64>,
    /// The growth, of a finding of growth that holds.
    pub growth: Option<JobGrowth>,
}

/// The growth behind a finding, at its last scrape.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobGrowth {
    pub signal: &'static str,
    #[serde(flatten)]
    pub slope: JobSlope,
    pub growth_bytes: Option<f64>,
    pub onset_step: Option<u64>,
    pub confidence_ratio: Option<f64>,
    /// The line that leaks, by a memory snapshot.
    pub line: Option<JobLine>,
    /// The share of the growth that the line explains.
    pub line_share_ratio: Option<f64>,
    pub holder: Option<JobHolder>,
}

/// A line of code.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobLine {
    pub file: Option<String>,
    pub line: Option<u64>,
    pub function: Option<String>,
}

/// The live object that grows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobHolder {
    pub name: String,
    pub kind: Option<String>,
    /// The line that made or fills it.
    pub at: Option<JobLine>,
}

impl Job {
    /// Returns the unit that its ranks count; steps where they differ.
    pub fn unit(&self) -> StepUnit {
        unit_of(&self.ranks)
    }
}

/// Returns the unit that all of some ranks count; steps where they differ.
pub(super) fn unit_of(ranks: &[JobRank]) -> StepUnit {
    let first = ranks.first().map_or_else(StepUnit::default, |rank| rank.unit);
    if ranks.iter().all(|rank| rank.unit == first) { first } else { StepUnit::default() }
}

impl JobRank {
    /// Returns the findings that held when it was last scraped, the worst first.
    pub fn holding(&self) -> impl Iterator<Item = &JobFinding> {
        self.findings.iter().filter(|finding| finding.until.is_none())
    }

    /// Returns whether its figures are about host memory.
    pub fn is_host(&self) -> bool {
        self.device.as_ref().is_some_and(GpuUuid::is_host)
    }
}

impl std::fmt::Display for JobLine {
    /// Writes `job/train.py:151 in evaluate`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let function = self.function.as_deref();
        let Some(file) = &self.file else { return f.write_str(function.unwrap_or("?")) };
        f.write_str(&short_path(file))?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        function.map_or(Ok(()), |function| write!(f, " in {function}"))
    }
}
