//! IMBALANCE: a rank's recent peak stands out from the other ranks' of its run.

use serde::{Deserialize, Serialize};

use crate::diagnosis::shared::balance::peak_by;
use crate::diagnosis::shared::figures::{Figures, Score};
use crate::diagnosis::shared::input::{DiagnosisInput, Subject, SubjectView, graded};
use crate::kind::{About, DiagnosisKind, Place, Severity};
use crate::ranks::basis::Basis;
use stepmem_detect::{Signal, Stage, Trend};
use stepmem_types::claims::{Claim, Sentence, Statement};
use stepmem_types::format::units::{bytes, percent};

/// Skew is noise on a device that is nearly empty: a warning needs this pressure of the rank…
pub const PRESSURE_WARNING_MIN: f64 = 0.30;
/// …and a critical finding this one.
pub(crate) const PRESSURE_CRITICAL_MIN: f64 = 0.50;

/// A rank stands out from the others of its run.
pub(crate) const ABOUT: About = About {
    title: "IMBALANCE",
    mark: 'I',
    help: "The recent peak of allocated memory of the rank is well above the median of the other ranks, \
           the run is skewed by as much, and the rank's device is not nearly empty. Ranks \
           in their first 16 steps are left out, and so is a rank with MEMORY CREEP. Where recent peaks are unknown, high-water marks are compared, \
           and it is at most a warning.",
    advice: "Inspect the work of the rank: input shapes, uneven shards or pipeline stages, extra work such \
             as logging or evaluation on one rank.",
    signal: None,
    stage: None,
    family: DiagnosisKind::Imbalance,
    place: Place::Own,
};

/// A peak above the other ranks'.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ImbalanceEvidence {
    /// The rank's peak by the median of the others, less 1.
    pub imbalance_ratio: f64,
    /// The median of the other ranks' peaks.
    pub median_bytes: f64,
    /// The rank's peak by its capacity.
    pub pressure_ratio: f64,
    /// The memory that the ranks' peaks are of: `allocated` in the recent window, or
    /// `high_water` since their start.
    #[serde(default = "recent")]
    pub peak_basis: Basis,
}

/// The basis of evidence that does not name one.
fn recent() -> Basis {
    Basis::Allocated
}

/// Judges a rank against the others of its run.
pub(crate) fn judge(
    input: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, ImbalanceEvidence)> {
    let SubjectView::Rank(run, rank, view) = subject.view else { return None };
    let limits = input.thresholds;
    // A rank that leaks grows beyond the others: MEMORY CREEP reports that already.
    let creeping = subject.trend(Signal::Allocated, Stage::Creeping);
    if creeping.is_some_and(Trend::is_growing) {
        return None;
    }
    let balance = run.comparable.as_ref()?;
    let own = balance.of(rank)?;
    let by_skew = graded(
        balance.skew_ratio.min(own.imbalance_ratio),
        limits.imbalance_warning,
        limits.imbalance_critical,
        subject.active,
    )?;
    let peak_basis = balance.basis;
    let peak = peak_by(view, peak_basis)?;
    let pressure_ratio = view.limits.binding()?.ratio(peak);
    let by_pressure =
        graded(pressure_ratio, PRESSURE_WARNING_MIN, PRESSURE_CRITICAL_MIN, subject.active)?;
    // A high-water mark may be of a single moment, as when one rank loads a checkpoint for all.
    let most = match peak_basis {
        Basis::HighWater => Severity::Warning,
        _ => Severity::Critical,
    };
    let evidence = ImbalanceEvidence {
        imbalance_ratio: own.imbalance_ratio,
        median_bytes: own.median_bytes,
        pressure_ratio,
        peak_basis,
    };
    Some((by_skew.min(by_pressure).min(most), evidence))
}

impl Figures for ImbalanceEvidence {
    fn sentence(&self) -> Sentence {
        let peak = match self.peak_basis {
            Basis::HighWater => "its high-water mark",
            _ => "its peak",
        };
        let words = format!(
            "{peak} is {} above the median of the other ranks ({}), at {} of its device",
            percent(self.imbalance_ratio),
            bytes(self.median_bytes),
            percent(self.pressure_ratio)
        );
        Statement::new(Claim::Imbalance, words).of(self.imbalance_ratio).into()
    }

    fn score(&self) -> Score {
        Score { metric: self.peak_basis.as_metric(), value: self.imbalance_ratio }
    }

    #[cfg(test)]
    fn examples() -> Vec<Self> {
        vec![Self {
            imbalance_ratio: 0.5,
            median_bytes: 1e9,
            pressure_ratio: 0.7,
            peak_basis: Basis::HighWater,
        }]
    }
}
