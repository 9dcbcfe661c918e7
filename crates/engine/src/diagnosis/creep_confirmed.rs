//! MEMORY CREEP: live memory grows steadily and has used a significant share of the headroom.
//! Host memory next to a device is judged apart.

use crate::diagnosis::shared::growth::{
    LIVE_SIGNALS, creeping, creeping_container, host_signals,
};
use crate::diagnosis::shared::input::{DiagnosisInput, Subject};
use crate::diagnosis::shared::trend_figures::TrendFigures;
use crate::kind::{About, DiagnosisKind, Place, Severity};
use stepmem_detect::{Signal, Stage};

/// Live memory grows, and would reach the capacity.
pub(crate) const ABOUT: About = About {
    title: "MEMORY CREEP",
    mark: 'C',
    help: "Live tensor memory at the end of the step (in the GPU's memory, or in the host's where there is no GPU), or \
           all memory of an unmanaged process, grows steadily and has used a significant share of the headroom; critical when the time to out-of-memory is \
           short or live memory is near the capacity. A buffer that is still filling looks the same until it stops.",
    advice: "First look at tensors kept across steps: losses or logits appended with their graph, caches, \
             metrics that hold tensors, validation code.",
    signal: Some(Signal::Allocated),
    stage: Some(Stage::Creeping),
    family: DiagnosisKind::CreepConfirmed,
    place: Place::Own,
};

/// Host memory grows, and would reach the limit.
pub(crate) const HOST: About = About {
    title: "MEMORY CREEP (host)",
    mark: 'H',
    help: "Host memory of a rank on a device (anonymous and shared, no pages of files) grows steadily and has used \
           a significant share of the headroom; or what the child processes of any rank hold of their own does, or what is in /dev/shm; or all \
           memory of its container does and that of none of its ranks; \
           critical when the time to out-of-memory is short. The device's own memory is judged apart, as MEMORY CREEP.",
    advice: "Look at what the process keeps on the host from step to step: lists of batches, losses or metrics as \
             arrays, figures, caches of the data set, copies of the weights for checkpoints.",
    signal: Some(Signal::Host),
    stage: Some(Stage::Creeping),
    family: DiagnosisKind::HostCreep,
    place: Place::Host { own: DiagnosisKind::CreepConfirmed },
};

/// Judges live memory that creeps.
pub(crate) fn judge(
    input: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, Box<TrendFigures>)> {
    LIVE_SIGNALS.iter().find_map(|signal| creeping(input, subject, *signal))
}

/// Judges host memory that creeps, of the rank, of its child processes, in `/dev/shm` or of its container.
pub(crate) fn judge_host(
    input: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, Box<TrendFigures>)> {
    let of_rank = host_signals(subject).find_map(|signal| creeping(input, subject, signal));
    of_rank.or_else(|| creeping_container(input, subject))
}
