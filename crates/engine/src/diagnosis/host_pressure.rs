//! HIGH PRESSURE (host): the host memory of a rank on a device is near its limit.

use crate::diagnosis::high_pressure::{HOST_ADVICE, PressureEvidence, TooLarge};
use crate::diagnosis::input::{DiagnosisInput, Subject, graded};
use crate::diagnosis::kind::{About, Severity};
use crate::diagnosis::pressure;
use stepmem_detect::signal::Signal;

/// Host memory is near its limit.
pub const ABOUT: About = About {
    label: "HOST_HIGH_PRESSURE",
    title: "HIGH PRESSURE (host)",
    mark: 'Q',
    help: "What the process of a rank on a device holds of the host's memory is near the limit of its control \
           group, or else the machine's memory; also while a bounded buffer that will not fit fills up; or all memory of its container is near the limit of that. Never critical: a job may be sized to fit, and growth is MEMORY CREEP (host).",
    advice: HOST_ADVICE,
};

/// Judges host memory against its limit.
pub fn judge(
    input: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, PressureEvidence)> {
    let of = pressure::of_host(subject.rank()?)?;
    let warning = input.thresholds.pressure_warning;
    let too_large = TooLarge::of(subject, Signal::Host);
    let ahead = too_large.as_ref().map(|_| Severity::Warning);
    let severity = graded(of.ratio, warning, f64::MAX, subject.active).or(ahead)?;
    let evidence = PressureEvidence {
        pressure_ratio: of.ratio,
        is_on_host: true,
        is_unified: false,
        is_of_container: of.is_of_container,
        basis: of.basis,
        capacity_bytes: of.capacity.get(),
        never_live_ratio: None,
        too_large,
    };
    Some((severity, evidence))
}
