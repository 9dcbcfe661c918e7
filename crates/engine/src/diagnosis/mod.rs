//! The diagnoses: a file each, listed once in the table below, the worst first. `kind` defines
//! a diagnosis, `input` its input. `growth`, `filling`, `pressure` and `balance` hold the
//! figures that several of them share.

pub mod balance;
pub mod creep_confirmed;
pub mod creep_early;
pub mod filling;
pub mod fragmentation;
pub mod gpu_lost;
pub mod growth;
pub mod high_pressure;
pub mod host_creep;
pub mod host_pressure;
pub mod host_rising;
pub mod host_words;
pub mod imbalance;
pub mod input;
pub mod kind;
pub mod names;
pub mod out_of_memory;
pub mod outside_allocator;
pub mod pressure;
pub mod site_words;
pub mod trend_figures;

kind::diagnoses! {
    GpuLost: gpu_lost, gpu_lost::GpuLostEvidence;
    OutOfMemory: out_of_memory, out_of_memory::OutOfMemoryEvidence;
    CreepConfirmed: creep_confirmed, Box<trend_figures::TrendFigures>;
    HostCreep: host_creep, Box<trend_figures::TrendFigures>;
    HighPressure: high_pressure, high_pressure::PressureEvidence;
    HostPressure: host_pressure, high_pressure::PressureEvidence;
    Imbalance: imbalance, imbalance::ImbalanceEvidence;
    Fragmentation: fragmentation, fragmentation::FragmentationEvidence;
    OutsideAllocator: outside_allocator, outside_allocator::OutsideEvidence;
    CreepEarly: creep_early, Box<trend_figures::TrendFigures>;
    HostRising: host_rising, Box<trend_figures::TrendFigures>;
}
