//! Bytes and devices come in: decoded, checked and handed to the engine. Nothing here knows an output.

pub mod wire;

pub mod inbox;

pub mod http;

pub mod cgroup;

pub mod process;

pub mod nvml;

pub mod kubelet;
