//! MEMORY RISING: live memory grows steadily, not yet far enough to be called creep.

use crate::diagnosis::growth::LIVE_SIGNALS;
use crate::diagnosis::input::{DiagnosisInput, Subject};
use crate::diagnosis::kind::{About, Severity};
use crate::diagnosis::trend_figures::TrendFigures;
use stepmem_detect::trend::Stage;

/// Live memory grows, and has not yet eaten enough of the headroom to page.
pub const ABOUT: About = About {
    label: "CREEP_EARLY",
    title: "MEMORY RISING",
    mark: 'e',
    help: "Live tensor memory at the end of the step, or all memory of an unmanaged process, grows \
           steadily; it has not yet used enough of the headroom to be called creep.",
    advice: "Compare with a known stable run (stepmem compare). Where its memory stays level, look at tensors kept \
             across steps; if the growth goes on, it becomes MEMORY CREEP.",
};

/// Judges live memory that rises.
pub fn judge(
    _: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, Box<TrendFigures>)> {
    let rising = LIVE_SIGNALS.iter().find_map(|signal| subject.trend(*signal, Stage::Rising));
    let trend = rising.filter(|trend| trend.is_growing())?;
    Some((Severity::Info, subject.figures(trend)))
}
