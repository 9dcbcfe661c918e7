//! The log of refused pushes: a line for each reason and minute, however many are refused.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::input::push::inbox::PushResult;
use stepmem_types::units::Uptime;

/// Minimum time between two warnings of pushes that were refused for the same reason.
pub const REFUSALS_WARNED_EVERY: Duration = Duration::from_mins(1);

/// The warnings of refused pushes, by reason.
#[derive(Debug, Default)]
pub(super) struct RefusalLog([Mutex<Warned>; PushResult::LABELS.len()]);

/// The last warning of a reason.
#[derive(Debug, Default)]
struct Warned {
    at: Option<Uptime>,
    /// Number of refusals since then.
    n_since: u64,
}

impl RefusalLog {
    /// Warns of a refusal at `now`, or counts it for the next warning of its reason.
    pub(super) fn add(&self, result: PushResult, refusal: &dyn Display, now: Uptime) {
        let Some(warned) = self.0.get(result.idx()) else { return };
        let mut warned = warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.at.is_some_and(|at| now.since(at) < REFUSALS_WARNED_EVERY) {
            warned.n_since = warned.n_since.saturating_add(1);
            tracing::debug!(reason = result.label(), error = %refusal, "push refused");
            return;
        }
        let since_last = (warned.n_since > 0).then_some(warned.n_since);
        *warned = Warned { at: Some(now), n_since: 0 };
        tracing::warn!(reason = result.label(), error = %refusal, since_last, "push refused");
    }
}
