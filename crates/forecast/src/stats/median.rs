//! The median.

use serde::{Deserialize, Serialize};

use stepmem_types::saved;

/// Number of values behind a recent median: one that is out of line does not move it.
const RECENT_VALUES: usize = 5;

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

/// The median of the newest few values.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct RecentMedian {
    #[serde(deserialize_with = "saved::figures")]
    values: [f64; RECENT_VALUES],
    #[serde(deserialize_with = "saved::counts")]
    n_values: usize,
}

impl RecentMedian {
    /// Takes the next value.
    pub fn add(&mut self, value: f64) {
        if let Some(slot) = self.values.get_mut(self.n_values % RECENT_VALUES) {
            *slot = value;
        }
        self.n_values = self.n_values.saturating_add(1);
    }

    /// Returns their median; `None` before the first.
    pub fn median(&self) -> Option<f64> {
        let mut values = self.values;
        median(values.get_mut(..self.n_values.min(RECENT_VALUES))?)
    }
}
