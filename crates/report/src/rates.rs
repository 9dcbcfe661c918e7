//! Rates in tables.

/// The widest half of an interval around a rate that a table shows although its sign is unknown:
/// 64 MiB in a thousand steps.
const RATE_ERROR_MAX: f64 = 64.0 * 1024.0;

/// Returns a rate per step for a table, which has no room for its interval; `None` where it may be
/// none as well as much.
pub(crate) fn told_rate(
    slope: Option<f64>,
    lower: Option<f64>,
    upper: Option<f64>,
) -> Option<f64> {
    let is_told = lower.zip(upper).is_none_or(|(lower, upper)| {
        lower > 0.0 || upper < 0.0 || (upper - lower) / 2.0 <= RATE_ERROR_MAX
    });
    slope.filter(|_| is_told)
}
