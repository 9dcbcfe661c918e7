//! FRAGMENTATION: the allocator holds more and more, or much, that is not live.

use serde::{Deserialize, Serialize};

use crate::diagnosis::high_pressure::{private_pools_bytes, private_pools_statement};
use crate::diagnosis::shared::figures::{Figures, Score};
use crate::diagnosis::shared::growth::creeping;
use crate::diagnosis::shared::growth_or::GrowthOr;
use crate::diagnosis::shared::input::{DiagnosisInput, RELEASE_MARGIN, Subject};
use crate::kind::{About, DiagnosisKind, Place, Severity};
use stepmem_detect::{Signal, Stage};
use stepmem_types::claims::{Claim, Sentence, Statement};
use stepmem_types::format::units::{percent, whole_bytes};
use stepmem_types::units::Bytes;

/// The unused share of reserved memory at its peak that is worth a word: half, TraceML's
/// reserved by allocated of 2.
pub(crate) const RATIO_INFO: f64 = 0.50;
/// Reserved memory below this share of the capacity is not worth a word.
pub(crate) const PRESSURE_MIN: f64 = 0.30;

/// Reserved memory grows, or is large, without live memory to fill it.
pub(crate) const ABOUT: About = About {
    title: "FRAGMENTATION",
    mark: 'F',
    help: "The allocator reserves ever more memory that no larger batch explains (judged like creep); info when \
           the reserved peak is merely at least twice the allocated peak. It is not judged where peaks are unknown.",
    advice: "Try PYTORCH_ALLOC_CONF=expandable_segments:True (before PyTorch 2.9: PYTORCH_CUDA_ALLOC_CONF); pad or \
             bucket varying shapes.",
    signal: Some(Signal::Reserved),
    stage: Some(Stage::Creeping),
    family: DiagnosisKind::Fragmentation,
    place: Place::Own,
};

/// Memory that the allocator holds without use.
pub(crate) type FragmentationEvidence = GrowthOr<UnusedEvidence>;

/// Reserved memory that was never live at once.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct UnusedEvidence {
    /// The unused share of what the allocator held at its recent peak. A rank's
    /// `fragmentation_ratio` is that of its last train step.
    pub peak_fragmentation_ratio: f64,
    /// Bytes that it held at its recent peak.
    pub peak_reserved_bytes: u64,
    pub capacity_bytes: u64,
    /// The part of it that is held for private pools. Absent where it is small.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private_pools_bytes: Option<u64>,
}

/// Judges reserved memory that creeps, or is large.
pub(crate) fn judge(
    input: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, FragmentationEvidence)> {
    creeping(input, subject, Signal::Reserved)
        .map(|(severity, growth)| (severity, GrowthOr::Growth(growth)))
        .or_else(|| Some((Severity::Info, GrowthOr::Amount(unused(subject)?))))
}

fn unused(subject: &Subject<'_, '_>) -> Option<UnusedEvidence> {
    let rank = subject.rank()?;
    let capacity = rank.capacity?;
    let reserved = rank.recent_reserved.filter(|reserved| *reserved > Bytes::default())?;
    // By the high-water mark it is the least share that can be unused.
    let allocated = rank.recent_peak_allocated.or(rank.high_water_allocated)?.as_f64();
    let ratio = 1.0 - allocated / reserved.as_f64();
    let margin = if subject.active.is_some() { RELEASE_MARGIN } else { 0.0 };
    let is_high = ratio >= RATIO_INFO - margin
        && reserved.as_f64() >= (PRESSURE_MIN - margin) * capacity.as_f64();
    is_high.then(|| UnusedEvidence {
        peak_fragmentation_ratio: ratio,
        peak_reserved_bytes: reserved.get(),
        capacity_bytes: capacity.get(),
        private_pools_bytes: private_pools_bytes(rank),
    })
}

impl Figures for UnusedEvidence {
    fn sentence(&self) -> Sentence {
        let words = format!(
            "{} of the {} that the allocator had reserved at its peak was never live at the same time",
            percent(self.peak_fragmentation_ratio),
            whole_bytes(self.peak_reserved_bytes)
        );
        let unused = Statement::new(Claim::Unused, words).of(self.peak_fragmentation_ratio);
        Sentence::from(unused)
            .then_if("; ", self.private_pools_bytes.map(private_pools_statement))
    }

    fn score(&self) -> Score {
        Score { metric: "reserved", value: self.peak_fragmentation_ratio }
    }

    #[cfg(test)]
    fn examples() -> Vec<Self> {
        vec![Self {
            peak_fragmentation_ratio: 0.6,
            peak_reserved_bytes: 40 << 30,
            capacity_bytes: 80 << 30,
            private_pools_bytes: Some(20 << 30),
        }]
    }
}
