//! HIGH PRESSURE: a recent peak is near the rank's own capacity.

use crate::analysis::diagnosis::{
    Diagnosis, Evidence, Finding, RELEASE_MARGIN, Scene, Thresholds, graded,
};
use crate::analysis::rank::window::RankReport;
use crate::model::units::Bytes;

/// A peak is near the capacity.
pub const HIGH_PRESSURE: Diagnosis = Diagnosis {
    kind: "HIGH_PRESSURE",
    status: "HIGH PRESSURE",
    help: "The recent peak of allocated or reserved memory, or what is in use on the device, is near the \
           capacity of the rank's own device.",
    advice: "Reduce the memory load: batch or sequence length, activation checkpointing, sharding; see who \
             else uses the device.",
    find,
};

/// One way of measuring pressure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// `allocated`, `reserved`, `device` or `process`.
    pub basis: &'static str,
    /// Peak by capacity; above 1 where the figures contradict each other.
    pub ratio: f64,
    /// The capacity.
    pub capacity: Bytes,
}

/// Every pressure that is known of a rank: of allocated and reserved by their recent peaks, of the device by what
/// NVML last said; of a process that does not push by what it holds.
pub fn pressures(report: &RankReport<'_>) -> impl Iterator<Item = Pressure> {
    let device_total = report.device.total.filter(|total| total.get() > 0);
    // What others hold on the device is said once, of the ranks that push.
    let device_used = report.device.used.filter(|_| report.process.is_none());
    [
        ("allocated", report.recent_peak_allocated, report.capacity),
        ("reserved", report.recent_peak_reserved, report.capacity),
        ("device", device_used, device_total),
        ("process", report.process, report.capacity),
    ]
    .into_iter()
    .filter_map(|(basis, peak, capacity)| {
        let capacity = capacity?;
        Some(Pressure { basis, ratio: peak?.as_f64() / capacity.as_f64(), capacity })
    })
}

/// The highest pressure of a rank; the earlier basis wins a tie.
pub fn highest(report: &RankReport<'_>) -> Option<Pressure> {
    pressures(report).reduce(|best, next| if next.ratio > best.ratio { next } else { best })
}

fn find(scene: &Scene<'_>) -> Vec<Finding> {
    let kind = HIGH_PRESSURE.kind;
    let Thresholds { pressure_warning, pressure_critical, .. } = *scene.thresholds;
    scene
        .subjects()
        .filter_map(|subject| {
            let Pressure { basis, ratio, capacity } = highest(subject.report)?;
            if ratio < pressure_warning - RELEASE_MARGIN {
                return None;
            }
            let held = scene.held(&subject, kind);
            let severity = graded(ratio, pressure_warning, pressure_critical, held)?;
            let capacity_bytes = capacity.get();
            let evidence = Evidence::Pressure { pressure_ratio: ratio, basis, capacity_bytes };
            Some(subject.finding(kind, (severity, evidence)))
        })
        .collect()
}
