//! The diagnoses: a file each, with a row in the table below for each place of memory that it
//! judges. `figures` defines the evidence of a diagnosis, `input` its input. `growth`, `filling`,
//! `pressure` and `balance` hold the figures that several of them share.

pub mod balance;
pub mod children_figures;
pub mod creep_confirmed;
pub mod creep_early;
#[cfg(test)]
mod examples;
pub mod figures;
pub mod filling;
pub mod fragmentation;
pub mod gpu_lost;
pub mod growth;
pub mod growth_or;
pub mod high_pressure;
pub mod host_words;
pub mod imbalance;
pub mod input;
pub mod kept_blocks;
pub mod malloc_figures;
pub mod names;
pub mod out_of_memory;
pub mod outside_allocator;
pub mod phase_rising;
pub mod plan;
pub mod pressure;
pub mod run_end;
pub mod shm_figures;
pub mod site_words;
pub mod taken_at_start;
pub mod trend_figures;

use crate::diagnosis::trend_figures::TrendFigures;
use crate::kind::DiagnosisKind;

figures::diagnoses! {
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
