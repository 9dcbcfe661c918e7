//! The devices as NVML last read them, the ones that answer with an error, their Xid errors and
//! their pods.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ranks::view::DeviceView;
use stepmem_types::device::{
    DevicePod, GpuSample, GpuUnavailable, OwnProcessMemory, ProcessMemory,
};
use stepmem_types::host::PodMemory;
use stepmem_types::ids::GpuUuid;
use stepmem_types::step::{Identity, StepSample};
use stepmem_types::units::{Bytes, Uptime};

/// The codes of failures that alerts read: each is counted from 0 on once NVML has answered, so
/// that the first failure is an increase.
const ALERTED_CODES: [&str; 3] = ["gpu_is_lost", "gpu_not_found", "reset_required"];
/// Number of kinds of Xid errors of all devices that are counted apart.
pub(crate) const XIDS_MAX: usize = 256;
/// The time that a device counts as failing after its last error: twice the longest pause
/// between two rounds.
const FAILURE_KEPT: Duration = Duration::from_mins(2);

#[derive(Debug, Default)]
pub(crate) struct DeviceTable {
    read: BTreeMap<GpuUuid, DeviceState>,
    failing: BTreeMap<GpuUuid, DeviceFailure>,
    pods: Vec<DevicePod>,
    pod_memory: Vec<PodMemory>,
    nvml: NvmlStatus,
}

#[derive(Debug)]
struct DeviceState {
    sample: GpuSample,
    read_at: Uptime,
}

/// A device that answers with an error.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceFailure {
    /// The name of the last error, as in [`GpuUnavailable::code`].
    pub code: &'static str,
    /// The time when the error last came.
    last_seen: Uptime,
}

/// The state of NVML.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct NvmlStatus {
    /// True if it answers; `None` while it is not asked.
    pub is_up: Option<bool>,
    /// The code of the failure for which it does not answer at all; `None` while it does, be it
    /// with an error of each device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Cow<'static, str>>,
    /// The devices that answer with an error only, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failing: Vec<FailingDevice>,
    /// The time when NVML last answered, as a Unix time.
    pub last_success_time: Option<f64>,
    /// Number of its failures, by code.
    pub errors: BTreeMap<Cow<'static, str>, u64>,
    /// Xid errors by device and number, in the order in which each came first.
    pub xids: Vec<XidErrors>,
    /// Xid errors of further kinds.
    pub xids_dropped: u64,
    /// Readings of processes beyond the bound on series.
    pub processes_dropped: u64,
}

/// A device that answers with an error only.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct FailingDevice {
    /// The UUID of the device.
    pub uuid: GpuUuid,
    /// The name of its last error, as in [`GpuUnavailable::code`].
    pub code: Cow<'static, str>,
}

/// Number of times that a device reported an Xid error.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct XidErrors {
    /// The UUID of the device.
    pub uuid: GpuUuid,
    /// The number of the error.
    pub xid: u64,
    /// Number of times that it came since the exporter began.
    pub count: u64,
}

impl DeviceTable {
    /// Takes a reading of a device made at `now`, which is the Unix time `time`.
    pub(crate) fn read(&mut self, sample: GpuSample, now: Uptime, time: f64) {
        (self.nvml.is_up, self.nvml.failure) = (Some(true), None);
        self.nvml.last_success_time = Some(time);
        for code in ALERTED_CODES {
            self.nvml.errors.entry(code.into()).or_default();
        }
        self.failing.remove(&sample.device);
        self.read.insert(sample.device.clone(), DeviceState { sample, read_at: now });
    }

    /// Takes an error instead of an answer. Returns whether a device begins to fail or fails
    /// otherwise than before.
    pub(crate) fn fail(&mut self, unavailable: &GpuUnavailable, now: Uptime) -> bool {
        let mut is_changed = false;
        if let Some(device) = &unavailable.device {
            self.read.remove(device);
            let failure = DeviceFailure { code: unavailable.code, last_seen: now };
            let before = self.failing.insert(device.clone(), failure);
            is_changed = before.is_none_or(|before| before.code != unavailable.code);
        } else {
            self.read.clear();
        }
        // A device that still answers reports that itself.
        if self.read.is_empty() {
            self.nvml.is_up = Some(false);
            // The error of a device is its own: NVML answers.
            self.nvml.failure = unavailable.device.is_none().then(|| unavailable.code.into());
        }
        *self.nvml.errors.entry(unavailable.code.into()).or_default() += 1;
        is_changed
    }

    /// Forgets every device: NVML is released.
    pub(crate) fn release(&mut self) {
        self.read.clear();
        self.failing.clear();
        (self.nvml.is_up, self.nvml.failure) = (None, None);
    }

    /// Counts an Xid error.
    pub(crate) fn xid(&mut self, uuid: &GpuUuid, xid: u64) {
        let xids = &mut self.nvml.xids;
        if let Some(seen) = xids.iter_mut().find(|seen| seen.uuid == *uuid && seen.xid == xid) {
            seen.count += 1;
        } else if xids.len() < XIDS_MAX {
            xids.push(XidErrors { uuid: uuid.clone(), xid, count: 1 });
        } else {
            self.nvml.xids_dropped += 1;
        }
    }

    /// Counts readings of processes that the engine left out.
    pub(crate) fn drop_processes(&mut self, n_processes: usize) {
        self.nvml.processes_dropped += u64::try_from(n_processes).unwrap_or(u64::MAX);
    }

    /// Takes the containers that the kubelet gave devices to.
    pub(crate) fn assign(&mut self, pods: &[DevicePod]) {
        self.pods = pods.to_vec();
        self.pods.sort_unstable();
    }

    /// Takes the memory of the pods that use a device.
    pub(crate) fn take_pod_memory(&mut self, pods: &[PodMemory]) {
        self.pod_memory = pods.to_vec();
    }

    /// Forgets the devices that were not read for longer than `ttl`, and failures that ceased.
    pub(crate) fn forget(&mut self, now: Uptime, ttl: Duration) {
        self.read.retain(|_, device| now.since(device.read_at) <= ttl);
        self.failing.retain(|_, failure| now.since(failure.last_seen) <= FAILURE_KEPT);
    }

    /// Returns whether a device is read, however long ago.
    pub(crate) fn is_read(&self, device: &GpuUuid) -> bool {
        self.read.contains_key(device)
    }

    /// Returns whether a device is read or answers with an error.
    pub(crate) fn is_held(&self, device: &GpuUuid) -> bool {
        self.read.contains_key(device) || self.failing.contains_key(device)
    }

    /// Returns the devices that were read within `ttl`, ascending, and when they were.
    pub(crate) fn present(
        &self,
        now: Uptime,
        ttl: Duration,
    ) -> impl Iterator<Item = (&GpuSample, Uptime)> {
        let present = self.read.values().filter(move |device| now.since(device.read_at) <= ttl);
        present.map(|device| (&device.sample, device.read_at))
    }

    /// Returns NVML's figures of a rank's device, if it was read within `ttl`.
    pub(crate) fn view_of(&self, rank: &Identity, now: Uptime, ttl: Duration) -> DeviceView {
        let sample = rank.device.as_ref().and_then(|device| self.reading_of(device, now, ttl));
        sample.map(|(sample, _)| device_view(sample, rank)).unwrap_or_default()
    }

    /// Returns the bytes in use on a device that one container has for itself: all of it is
    /// that container's. `None` where several may use it or its memory, and where the driver
    /// counts its own memory as in use (memory info v1).
    pub(crate) fn used_by_container(&self, sample: &GpuSample) -> Option<Bytes> {
        let device = &sample.device;
        let is_shared = sample.info.memory_of.is_some()
            || self.read.values().any(|of| of.sample.info.memory_of.as_ref() == Some(device));
        let mut holders = self.pods.iter().filter(|pod| pod.uuid == *device);
        let is_alone = holders.next()?.is_whole && holders.next().is_none();
        let memory = sample.memory.filter(|_| is_alone && !is_shared)?;
        memory.reserved.map(|_| memory.used)
    }

    /// Returns the last reading of a device within `ttl`, and when it was made.
    pub(crate) fn reading_of(
        &self,
        device: &GpuUuid,
        now: Uptime,
        ttl: Duration,
    ) -> Option<(&GpuSample, Uptime)> {
        let state = self.read.get(device)?;
        (now.since(state.read_at) <= ttl).then_some((&state.sample, state.read_at))
    }

    /// Returns the model of a rank's device, if it is read.
    pub(crate) fn model_of(&self, rank: &Identity) -> Option<&str> {
        self.read.get(rank.device.as_ref()?)?.sample.info.model.as_deref()
    }

    /// Returns the devices that answer with an error, ascending.
    pub(crate) fn failing(&self) -> impl Iterator<Item = (&GpuUuid, &DeviceFailure)> {
        self.failing.iter()
    }

    /// Returns the containers that devices were given to, ascending.
    pub(crate) fn pods(&self) -> &[DevicePod] {
        &self.pods
    }

    /// Returns the memory of the pods that use a device, by pod.
    pub(crate) fn pod_memory(&self) -> &[PodMemory] {
        &self.pod_memory
    }

    /// Returns the state of NVML without the devices that fail.
    pub(crate) fn nvml(&self) -> &NvmlStatus {
        &self.nvml
    }

    /// Returns the state of NVML, with the devices that fail.
    pub(crate) fn nvml_status(&self) -> NvmlStatus {
        let failing = self.failing.iter().map(|(uuid, failure)| FailingDevice {
            uuid: uuid.clone(),
            code: failure.code.into(),
        });
        NvmlStatus { failing: failing.collect(), ..self.nvml.clone() }
    }
}

/// Returns the figures of a device's reading for a rank that uses it.
pub(crate) fn device_view(sample: &GpuSample, rank: &Identity) -> DeviceView {
    let known = sample.capacity_and_use();
    DeviceView {
        total: known.map(|(total, _)| total),
        used: known.map(|(_, used)| used),
        process_used: process_of(sample, rank).and_then(|process| process.used),
        process_estimated: None,
        memory_kind: sample.info.memory_kind,
    }
}

/// Returns the process of the device that a rank pushes from: the one that knows itself by the
/// pushed id. `None` where there is none, or several in containers of their own.
pub(crate) fn process_of<'a>(
    sample: &'a GpuSample,
    rank: &Identity,
) -> Option<&'a ProcessMemory> {
    let pid = rank.pid?;
    let mut found = sample.processes.iter().filter(|process| process.own_pid == Some(pid));
    found.next().filter(|_| found.next().is_none())
}

/// Returns the figures of its rank's device that a record shows. `nvml`: NVML's last reading of
/// it. `None` where the record adds nothing to what is known.
pub(crate) fn view_at_record(
    sample: &StepSample,
    nvml: Option<DeviceView>,
) -> Option<DeviceView> {
    let process_used = sample.own_process.and_then(OwnProcessMemory::bytes);
    let is_known =
        process_used.is_some() || (nvml.is_none() && sample.identity.memory_kind.is_some());
    let pushed = || {
        sample
            .identity
            .total
            .zip(sample.figures.free)
            .filter(|_| sample.identity.memory_kind.is_none())
    };
    let view = match nvml {
        None => pushed().map(|(total, free)| pushed_view(total, free)),
        Some(view) => Some(view).filter(|_| is_known),
    };
    let view = view.or(is_known.then(DeviceView::default))?;
    Some(DeviceView { process_used, ..view })
}

/// Returns the figures of a device as the training process sees it, for a rank whose device
/// NVML does not read.
fn pushed_view(total: Bytes, free: Bytes) -> DeviceView {
    let used = Bytes::new(total.get().saturating_sub(free.get())).ok();
    DeviceView { total: Some(total), used, ..DeviceView::default() }
}
