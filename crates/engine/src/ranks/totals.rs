//! What is counted of a rank.

use serde::{Deserialize, Serialize};

use stepmem_types::saved;

/// The counts of a rank since the exporter began. They travel as a whole from the state to the
/// status, named as there.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct RankTotals {
    /// Number of times that it ran out of memory.
    #[serde(rename = "oom_events_total", deserialize_with = "saved::counts")]
    pub ooms: u64,
    /// Train steps that it reported, or calls, whichever it counts now.
    #[serde(rename = "steps_total", deserialize_with = "saved::counts")]
    pub steps: u64,
    /// The train steps whose memory its client did not read, because reading would have taken
    /// too large a share of them.
    #[serde(rename = "unread_steps_total", default, deserialize_with = "saved::counts")]
    pub unread_steps: u64,
    /// Records of it that came too late.
    #[serde(rename = "late_records_total", deserialize_with = "saved::counts")]
    pub late_records: u64,
}

impl RankTotals {
    /// Starts to count another unit.
    pub(crate) fn begin_unit(&mut self) {
        self.steps = 0;
        self.unread_steps = 0;
    }
}
