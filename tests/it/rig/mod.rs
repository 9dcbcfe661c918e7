//! The only helper of the tests: the real binary on free ports and the commands that end, jobs that push, a driver that
//! answers from a file, the peers that read, and the ways to wait.

pub mod access;
pub mod answers;
pub mod certificates;
pub mod claims;
pub mod command;
pub mod curl;
pub mod device_metrics;
pub mod exporter;
pub mod folder;
pub mod http;
pub mod job;
pub mod json;
pub mod kubelet;
pub mod noise;
pub mod nvml;
pub mod otlp;
pub mod peers;
pub mod poll;
pub mod refusals;
pub mod schema;
pub mod series;
pub mod skipped;
pub mod snapshot;
pub mod snapshot_job;
pub mod snapshot_programs;
pub mod summary;
pub mod units;
pub mod victim;
pub mod wait;
