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
           capacity of the rank's own device.",
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

/// Judges the highest pressure of a subject.
pub fn judge(
    scene: &Scene<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, PressureEvidence)> {
    let Thresholds { pressure_warning, pressure_critical, .. } = *scene.thresholds;
    let Pressure { basis, ratio, capacity } = pressure::highest(subject)?;
    if ratio < pressure_warning - RELEASE_MARGIN {
        return None;
    }
    let severity = graded(ratio, pressure_warning, pressure_critical, subject.active)?;
    let evidence =
        PressureEvidence { pressure_ratio: ratio, basis, capacity_bytes: capacity.get() };
    Some((severity, evidence))
}

impl Figures for PressureEvidence {
    fn sentence(&self) -> String {
        let of = match self.basis {
            Basis::Allocated => "the allocated peak",
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
