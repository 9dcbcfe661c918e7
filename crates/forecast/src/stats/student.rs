//! Student's t distribution.

use std::f64::consts::FRAC_PI_2;

use crate::stats::normal;

/// The largest quantile that is searched for: of two degrees of freedom at z = 5.4.
const QUANTILE_MAX: f64 = 4096.0;
/// Halvings of the interval in which a quantile is searched for.
const HALVINGS: u32 = 40;

/// Returns the quantile of Student's t with `n_free` degrees of freedom. It has the probability
/// of a normal variable's quantile `z`, for `z` ≥ 0 and `n_free` ≥ 1.
pub fn quantile(z: f64, n_free: u32) -> f64 {
    let probability = normal::below(z);
    let (mut low, mut high) = (0.0, QUANTILE_MAX);
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if below(middle, n_free) < probability { low = middle } else { high = middle }
    }
    high
}

/// Returns the probability that Student's t with `n_free` degrees of freedom is below `t`, for
/// `t` ≥ 0 and `n_free` ≥ 1.
///
/// A sum of `n_free` / 2 terms, exact (Abramowitz and Stegun, "Handbook of Mathematical
/// Functions", 1964, 26.7.3 and 26.7.4).
pub fn below(t: f64, n_free: u32) -> f64 {
    let angle = (t / f64::from(n_free).sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    let is_odd = n_free % 2 == 1;
    let (mut term, mut sum) = (if is_odd { cosine } else { 1.0 }, 0.0);
    for k in (n_free % 2 + 2..=n_free).step_by(2) {
        sum += term;
        term *= cosine * cosine * (1.0 - 1.0 / f64::from(k));
    }
    let within = if is_odd { (angle + sine * sum) / FRAC_PI_2 } else { sine * sum };
    f64::midpoint(1.0, within)
}

#[cfg(test)]
mod tests {
    use super::{below, quantile};

    /// Quantiles at the normal variable's 1.96 and 3.8, as scipy.stats.t has them.
    const KNOWN: [(u32, f64, f64); 4] =
        [(2, 4.303, 83.12), (3, 3.182, 24.75), (10, 2.228, 5.93), (30, 2.042, 4.35)];

    #[test]
    fn quantiles_are_those_of_tables() {
        for (n_free, usual, far) in KNOWN {
            for (z, known) in [(1.959_964, usual), (3.8, far)] {
                let seen = quantile(z, n_free);
                assert!((seen / known - 1.0).abs() < 2e-3, "{n_free} at {z}: {seen}");
            }
            assert!((below(usual, n_free) - 0.975).abs() < 1e-4, "{n_free}");
        }
    }
}
