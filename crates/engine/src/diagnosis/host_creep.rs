//! MEMORY CREEP (host): host memory of a rank on a device grows steadily and has used a
//! significant share of the headroom.

use crate::diagnosis::growth::{creeping, creeping_container};
use crate::diagnosis::input::{DiagnosisInput, Subject};
use crate::diagnosis::kind::{About, Severity};
use crate::diagnosis::trend_figures::TrendFigures;
use stepmem_detect::signal::Signal;

/// Host memory grows, and would reach the limit.
pub const ABOUT: About = About {
    label: "HOST_CREEP_CONFIRMED",
    title: "MEMORY CREEP (host)",
    mark: 'H',
    help: "Host memory of a rank on a device (anonymous and shared, no pages of files) grows steadily and has used \
           a significant share of the headroom, or all memory of its container does and that of none of its ranks; \
           critical when the time to out-of-memory is short. The device's own memory is judged apart, as MEMORY CREEP.",
    advice: "Look at what the process keeps on the host from step to step: lists of batches, losses or metrics as \
             arrays, figures, caches of the data set, copies of the weights for checkpoints.",
};

/// Judges host memory that creeps, of the rank or of its container.
pub fn judge(
    input: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, Box<TrendFigures>)> {
    creeping(input, subject, Signal::Host).or_else(|| creeping_container(input, subject))
}
