//! The median.

/// Returns the median, the mean of the middle two for an even number; reorders `values`.
///
/// `None` for an empty slice.
pub fn median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len() / 2;
    let is_even = values.len().is_multiple_of(2);
    if values.is_empty() {
        return None;
    }
    let (below, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let lower = below.iter().copied().max_by(f64::total_cmp).filter(|_| is_even);
    // Halved before they are added: the sum of two large values may overflow.
    Some(lower.map_or(*upper, |lower| 0.5 * lower + 0.5 * *upper))
}
