//! One poll in progress: the devices that answered, those that failed, and the result of both.

use std::collections::{BTreeMap, BTreeSet};

use tracing::debug;

use crate::input::nvml::config::DeviceName;
use crate::input::nvml::error::{GpuError, NvmlCode};
use stepmem_types::device::{GpuSample, GpuUnavailable};
use stepmem_types::ids::GpuUuid;

/// The result of one poll.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuPoll {
    /// The devices that answered; MIG devices replace the GPU that they are part of.
    pub samples: Vec<GpuSample>,
    /// The devices that failed. An entry without a device means NVML as a whole.
    pub unavailable: Vec<GpuUnavailable>,
    /// Processes left out of these samples to keep `processes_max`.
    pub processes_dropped: u64,
    /// Number of devices that were not read because there are more than `DEVICES_MAX`.
    pub devices_dropped: u64,
    /// Set when NVML was not called because no device is wanted; nothing is open then.
    pub is_released: bool,
    /// Set when NVML was shut down, so that the next poll initializes it again. NVML counts its
    /// users: it closes devices only after `xid::watch` has ended, too.
    pub is_shut_down: bool,
}

/// The result of a poll that does not call NVML.
pub const RELEASED: GpuPoll = GpuPoll {
    samples: Vec::new(),
    unavailable: Vec::new(),
    processes_dropped: 0,
    devices_dropped: 0,
    is_released: true,
    is_shut_down: true,
};

/// A device of this or an earlier poll.
///
/// The number of entries grows only with new GPUs: entries of MIG devices are dropped once
/// their GPU answers without them.
#[derive(Debug)]
pub(super) struct DeviceEntry {
    /// The name by which it, or the GPU that it is part of, was requested.
    pub(super) name: DeviceName,
    /// The GPU that a MIG device is part of.
    pub(super) parent: Option<GpuUuid>,
    /// The code of its last failure.
    pub(super) code: Option<&'static str>,
    /// Set when it disappeared because its GPU was repartitioned: reported once, then dropped.
    pub(super) is_reconfigured: bool,
}

/// Consecutive failures of one device.
#[derive(Debug)]
pub(super) struct FailureStreak {
    /// Polls in a row.
    pub(super) polls: u32,
    /// The last reports, which are repeated while the device is not polled.
    pub(super) reports: Vec<GpuUnavailable>,
}

/// A poll in progress.
#[derive(Debug, Default)]
pub(super) struct Cycle {
    pub(super) poll: GpuPoll,
    /// Failures by the requested name.
    pub(super) reports: BTreeMap<DeviceName, Vec<GpuUnavailable>>,
    /// Names of which at least one device answered.
    pub(super) answered: BTreeSet<DeviceName>,
    /// Names that were not polled after too many failures.
    pub(super) skipped: BTreeSet<DeviceName>,
    /// The devices whose UUID is known and that are reported, with or without figures.
    pub(super) found: BTreeMap<GpuUuid, DeviceEntry>,
    /// The GPUs whose UUID is known and that are replaced by their MIG devices.
    pub(super) partitioned: BTreeSet<GpuUuid>,
    /// The MIG device that reports the memory of each GPU instance.
    pub(super) memory_of: BTreeMap<(GpuUuid, u32), GpuUuid>,
    /// Failures before NVML returned a UUID.
    pub(super) unnamed: Vec<(DeviceName, GpuError)>,
    pub(super) wants_restart: bool,
}

impl Cycle {
    /// Skips a device and repeats its last reports.
    pub(super) fn skip(&mut self, name: &DeviceName, failing: &FailureStreak) {
        self.skipped.insert(name.clone());
        self.reports.insert(name.clone(), failing.reports.clone());
        self.wants_restart = true;
    }

    /// Returns whether the GPU that `uuid` is, or is part of, answered in this poll.
    pub(super) fn has_answered(&self, uuid: &GpuUuid, known: &DeviceEntry) -> bool {
        let is_gpu_found = |gpu| self.found.contains_key(gpu) || self.partitioned.contains(gpu);
        is_gpu_found(uuid) || known.parent.as_ref().is_some_and(is_gpu_found)
    }

    pub(super) fn report(&mut self, name: &DeviceName, unavailable: GpuUnavailable) {
        self.reports.entry(name.clone()).or_default().push(unavailable);
    }

    pub(super) fn refuse(
        &mut self,
        name: &DeviceName,
        device: Option<GpuUuid>,
        error: &GpuError,
    ) {
        self.wants_restart |= error.wants_restart();
        self.report(name, error.report(device));
    }

    /// Reports failures without a UUID that do not belong to a device of an earlier poll.
    pub(super) fn report_unnamed(&mut self, unnamed: &[(DeviceName, GpuError)]) {
        for (name, error) in unnamed {
            match name {
                // NVML also counts GPUs that the container may not open.
                DeviceName::Index(idx)
                    if error.code() == NvmlCode::Nvml(4) && !self.poll.samples.is_empty() =>
                {
                    debug!(idx, %error, "gpu is not accessible");
                }
                DeviceName::Index(idx) => {
                    self.refuse(name, Some(GpuUuid::of_index(*idx)), error);
                }
                DeviceName::Uuid(uuid) => self.refuse(name, Some(uuid.clone()), error),
            }
        }
    }

    /// Returns the result, and whether NVML should be initialized again.
    pub(super) fn end(self) -> (GpuPoll, bool) {
        let unavailable = self.reports.into_values().flatten().collect();
        (GpuPoll { unavailable, ..self.poll }, self.wants_restart)
    }
}
