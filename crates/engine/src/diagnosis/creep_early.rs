//! MEMORY RISING: live memory grows steadily, not yet far enough to be called creep. Host memory
//! next to a device is judged apart.

use crate::diagnosis::shared::growth::{LIVE_SIGNALS, host_signals};
use crate::diagnosis::shared::input::{DiagnosisInput, Subject};
use crate::diagnosis::shared::trend_figures::TrendFigures;
use crate::kind::{About, DiagnosisKind, Place, Severity};
use stepmem_detect::{Signal, Stage};

/// Live memory grows, and has not yet eaten enough of the headroom to page.
pub(crate) const ABOUT: About = About {
    title: "MEMORY RISING",
    mark: 'e',
    help: "Live tensor memory at the end of the step (in the GPU's memory, or in the host's where there is no GPU), or \
           all memory of an unmanaged process, grows steadily; it has not yet used enough of the headroom to be called creep.",
    advice: "Compare with a known stable run (stepmem compare). Where its memory stays level, look at tensors kept \
             across steps; if the growth goes on, it becomes MEMORY CREEP.",
    signal: Some(Signal::Allocated),
    stage: Some(Stage::Rising),
    family: DiagnosisKind::CreepConfirmed,
    place: Place::Own,
};

/// Host memory grows, and has not yet eaten enough of the headroom to page.
pub(crate) const HOST: About = About {
    title: "MEMORY RISING (host)",
    mark: 'h',
    help: "Host memory of a rank on a device, or of the child processes of any rank, or what is in /dev/shm, grows steadily; it has not yet used enough of the headroom to be \
           called creep.",
    advice: "If the growth goes on, it becomes MEMORY CREEP (host): look at what the process keeps on the host \
             from step to step.",
    signal: Some(Signal::Host),
    stage: Some(Stage::Rising),
    family: DiagnosisKind::HostCreep,
    place: Place::Host { own: DiagnosisKind::CreepEarly },
};

/// Judges live memory that rises.
pub(crate) fn judge(
    _: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, Box<TrendFigures>)> {
    rising(subject, LIVE_SIGNALS)
}

/// Judges host memory that rises.
pub(crate) fn judge_host(
    _: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, Box<TrendFigures>)> {
    rising(subject, host_signals(subject))
}

/// Judges the first of some signals that has a trend at this stage.
fn rising(
    subject: &Subject<'_, '_>,
    signals: impl IntoIterator<Item = Signal>,
) -> Option<(Severity, Box<TrendFigures>)> {
    let mut signals = signals.into_iter();
    let outlook = signals.find_map(|signal| subject.outlook(signal, Stage::Rising))?;
    outlook.is_growing().then(|| (Severity::Info, subject.figures(&outlook)))
}
