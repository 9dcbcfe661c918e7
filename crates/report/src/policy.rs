//! The words that our policy and TraceML's share: the policy's name, the severity of an issue,
//! and the two peaks.

use serde::{Deserialize, Serialize};

/// The policy that a run is judged by.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyName {
    Stepmem,
    /// TraceML 0.3.6.
    TraceMl,
}

/// The severity of a summary's issue, in TraceML's words.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IssueSeverity {
    /// A note: nothing has to be done.
    Info,
    /// A warning, which should be looked at.
    Warn,
    /// Critical: the run fails, or will.
    Crit,
}

impl IssueSeverity {
    /// Returns the severity in our own words, as findings have it.
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warning",
            Self::Crit => "critical",
        }
    }

    /// Returns the severity as TraceML writes it.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Crit => "crit",
        }
    }
}

/// A figure whose peaks a summary has for the whole run.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum PeakMetric {
    /// The peak of live memory within train steps.
    #[serde(rename = "peak_allocated")]
    Allocated,
    /// The peak of what the allocator holds within train steps.
    #[serde(rename = "peak_reserved")]
    Reserved,
}

impl PeakMetric {
    /// Both, in TraceML's order.
    pub const ALL: [Self; 2] = [Self::Allocated, Self::Reserved];

    /// Returns the metric as it is written.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Allocated => "peak_allocated",
            Self::Reserved => "peak_reserved",
        }
    }
}
