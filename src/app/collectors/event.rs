//! What collectors bring to the engine.

use crate::analysis::status::CollectorStatus;
use crate::input::nvml::cycle::GpuPoll;
use crate::model::device::DevicePod;
use crate::model::ids::GpuUuid;

/// What a collector brings to the engine.
#[derive(Debug)]
pub(in crate::app) enum CollectorEvent {
    /// One round of reading the devices.
    Devices(GpuPoll, CollectorStatus),
    /// An Xid error of a device.
    Xid(GpuUuid, u64),
    /// Which containers have which devices, and how many were left out.
    DevicePods(Vec<DevicePod>, u64, CollectorStatus),
}
