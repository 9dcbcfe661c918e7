//! Collectors feed the engine in addition to pushes: devices, their Xid errors, the kubelet,
//! and memory snapshots.

pub mod collected;
pub mod kubelet;
pub mod kubepods;
mod memory_left;
pub mod nvml;
pub mod snapshot_analysis;
mod thread;
mod xid;
