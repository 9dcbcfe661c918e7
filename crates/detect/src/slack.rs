//! Slack: reserved memory that no larger batch explains.

use serde::{Deserialize, Serialize};

use crate::sample::Sample;
use stepmem_types::saved;

/// The running sum of what reserved memory gained without a new record of the peak.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Slack {
    #[serde(deserialize_with = "saved::places")]
    reserved: Option<f64>,
    /// The highest peak so far.
    #[serde(deserialize_with = "saved::places")]
    record: f64,
    #[serde(deserialize_with = "saved::figures")]
    bytes: f64,
}

impl Slack {
    /// Takes a sample whose peak, or that of what came since the last one, was `peak`. Returns
    /// the slack; `None` where reserved bytes or peaks are unknown.
    pub(super) fn add(&mut self, sample: &Sample, peak: f64) -> Option<f64> {
        let reserved =
            sample.reserved.filter(|_| sample.peak.or(sample.peak_bound).is_some())?;
        let more_peak = peak - self.record;
        if let Some(before) = self.reserved.replace(reserved) {
            let more = reserved - before;
            self.bytes += if more_peak > 0.0 { (more - more_peak).min(0.0) } else { more };
        }
        self.record = self.record.max(peak);
        Some(self.bytes)
    }
}
