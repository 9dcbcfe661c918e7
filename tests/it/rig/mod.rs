//! The only helper of the tests: the real binary on free ports, the commands that end, and the ways to wait.

pub mod command;
pub mod exporter;
pub mod folder;
pub mod http;
pub mod job;
pub mod series;
pub mod wait;
