//! The part of a larger batch that stays live from one step to the next.

use serde::{Deserialize, Serialize};

use crate::sample::Sample;
use stepmem_types::saved;
use stepmem_types::units::MEBIBYTE;

/// Estimates the part of a larger batch that stays live from one step to the next. It is a
/// regression of the changes of live memory on the changes of transient memory.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct BatchShare {
    /// Live and transient bytes of the last sample; `None` where its peak is unknown.
    #[serde(deserialize_with = "saved::figures")]
    last: Option<(f64, f64)>,
    /// Σ x² of the changes x of the transient bytes, older ones decayed.
    #[serde(deserialize_with = "saved::amounts")]
    xx: f64,
    /// Σ x·y with the changes y of the live bytes.
    #[serde(deserialize_with = "saved::figures")]
    xy: f64,
    /// The transient bytes that others are compared with: those of the first sample.
    #[serde(deserialize_with = "saved::figures")]
    usual: Option<f64>,
    /// Bytes that the last batch left beyond those of the usual one.
    #[serde(deserialize_with = "saved::figures")]
    left: f64,
}

impl BatchShare {
    /// The share of the sums that a sample keeps: they span the last thousand samples.
    const KEEP_RATIO: f64 = 0.999;
    /// A change of live memory above this share of the transient change is not caused by the
    /// batch.
    const EXPLAINED_RATIO: f64 = 1.2;
    /// See [`Self::EXPLAINED_RATIO`]: a change of this size is always attributed to the batch.
    const EXPLAINED_BYTES: f64 = MEBIBYTE;
    /// The share assumed while the batch has never changed.
    const PRIOR_RATIO: f64 = 0.5;
    /// The weight of that assumption: one change of 10 MB, squared (Hoerl and Kennard, "Ridge
    /// Regression", 1970).
    const PRIOR_WEIGHT: f64 = 1e14;

    /// Takes a sample; one whose peak is unknown is not compared with its neighbors.
    pub(super) fn learn(&mut self, sample: &Sample) {
        let Some(peak) = sample.peak else {
            self.last = None;
            return;
        };
        let now = (sample.live(), peak - sample.allocated);
        if let Some((live, transient)) = self.last.replace(now) {
            let (x, y) = (now.1 - transient, now.0 - live);
            if y.abs() <= Self::EXPLAINED_RATIO * x.abs() + Self::EXPLAINED_BYTES {
                self.xx = Self::KEEP_RATIO * self.xx + x * x;
                self.xy = Self::KEEP_RATIO * self.xy + x * y;
            }
        }
    }

    /// Returns the live bytes of a sample less what its batch leaves of itself beyond the usual
    /// one. Where its peak is unknown, its batch is taken to be as large as the one before.
    pub(super) fn net(&mut self, sample: &Sample) -> f64 {
        if let Some(transient) = sample.peak.map(|peak| peak - sample.allocated) {
            let usual = *self.usual.get_or_insert(transient);
            self.left = self.ratio().clamp(0.0, 1.0) * (transient - usual);
        }
        sample.live() - self.left
    }

    fn ratio(&self) -> f64 {
        (self.xy + Self::PRIOR_RATIO * Self::PRIOR_WEIGHT) / (self.xx + Self::PRIOR_WEIGHT)
    }
}
