//! The peaks of ranks over their whole incarnations: against each other, and by their capacity.

use crate::policy::PeakMetric;
use stepmem_engine::{Basis, RankView, RunView};
use stepmem_forecast::stats::median::median;
use stepmem_types::ids::Rank;
use stepmem_types::units::Bytes;

/// The highest peak of every rank that has one, ascending by rank, in bytes.
#[derive(Debug)]
pub(crate) struct Peaks(pub Vec<(Rank, f64)>);

/// A rank's peak against the others'.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PeakImbalance {
    /// Peak by the median of the others, less 1.
    pub ratio: f64,
    /// The median of the others, in bytes.
    pub median_bytes: f64,
}

impl Peaks {
    /// Returns the peaks of one metric.
    pub(crate) fn of(run: &RunView<'_>, metric: PeakMetric) -> Self {
        let peak = |(rank, view): &(Rank, RankView<'_>)| {
            let figure = match metric {
                PeakMetric::Allocated => &view.lifetime.peak_allocated,
                PeakMetric::Reserved => &view.lifetime.peak_reserved,
            };
            Some((*rank, figure.max?.0.as_f64()))
        };
        Self(run.ranks.iter().filter_map(peak).collect())
    }

    /// Returns a rank's peak against the others'; `None` without a peak, or a median above 0.
    pub(crate) fn against_others(&self, rank: Rank) -> Option<PeakImbalance> {
        let own = self.0.iter().find(|(of, _)| *of == rank)?.1;
        let mut others: Vec<f64> =
            self.0.iter().filter(|(of, _)| *of != rank).map(|(_, peak)| *peak).collect();
        let median_bytes = median(&mut others).filter(|median| *median > 0.0)?;
        Some(PeakImbalance { ratio: (own - median_bytes) / median_bytes, median_bytes })
    }
}

/// The highest peak of a rank's incarnation by its capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LifetimePressure {
    pub ratio: f64,
    /// The memory that the peak is of.
    pub basis: Basis,
    pub capacity: Bytes,
    /// The first step that had it; `None` outside train steps.
    pub step: Option<u64>,
}

impl LifetimePressure {
    /// Returns the highest pressure of a rank; `None` without a capacity or a peak.
    pub(crate) fn of(rank: &RankView<'_>) -> Option<Self> {
        Self::all(rank).reduce(|most, next| if next.ratio > most.ratio { next } else { most })
    }

    /// Returns the pressure of host memory next to a device's.
    pub(crate) fn of_host(rank: &RankView<'_>) -> Option<Self> {
        let host = rank.host.filter(|_| !rank.identity.is_unified())?;
        let ((peak, step), limit) = (host.peak()?, host.binding()?);
        let (ratio, capacity) = (limit.ratio(peak), limit.bytes);
        Some(Self { ratio, basis: Basis::Host, capacity, step: Some(step.get()) })
    }

    /// Returns every pressure of a rank that is known, except the host's next to a device.
    pub(crate) fn all(rank: &RankView<'_>) -> impl Iterator<Item = Self> {
        let limit = rank.limits.binding();
        let lifetime = rank.lifetime;
        let of_phases = lifetime.phases.iter().filter_map(|phase| phase.peak);
        let allocated = of_phases.max().map(|peak| {
            let train = lifetime.peak_allocated.max.filter(|(of_train, _)| *of_train == peak);
            (Basis::Allocated, peak, train.map(|(_, step)| step))
        });
        // The bytes that it held at the end of a step are known also where the peak within it
        // is not.
        let at_most = [lifetime.peak_reserved.max, lifetime.reserved.max].into_iter().flatten();
        let reserved = at_most
            .reduce(|most, next| if next.0 > most.0 { next } else { most })
            .map(|(reserved, step)| (Basis::Reserved, reserved, Some(step)));
        let mark = rank.high_water_allocated.map(|mark| (Basis::HighWater, mark, None));
        [allocated, mark, reserved].into_iter().flatten().filter_map(
            move |(basis, peak, step)| {
                let limit = limit?;
                Some(Self { ratio: limit.ratio(peak), basis, capacity: limit.bytes, step })
            },
        )
    }
}
