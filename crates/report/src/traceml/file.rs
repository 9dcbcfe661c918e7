//! TraceML's `final_summary.json`, as far as a comparison reads it. Every key may be missing or
//! null.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::policy::IssueSeverity;

/// A summary that TraceML wrote (schema 1.7).
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct TraceMlFile {
    pub meta: Option<TraceMlMeta>,
    /// The section on step memory.
    pub step_memory: Option<TraceMlSection>,
}

/// The run as TraceML describes it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct TraceMlMeta {
    pub run_name: Option<String>,
}

/// The section on step memory. The output of `summary --policy traceml --json` has the same
/// keys.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct TraceMlSection {
    pub diagnosis: Option<TraceMlFileDiagnosis>,
    pub issues: Option<Vec<TraceMlFileIssue>>,
    /// Means over the steps.
    pub global: Option<TraceMlGlobal>,
    /// True maxima by metric, which only `summary --policy traceml --json` has.
    pub metrics: Option<BTreeMap<String, TraceMlFileMetric>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct TraceMlFileDiagnosis {
    pub kind: Option<String>,
    /// The name of the diagnosis on cards.
    pub status: Option<String>,
    /// Number of common steps that it is about.
    pub steps_used: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct TraceMlFileIssue {
    pub kind: Option<String>,
    /// The name of the issue on cards.
    pub status: Option<String>,
    /// The severity of the issue.
    pub severity: Option<IssueSeverity>,
    /// The rank with the highest peak.
    pub ranks: Option<Vec<Option<u64>>>,
}

/// Means over the steps.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct TraceMlGlobal {
    /// The steps that were analyzed.
    pub window: Option<TraceMlWindow>,
    /// The rank whose mean is nearest to the median, by metric.
    pub median: Option<BTreeMap<String, TraceMlPoint>>,
    /// The rank with the greatest mean, by metric.
    pub worst: Option<BTreeMap<String, TraceMlPoint>>,
}

/// The steps that were analyzed.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct TraceMlWindow {
    /// Number of steps.
    pub steps_analyzed: Option<f64>,
}

/// A mean and the rank that has it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct TraceMlPoint {
    /// The mean, in bytes.
    pub value: Option<f64>,
    /// The global rank, as text.
    pub idx: Option<String>,
}

/// The figures of one metric.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct TraceMlFileMetric {
    pub worst_peak_bytes: Option<f64>,
    pub skew_pct: Option<f64>,
    pub pressure_frac: Option<f64>,
}
