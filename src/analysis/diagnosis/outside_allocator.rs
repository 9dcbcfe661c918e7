//! OUTSIDE ALLOCATOR: the process uses device memory that its allocator does not hold, and it grows or is large.

use crate::analysis::creep::signal::Signal;
use crate::analysis::diagnosis::{
    Diagnosis, Evidence, Finding, RELEASE_MARGIN, Scene, Severity, Subject, creeping,
};

/// The share of the capacity from which memory outside the allocator is worth a word: a CUDA context and NCCL's
/// buffers take a few percent.
pub const RATIO_INFO: f64 = 0.15;

/// Memory outside the allocator grows, or is large.
pub const OUTSIDE_ALLOCATOR: Diagnosis = Diagnosis {
    kind: "OUTSIDE_ALLOCATOR",
    status: "OUTSIDE ALLOCATOR",
    help: "Device memory of the process that the allocator does not hold (CUDA context, NCCL, other \
           libraries) grows (judged as creep is); info when it is merely large.",
    advice: "No PyTorch tool sees this memory: look at NCCL communicators and libraries that allocate by \
             themselves.",
    find,
};

fn find(scene: &Scene<'_>) -> Vec<Finding> {
    let kind = OUTSIDE_ALLOCATOR.kind;
    scene
        .subjects()
        .filter_map(|subject| {
            let judged = creeping(scene, &subject, Signal::OutsideAllocator, kind)
                .or_else(|| large(scene, &subject))?;
            Some(subject.finding(kind, judged))
        })
        .collect()
}

fn large(scene: &Scene<'_>, subject: &Subject<'_, '_>) -> Option<(Severity, Evidence)> {
    let capacity = subject.report.capacity?;
    let outside_bytes = subject.report.outside_allocator_bytes()?;
    let outside_ratio = outside_bytes / capacity.as_f64();
    let is_held = scene.held(subject, OUTSIDE_ALLOCATOR.kind).is_some();
    let limit = RATIO_INFO - if is_held { RELEASE_MARGIN } else { 0.0 };
    let capacity_bytes = capacity.get();
    let evidence = Evidence::OutsideAllocator { outside_bytes, outside_ratio, capacity_bytes };
    (outside_ratio >= limit).then_some((Severity::Info, evidence))
}
