//! The normal distribution.

/// Returns the probability that a standard normal variable is below `z`.
///
/// Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), 26.2.17: off by less
/// than 1e-7.
pub fn below(z: f64) -> f64 {
    const COEFFICIENTS: [f64; 5] =
        [1.330_274_429, -1.821_255_978, 1.781_477_937, -0.356_563_782, 0.319_381_530];
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let polynomial = COEFFICIENTS.iter().fold(0.0, |sum, coefficient| (sum + coefficient) * t);
    let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let above = (density * polynomial).clamp(0.0, 1.0);
    if z < 0.0 { above } else { 1.0 - above }
}
