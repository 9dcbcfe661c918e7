//! The diagnoses: a file each, with a row in the table below for each place of memory that it
//! judges. What several of them share is in `shared`: their input and evidence, when growth or
//! pressure counts, and words.

pub(crate) mod creep_confirmed;
pub(crate) mod creep_early;
#[cfg(test)]
mod examples;
pub(crate) mod fragmentation;
pub(crate) mod gpu_lost;
pub(crate) mod high_pressure;
pub(crate) mod imbalance;
pub(crate) mod out_of_memory;
pub(crate) mod outside_allocator;
pub(crate) mod phase_rising;
pub(crate) mod shared;

use crate::diagnosis::shared::trend_figures::TrendFigures;
use crate::kind::DiagnosisKind;

shared::figures::diagnoses! {
    GpuLost: gpu_lost::{ABOUT, judge}, gpu_lost::GpuLostEvidence;
    OutOfMemory: out_of_memory::{ABOUT, judge}, out_of_memory::OutOfMemoryEvidence;
    CreepConfirmed: creep_confirmed::{ABOUT, judge}, Box<TrendFigures>;
    HostCreep: creep_confirmed::{HOST, judge_host}, Box<TrendFigures>;
    HighPressure: high_pressure::{ABOUT, judge}, high_pressure::PressureEvidence;
    HostPressure: high_pressure::{HOST, judge_host}, high_pressure::PressureEvidence;
    Imbalance: imbalance::{ABOUT, judge}, imbalance::ImbalanceEvidence;
    Fragmentation: fragmentation::{ABOUT, judge}, fragmentation::FragmentationEvidence;
    OutsideAllocator: outside_allocator::{ABOUT, judge}, outside_allocator::OutsideEvidence;
    PhaseRising: phase_rising::{ABOUT, judge}, phase_rising::PhaseEvidence;
    CreepEarly: creep_early::{ABOUT, judge}, Box<TrendFigures>;
    HostRising: creep_early::{HOST, judge_host}, Box<TrendFigures>;
}
