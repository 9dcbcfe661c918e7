//! IMBALANCE: a rank's recent peak stands out from the other ranks' of its run.

use crate::analysis::diagnosis::high_pressure::pressures;
use crate::analysis::diagnosis::{
    Diagnosis, Evidence, Finding, RunScene, Scene, Severity, Subject, graded,
};
use crate::analysis::rank::window::RankReport;
use crate::model::ids::Rank;

/// Skew is noise on a device that is nearly empty: a warning needs this pressure of the rank…
pub const PRESSURE_WARNING_MIN: f64 = 0.30;
/// …and a critical finding this one.
pub const PRESSURE_CRITICAL_MIN: f64 = 0.50;

/// A rank is weighed against others from this many train steps of its life on: the first ones allocate optimizer state,
/// and ranks that restart do so one after the other.
pub const COMPARABLE_STEPS_MIN: u32 = 16;

/// A rank stands out from the others of its run.
pub const IMBALANCE: Diagnosis = Diagnosis {
    kind: "IMBALANCE",
    status: "IMBALANCE",
    help: "The recent peak of allocated memory of the rank is well above the median of the other ranks, \
           the run is skewed by as much, and the rank's device is not nearly empty. Ranks \
           in their first 16 steps are left out.",
    advice: "Inspect the work of the rank: input shapes, uneven shards or pipeline stages, extra work such \
             as logging or evaluation on one rank.",
    find,
};

/// The ranks of one run against each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Balance {
    /// The rank with the highest recent peak; the lowest of equals.
    pub worst_rank: Rank,
    /// (worst - median) / median over all ranks, TraceML's skew.
    pub skew_ratio: f64,
    /// Each rank with the median of the *other* ranks' peaks, in bytes, and its peak by that median, less 1.
    pub ranks: Vec<RankBalance>,
}

/// One rank against the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankBalance {
    /// The rank.
    pub rank: Rank,
    /// The median of the other ranks' peaks, in bytes.
    pub median_bytes: f64,
    /// Peak by that median, less 1.
    pub imbalance_ratio: f64,
}

impl Balance {
    /// One rank against the others.
    pub fn of(&self, rank: Rank) -> Option<&RankBalance> {
        let idx = self.ranks.binary_search_by_key(&rank, |own| own.rank).ok()?;
        self.ranks.get(idx)
    }
}

/// Weighs the ranks of a run by their recent peaks of allocated memory; `None` for fewer than two ranks with a peak,
/// or a median of 0.
pub fn balance(ranks: &[(Rank, RankReport<'_>)]) -> Option<Balance> {
    let mut peaks: Vec<(Rank, f64)> = ranks
        .iter()
        .filter_map(|(rank, report)| Some((*rank, report.recent_peak_allocated?.as_f64())))
        .collect();
    if peaks.len() < 2 {
        return None;
    }
    // Descending, so that the first is the worst; the sort is stable, so that the lowest rank wins a tie.
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
    Some(Balance { worst_rank, skew_ratio: (worst - median) / median, ranks: balances })
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

fn find(scene: &Scene<'_>) -> Vec<Finding> {
    let balances: Vec<_> = scene.runs.iter().map(comparable_balance).collect();
    let of_run = scene.runs.iter().zip(&balances);
    scene
        .subjects()
        .filter_map(|subject| {
            let balance = of_run.clone().find(|(run, _)| run.run == subject.run)?.1.as_ref()?;
            let own = balance.of(subject.rank)?;
            let judged = judge(scene, &subject, own, balance.skew_ratio)?;
            Some(subject.finding(IMBALANCE.kind, judged))
        })
        .collect()
}

/// Weighs the ranks of a run that have come far enough in their lives.
fn comparable_balance(run: &RunScene<'_>) -> Option<Balance> {
    let is_comparable =
        |(_, report): &&(Rank, RankReport<'_>)| report.life_steps >= COMPARABLE_STEPS_MIN;
    let comparable: Vec<_> = run.ranks.iter().filter(is_comparable).copied().collect();
    balance(&comparable)
}

fn judge(
    scene: &Scene<'_>,
    subject: &Subject<'_, '_>,
    own: &RankBalance,
    skew_ratio: f64,
) -> Option<(Severity, Evidence)> {
    let limits = scene.thresholds;
    let held = scene.held(subject, IMBALANCE.kind);
    let standing_out = skew_ratio.min(own.imbalance_ratio);
    let by_skew =
        graded(standing_out, limits.imbalance_warning, limits.imbalance_critical, held)?;
    let pressure_ratio = pressures(subject.report).find(|p| p.basis == "allocated")?.ratio;
    let by_pressure =
        graded(pressure_ratio, PRESSURE_WARNING_MIN, PRESSURE_CRITICAL_MIN, held)?;
    let evidence = Evidence::Imbalance {
        imbalance_ratio: own.imbalance_ratio,
        median_bytes: own.median_bytes,
        pressure_ratio,
    };
    Some((by_skew.min(by_pressure), evidence))
}
