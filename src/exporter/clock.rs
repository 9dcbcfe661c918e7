//! The exporter's clock: uptime and Unix time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use stepmem_engine::saved::SavedState;
use stepmem_types::units::Uptime;

/// Returns the uptime of this exporter, continued from the exporter whose state it resumes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
    /// The uptime at `started`.
    before: Duration,
    /// The uptime at which it stands still.
    held: Option<Uptime>,
}

impl Clock {
    pub(crate) fn start(saved: Option<&SavedState>) -> Self {
        let unix = Self::unix_time();
        let before = saved.map_or(Duration::ZERO, |saved| {
            let since = Duration::try_from_secs_f64(unix - saved.rest.started);
            // The uptime never falls, even if the system's clock did.
            since.unwrap_or_default().max(saved.rest.uptime.0).min(Uptime::MAX.0)
        });
        Self { started: Instant::now(), before, held: None }
    }

    pub(crate) fn now(self) -> Uptime {
        self.held.unwrap_or_else(|| Uptime(self.before + self.started.elapsed()))
    }

    /// Stops at `now`, until it is released.
    pub(super) fn hold(&mut self, now: Uptime) {
        self.held = Some(now);
    }

    /// Goes on, as if it had never stopped.
    pub(super) fn release(&mut self) {
        self.held = None;
    }

    /// Returns the Unix time by the system's clock, which may be set at any time.
    #[expect(clippy::disallowed_methods, reason = "this is app/")]
    pub(crate) fn unix_time() -> f64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
    }
}
