//! MEMORY RISING (host): host memory of a rank on a device grows steadily, not yet far enough
//! to be called creep.

use crate::diagnosis::input::{DiagnosisInput, Subject};
use crate::diagnosis::kind::{About, Severity};
use crate::diagnosis::trend_figures::TrendFigures;
use stepmem_detect::signal::Signal;
use stepmem_detect::trend::Stage;

/// Host memory grows, and has not yet eaten enough of the headroom to page.
pub const ABOUT: About = About {
    label: "HOST_CREEP_EARLY",
    title: "MEMORY RISING (host)",
    mark: 'h',
    help: "Host memory of a rank on a device grows steadily; it has not yet used enough of the headroom to be \
           called creep.",
    advice: "If the growth goes on, it becomes MEMORY CREEP (host): look at what the process keeps on the host \
             from step to step.",
};

/// Judges host memory that rises.
pub fn judge(
    _: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, Box<TrendFigures>)> {
    let trend = subject.trend(Signal::Host, Stage::Rising).filter(|of| of.is_growing())?;
    Some((Severity::Info, subject.figures(trend)))
}
