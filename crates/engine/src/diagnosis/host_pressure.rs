//! HIGH PRESSURE (host): the host memory of a rank on a device is near its limit.

use crate::diagnosis::high_pressure::{HOST_ADVICE, PressureEvidence};
use crate::diagnosis::input::{DiagnosisInput, Subject, Thresholds, graded};
use crate::diagnosis::kind::{About, Severity};
use crate::diagnosis::pressure;

/// Host memory is near its limit.
pub const ABOUT: About = About {
    label: "HOST_HIGH_PRESSURE",
    title: "HIGH PRESSURE (host)",
    mark: 'Q',
    help: "What a rank on a device and its child processes hold of the host's memory is near the limit of its \
           control group, or else the machine's memory.",
    advice: HOST_ADVICE,
};

/// Judges host memory against its limit.
pub fn judge(
    input: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, PressureEvidence)> {
    let of = pressure::of_host(subject.rank()?)?;
    let Thresholds { pressure_warning, pressure_critical, .. } = *input.thresholds;
    let severity = graded(of.ratio, pressure_warning, pressure_critical, subject.active)?;
    let evidence = PressureEvidence {
        pressure_ratio: of.ratio,
        is_on_host: true,
        basis: of.basis,
        capacity_bytes: of.capacity.get(),
        never_live_ratio: None,
        too_large: None,
    };
    Some((severity, evidence))
}
