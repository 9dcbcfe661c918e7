//! The times of a query. An engine refuses more than 11,000 points of a series, so their distance
//! is chosen by the time that is asked for.

/// Points of a series of a range, at most.
pub(crate) const GRID_POINTS_MAX: u64 = 5_000;
/// The least seconds between points: the usual interval of scrapes.
const STEP_SECONDS_MIN: u64 = 15;

/// The longest time that is asked for, in seconds: 400 days.
const SECONDS_MAX: u64 = 400 * 86_400;

/// Times at equal distances, in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The first, as a Unix time.
    pub start: u64,
    /// The last, as a Unix time.
    pub end: u64,
    /// The distance between two times, in seconds.
    pub step: u64,
}

impl Grid {
    /// Covers at least the last `seconds` before `end`, with at most `GRID_POINTS_MAX` steps.
    pub fn until(end: u64, seconds: u64) -> Self {
        let step = step(seconds);
        let length = seconds.div_ceil(step).saturating_mul(step);
        Self { start: end.saturating_sub(length), end, step }
    }

    /// Goes back four times as far, if that is not too far.
    pub fn longer(self) -> Option<Self> {
        let seconds = self.end - self.start;
        (self.start > 0 && seconds < SECONDS_MAX)
            .then(|| Self::until(self.end, seconds.saturating_mul(4).min(SECONDS_MAX)))
    }

    /// Covers the times about a point of this grid by whole seconds, which are the same whatever
    /// grid has the point.
    #[must_use]
    pub fn about(self, point: u64) -> Self {
        Self { start: point.saturating_sub(2 * self.step), end: point + self.step, step: 1 }
    }
}

/// Returns the seconds between points of a range.
pub(crate) fn step(seconds: u64) -> u64 {
    seconds.div_ceil(GRID_POINTS_MAX).max(STEP_SECONDS_MIN)
}

/// Returns the whole seconds of a time.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "seconds above 0; a cast saturates"
)]
pub fn whole(seconds: f64) -> u64 {
    seconds as u64
}
