//! One poll under way: what answered, what did not, and what both amount to.

use std::collections::{BTreeMap, BTreeSet};

use tracing::debug;

use crate::input::nvml::config::DeviceName;
use crate::input::nvml::error::{GpuError, NvmlCode};
use crate::model::device::{GpuSample, GpuUnavailable};
use crate::model::ids::GpuUuid;

/// What one poll found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuPoll {
    /// The devices that answered, MIG instances in place of the GPU that they are part of.
    pub samples: Vec<GpuSample>,
    /// What did not answer. An entry without a device beside samples is one that never told its UUID.
    pub unavailable: Vec<GpuUnavailable>,
    /// How many processes were left out of these samples by `processes_max`.
    pub processes_dropped: u64,
    /// How many devices were not looked up, being more than `DEVICES_MAX`.
    pub devices_dropped: u64,
    /// Whether NVML was not asked, as no device is wanted, and holds nothing open.
    pub is_released: bool,
    /// Whether NVML was shut down, so that the next poll initialises it anew. It counts its users: it closes devices,
    /// and initialises anything anew, only when `xid::watch` has ended, too.
    pub is_shut_down: bool,
}

/// What a poll finds of an NVML that is not asked.
pub const RELEASED: GpuPoll = GpuPoll {
    samples: Vec::new(),
    unavailable: Vec::new(),
    processes_dropped: 0,
    devices_dropped: 0,
    is_released: true,
    is_shut_down: true,
};

/// A device of this poll or an earlier one.
///
/// Grows only by GPUs that appear: the MIG instances of a GPU that answers are forgotten when they go.
#[derive(Debug)]
pub(super) struct DeviceEntry {
    /// What it was asked for by, or the GPU that it is part of.
    pub(super) name: DeviceName,
    /// The GPU that a MIG instance is part of.
    pub(super) parent: Option<GpuUuid>,
    /// What it was last reported unavailable with.
    pub(super) code: Option<&'static str>,
    /// Whether it went because its GPU was partitioned anew: reported once, then forgotten.
    pub(super) is_reconfigured: bool,
}

/// What fails poll after poll.
#[derive(Debug)]
pub(super) struct FailureStreak {
    /// In how many polls in a row.
    pub(super) polls: u32,
    /// What was reported last, which holds for as long as nobody asks again.
    pub(super) reports: Vec<GpuUnavailable>,
}

/// One poll under way.
#[derive(Debug, Default)]
pub(super) struct Cycle {
    pub(super) poll: GpuPoll,
    /// What did not answer, by what it was asked for by.
    pub(super) reports: BTreeMap<DeviceName, Vec<GpuUnavailable>>,
    /// What it was asked for by of which something answered.
    pub(super) answered: BTreeSet<DeviceName>,
    /// What was left alone.
    pub(super) rested: BTreeSet<DeviceName>,
    /// The devices that told their UUID and are reported, with or without figures.
    pub(super) found: BTreeMap<GpuUuid, DeviceEntry>,
    /// The GPUs that told their UUID and stand behind their MIG instances.
    pub(super) partitioned: BTreeSet<GpuUuid>,
    /// The MIG device that stands for the memory of each GPU instance.
    pub(super) memory_of: BTreeMap<(GpuUuid, u32), GpuUuid>,
    /// What failed before it told its UUID.
    pub(super) unnamed: Vec<(DeviceName, GpuError)>,
    pub(super) wants_restart: bool,
}

impl Cycle {
    /// Leaves a device alone; what was reported of it holds.
    pub(super) fn rest(&mut self, name: &DeviceName, failing: &FailureStreak) {
        self.rested.insert(name.clone());
        self.reports.insert(name.clone(), failing.reports.clone());
        self.wants_restart = true;
    }

    /// Whether the GPU that `uuid` is, or is part of, answered in this poll.
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

    /// Reports what failed before it told its UUID and is no device of an earlier poll.
    pub(super) fn report_unnamed(&mut self, unnamed: &[(DeviceName, GpuError)]) {
        for (name, error) in unnamed {
            match name {
                // NVML counts the GPUs that a container may not open.
                DeviceName::Index(idx)
                    if error.code() == NvmlCode::Nvml(4) && !self.poll.samples.is_empty() =>
                {
                    debug!(idx, %error, "gpu belongs to someone else");
                }
                DeviceName::Index(_) => self.refuse(name, None, error),
                DeviceName::Uuid(uuid) => self.refuse(name, Some(uuid.clone()), error),
            }
        }
    }

    /// What was found, and whether NVML should be initialised anew.
    pub(super) fn end(self) -> (GpuPoll, bool) {
        let unavailable = self.reports.into_values().flatten().collect();
        (GpuPoll { unavailable, ..self.poll }, self.wants_restart)
    }
}
