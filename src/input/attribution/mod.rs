//! Owners of processes and devices: process ids across namespaces, containers, pods.

pub mod cgroup;
pub mod kubelet;
pub mod kubepods;
pub mod procfs;
