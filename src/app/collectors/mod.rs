//! Collectors feed the engine besides pushes: devices, their Xid errors, the kubelet, and memory snapshots.

pub mod analyses;
pub mod event;
pub mod kubelet;
mod memory_left;
pub mod nvml;
mod thread;
mod xid;
