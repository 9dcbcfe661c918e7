//! Reads GPUs and MIG instances through NVML: every poll gives a [`GpuSample`] or a [`GpuUnavailable`] for each.
//! A call may hang as long as the driver does; bounding the wait, pacing and the thread are the caller's.

mod error;

mod processes;

#[expect(unsafe_code, reason = "C calls that nvml-wrapper has no sound form of")]
mod raw;

pub mod xid;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use tracing::debug;

use crate::input::nvml::error::{Code, GpuError, label, refused};
use crate::input::nvml::processes::{View, attribute, driver_of, identify, keep_largest, list};
use crate::input::owner::procfs::Procfs;
use crate::model::device::{DeviceInfo, DeviceMemory, GpuSample, GpuUnavailable};
use crate::model::ids::GpuUuid;
use crate::model::units::Bytes;

/// The most GPUs that are read, and the most devices that are looked up by name; no machine has more.
pub const DEVICES_MAX: u32 = 256;

/// The most MIG devices of one GPU that are read; no product has more than a quarter of it.
const MIG_DEVICES_MAX: u32 = 64;

/// The most polls that a new initialisation is put off while some devices answer.
const RESTART_WAIT_POLLS_MAX: u32 = 64;

/// How many polls in a row a device may fail before it is closed and left alone until NVML is next initialised: who
/// holds its file open hinders its reset.
pub const FAILURES_MAX: u32 = 5;

/// The code of an NVML that is not installed.
pub const LIBRARY_MISSING: &str = "library_missing";

/// The addressing mode of GPUs whose memory the operating system may manage.
const ADDRESSING_ATS: &str = "ats";

/// How the UUID of a MIG device begins.
const MIG_PREFIX: &str = "MIG-";

/// What the poller must know.
#[derive(Clone, Debug)]
pub struct Config {
    /// The NVML library; `None` means `libnvidia-ml.so.1` where the loader finds it.
    pub library: Option<PathBuf>,
    /// Where procfs is mounted, `/proc` as a rule.
    pub procfs: PathBuf,
    /// How many processes of one device are reported, largest first.
    pub processes_max: usize,
    /// Which devices are opened.
    pub devices: Devices,
}

/// Which devices are opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// Every GPU that NVML counts, with its MIG devices.
    #[default]
    All,
    /// These.
    Listed(Vec<DeviceName>),
    /// Those that ranks push from, as [`Poller::look_for`] was told last.
    Pushed,
}

/// How a device is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceName {
    /// The GPU with this index of NVML.
    Index(u32),
    /// The GPU or MIG device with this UUID.
    Uuid(GpuUuid),
}

/// What one poll found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuPoll {
    /// The devices that answered, MIG instances in place of the GPU that they are part of.
    pub samples: Vec<GpuSample>,
    /// What did not answer. An entry without a device beside samples is one that never told its UUID.
    pub unavailable: Vec<GpuUnavailable>,
    /// How many processes were left out of these samples by [`Config::processes_max`].
    pub processes_dropped: u64,
    /// How many devices were not looked up, being more than [`DEVICES_MAX`].
    pub devices_dropped: u64,
    /// Whether NVML was not asked, as no device is wanted, and holds nothing open.
    pub is_released: bool,
    /// Whether NVML was shut down, so that the next poll initialises it anew. It counts its users: it closes devices,
    /// and initialises anything anew, only when [`xid::watch`] has ended, too.
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

/// Polls NVML, initialising it when it must.
#[derive(Debug)]
pub struct Poller {
    config: Config,
    view: View,
    session: Option<Session>,
    /// The devices that ranks push from, ascending.
    pushed: Vec<DeviceName>,
    known: BTreeMap<GpuUuid, Known>,
    /// What fails poll after poll.
    failing: BTreeMap<DeviceName, Failing>,
    /// How many GPUs NVML counted last, where it was asked.
    n_gpus: Option<u32>,
    restart: RestartWait,
}

impl Poller {
    /// Makes a poller; NVML is not touched before the first poll.
    pub fn new(config: Config) -> Self {
        let view = View::new(Procfs::new(&config.procfs));
        Self {
            config,
            view,
            session: None,
            pushed: Vec::new(),
            known: BTreeMap::new(),
            failing: BTreeMap::new(),
            n_gpus: None,
            restart: RestartWait::default(),
        }
    }

    /// Says which devices ranks push from, which counts for [`Devices::Pushed`] only. Names that are no UUID of a GPU or
    /// MIG device are passed over.
    pub fn look_for(&mut self, pushed: &BTreeSet<GpuUuid>) {
        let is_gpu = |uuid: &&GpuUuid| uuid.as_str() != GpuUuid::CPU && !uuid.is_unknown_gpu();
        self.pushed = pushed.iter().filter(is_gpu).cloned().map(DeviceName::Uuid).collect();
    }

    /// Reads every device once. Blocks as long as the driver does.
    pub fn poll(&mut self) -> GpuPoll {
        let wanted = match &self.config.devices {
            Devices::All => None,
            Devices::Listed(names) => Some(names.clone()),
            Devices::Pushed => Some(self.pushed.clone()),
        };
        let has_unwanted = wanted.as_ref().is_some_and(|wanted| self.forget_unwanted(wanted));
        if wanted.as_ref().is_some_and(Vec::is_empty) {
            self.release();
            return RELEASED;
        }
        let started = self.session.take().map_or_else(|| Session::start(self.library()), Ok);
        let session = match started {
            Ok(session) => session,
            Err(error) => {
                return GpuPoll { is_shut_down: true, ..nothing_answers(&error) };
            }
        };
        let mut cycle = Cycle::default();
        let counted = self.read_all(&mut cycle, &session, wanted);
        self.view.end_cycle();
        let (poll, wants_restart) = match counted {
            Ok(0) if !self.known.is_empty() => {
                let error = GpuError::NoDevices { before: self.known.len() };
                (nothing_answers(&error), true)
            }
            Ok(_) => {
                self.account_for_missing(&mut cycle);
                self.count_failures(&mut cycle);
                cycle.end()
            }
            Err(error) => (nothing_answers(&error), error.wants_restart()),
        };
        let is_due = self.restart.is_due(wants_restart, poll.samples.is_empty());
        let is_shut_down = is_due || has_unwanted;
        if !is_shut_down {
            self.session = Some(session);
        }
        GpuPoll { is_shut_down, ..poll }
    }

    /// Shuts NVML down, so that no device file stays open; the next poll initialises it again.
    pub fn release(&mut self) {
        self.session = None;
    }

    fn library(&self) -> Option<&Path> {
        self.config.library.as_deref()
    }

    /// Forgets the devices that are not wanted any more, and says whether there were any. They are open until NVML is
    /// shut down.
    fn forget_unwanted(&mut self, wanted: &[DeviceName]) -> bool {
        let n_known = self.known.len();
        self.known.retain(|_, known| wanted.contains(&known.name));
        self.failing.retain(|name, _| wanted.contains(name));
        self.known.len() < n_known
    }

    /// Reads every wanted device and gives the number of devices that there are, rested ones included.
    fn read_all(
        &mut self,
        cycle: &mut Cycle,
        session: &Session,
        wanted: Option<Vec<DeviceName>>,
    ) -> Result<usize, GpuError> {
        let mut names = if let Some(names) = wanted {
            names
        } else {
            let count =
                session.nvml.device_count().map_err(refused("nvmlDeviceGetCount_v2"))?;
            // Indices move when a GPU is gone; what failed is then to be found anew.
            if self.n_gpus.replace(count).is_some_and(|before| before != count) {
                self.failing.clear();
            }
            (0..count).map(DeviceName::Index).collect()
        };
        let n_max = usize::try_from(DEVICES_MAX).unwrap_or(usize::MAX);
        let dropped = names.len().saturating_sub(n_max);
        cycle.poll.devices_dropped = u64::try_from(dropped).unwrap_or(u64::MAX);
        names.truncate(n_max);
        for name in &names {
            if self.restart.is_waiting()
                && let Some(failing) = self.failing.get(name)
                && failing.polls >= FAILURES_MAX
            {
                cycle.rest(name, failing);
                continue;
            }
            let processes_max = self.config.processes_max;
            let view = &mut self.view;
            let mut reader = Reader { session, view, processes_max, cycle, name };
            if let Err(error) = reader.read_named() {
                cycle.unnamed.push((name.clone(), error));
            }
        }
        cycle.wants_restart |= cycle.unnamed.iter().any(|(_, error)| error.wants_restart());
        Ok(names.len())
    }

    /// Reports the devices of earlier polls that this one did not find, and remembers those that it did.
    fn account_for_missing(&mut self, cycle: &mut Cycle) {
        let mut unnamed = std::mem::take(&mut cycle.unnamed);
        let mut claimed = BTreeSet::new();
        for (uuid, known) in &mut self.known {
            if cycle.found.contains_key(uuid) || cycle.rested.contains(&known.name) {
                continue;
            }
            let own = unnamed.iter().find(|(name, _)| *name == known.name);
            known.is_reconfigured = own.is_none() && cycle.has_answered(uuid, known);
            let (code, message) = match own {
                Some((name, error)) => {
                    claimed.insert(name.clone());
                    (error.as_label(), error.to_string())
                }
                None if known.is_reconfigured => {
                    (label(6), "the device was removed by a change of mig mode".to_owned())
                }
                None => (known.code.unwrap_or(label(28)), "the device is gone".to_owned()),
            };
            cycle.wants_restart |= !known.is_reconfigured;
            known.code = Some(code);
            let device = Some(uuid.clone());
            cycle.report(&known.name, GpuUnavailable { device, code, message });
        }
        unnamed.retain(|(name, _)| !claimed.contains(name));
        cycle.report_unnamed(&unnamed);
        self.known.retain(|_, known| !known.is_reconfigured);
        self.known.append(&mut cycle.found);
    }

    /// Counts how long each device has failed. One that has for too long is closed by a new initialisation.
    fn count_failures(&mut self, cycle: &mut Cycle) {
        let mut failing = BTreeMap::new();
        for (name, reports) in &cycle.reports {
            if cycle.answered.contains(name) {
                continue;
            }
            let before = self.failing.get(name).map_or(0, |failing| failing.polls);
            let is_rested = cycle.rested.contains(name);
            let polls = if is_rested { before } else { before.saturating_add(1) };
            cycle.wants_restart |= polls >= FAILURES_MAX;
            failing.insert(name.clone(), Failing { polls, reports: reports.clone() });
        }
        self.failing = failing;
    }
}

/// A device of this poll or an earlier one.
///
/// Grows only by GPUs that appear: the MIG instances of a GPU that answers are forgotten when they go.
#[derive(Debug)]
struct Known {
    /// What it was asked for by, or the GPU that it is part of.
    name: DeviceName,
    /// The GPU that a MIG instance is part of.
    parent: Option<GpuUuid>,
    /// What it was last reported unavailable with.
    code: Option<&'static str>,
    /// Whether it went because its GPU was partitioned anew: reported once, then forgotten.
    is_reconfigured: bool,
}

/// What fails poll after poll.
#[derive(Debug)]
struct Failing {
    /// In how many polls in a row.
    polls: u32,
    /// What was reported last, which holds for as long as nobody asks again.
    reports: Vec<GpuUnavailable>,
}

/// How many polls a new initialisation still waits, doubled each time that it changed nothing.
///
/// Counts only while some devices answer: when none does, there is nothing that a new start would disturb.
#[derive(Debug, Default)]
struct RestartWait {
    polls_left: u32,
    polls_next: u32,
}

impl RestartWait {
    fn is_waiting(&self) -> bool {
        self.polls_left > 0
    }

    fn is_due(&mut self, is_wanted: bool, is_all_down: bool) -> bool {
        if !is_wanted {
            *self = Self::default();
            return false;
        }
        if !is_all_down && self.polls_left > 0 {
            self.polls_left -= 1;
            return false;
        }
        if !is_all_down {
            self.polls_next = (self.polls_next * 2).clamp(1, RESTART_WAIT_POLLS_MAX);
            self.polls_left = self.polls_next;
        }
        true
    }
}

/// NVML between its initialisation and its shutdown.
#[derive(Debug)]
struct Session {
    // Invariant: dropped only in `drop`, and only when `nvmlShutdown` exists: the wrapper panics without it.
    nvml: ManuallyDrop<Nvml>,
    driver_version: Option<String>,
}

impl Session {
    /// Initialises NVML from `library`, or from the system's where there is none.
    fn start(library: Option<&Path>) -> Result<Self, GpuError> {
        let mut builder = Nvml::builder();
        if let Some(library) = library {
            builder.lib_path(library.as_os_str());
        }
        let nvml = builder.init().map_err(refused("nvmlInit_v2"))?;
        let driver_version = nvml.sys_driver_version().ok();
        Ok(Self { nvml: ManuallyDrop::new(nvml), driver_version })
    }
}

impl Drop for Session {
    #[expect(unsafe_code, reason = "a missing nvmlShutdown panics in the wrapper's own drop")]
    fn drop(&mut self) {
        if self.nvml.lib().nvmlShutdown.is_ok() {
            // SAFETY: this is the only place that drops it, and it is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.nvml) }
        }
    }
}

/// One poll under way.
#[derive(Debug, Default)]
struct Cycle {
    poll: GpuPoll,
    /// What did not answer, by what it was asked for by.
    reports: BTreeMap<DeviceName, Vec<GpuUnavailable>>,
    /// What it was asked for by of which something answered.
    answered: BTreeSet<DeviceName>,
    /// What was left alone.
    rested: BTreeSet<DeviceName>,
    /// The devices that told their UUID and are reported, with or without figures.
    found: BTreeMap<GpuUuid, Known>,
    /// The GPUs that told their UUID and stand behind their MIG instances.
    partitioned: BTreeSet<GpuUuid>,
    /// The MIG device that stands for the memory of each GPU instance.
    memory_of: BTreeMap<(GpuUuid, u32), GpuUuid>,
    /// What failed before it told its UUID.
    unnamed: Vec<(DeviceName, GpuError)>,
    wants_restart: bool,
}

impl Cycle {
    /// Leaves a device alone; what was reported of it holds.
    fn rest(&mut self, name: &DeviceName, failing: &Failing) {
        self.rested.insert(name.clone());
        self.reports.insert(name.clone(), failing.reports.clone());
        self.wants_restart = true;
    }

    /// Whether the GPU that `uuid` is, or is part of, answered in this poll.
    fn has_answered(&self, uuid: &GpuUuid, known: &Known) -> bool {
        let is_gpu_found = |gpu| self.found.contains_key(gpu) || self.partitioned.contains(gpu);
        is_gpu_found(uuid) || known.parent.as_ref().is_some_and(is_gpu_found)
    }

    fn report(&mut self, name: &DeviceName, unavailable: GpuUnavailable) {
        self.reports.entry(name.clone()).or_default().push(unavailable);
    }

    fn refuse(&mut self, name: &DeviceName, device: Option<GpuUuid>, error: &GpuError) {
        self.wants_restart |= error.wants_restart();
        self.report(name, error.report(device));
    }

    /// Reports what failed before it told its UUID and is no device of an earlier poll.
    fn report_unnamed(&mut self, unnamed: &[(DeviceName, GpuError)]) {
        for (name, error) in unnamed {
            match name {
                // NVML counts the GPUs that a container may not open.
                DeviceName::Index(idx)
                    if error.code() == Code::Nvml(4) && !self.poll.samples.is_empty() =>
                {
                    debug!(idx, %error, "gpu belongs to someone else");
                }
                DeviceName::Index(_) => self.refuse(name, None, error),
                DeviceName::Uuid(uuid) => self.refuse(name, Some(uuid.clone()), error),
            }
        }
    }

    /// What was found, and whether NVML should be initialised anew.
    fn end(self) -> (GpuPoll, bool) {
        let unavailable = self.reports.into_values().flatten().collect();
        (GpuPoll { unavailable, ..self.poll }, self.wants_restart)
    }
}

/// Reads one GPU, or the MIG instances that it is divided into.
struct Reader<'a> {
    session: &'a Session,
    view: &'a mut View,
    processes_max: usize,
    cycle: &'a mut Cycle,
    name: &'a DeviceName,
}

/// A GPU or MIG instance that has told its UUID.
struct Target {
    uuid: GpuUuid,
    info: DeviceInfo,
    /// Whether the operating system manages its memory (Grace in NUMA mode), so that the driver's figures say
    /// nothing.
    is_numa_node: bool,
    /// The GPU instance that a MIG device is of, where the driver says.
    gpu_instance: Option<u32>,
}

impl Reader<'_> {
    /// # Errors
    /// Only what happens before the device has told its UUID; later failures are reported under it.
    fn read_named(&mut self) -> Result<(), GpuError> {
        let nvml = &self.session.nvml;
        match self.name {
            DeviceName::Index(idx) => {
                let device = nvml
                    .device_by_index(*idx)
                    .map_err(refused("nvmlDeviceGetHandleByIndex_v2"))?;
                self.read_gpu(&device, Some(*idx))
            }
            DeviceName::Uuid(uuid) => {
                let device = nvml
                    .device_by_uuid(uuid.as_str())
                    .map_err(refused("nvmlDeviceGetHandleByUUID"))?;
                let idx = device.index().ok();
                if uuid.as_str().starts_with(MIG_PREFIX) {
                    self.read_mig_device(&device, idx)
                } else {
                    self.read_gpu(&device, idx)
                }
            }
        }
    }

    fn read_gpu(&mut self, device: &Device<'_>, idx: Option<u32>) -> Result<(), GpuError> {
        let gpu = self.gpu(device, idx)?;
        if device.mig_mode().is_ok_and(|mode| mode.current == 1) {
            self.cycle.partitioned.insert(gpu.uuid.clone());
            return self.read_instances(device, &gpu);
        }
        self.read(gpu, device);
        Ok(())
    }

    /// Describes a GPU.
    fn gpu(&self, device: &Device<'_>, idx: Option<u32>) -> Result<Target, GpuError> {
        let addressing = addressing_of(device);
        Ok(Target {
            uuid: uuid_of(device)?,
            is_numa_node: addressing == Some(ADDRESSING_ATS) && device.numa_node_id().is_ok(),
            gpu_instance: None,
            info: DeviceInfo {
                index: idx.map(|idx| idx.to_string()),
                model: device.name().ok(),
                driver_version: self.session.driver_version.clone(),
                addressing: addressing.map(str::to_owned),
                ..DeviceInfo::default()
            },
        })
    }

    fn read_instances(&mut self, device: &Device<'_>, gpu: &Target) -> Result<(), GpuError> {
        let count =
            device.mig_device_count().map_err(refused("nvmlDeviceGetMaxMigDeviceCount"))?;
        for mig_idx in 0..count.min(MIG_DEVICES_MAX) {
            let read = match device.mig_device_by_index(mig_idx) {
                Ok(instance) => self.read_instance(gpu, Some(mig_idx), &instance),
                // Indices are slots: not every one has an instance.
                Err(NvmlError::NotFound | NvmlError::InvalidArg) => Ok(()),
                Err(error) => Err(refused("nvmlDeviceGetMigDeviceHandleByIndex")(error)),
            };
            if let Err(error) = read {
                self.cycle.unnamed.push((self.name.clone(), error));
            }
        }
        Ok(())
    }

    /// Reads a MIG device that was asked for by its own UUID.
    fn read_mig_device(
        &mut self,
        device: &Device<'_>,
        mig_idx: Option<u32>,
    ) -> Result<(), GpuError> {
        let parent = device
            .mig_parent_device()
            .map_err(refused("nvmlDeviceGetDeviceHandleFromMigDeviceHandle"))?;
        let gpu = self.gpu(&parent, parent.index().ok())?;
        self.read_instance(&gpu, mig_idx, device)
    }

    fn read_instance(
        &mut self,
        gpu: &Target,
        mig_idx: Option<u32>,
        device: &Device<'_>,
    ) -> Result<(), GpuError> {
        let name = device.name().ok();
        let parts = name.as_deref().map(|name| name.split_once(" MIG ").unwrap_or((name, "")));
        let index = gpu.info.index.as_ref().zip(mig_idx);
        let instance = Target {
            uuid: uuid_of(device)?,
            info: DeviceInfo {
                index: index.map(|(gpu_idx, mig_idx)| format!("{gpu_idx}:{mig_idx}")),
                model: parts.map(|(model, _)| model.to_owned()),
                mig_profile: parts.map(|(_, it)| it.to_owned()).filter(|it| !it.is_empty()),
                parent: Some(gpu.uuid.clone()),
                ..gpu.info.clone()
            },
            is_numa_node: gpu.is_numa_node,
            gpu_instance: raw::gpu_instance_id(device).ok(),
        };
        self.read(instance, device);
        Ok(())
    }

    fn read(&mut self, target: Target, device: &Device<'_>) {
        let Target { uuid, mut info, is_numa_node, gpu_instance } = target;
        let known = Known {
            name: self.name.clone(),
            parent: info.parent.clone(),
            code: None,
            is_reconfigured: false,
        };
        let memory = if is_numa_node { Ok(None) } else { memory_of(device) };
        match memory.and_then(|memory| Ok((memory, list(device)?))) {
            Ok((memory, rows)) => {
                // Memory belongs to the GPU instance: the first MIG device of it stands for all.
                let instance = info.parent.clone().zip(gpu_instance);
                let holder = instance.map(|instance| {
                    self.cycle.memory_of.entry(instance).or_insert_with(|| uuid.clone())
                });
                info.memory_of = holder.filter(|holder| **holder != uuid).cloned();
                let total = memory.map(|memory| memory.total);
                let driver = self.session.driver_version.as_deref().and_then(driver_of);
                let mut seen = attribute(rows, total, driver, self.view);
                self.cycle.poll.processes_dropped +=
                    keep_largest(&mut seen.processes, self.processes_max);
                identify(&mut seen, self.view);
                self.cycle.poll.samples.push(GpuSample {
                    device: uuid.clone(),
                    info,
                    memory,
                    processes: seen.processes,
                    attribution: seen.attribution,
                });
                self.cycle.answered.insert(self.name.clone());
                self.cycle.found.insert(uuid, known);
            }
            Err(error) => {
                self.cycle.refuse(self.name, Some(uuid.clone()), &error);
                self.cycle.found.insert(uuid, Known { code: Some(error.as_label()), ..known });
            }
        }
    }
}

fn uuid_of(device: &Device<'_>) -> Result<GpuUuid, GpuError> {
    let uuid = device.uuid().map_err(refused("nvmlDeviceGetUUID"))?;
    GpuUuid::new(&uuid).map_err(|reason| GpuError::Uuid { reason })
}

fn addressing_of(device: &Device<'_>) -> Option<&'static str> {
    match raw::addressing_mode(device).ok()? {
        0 => Some("none"),
        1 => Some("hmm"),
        2 => Some(ADDRESSING_ATS),
        _ => None,
    }
}

/// The memory of a device, by v1 where the driver (below 510) lacks v2; `None` where it supports neither.
fn memory_of(device: &Device<'_>) -> Result<Option<DeviceMemory>, GpuError> {
    let error = match device.memory_info() {
        Ok(v2) => {
            return Ok(memory([v2.total, v2.used, v2.free], Some(v2.reserved)));
        }
        Err(error) => refused("nvmlDeviceGetMemoryInfo_v2")(error),
    };
    if !matches!(error.code(), Code::SymbolMissing | Code::Nvml(3 | 13 | 25 | 26)) {
        return Err(error);
    }
    match raw::memory_v1(device) {
        Ok(v1) => Ok(memory([v1.total, v1.used, v1.free], None)),
        Err(NvmlError::NotSupported) => Ok(None),
        Err(_) if error.code() == Code::Nvml(3) => Ok(None),
        Err(error) => Err(refused("nvmlDeviceGetMemoryInfo")(error)),
    }
}

/// A device's memory from (total, used, free); `None` where the figures cannot be meant.
fn memory([total, used, free]: [u64; 3], reserved: Option<u64>) -> Option<DeviceMemory> {
    if total == 0 {
        return None;
    }
    let memory = DeviceMemory {
        total: Bytes::new(total).ok()?,
        used: Bytes::new(used).ok()?,
        free: Bytes::new(free).ok(),
        reserved: reserved.and_then(|reserved| Bytes::new(reserved).ok()),
    };
    Some(memory)
}

fn nothing_answers(error: &GpuError) -> GpuPoll {
    GpuPoll { unavailable: vec![error.report(None)], ..GpuPoll::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_cannot_be_meant_is_absent() {
        assert_eq!(memory([0, 0, 0], Some(0)), None);
        assert_eq!(memory([u64::MAX, 1, 1], None), None);
        let expected = memory([100, 30, 60], Some(10)).unwrap();
        assert_eq!(expected.reserved, Some(Bytes::new(10).unwrap()));
        assert_eq!(memory([100, 30, 60], None).unwrap().reserved, None);
    }

    #[test]
    fn restart_waits_only_while_some_devices_answer() {
        let mut wait = RestartWait::default();
        assert!(wait.is_due(true, false));
        assert!(!wait.is_due(true, false));
        assert!(wait.is_due(true, true));
        assert!(wait.is_due(true, false));
        assert!(!wait.is_due(false, false));
        assert!(wait.is_due(true, false));
    }
}
