//! An issue as TraceML writes it.

use serde::Serialize;

use crate::policy::{IssueSeverity, PeakMetric};
use stepmem_types::ids::Rank;

/// A thing that TraceML found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceMlIssue {
    pub kind: TraceMlKind,
    /// The name of the issue on cards.
    pub status: &'static str,
    /// The severity of the issue.
    pub severity: IssueSeverity,
    /// The metric that raises it.
    pub metric: PeakMetric,
    /// `memory`; `None` when no rule fired.
    pub phase: Option<&'static str>,
    /// Orders issues of a kind.
    pub score: Option<f64>,
    /// Not used for memory.
    pub share_pct: Option<f64>,
    /// (worst - median) / median over the ranks' peaks: a ratio.
    pub skew_pct: Option<f64>,
    /// The rank with the highest peak.
    pub ranks: Vec<Rank>,
    /// The figures behind it.
    pub evidence: TraceMlEvidence,
}

/// A rule of TraceML, or the absence of a finding, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum TraceMlKind {
    HighPressure,
    Imbalance,
    CreepConfirmed,
    CreepEarly,
    Balanced,
    NoData,
    NoGpu,
}

impl TraceMlKind {
    /// Returns the name on cards.
    pub fn title(self) -> &'static str {
        match self {
            Self::HighPressure => "HIGH PRESSURE",
            Self::Imbalance => "IMBALANCE",
            Self::CreepConfirmed => "MEMORY CREEP",
            Self::CreepEarly => "MEMORY RISING",
            Self::Balanced => "BALANCED",
            Self::NoData => "NO DATA",
            Self::NoGpu => "NO GPU",
        }
    }

    /// Returns whether it is about growth.
    pub fn is_creep(self) -> bool {
        matches!(self, Self::CreepConfirmed | Self::CreepEarly)
    }
}

/// The figures behind an issue.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum TraceMlEvidence {
    Imbalance {
        skew_pct: f64,
        pressure_frac: f64,
    },
    Pressure {
        pressure_frac: f64,
    },
    Creep {
        overall_abs_delta_bytes: f64,
        overall_worst_growth_pct: Option<f64>,
        overall_median_growth_pct: Option<f64>,
    },
    Neutral {
        steps_used: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        worst_rank: Option<Rank>,
    },
}
