//! MEMORY RISING: live memory grows steadily, not yet far enough to be called creep.

use crate::analysis::creep::trend::Stage;
use crate::analysis::diagnosis::{Diagnosis, Evidence, Finding, LIVE_SIGNALS, Scene, Severity};

/// Live memory grows, and has not yet eaten enough of the headroom to page.
pub const CREEP_EARLY: Diagnosis = Diagnosis {
    kind: "CREEP_EARLY",
    status: "MEMORY RISING",
    help: "Live tensor memory at the end of the step, or all memory of a process that does not push, grows \
           steadily; it has not yet eaten enough of the headroom to be called creep.",
    advice: "Watch it: if it goes on, it becomes MEMORY CREEP.",
    find,
};

fn find(scene: &Scene<'_>) -> Vec<Finding> {
    scene
        .subjects()
        .filter_map(|subject| {
            let trend = LIVE_SIGNALS.iter().find_map(|of| subject.trend(*of, Stage::Rising))?;
            let evidence = Evidence::Creep(Box::new(trend.figures()));
            Some(subject.finding(CREEP_EARLY.kind, (Severity::Info, evidence)))
        })
        .collect()
}
