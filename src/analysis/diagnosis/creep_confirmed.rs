//! MEMORY CREEP: live memory grows steadily and has eaten a telling share of the headroom.

use crate::analysis::diagnosis::{Diagnosis, Finding, LIVE_SIGNALS, Scene, creeping};

/// Live memory grows, and would reach the capacity.
pub const CREEP_CONFIRMED: Diagnosis = Diagnosis {
    kind: "CREEP_CONFIRMED",
    status: "MEMORY CREEP",
    help: "Live tensor memory at the end of the step, or all memory of a process that does not push, grows \
           steadily and has eaten a telling share of the headroom; critical when the time to out-of-memory is \
           short or pressure is high. A buffer that is still filling looks the same until it stops.",
    advice: "First look at tensors kept across steps: losses or logits appended with their graph, caches, \
             metrics that hold tensors, validation code.",
    find,
};

fn find(scene: &Scene<'_>) -> Vec<Finding> {
    let kind = CREEP_CONFIRMED.kind;
    scene
        .subjects()
        .filter_map(|subject| {
            let judged =
                LIVE_SIGNALS.iter().find_map(|of| creeping(scene, &subject, *of, kind))?;
            Some(subject.finding(kind, judged))
        })
        .collect()
}
