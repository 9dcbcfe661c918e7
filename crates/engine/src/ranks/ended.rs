//! The remains of a rank that ended, and the known facts of its last out-of-memory error.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ranks::limits::LimitOrigin;
use stepmem_types::end::{EndOutcome, EndReport};
use stepmem_types::saved;
use stepmem_types::units::{Bytes, Uptime};

/// An ended rank stays in the outputs for this long, and until it was scraped once…
pub(crate) const ENDED_SHOWN: Duration = Duration::from_mins(10);
/// …but not longer than this.
pub(crate) const ENDED_SHOWN_MAX: Duration = Duration::from_hours(1);
/// An out-of-memory error that the process survived stays in the outputs for this long.
pub(crate) const OOM_SHOWN: Duration = Duration::from_mins(10);

/// The end of a rank.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct RankEnded {
    /// The report of its process.
    pub report: EndReport,
    /// The time when the report came.
    pub at: Uptime,
    /// Set when Prometheus has read the rank since.
    pub is_scraped: bool,
}

impl RankEnded {
    /// Returns whether the rank still belongs in the outputs.
    pub fn is_shown(&self, now: Uptime) -> bool {
        let age = now.since(self.at);
        age <= ENDED_SHOWN || (!self.is_scraped && age <= ENDED_SHOWN_MAX)
    }

    /// Returns whether the exporter should wait for a last scrape before it stops.
    pub(crate) fn awaits_scrape(&self) -> bool {
        !self.is_scraped && self.report.outcome != EndOutcome::Completed
    }
}

/// The last time that a process ran out of memory in its incarnation.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct OomEvent {
    /// The step that it was in, that was completed after it, or that was the last one before
    /// it.
    #[serde(default, deserialize_with = "saved::counts")]
    pub step: Option<u64>,
    /// Bytes that the failed allocation requested.
    pub requested: Option<Bytes>,
    /// The rank's headroom by its figures before the error, in bytes.
    #[serde(default, deserialize_with = "saved::figures")]
    pub headroom_bytes: Option<f64>,
    /// The limit of the process's own that it reached, where the device had more.
    #[serde(default)]
    pub limit: Option<(LimitOrigin, Bytes)>,
    /// Grown before, while its live memory was rising or creeping, in bytes.
    #[serde(default, deserialize_with = "saved::figures")]
    pub growth_bytes: Option<f64>,
    /// Number of such errors in this incarnation.
    #[serde(deserialize_with = "saved::counts")]
    pub n_events: u64,
    /// Set when the incarnation ended with it.
    pub is_fatal: bool,
    /// Set when the kernel ended it.
    #[serde(default)]
    pub is_kill: bool,
    /// Errors that the process's own count lacks: one, of an end that it did not count.
    #[serde(default, deserialize_with = "saved::counts")]
    pub n_uncounted: u64,
    /// Set when no train step was completed after it.
    #[serde(default)]
    pub is_last: bool,
    /// End of the process since, if it ended.
    #[serde(default)]
    pub ending: Option<EndOutcome>,
    /// The time when it was heard of.
    pub at: Uptime,
}

impl OomEvent {
    /// Returns whether it still belongs in the outputs.
    pub fn is_shown(&self, now: Uptime) -> bool {
        self.is_fatal || self.is_last || now.since(self.at) <= OOM_SHOWN
    }
}
