//! Growth that fades or accelerates, as a power of the time since an incarnation began.

use crate::stats::least_squares::least_squares;
use crate::trend::{Stage, Trend};

/// The fewest points.
const POINTS_MIN: usize = 16;
/// A power must leave at most this share of the squared error that a line leaves.
const POWER_ERROR_RATIO: f64 = 0.5;
/// The lowest exponent tried: a cache that fills for ever, about as a logarithm.
const EXPONENT_MIN: f64 = 0.2;
/// The distance between the exponents that are tried.
const EXPONENT_STEP: f64 = 0.05;
/// Number of exponents that are tried: up to 2, growth whose rate is a line.
const N_EXPONENTS: u32 = 37;

impl Trend {
    /// Compares the time in which the line and a power law through `points` use up what is left of
    /// `free` bytes; it is unknown where they differ by more than the factor `within`. Only growth
    /// that creeps is believed to accelerate: the start of a run makes a line look as if it did.
    pub fn foresee(&mut self, points: &[(f64, f64)], free: f64, within: f64) {
        let remaining = self.remaining(free, 0.0).value;
        if remaining < 1.0 {
            return;
        }
        let line = remaining / self.slope_bytes_per_unit.value;
        let factor = units_until(points, remaining).map_or(1.0, |units| units / line);
        let factor = if self.stage == Stage::Rising { factor.max(1.0) } else { factor };
        let is_agreed = (within.recip()..=within).contains(&factor);
        self.time_factor = Some(factor).filter(|_| is_agreed);
    }
}

/// Returns the units of the axis until growth gains `bytes` more, along the power of the time
/// that fits the `points` of a whole incarnation. `None` unless it fits clearly better than a
/// line does.
///
/// Costs [`N_EXPONENTS`] fits.
fn units_until(points: &[(f64, f64)], bytes: f64) -> Option<f64> {
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
    let is_clear =
        power.squared_error < POWER_ERROR_RATIO * line.squared_error && power.slope > 0.0;
    let units = span * ((1.0 + bytes / power.slope).powf(1.0 / exponent) - 1.0);
    Some(units).filter(|units| is_clear && units.is_finite())
}
