//! Growth that fades or accelerates, as a power of the time since an incarnation began.

use crate::stats::least_squares::least_squares;

/// The fewest points.
const POINTS_MIN: usize = 16;
/// A power must leave at most this share of the squared error that a line leaves.
const ERROR_RATIO: f64 = 0.5;
/// The lowest exponent tried: a cache that fills for ever, about as a logarithm.
const EXPONENT_MIN: f64 = 0.2;
/// The distance between the exponents that are tried.
const EXPONENT_STEP: f64 = 0.05;
/// Number of exponents that are tried: up to 2, growth whose rate is a line.
const N_EXPONENTS: u32 = 37;

/// Returns the units of the axis until growth gains `bytes` more, along the power of the time
/// that fits the `points` of a whole incarnation. `None` unless it fits clearly better than a
/// line does.
///
/// Costs [`N_EXPONENTS`] fits.
pub(crate) fn units_until(points: &[(f64, f64)], bytes: f64) -> Option<f64> {
    let [(first, _), (second, _), .., (last, _)] = points else { return None };
    let start = 2.0 * first - second;
    let span = last - start;
    let line = least_squares(points, |x| x).filter(|_| points.len() >= POINTS_MIN)?;
    let fits = (0..N_EXPONENTS).filter_map(|idx| {
        let exponent = EXPONENT_MIN + EXPONENT_STEP * f64::from(idx);
        let fit = least_squares(points, |x| ((x - start) / span).powf(exponent))?;
        Some((exponent, fit))
    });
    let (exponent, power) =
        fits.min_by(|a, b| a.1.squared_error.total_cmp(&b.1.squared_error))?;
    let is_clear = power.squared_error < ERROR_RATIO * line.squared_error && power.slope > 0.0;
    let units = span * ((1.0 + bytes / power.slope).powf(1.0 / exponent) - 1.0);
    Some(units).filter(|units| is_clear && units.is_finite())
}
