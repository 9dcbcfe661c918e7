//! Sparklines: a series as a line of blocks.

/// The levels, the lowest first.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// A series that moves by less than this share of its highest value is drawn as level.
const FLAT_RATIO: f64 = 0.01;

/// Returns a character per value, from the lowest to the highest of the series; a space where a
/// value is not finite.
pub fn sparkline(values: &[f64]) -> String {
    let known = || values.iter().copied().filter(|value| value.is_finite());
    let lowest = known().fold(f64::INFINITY, f64::min);
    let highest = known().fold(f64::NEG_INFINITY, f64::max);
    let range = (highest - lowest).max(FLAT_RATIO * highest);
    let level = |value: &f64| {
        if !value.is_finite() {
            return ' ';
        }
        let height = if range > 0.0 { 8.0 * (value - lowest) / range } else { 0.0 };
        let mut levels = LEVELS.into_iter().zip(1_u32..);
        levels.find(|(_, top)| height < f64::from(*top)).map_or('█', |(level, _)| level)
    };
    values.iter().map(level).collect()
}

/// Returns the means of equally many neighbors in a row, at most `points_max` of them.
pub fn thinned(values: &[f64], points_max: usize) -> Vec<f64> {
    let per_point = values.len().div_ceil(points_max.max(1)).max(1);
    let mean = |part: &[f64]| {
        part.iter().sum::<f64>() / f64::from(u32::try_from(part.len()).unwrap_or(u32::MAX))
    };
    values.chunks(per_point).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use crate::format::spark::{sparkline, thinned};

    #[test]
    fn line_spans_the_lowest_to_the_highest_value() {
        assert_eq!(sparkline(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), "▁▂▃▄▅▆▇█");
        assert_eq!(sparkline(&[-7.0, 0.0]), "▁█");
        assert_eq!(sparkline(&[]), "");
    }

    #[test]
    fn line_of_a_series_that_hardly_moves_is_level() {
        assert_eq!(sparkline(&[1000.0, 1001.0, 1000.0]), "▁▁▁");
        assert_eq!(sparkline(&[0.0, 0.0]), "▁▁");
    }

    #[test]
    fn unknown_values_leave_a_gap() {
        assert_eq!(sparkline(&[1.0, f64::NAN, 2.0]), "▁ █");
        assert_eq!(sparkline(&[f64::NAN]), " ");
    }

    #[test]
    fn thinned_series_keeps_its_means_and_its_bound() {
        assert_eq!(thinned(&[1.0, 3.0, 5.0, 7.0, 9.0], 3), [2.0, 6.0, 9.0]);
        assert_eq!(thinned(&[1.0, 2.0], 24), [1.0, 2.0]);
        assert_eq!(thinned(&[0.0; 1000], 24).len(), 24);
        assert_eq!(thinned(&[], 24), [0.0; 0]);
    }
}
