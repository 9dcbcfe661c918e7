//! The ranks of a run weighed against each other.

use crate::ranks::basis::Basis;
use crate::ranks::view::RankView;
use stepmem_types::ids::Rank;
use stepmem_types::units::Bytes;

/// A rank is compared with others from this many train steps of its incarnation on. The first
/// ones allocate optimizer state, and ranks that restart do so one after the other.
pub const COMPARABLE_STEPS_MIN: u32 = 16;

/// The ranks of one run against each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Balance {
    /// The memory that the peaks are of: [`Basis::Allocated`] or [`Basis::HighWater`].
    pub basis: Basis,
    /// The rank with the highest peak; the lowest of equals.
    pub worst_rank: Rank,
    /// (worst - median) / median over all ranks, TraceML's skew.
    pub skew_ratio: f64,
    /// Each rank with the median of the *other* ranks' peaks, in bytes, and its peak by that
    /// median, less 1.
    pub ranks: Vec<RankBalance>,
}

/// A rank against the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankBalance {
    pub rank: Rank,
    /// The median of the other ranks' peaks, in bytes.
    pub median_bytes: f64,
    /// Peak by that median, less 1.
    pub imbalance_ratio: f64,
}

impl Balance {
    /// A rank against the others.
    pub fn of(&self, rank: Rank) -> Option<&RankBalance> {
        let idx = self.ranks.binary_search_by_key(&rank, |own| own.rank).ok()?;
        self.ranks.get(idx)
    }
}

/// Returns a rank's peak of live memory by one of the two bases that ranks are weighed by.
pub(crate) fn peak_by(view: &RankView<'_>, basis: Basis) -> Option<Bytes> {
    match basis {
        Basis::Allocated => view.recent_peak_allocated,
        Basis::HighWater => view.high_water_allocated,
        Basis::Reserved | Basis::Device | Basis::Host | Basis::Process => None,
    }
}

/// Compares the ranks of a run by their recent peaks of allocated memory, or by their
/// high-water marks where more ranks know those. `None` for fewer than two ranks with a peak,
/// or a median of 0.
pub(crate) fn balance<'v, 'a: 'v>(
    ranks: &(impl Iterator<Item = &'v (Rank, RankView<'a>)> + Clone),
) -> Option<Balance> {
    let peaks_by = |basis| -> Vec<(Rank, f64)> {
        let peak = |(rank, view): &(Rank, _)| Some((*rank, peak_by(view, basis)?.as_f64()));
        ranks.clone().filter_map(peak).collect()
    };
    let (mut basis, mut peaks) = (Basis::Allocated, peaks_by(Basis::Allocated));
    if peaks.len() < ranks.clone().count() {
        let marks = peaks_by(Basis::HighWater);
        if marks.len() > peaks.len() {
            (basis, peaks) = (Basis::HighWater, marks);
        }
    }
    if peaks.len() < 2 {
        return None;
    }
    // Descending, so that the first is the worst; the sort is stable, so that the lowest rank
    // wins a tie.
    peaks.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (worst_rank, worst) = *peaks.first()?;
    let at = |idx: usize| peaks.get(idx).map(|peak| peak.1);
    let median = middle(peaks.len(), at)?;
    if median <= 0.0 {
        return None;
    }
    let mut balances = peaks
        .iter()
        .enumerate()
        .map(|(own_idx, (rank, peak))| {
            let without_own = |idx: usize| at(if idx < own_idx { idx } else { idx + 1 });
            let median_bytes = middle(peaks.len() - 1, without_own)?;
            // One rounding, as in the skew: 12 by 10, less 1, would stay below 0.2.
            let imbalance_ratio =
                if median_bytes > 0.0 { (peak - median_bytes) / median_bytes } else { 0.0 };
            Some(RankBalance { rank: *rank, median_bytes, imbalance_ratio })
        })
        .collect::<Option<Vec<_>>>()?;
    balances.sort_by_key(|balance| balance.rank);
    Some(Balance { basis, worst_rank, skew_ratio: (worst - median) / median, ranks: balances })
}

/// The median of `n` sorted values behind `at`.
fn middle(n: usize, at: impl Fn(usize) -> Option<f64>) -> Option<f64> {
    let upper = at(n / 2)?;
    if n % 2 == 1 {
        Some(upper)
    } else {
        Some(f64::midpoint(at((n / 2).checked_sub(1)?)?, upper))
    }
}
