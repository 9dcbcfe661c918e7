//! MEMORY CREEP: live memory grows steadily and has used a significant share of the headroom.

use crate::diagnosis::growth::{LIVE_SIGNALS, creeping};
use crate::diagnosis::input::{DiagnosisInput, Subject};
use crate::diagnosis::kind::{About, Severity};
use crate::diagnosis::trend_figures::TrendFigures;

/// Live memory grows, and would reach the capacity.
pub const ABOUT: About = About {
    label: "CREEP_CONFIRMED",
    title: "MEMORY CREEP",
    mark: 'C',
    help: "Live tensor memory at the end of the step, or all memory of an unmanaged process, grows \
           steadily and has used a significant share of the headroom; critical when the time to out-of-memory is \
           short or live memory is near the capacity. A buffer that is still filling looks the same until it stops.",
    advice: "First look at tensors kept across steps: losses or logits appended with their graph, caches, \
             metrics that hold tensors, validation code.",
};

/// Judges live memory that creeps.
pub fn judge(
    input: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, Box<TrendFigures>)> {
    LIVE_SIGNALS.iter().find_map(|signal| creeping(input, subject, *signal))
}
