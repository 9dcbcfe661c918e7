//! HIGH PRESSURE: a recent peak is near the rank's own capacity.

use serde::{Deserialize, Serialize};

use crate::analysis::basis::Basis;
use crate::analysis::diagnosis::kind::{About, Figures, Score, Severity};
use crate::analysis::diagnosis::pressure::{self, Pressure};
use crate::analysis::diagnosis::scene::{RELEASE_MARGIN, Scene, Subject, Thresholds, graded};
use crate::text::units::{percent, whole_bytes};

/// A peak is near the capacity.
pub const ABOUT: About = About {
    label: "HIGH_PRESSURE",
    title: "HIGH PRESSURE",
    mark: 'P',
    help: "The recent peak of allocated or reserved memory, or what is in use on the device, is near the \
           capacity of the rank's own device; of a process that does not push, its recent peak. Critical only \
           when that is live memory, or when the allocator had to flush its cache in the last 15 minutes: a \
           healthy cache fills the device.",
    advice: "Reduce the memory load: batch or sequence length, activation checkpointing, sharding; see who \
             else uses the device.",
};

/// A peak near the capacity.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PressureEvidence {
    pub pressure_ratio: f64,
    /// The memory that the peak is of.
    pub basis: Basis,
    pub capacity_bytes: u64,
}

/// Judges the pressures of a subject: the severest counts, and of several the highest.
pub fn judge(
    scene: &Scene<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, PressureEvidence)> {
    let Thresholds { pressure_warning, pressure_critical, .. } = *scene.thresholds;
    let has_retried = subject.rank().is_some_and(|rank| rank.has_retried);
    let grade = |pressure: Pressure| {
        if pressure.ratio < pressure_warning - RELEASE_MARGIN {
            return None;
        }
        let critical =
            if is_in_use(pressure.basis, has_retried) { pressure_critical } else { f64::MAX };
        let severity = graded(pressure.ratio, pressure_warning, critical, subject.active)?;
        Some((severity, pressure))
    };
    let worse = |a: (Severity, Pressure), b: (Severity, Pressure)| {
        if (b.0, b.1.ratio) > (a.0, a.1.ratio) { b } else { a }
    };
    let graded = pressure::of_subject(subject).into_iter().filter_map(grade);
    let (severity, Pressure { basis, ratio, capacity }) = graded.reduce(worse)?;
    let evidence =
        PressureEvidence { pressure_ratio: ratio, basis, capacity_bytes: capacity.get() };
    Some((severity, evidence))
}

/// Whether memory of that basis is surely in use, so that it can be critical: not what a healthy allocator keeps in its
/// cache, unless it already had to give some of that up.
fn is_in_use(basis: Basis, has_retried: bool) -> bool {
    match basis {
        Basis::Allocated => true,
        Basis::HighWater | Basis::Reserved | Basis::Device => has_retried,
        Basis::Process => false,
    }
}

impl Figures for PressureEvidence {
    fn sentence(&self) -> String {
        let of = match self.basis {
            Basis::Allocated => "the allocated peak",
            Basis::HighWater => "the high-water mark of allocated memory",
            Basis::Reserved => "the reserved peak",
            Basis::Device => "in use on the device",
            Basis::Process => "the process",
        };
        let (ratio, capacity) =
            (percent(self.pressure_ratio), whole_bytes(self.capacity_bytes));
        format!("{of} is at {ratio} of {capacity}")
    }

    fn score(&self) -> Score {
        Score { metric: self.basis.as_metric(), value: self.pressure_ratio }
    }
}
