//! What the quarters of a series gain.

/// What a series gained early and late, in sums over a quarter of its points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gains {
    /// From the first quarter to the second.
    pub first: f64,
    /// From the third quarter to the last.
    pub last: f64,
    /// From the first quarter to the last.
    pub whole: f64,
}

/// Compares what the four quarters of a series hold; `None` for fewer than four points.
///
/// A quarter is a fourth of the points, rounded down; the four are spread evenly from the first
/// to the last.
pub fn gains(points: &[(f64, f64)]) -> Option<Gains> {
    let quarter = points.len() / 4;
    let room = points.len() - quarter;
    let sum = |start: usize| -> Option<f64> {
        let part = points.get(start..start + quarter).filter(|part| !part.is_empty())?;
        Some(part.iter().map(|(_, y)| y).sum())
    };
    let (first, second) = (sum(0)?, sum(room / 3)?);
    let (third, fourth) = (sum(2 * room / 3)?, sum(room)?);
    Some(Gains { first: second - first, last: fourth - third, whole: fourth - first })
}

/// Returns the last quarter's gain per point as a share of the first quarter's: 1 for a line and
/// for growth that sets in later. `None` for fewer than four points.
pub fn deceleration_ratio(points: &[(f64, f64)]) -> Option<f64> {
    let gains = gains(points)?;
    // The quarters are spread over the points; the last two may be a point farther apart.
    let room = points.len() - points.len() / 4;
    let first = f64::from(u32::try_from(room / 3).ok()?);
    let last = f64::from(u32::try_from(room - 2 * room / 3).ok()?);
    Some(if gains.first > 0.0 {
        gains.last * first / (last * gains.first)
    } else if gains.last > 0.0 {
        1.0
    } else {
        0.0
    })
}
