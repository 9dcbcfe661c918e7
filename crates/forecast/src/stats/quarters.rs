//! The gains of a series' quarters.

/// Returns the last quarter's gain per point as a share of the first quarter's: 1 for a line
/// and for growth that sets in later. `None` for fewer than four points.
///
/// A quarter is a fourth of the points, rounded down; the four are spread evenly from the first
/// to the last. The last two may be a point farther apart.
pub fn deceleration_ratio(points: &[(f64, f64)]) -> Option<f64> {
    let quarter = points.len() / 4;
    let room = points.len() - quarter;
    let sum = |start: usize| -> Option<f64> {
        let part = points.get(start..start + quarter).filter(|part| !part.is_empty())?;
        Some(part.iter().map(|(_, y)| y).sum())
    };
    let gain = |from: usize, to: usize| {
        Some((sum(to)? - sum(from)?) / f64::from(u32::try_from(to - from).ok()?))
    };
    let (first, last) = (gain(0, room / 3)?, gain(2 * room / 3, room)?);
    Some(if first > 0.0 {
        last / first
    } else if last > 0.0 {
        1.0
    } else {
        0.0
    })
}
