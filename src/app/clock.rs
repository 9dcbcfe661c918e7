//! The exporter's clock: uptime and Unix time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::analysis::saved::SavedState;
use crate::model::units::Uptime;

/// Returns the uptime of this exporter, continued from the exporter whose state it resumes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    started: Instant,
    /// The uptime at `started`.
    before: Duration,
    /// The Unix time at uptime 0.
    pub(super) started_unix: f64,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this is app/")]
    pub(super) fn start(saved: Option<&SavedState>) -> Self {
        let unix =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let (before, started_unix) = match saved {
            Some(saved) => {
                let since = Duration::try_from_secs_f64(unix - saved.started);
                // The uptime never falls, even if the system's clock did.
                (since.unwrap_or_default().max(saved.uptime.0), saved.started)
            }
            None => (Duration::ZERO, unix),
        };
        Self { started: Instant::now(), before, started_unix }
    }

    pub(super) fn now(self) -> Uptime {
        Uptime(self.before + self.started.elapsed())
    }
}
