//! Whose a process or device is: process ids across namespaces, containers, pods.

pub mod cgroup;
pub mod kubelet;
pub mod procfs;
