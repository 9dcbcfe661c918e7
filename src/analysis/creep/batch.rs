//! How much of a larger batch stays live from one step to the next.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::pyramid::PackedBytes;
use crate::analysis::creep::record::MemoryRecord;
use crate::model::units::MEBIBYTE;

/// Estimates how much of a larger batch stays live from one step to the next: a regression of
/// the changes of live memory on the changes of transient memory.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct BatchShare {
    /// Live and transient bytes of the last record; `None` where its peak is unknown.
    last: Option<(f64, f64)>,
    /// Σ x² of the changes x of the transient bytes, older ones decayed.
    xx: f64,
    /// Σ x·y with the changes y of the live bytes.
    xy: f64,
    /// The transient bytes that others are compared with: those of the first record of a block.
    usual: Option<f64>,
}

impl BatchShare {
    /// The share of the sums that a record keeps: they span the last thousand records.
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

    /// Takes a record; one whose peak is unknown is not compared with its neighbours.
    pub(super) fn learn(&mut self, record: &MemoryRecord) {
        let Some(peak) = record.peak else {
            self.last = None;
            return;
        };
        let now = (record.allocated, peak - record.allocated);
        if let Some((allocated, transient)) = self.last.replace(now) {
            let (x, y) = (now.1 - transient, now.0 - allocated);
            if y.abs() <= Self::EXPLAINED_RATIO * x.abs() + Self::EXPLAINED_BYTES {
                self.xx = Self::KEEP_RATIO * self.xx + x * x;
                self.xy = Self::KEEP_RATIO * self.xy + x * y;
            }
        }
    }

    /// Returns the live bytes of a record less what its batch leaves of itself beyond the usual one;
    /// unknown where its peak is.
    pub(super) fn net(&mut self, record: &MemoryRecord) -> PackedBytes {
        let Some(transient) = record.peak.map(|peak| peak - record.allocated) else {
            return PackedBytes::UNKNOWN;
        };
        let usual = *self.usual.get_or_insert(transient);
        let left = self.ratio().clamp(0.0, 1.0) * (transient - usual);
        PackedBytes::of(Some(record.allocated - left))
    }

    pub(super) fn ratio(&self) -> f64 {
        (self.xy + Self::PRIOR_RATIO * Self::PRIOR_WEIGHT) / (self.xx + Self::PRIOR_WEIGHT)
    }
}
