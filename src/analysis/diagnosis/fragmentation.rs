//! FRAGMENTATION: the allocator holds more and more, or much, that is not live.

use crate::analysis::creep::signal::Signal;
use crate::analysis::diagnosis::{
    Diagnosis, Evidence, Finding, RELEASE_MARGIN, Scene, Severity, Subject, creeping,
};
use crate::model::units::Bytes;

/// The unused share of reserved memory at its peak that is worth a word: half, TraceML's reserved by allocated of 2.
pub const RATIO_INFO: f64 = 0.50;
/// Reserved memory below this share of the capacity is not worth a word.
pub const PRESSURE_MIN: f64 = 0.30;

/// Reserved memory grows, or is large, without live memory to fill it.
pub const FRAGMENTATION: Diagnosis = Diagnosis {
    kind: "FRAGMENTATION",
    status: "FRAGMENTATION",
    help: "The allocator's reserved memory grows while live memory does not (judged as creep is); info when \
           the reserved peak is merely at least twice the allocated peak.",
    advice: "Try PYTORCH_ALLOC_CONF=expandable_segments:True; pad or bucket varying shapes.",
    find,
};

fn find(scene: &Scene<'_>) -> Vec<Finding> {
    let kind = FRAGMENTATION.kind;
    scene
        .subjects()
        .filter_map(|subject| {
            let judged = creeping(scene, &subject, Signal::Reserved, kind)
                .or_else(|| high(scene, &subject))?;
            Some(subject.finding(kind, judged))
        })
        .collect()
}

fn high(scene: &Scene<'_>, subject: &Subject<'_, '_>) -> Option<(Severity, Evidence)> {
    let report = subject.report;
    let capacity = report.capacity?;
    let reserved =
        report.recent_peak_reserved.filter(|reserved| *reserved > Bytes::default())?;
    let allocated = report.recent_peak_allocated?.as_f64();
    let ratio = 1.0 - allocated / reserved.as_f64();
    let is_held = scene.held(subject, FRAGMENTATION.kind).is_some();
    let margin = if is_held { RELEASE_MARGIN } else { 0.0 };
    let is_high = ratio >= RATIO_INFO - margin
        && reserved.as_f64() >= (PRESSURE_MIN - margin) * capacity.as_f64();
    let evidence = Evidence::Fragmentation {
        fragmentation_ratio: ratio,
        peak_reserved_bytes: reserved.get(),
        capacity_bytes: capacity.get(),
    };
    is_high.then_some((Severity::Info, evidence))
}
