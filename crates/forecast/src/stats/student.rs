//! Student's t distribution.

use std::array;
use std::f64::consts::FRAC_PI_2;
use std::sync::OnceLock;

use crate::stats::normal;

/// The largest quantile that is searched for: of two degrees of freedom at z = 5.4.
const QUANTILE_MAX: f64 = 4096.0;
/// Halvings of the interval in which a quantile is searched for.
const HALVINGS: u32 = 40;

/// The quantiles `z` of the normal variable that are asked for at each step: a test's, and an
/// interval's.
const KEPT: usize = 2;
/// Degrees of freedom of the longest window, and more.
const N_FREE_KEPT: usize = 32;

/// The bits of a `z`, and its quantiles by degrees of freedom from 1 on: a search takes 40 times as
/// long as one probability.
type Quantiles = (u64, [f64; N_FREE_KEPT]);

/// Returns the quantile of Student's t with `n_free` degrees of freedom. It has the probability
/// of a normal variable's quantile `z`, for `z` ≥ 0 and `n_free` ≥ 1.
pub fn quantile(z: f64, n_free: u32) -> f64 {
    kept(z, n_free).unwrap_or_else(|| searched(z, n_free))
}

/// Returns a quantile of the `z` that were asked for first.
fn kept(z: f64, n_free: u32) -> Option<f64> {
    static QUANTILES: [OnceLock<Quantiles>; KEPT] = [const { OnceLock::new() }; KEPT];
    let of_z = |n_before: usize| searched(z, u32::try_from(n_before + 1).unwrap_or(u32::MAX));
    let (_, quantiles) = QUANTILES
        .iter()
        .map(|slot| slot.get_or_init(|| (z.to_bits(), array::from_fn(of_z))))
        .find(|(bits, _)| *bits == z.to_bits())?;
    quantiles.get(usize::try_from(n_free).ok()?.checked_sub(1)?).copied()
}

fn searched(z: f64, n_free: u32) -> f64 {
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
    use super::{below, quantile, searched};

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

    #[test]
    fn quantile_that_is_kept_is_the_one_of_a_search() {
        for z in [3.8, 1.96, 2.5, 3.8] {
            for n_free in [1, 2, 31, 32, 33, 100] {
                assert_eq!(quantile(z, n_free).to_bits(), searched(z, n_free).to_bits());
            }
        }
    }
}
