//! The reports of collectors to the engine.

use crate::input::nvml::cycle::GpuPoll;
use stepmem_engine::requests::causes::SnapshotAnalysis;
use stepmem_types::device::DevicePod;
use stepmem_types::ids::GpuUuid;

/// A report of a collector.
#[derive(Debug)]
pub(in crate::exporter) enum CollectorEvent {
    /// The result of one poll of NVML.
    Devices(GpuPoll, CollectorRound),
    /// The reason that no device is opened from now on, and the setting to change; `None` when
    /// some are.
    DevicesHint(Option<&'static str>),
    /// An Xid error of a device.
    Xid(GpuUuid, u64),
    /// The result of the analysis of a snapshot, by its number.
    Analysed(u64, Box<SnapshotAnalysis>),
    /// The containers of all devices, and the number of left-out ones.
    DevicePods(Vec<DevicePod>, u64, CollectorRound),
}

/// One round of a collector.
#[derive(Clone, Copy, Debug)]
pub(in crate::exporter) struct CollectorRound {
    pub(in crate::exporter) collector: &'static str,
    /// Duration of the round, in seconds.
    pub(in crate::exporter) duration_seconds: f64,
    /// True if the round succeeded.
    pub(in crate::exporter) is_success: bool,
}
