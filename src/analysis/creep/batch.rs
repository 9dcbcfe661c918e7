//! How much of a larger batch stays live from one step to the next.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::record::MemoryRecord;
use crate::model::units::MEBIBYTE;

/// How much of a larger batch stays live from one step to the next: a regression of the moves
/// of live memory on the moves of what the steps need on top.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct BatchShare {
    /// Live and transient bytes of the last push.
    last: Option<(f64, f64)>,
    /// Σ x² of the moves of the transient bytes, old ones decayed.
    xx: f64,
    /// Σ x·y with the moves of the live bytes.
    xy: f64,
}

impl BatchShare {
    /// How much of the sums a push keeps: they span the last thousand pushes.
    const KEEP_RATIO: f64 = 0.999;
    /// A move of live memory that is larger than this share of the transient move is not the
    /// batch's.
    const EXPLAINED_RATIO: f64 = 1.2;
    /// See [`Self::EXPLAINED_RATIO`]: what is always forgiven.
    const EXPLAINED_BYTES: f64 = MEBIBYTE;
    /// The share that is assumed of a batch that never moved.
    const PRIOR_RATIO: f64 = 0.5;
    /// How strongly: as much as one move of 10 MB, squared (Hoerl and Kennard, "Ridge
    /// Regression", 1970).
    const PRIOR_WEIGHT: f64 = 1e14;

    pub(super) fn learn(&mut self, record: &MemoryRecord) {
        let now = (record.allocated, record.peak - record.allocated);
        if let Some((allocated, transient)) = self.last.replace(now) {
            let (x, y) = (now.1 - transient, now.0 - allocated);
            if y.abs() <= Self::EXPLAINED_RATIO * x.abs() + Self::EXPLAINED_BYTES {
                self.xx = Self::KEEP_RATIO * self.xx + x * x;
                self.xy = Self::KEEP_RATIO * self.xy + x * y;
            }
        }
    }

    pub(super) fn ratio(&self) -> f64 {
        (self.xy + Self::PRIOR_RATIO * Self::PRIOR_WEIGHT) / (self.xx + Self::PRIOR_WEIGHT)
    }
}
