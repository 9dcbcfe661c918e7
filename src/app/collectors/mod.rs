//! Collectors feed the engine besides pushes: devices, their Xid errors, and the kubelet.

pub mod event;
pub mod kubelet;
pub mod nvml;
mod thread;
mod xid;
