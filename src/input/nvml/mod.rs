//! GPUs and MIG devices through NVML: every poll gives a reading or an error of each device.

pub mod config;
pub mod cycle;
pub mod error;
pub mod poller;
mod process_list;
#[expect(unsafe_code, reason = "C calls that nvml-wrapper has no sound form of")]
mod raw;
mod reader;
mod session;
pub mod xid;
