//! Lines by least squares.

/// A line through points by least squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeastSquares {
    /// y per unit of the abscissa.
    pub slope: f64,
    /// The sum of the squares of the distances in y.
    pub squared_error: f64,
}

/// Fits y = level + slope × `abscissa`(x) by least squares; `None` when all abscissas are
/// equal.
pub fn least_squares(
    points: &[(f64, f64)],
    abscissa: impl Fn(f64) -> f64,
) -> Option<LeastSquares> {
    let n_points = points.iter().map(|_| 1.0).sum::<f64>();
    let mean_z = points.iter().map(|(x, _)| abscissa(*x) / n_points).sum::<f64>();
    let mean_y = points.iter().map(|(_, y)| y / n_points).sum::<f64>();
    let (mut zz, mut zy, mut yy) = (0.0, 0.0, 0.0);
    for (x, y) in points {
        let (z, y) = (abscissa(*x) - mean_z, y - mean_y);
        zz += z * z;
        zy += z * y;
        yy += y * y;
    }
    let slope = Some(zy / zz).filter(|_| zz > 0.0)?;
    Some(LeastSquares { slope, squared_error: yy - slope * zy })
}
