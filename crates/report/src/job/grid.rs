//! The times of a query. An engine refuses more than 11,000 points of a series, so their distance
//! is chosen by the time that is asked for.

/// Points of a series of a range, at most.
pub const GRID_POINTS_MAX: u64 = 5_000;
/// The least seconds between points: the usual interval of scrapes.
const STEP_SECONDS_MIN: u64 = 15;

/// Times at equal distances, in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The first, as a Unix time.
    pub start: u64,
    /// The last, as a Unix time.
    pub end: u64,
    pub step: u64,
}

impl Grid {
    /// Covers at least the last `seconds` before `end`, with at most [`GRID_POINTS_MAX`] steps.
    pub fn until(end: u64, seconds: u64) -> Self {
        let step = step(seconds);
        let length = seconds.div_ceil(step).saturating_mul(step);
        Self { start: end.saturating_sub(length), end, step }
    }
}

/// Returns the seconds between points of a range.
pub fn step(seconds: u64) -> u64 {
    seconds.div_ceil(GRID_POINTS_MAX).max(STEP_SECONDS_MIN)
}
