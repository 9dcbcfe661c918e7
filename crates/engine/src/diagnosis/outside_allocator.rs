//! OUTSIDE ALLOCATOR: the process uses device memory that its allocator does not hold, and it
//! grows or is large.

use std::ops::Not;

use serde::{Deserialize, Serialize};

use crate::diagnosis::shared::figures::{Figures, Score};
use crate::diagnosis::shared::growth::creeping;
use crate::diagnosis::shared::growth_or::GrowthOr;
use crate::diagnosis::shared::input::{DiagnosisInput, RELEASE_MARGIN, Subject};
use crate::diagnosis::shared::trend_figures::TrendFigures;
use crate::kind::{About, DiagnosisKind, Place, Severity};
use stepmem_detect::{Signal, Stage};
use stepmem_types::claims::{Claim, Sentence, Statement};
use stepmem_types::format::units::{bytes, percent};

/// The share of the capacity from which memory outside the allocator is worth a word: a CUDA
/// context and NCCL's buffers take a few percent.
pub(crate) const RATIO_INFO: f64 = 0.15;

/// Memory outside the allocator grows, or is large.
pub(crate) const ABOUT: About = About {
    title: "OUTSIDE ALLOCATOR",
    mark: 'X',
    help: "Device memory of the process that the allocator does not hold (CUDA context, NCCL, other \
           libraries) grows (judged like creep); info while it grows so that the device is full within an \
           hour, or when it is merely large.",
    advice: "No PyTorch tool sees this memory: look at NCCL communicators and libraries that allocate by \
             themselves.",
    signal: Some(Signal::OutsideAllocator),
    stage: Some(Stage::Creeping),
    family: DiagnosisKind::OutsideAllocator,
    place: Place::Own,
};

/// Memory of the process that its allocator does not hold.
pub(crate) type OutsideEvidence = GrowthOr<LargeEvidence>;

/// Memory outside the allocator that is a large share of the device.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LargeEvidence {
    pub outside_bytes: f64,
    /// The share of the capacity that is outside the allocator.
    pub outside_ratio: f64,
    pub capacity_bytes: u64,
    /// Set when it is estimated from all that is in use on the device.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_estimated: bool,
}

/// The time within which the device must be full for growth that does not creep yet to be
/// reported. One that is reported stays so until the time is half as long again.
const FULL_WITHIN_SECONDS: f64 = 3600.0;

/// Judges memory outside the allocator that creeps, that fills the device soon, or is large.
pub(crate) fn judge(
    input: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, OutsideEvidence)> {
    creeping(input, subject, Signal::OutsideAllocator)
        .or_else(|| Some((Severity::Info, rising(subject)?)))
        .map(|(severity, growth)| (severity, GrowthOr::Growth(growth)))
        .or_else(|| Some((Severity::Info, GrowthOr::Amount(large(subject)?))))
}

/// Returns the figures of growth that does not creep yet and fills the device soon.
fn rising(subject: &Subject<'_, '_>) -> Option<Box<TrendFigures>> {
    let outlook = subject.outlook(Signal::OutsideAllocator, Stage::Rising)?;
    let limit = FULL_WITHIN_SECONDS * if subject.active.is_some() { 1.5 } else { 1.0 };
    let is_soon = outlook.is_growing() && outlook.seconds_at_newest? <= limit;
    is_soon.then(|| subject.figures(&outlook))
}

fn large(subject: &Subject<'_, '_>) -> Option<LargeEvidence> {
    let rank = subject.rank()?;
    let capacity = rank.limits.shared?.bytes;
    let known = rank.outside_allocator_bytes;
    known.or(rank.outside_estimated_bytes)?;
    let outside_bytes = rank.outside_steady_bytes?;
    let outside_ratio = outside_bytes / capacity.as_f64();
    let limit = RATIO_INFO - if subject.active.is_some() { RELEASE_MARGIN } else { 0.0 };
    let capacity_bytes = capacity.get();
    (outside_ratio >= limit).then_some(LargeEvidence {
        outside_bytes,
        outside_ratio,
        capacity_bytes,
        is_estimated: known.is_none(),
    })
}

impl Figures for LargeEvidence {
    fn sentence(&self) -> Sentence {
        let words = format!(
            "{} of the process is outside its allocator, {} of the device{}",
            bytes(self.outside_bytes),
            percent(self.outside_ratio),
            if self.is_estimated { " (estimated from all that is in use there)" } else { "" }
        );
        Statement::new(Claim::Outside, words).of(self.outside_bytes).into()
    }

    fn score(&self) -> Score {
        Score { metric: "outside_allocator", value: self.outside_ratio }
    }

    #[cfg(test)]
    fn examples() -> Vec<Self> {
        vec![Self {
            outside_bytes: 2e10,
            outside_ratio: 0.25,
            capacity_bytes: 80 << 30,
            is_estimated: true,
        }]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::diagnosis::outside_allocator::OutsideEvidence;
    use crate::diagnosis::shared::figures::Figures;

    /// The advice for growth that ended at `end`, or goes on.
    fn advice(end: Option<f64>, is_full: bool) -> Option<String> {
        let growth = json!({"signal": "outside_allocator", "growth_bytes": 1e9, "onset_time": 1.0,
            "confidence_ratio": 0.99, "level_since_time": end, "is_full": is_full});
        let evidence = serde_json::from_value::<OutsideEvidence>(growth).unwrap();
        evidence.advice().map(|advice| advice.words().to_owned())
    }

    #[test]
    fn growth_that_has_ended_has_advice_of_its_own() {
        assert_eq!(advice(None, false), None);
        let level = advice(Some(9.0), false).unwrap();
        assert!(level.starts_with("Nothing, unless it grows again."), "{level}");
        let full = advice(Some(9.0), true).unwrap();
        assert!(full.starts_with("The memory is full"), "{full}");
    }
}
