//! The standard error of a line's slope.

/// The fewest points that [`slope_error`] takes.
const SLOPE_ERROR_POINTS_MIN: f64 = 6.0;
/// The most that one residual may carry of the one before it in [`slope_error`]: 32 points do
/// not distinguish more from a random walk.
const CARRIED_MAX: f64 = 0.9;

/// Returns the standard error of a line's slope, from the scatter of its points around it.
///
/// Least squares' error of the slope, times the root of (1 + r) / (1 - r). Each residual
/// carries the share r of the one before it. (Bartlett, "Some aspects of the time-correlation
/// problem in regard to tests of significance", JRSS 98, 1935.) r is the residuals' first
/// autocorrelation, less the bias of few points around a line, -(2 + 4r) / n. (Kendall, "Note
/// on bias in the estimation of autocorrelation", Biometrika 41, 1954.) `points`: (x, y), x
/// rising. `None` for fewer than six points or when all x are equal.
pub fn slope_error(points: &[(f64, f64)], slope: f64) -> Option<f64> {
    let n_points = points.iter().map(|_| 1.0).sum::<f64>();
    let (first_x, first_y) = points.first().filter(|_| n_points >= SLOPE_ERROR_POINTS_MIN)?;
    let residual = |(x, y): &(f64, f64)| y - first_y - slope * (x - first_x);
    let mean_x = points.iter().map(|(x, _)| (x - first_x) / n_points).sum::<f64>();
    let mean = points.iter().map(|point| residual(point) / n_points).sum::<f64>();
    let (mut spread, mut squares, mut products, mut last) = (0.0, 0.0, 0.0, 0.0);
    for point in points {
        let off = residual(point) - mean;
        spread += (point.0 - first_x - mean_x).powi(2);
        squares += off * off;
        products += off * last;
        last = off;
    }
    if spread <= 0.0 {
        return None;
    }
    if squares <= 0.0 {
        return Some(0.0);
    }
    let seen = products / squares;
    let carried = ((seen + 2.0 / n_points) / (1.0 - 4.0 / n_points)).clamp(0.0, CARRIED_MAX);
    let inflation = (1.0 + carried) / (1.0 - carried);
    Some((squares / (n_points - 2.0) / spread * inflation).sqrt())
}

/// Returns the number of standard errors in half a 95 % interval of a line through `n_points`.
///
/// Student's quantile for two points fewer, by the first term of Cornish and Fisher's expansion
/// ("Moments and cumulants in the specification of distributions", 1938): at most 8 % low from
/// six points on.
pub fn errors_of_interval(n_points: f64) -> f64 {
    const NORMAL: f64 = 1.96;
    NORMAL + (NORMAL.powi(3) + NORMAL) / (4.0 * (n_points - 2.0).max(1.0))
}
