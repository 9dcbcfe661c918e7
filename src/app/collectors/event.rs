//! The reports of collectors to the engine.

use crate::analysis::status::CollectorStatus;
use crate::input::nvml::cycle::GpuPoll;
use crate::model::device::DevicePod;
use crate::model::ids::GpuUuid;

/// A report of a collector.
#[derive(Debug)]
pub(in crate::app) enum CollectorEvent {
    /// The result of one poll of NVML.
    Devices(GpuPoll, CollectorStatus),
    /// An Xid error of a device.
    Xid(GpuUuid, u64),
    /// The containers of all devices, and the number of left-out ones.
    DevicePods(Vec<DevicePod>, u64, CollectorStatus),
}
