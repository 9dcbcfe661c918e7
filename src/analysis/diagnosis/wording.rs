//! Findings in words for people: pages, tables and logs. Nothing is judged here.

use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::trend::TrendFigures;
use crate::analysis::diagnosis::{DIAGNOSES, Diagnosis, Evidence};
use crate::text::units::{bytes, duration, percent, whole_bytes};

/// The diagnosis of that kind.
pub fn diagnosis(kind: &str) -> Option<&'static Diagnosis> {
    DIAGNOSES.into_iter().find(|diagnosis| diagnosis.kind == kind)
}

/// The evidence in one sentence without a full stop.
pub fn sentence(evidence: &Evidence) -> String {
    match evidence {
        Evidence::Creep(creep) => creep_sentence(creep),
        Evidence::Pressure { pressure_ratio, basis, capacity_bytes } => {
            let of = match *basis {
                "device" => "in use on the device",
                "reserved" => "the reserved peak",
                "process" => "the process",
                _ => "the allocated peak",
            };
            format!(
                "{of} is at {} of {}",
                percent(*pressure_ratio),
                whole_bytes(*capacity_bytes)
            )
        }
        Evidence::Imbalance { imbalance_ratio, median_bytes, pressure_ratio } => format!(
            "its peak is {} above the median of the other ranks ({}), at {} of its device",
            percent(*imbalance_ratio),
            bytes(*median_bytes),
            percent(*pressure_ratio)
        ),
        Evidence::Fragmentation { fragmentation_ratio, peak_reserved_bytes, .. } => format!(
            "{} of the {} that the allocator held at its peak was never live at once",
            percent(*fragmentation_ratio),
            whole_bytes(*peak_reserved_bytes)
        ),
        Evidence::OutsideAllocator { outside_bytes, outside_ratio, .. } => format!(
            "{} of the process is outside its allocator, {} of the device",
            bytes(*outside_bytes),
            percent(*outside_ratio)
        ),
    }
}

fn creep_sentence(creep: &TrendFigures) -> String {
    let what = match creep.signal {
        Signal::Allocated => "live memory grows",
        Signal::Reserved => "reserved memory grows without live memory",
        Signal::OutsideAllocator => "memory outside the allocator grows",
        Signal::Process => "memory of the process grows",
    };
    let growth = bytes(creep.growth_bytes);
    let mut text = match (creep.slope_bytes_per_step, creep.onset_step) {
        (Some(slope), Some(step)) => {
            format!("{what} by {}/step, {growth} since step {}", bytes(slope), step.get())
        }
        _ => format!("{what}, {growth} so far"),
    };
    if let (None, Some(slope)) = (creep.slope_bytes_per_step, creep.slope_bytes_per_second) {
        text = format!(
            "{what} by {}/h, {growth} in {}",
            bytes(3600.0 * slope),
            duration(creep.growth_bytes / slope)
        );
    }
    if let Some(headroom) = creep.headroom_bytes {
        text = format!("{text}; {} left", bytes(headroom));
    }
    let eta = match (creep.oom_eta_seconds, creep.oom_eta_steps) {
        (Some(seconds), Some(steps)) => {
            format!(", out of memory in about {} ({steps:.0} steps)", duration(seconds))
        }
        (Some(seconds), None) => format!(", out of memory in about {}", duration(seconds)),
        (None, Some(steps)) => format!(", out of memory in about {steps:.0} steps"),
        (None, None) => String::new(),
    };
    text + &eta
}
