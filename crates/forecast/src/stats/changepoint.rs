//! Where a level turns into a line.

/// The share of one line's squared error that a changepoint may leave at most.
///
/// Half makes F = (n - 3), so at least 9 at 12 points; the 5 % point of the largest F over all
/// places of one break is about 8.8 (Andrews, "Tests for Parameter Instability", Econometrica
/// 61, 1993).
const CHANGEPOINT_ERROR_RATIO: f64 = 0.5;

/// Returns the index of the point at which a level turns into a line, 0 when one line does as
/// well.
///
/// Least squares of y = level + slope × max(0, x - c). The changepoint c is tried at each point
/// of the first three quarters. (Quandt, "The estimation of the parameters of a linear
/// regression system obeying two separate regimes", JASA 53, 1958.) `points`: (x, y), x rising.
/// `None` for fewer than four points or when all x are equal. Costs n steps.
pub fn changepoint(points: &[(f64, f64)]) -> Option<usize> {
    let n_candidates = points.len() - points.len() / 4;
    let n_points = points.iter().map(|_| 1.0).sum::<f64>();
    let mean = points.iter().map(|(_, y)| y / n_points).sum::<f64>();
    let yy = points.iter().map(|(_, y)| (y - mean) * (y - mean)).sum::<f64>();
    // Of the points beyond the changepoint c: their number, and sums of z = x - c and of y less
    // its mean.
    let (mut n_beyond, mut z, mut zz, mut zy, mut sum_y) = (0.0, 0.0, 0.0, 0.0, 0.0);
    let mut beyond_x = points.last().filter(|_| points.len() >= 4)?.0;
    let mut straight = None;
    let mut best = None;
    for (idx, (x, y)) in points.iter().enumerate().rev() {
        // The changepoint moves back, so that every z grows by as much.
        let width = beyond_x - x;
        zz += 2.0 * width * z + width * width * n_beyond;
        zy += width * sum_y;
        z += width * n_beyond;
        beyond_x = *x;
        n_beyond += 1.0;
        sum_y += y - mean;
        let spread = zz - z * (z / n_points);
        if idx >= n_candidates || spread <= 0.0 {
            continue;
        }
        let error = yy - zy * (zy / spread);
        straight = Some(error);
        if best.is_none_or(|(_, least)| error < least) {
            best = Some((idx, error));
        }
    }
    let (idx, least) = best?;
    Some(if least < CHANGEPOINT_ERROR_RATIO * straight? { idx } else { 0 })
}
