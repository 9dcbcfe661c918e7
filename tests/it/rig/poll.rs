//! A poll of the driver, read.

use stepmem::input::nvml::cycle::GpuPoll;
use stepmem_types::device::{GpuSample, ProcessMemory};
use stepmem_types::ids::GpuUuid;
use stepmem_types::units::Bytes;

pub fn bytes(value: u64) -> Bytes {
    Bytes::new(value).unwrap()
}

/// (pid, used bytes) of every process of a sample.
pub fn processes(sample: &GpuSample) -> Vec<(u32, Option<u64>)> {
    let pair = |process: &ProcessMemory| (process.pid, process.used.map(Bytes::get));
    sample.processes.iter().map(pair).collect()
}

pub fn sampled(poll: &GpuPoll) -> Vec<&str> {
    poll.samples.iter().map(|sample| sample.device.as_str()).collect()
}

/// (device, code) of everything that did not answer.
pub fn unavailable(poll: &GpuPoll) -> Vec<(Option<&str>, &str)> {
    poll.unavailable
        .iter()
        .map(|entry| (entry.device.as_ref().map(GpuUuid::as_str), entry.code))
        .collect()
}
