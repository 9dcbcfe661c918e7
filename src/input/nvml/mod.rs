//! Reads GPUs and MIG instances through NVML: every poll gives a [`GpuSample`] or a [`GpuUnavailable`] for each.
//! A call may hang as long as the driver does; bounding the wait, pacing and the thread are the caller's.

#[expect(unsafe_code, reason = "C calls that nvml-wrapper has no sound form of")]
mod raw;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::ManuallyDrop;
use std::path::PathBuf;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use tracing::debug;

use crate::analysis::sample::{
    Attribution, Bytes, DeviceInfo, DeviceMemory, GpuSample, GpuUnavailable, GpuUuid,
    OutOfRange, ProcessMemory,
};
use crate::input::process::{PidNamespace, Procfs};

/// The most GPUs that are read; no machine has more.
const GPUS_MAX: u32 = 256;

/// The most MIG devices of one GPU that are read; no product has more than a quarter of it.
const MIG_DEVICES_MAX: u32 = 64;

/// The most rows that are taken of one process list; a longer list counts as one that makes no sense.
const PROCESS_ROWS_MAX: usize = 65_536;

/// The greatest process id of a Linux kernel (`PID_MAX_LIMIT`, 2^22); a greater one was read from a wrong place.
const PID_MAX: u32 = 1 << 22;

/// The most polls that a new initialisation is put off while some devices answer.
const RESTART_WAIT_POLLS_MAX: u32 = 64;

/// The drivers (major, minor) that tell a container the processes but zero for their memory.
const MEMORY_HIDDEN_DRIVERS: std::ops::RangeInclusive<(u32, u32)> = (535, 113)..=(560, 35);

/// The addressing mode of GPUs whose memory the operating system may manage.
const ADDRESSING_ATS: &str = "ats";

/// What the poller must know.
#[derive(Clone, Debug)]
pub struct Config {
    /// The NVML library; `None` means `libnvidia-ml.so.1` where the loader finds it.
    pub library: Option<PathBuf>,
    /// Where procfs is mounted, `/proc` as a rule.
    pub procfs: PathBuf,
    /// How many processes of one device are reported, largest first.
    pub processes_max: usize,
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
}

/// Polls NVML, initialising it when it must.
#[derive(Debug)]
pub struct Poller {
    config: Config,
    view: View,
    session: Option<Session>,
    known: BTreeMap<GpuUuid, Known>,
    restart: RestartWait,
}

impl Poller {
    /// Makes a poller; NVML is not touched before the first poll.
    pub fn new(config: Config) -> Self {
        let procfs = Procfs::new(&config.procfs);
        let namespace = procfs.pid_namespace();
        Self {
            config,
            view: View { procfs, namespace },
            session: None,
            known: BTreeMap::new(),
            restart: RestartWait::default(),
        }
    }

    /// Reads every device once. Blocks as long as the driver does.
    pub fn poll(&mut self) -> GpuPoll {
        let session = match self.session.take().map_or_else(|| Session::start(&self.config), Ok)
        {
            Ok(session) => session,
            Err(error) => return nothing_answers(&error),
        };
        let mut cycle = Cycle::default();
        let counted = cycle.read_all(&session, &mut self.view, self.config.processes_max);
        let poll = match counted {
            Ok(0) if !self.known.is_empty() => {
                cycle.wants_restart = true;
                nothing_answers(&GpuError::NoDevices { before: self.known.len() })
            }
            Ok(_) => {
                self.account_for_missing(&mut cycle);
                cycle.poll
            }
            Err(error) => {
                cycle.wants_restart = error.wants_restart();
                nothing_answers(&error)
            }
        };
        if !self.restart.is_due(cycle.wants_restart, poll.samples.is_empty()) {
            self.session = Some(session);
        }
        poll
    }

    /// Shuts NVML down, so that no device file stays open; the next poll initialises it again.
    pub fn release(&mut self) {
        self.session = None;
    }

    /// Reports the devices of earlier polls that this one did not find, and remembers those that it did.
    fn account_for_missing(&mut self, cycle: &mut Cycle) {
        let mut unnamed = std::mem::take(&mut cycle.unnamed);
        let mut claimed = BTreeSet::new();
        for (uuid, known) in &mut self.known {
            if cycle.found.contains_key(uuid) {
                continue;
            }
            let own = unnamed.iter().find(|(gpu_idx, _)| *gpu_idx == known.gpu_idx);
            known.is_reconfigured = own.is_none() && cycle.has_answered(uuid, known);
            let (code, message) = match own {
                Some((gpu_idx, error)) => {
                    claimed.insert(*gpu_idx);
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
            cycle.poll.unavailable.push(GpuUnavailable { device, code, message });
        }
        unnamed.retain(|(gpu_idx, _)| !claimed.contains(gpu_idx));
        cycle.report_unnamed(&unnamed);
        self.known.retain(|_, known| !known.is_reconfigured);
        self.known.append(&mut cycle.found);
    }
}

/// A device of this poll or an earlier one.
///
/// Grows only by GPUs that appear: the MIG instances of a GPU that answers are forgotten when they go.
#[derive(Debug)]
struct Known {
    /// The index of the GPU, or of the GPU that the MIG instance is part of.
    gpu_idx: u32,
    /// The GPU that a MIG instance is part of.
    parent: Option<GpuUuid>,
    /// What it was last reported unavailable with.
    code: Option<&'static str>,
    /// Whether it went because its GPU was partitioned anew: reported once, then forgotten.
    is_reconfigured: bool,
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

/// From where the processes are seen.
#[derive(Debug)]
struct View {
    procfs: Procfs,
    /// Becomes `Shared` once a listed process was found here.
    namespace: PidNamespace,
}

/// NVML between its initialisation and its shutdown.
#[derive(Debug)]
struct Session {
    // Invariant: dropped only in `drop`, and only when `nvmlShutdown` exists: the wrapper panics without it.
    nvml: ManuallyDrop<Nvml>,
    driver_version: Option<String>,
}

impl Session {
    fn start(config: &Config) -> Result<Self, GpuError> {
        let mut builder = Nvml::builder();
        if let Some(library) = &config.library {
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
    /// The devices that told their UUID and are reported, with or without figures.
    found: BTreeMap<GpuUuid, Known>,
    /// The GPUs that told their UUID and stand behind their MIG instances.
    partitioned: BTreeSet<GpuUuid>,
    /// What failed before it told its UUID, with the index of the GPU.
    unnamed: Vec<(u32, GpuError)>,
    wants_restart: bool,
}

impl Cycle {
    /// Reads every GPU and gives their number.
    fn read_all(
        &mut self,
        session: &Session,
        view: &mut View,
        processes_max: usize,
    ) -> Result<u32, GpuError> {
        let count = session.nvml.device_count().map_err(refused("nvmlDeviceGetCount_v2"))?;
        for gpu_idx in 0..count.min(GPUS_MAX) {
            let mut reader = Reader { session, view, processes_max, cycle: self, gpu_idx };
            if let Err(error) = reader.read_gpu() {
                self.unnamed.push((gpu_idx, error));
            }
        }
        self.wants_restart |= self.unnamed.iter().any(|(_, error)| error.wants_restart());
        Ok(count)
    }

    /// Whether the GPU that `uuid` is, or is part of, answered in this poll.
    fn has_answered(&self, uuid: &GpuUuid, known: &Known) -> bool {
        let is_gpu_found = |gpu| self.found.contains_key(gpu) || self.partitioned.contains(gpu);
        is_gpu_found(uuid) || known.parent.as_ref().is_some_and(is_gpu_found)
    }

    fn refuse(&mut self, device: Option<GpuUuid>, error: &GpuError) {
        self.wants_restart |= error.wants_restart();
        self.poll.unavailable.push(error.report(device));
    }

    /// Reports what failed without a name and is no device of an earlier poll.
    fn report_unnamed(&mut self, unnamed: &[(u32, GpuError)]) {
        for (gpu_idx, error) in unnamed {
            // NVML counts the GPUs that a container may not open.
            if error.code() == Code::Nvml(4) && !self.poll.samples.is_empty() {
                debug!(gpu_idx, %error, "gpu belongs to someone else");
            } else {
                self.refuse(None, error);
            }
        }
    }
}

/// Reads one GPU, or the MIG instances that it is divided into.
struct Reader<'a> {
    session: &'a Session,
    view: &'a mut View,
    processes_max: usize,
    cycle: &'a mut Cycle,
    gpu_idx: u32,
}

/// A GPU or MIG instance that has told its UUID.
struct Target {
    uuid: GpuUuid,
    info: DeviceInfo,
    /// Whether the operating system manages its memory (Grace in NUMA mode), so that the driver's figures say
    /// nothing.
    is_numa_node: bool,
}

impl Reader<'_> {
    /// # Errors
    /// Only what happens before the GPU has told its UUID; later failures are reported under it.
    fn read_gpu(&mut self) -> Result<(), GpuError> {
        let device = self
            .session
            .nvml
            .device_by_index(self.gpu_idx)
            .map_err(refused("nvmlDeviceGetHandleByIndex_v2"))?;
        let addressing = addressing_of(&device);
        let gpu = Target {
            uuid: uuid_of(&device)?,
            is_numa_node: addressing == Some(ADDRESSING_ATS) && device.numa_node_id().is_ok(),
            info: DeviceInfo {
                index: Some(self.gpu_idx.to_string()),
                model: device.name().ok(),
                driver_version: self.session.driver_version.clone(),
                mig_profile: None,
                parent: None,
                addressing: addressing.map(str::to_owned),
            },
        };
        if device.mig_mode().is_ok_and(|mode| mode.current == 1) {
            self.cycle.partitioned.insert(gpu.uuid.clone());
            return self.read_instances(&device, &gpu);
        }
        self.read(gpu, &[device]);
        Ok(())
    }

    /// Memory belongs to the GPU instance: MIG devices that share one are read as the first of them.
    fn read_instances(&mut self, device: &Device<'_>, gpu: &Target) -> Result<(), GpuError> {
        let count =
            device.mig_device_count().map_err(refused("nvmlDeviceGetMaxMigDeviceCount"))?;
        let mut instances: BTreeMap<u32, Vec<Device<'_>>> = BTreeMap::new();
        let mut first_idx_of = BTreeMap::new();
        for mig_idx in 0..count.min(MIG_DEVICES_MAX) {
            match device.mig_device_by_index(mig_idx) {
                Ok(instance) => {
                    let first_idx = match raw::gpu_instance_id(&instance) {
                        Ok(id) => *first_idx_of.entry(id).or_insert(mig_idx),
                        Err(_) => mig_idx,
                    };
                    instances.entry(first_idx).or_default().push(instance);
                }
                // Indices are slots: not every one has an instance.
                Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
                Err(error) => {
                    let error = refused("nvmlDeviceGetMigDeviceHandleByIndex")(error);
                    self.cycle.unnamed.push((self.gpu_idx, error));
                }
            }
        }
        for (mig_idx, members) in &instances {
            if let Err(error) = self.read_instance(gpu, *mig_idx, members) {
                self.cycle.unnamed.push((self.gpu_idx, error));
            }
        }
        Ok(())
    }

    fn read_instance(
        &mut self,
        gpu: &Target,
        mig_idx: u32,
        members: &[Device<'_>],
    ) -> Result<(), GpuError> {
        let Some(first) = members.first() else { return Ok(()) };
        let name = first.name().ok();
        let parts = name.as_deref().map(|name| name.split_once(" MIG ").unwrap_or((name, "")));
        let instance = Target {
            uuid: uuid_of(first)?,
            info: DeviceInfo {
                index: Some(format!("{}:{mig_idx}", self.gpu_idx)),
                model: parts.map(|(model, _)| model.to_owned()),
                mig_profile: parts.map(|(_, it)| it.to_owned()).filter(|it| !it.is_empty()),
                parent: Some(gpu.uuid.clone()),
                ..gpu.info.clone()
            },
            is_numa_node: gpu.is_numa_node,
        };
        self.read(instance, members);
        Ok(())
    }

    /// Reads what `members` share: the memory as the first has it, the processes of all.
    fn read(&mut self, target: Target, members: &[Device<'_>]) {
        let Target { uuid, info, is_numa_node } = target;
        let known = Known {
            gpu_idx: self.gpu_idx,
            parent: info.parent.clone(),
            code: None,
            is_reconfigured: false,
        };
        let read = match members.first() {
            Some(first) if !is_numa_node => memory_of(first),
            _ => Ok(None),
        };
        let read = read.and_then(|memory| Ok((memory, lists_of(members)?)));
        match read {
            Ok((memory, lists)) => {
                let total = memory.map(|memory| memory.total);
                let version = self.session.driver_version.as_deref();
                let hides_memory = version.is_some_and(hides_memory);
                let mut seen = attribute(lists, total, hides_memory, self.view);
                self.cycle.poll.processes_dropped +=
                    keep_largest(&mut seen.processes, self.processes_max);
                self.cycle.poll.samples.push(GpuSample {
                    device: uuid.clone(),
                    info,
                    memory,
                    processes: seen.processes,
                    attribution: seen.attribution,
                });
                self.cycle.found.insert(uuid, known);
            }
            Err(error) => {
                self.cycle.refuse(Some(uuid.clone()), &error);
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

/// One row of a process list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    pid: u32,
    /// `None` where NVML says that it does not know.
    used_bytes: Option<u64>,
}

/// The kinds of process that NVML lists apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessKind {
    Compute,
    Graphics,
    Mps,
}

impl ProcessKind {
    fn symbol(self) -> &'static str {
        match self {
            Self::Compute => "nvmlDeviceGetComputeRunningProcesses_v3",
            Self::Graphics => "nvmlDeviceGetGraphicsRunningProcesses_v3",
            Self::Mps => "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        }
    }
}

/// Every process of `members`; `None` where the compute list is refused or its rows make no sense.
///
/// # Errors
/// Only what says that the device itself is out of order.
fn lists_of(members: &[Device<'_>]) -> Result<Option<Vec<Row>>, GpuError> {
    let mut rows = Vec::new();
    for device in members {
        for kind in [ProcessKind::Compute, ProcessKind::Graphics, ProcessKind::Mps] {
            match raw::processes(device, kind) {
                Ok(list) => match list.rows() {
                    Some(more) => rows.extend(more),
                    None => return Ok(None),
                },
                Err(error) => {
                    let error = refused(kind.symbol())(error);
                    if error.is_device_out() {
                        return Err(error);
                    }
                    if kind == ProcessKind::Compute {
                        return Ok(None);
                    }
                }
            }
        }
    }
    Ok(Some(rows))
}

/// The processes of a device and what they can mean.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    processes: Vec<ProcessMemory>,
    attribution: Attribution,
}

impl Seen {
    fn nothing(attribution: Attribution) -> Self {
        Self { processes: Vec::new(), attribution }
    }
}

/// Judges what was listed. `total`: the device's capacity; `hides_memory`: the driver tells containers a false zero.
fn attribute(
    rows: Option<Vec<Row>>,
    total: Option<Bytes>,
    hides_memory: bool,
    view: &mut View,
) -> Seen {
    let Some(rows) = rows.filter(|rows| rows.iter().all(|row| is_plausible(row, total))) else {
        return Seen::nothing(Attribution::Unsupported);
    };
    let mut processes = merge(&rows);
    if processes.is_empty() {
        return Seen::nothing(match view.namespace {
            PidNamespace::Host => Attribution::Host,
            PidNamespace::Shared => Attribution::SharedPidNamespace,
            PidNamespace::Own => Attribution::OwnPidNamespace,
        });
    }
    if view.namespace != PidNamespace::Host {
        let is_zero = |used: Option<Bytes>| used.is_some_and(|used| used.get() == 0);
        if hides_memory || processes.iter().all(|process| is_zero(process.used)) {
            for process in &mut processes {
                process.used = process.used.filter(|_| !is_zero(process.used));
            }
        }
    }
    let attribution = listed_from(&processes, view);
    if processes.iter().all(|process| process.used.is_none()) {
        return Seen { processes, attribution: Attribution::MemoryHidden };
    }
    Seen { processes, attribution }
}

/// Whether a driver of this version (`560.35.03`) is one of those that tell a container a false zero.
fn hides_memory(driver_version: &str) -> bool {
    let mut parts = driver_version.split('.').map(str::parse::<u32>);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => MEMORY_HIDDEN_DRIVERS.contains(&(major, minor)),
        _ => false,
    }
}

/// Whose numbering the listed ids follow. A driver below 535.113 gives a container the host's.
fn listed_from(processes: &[ProcessMemory], view: &mut View) -> Attribution {
    if view.namespace == PidNamespace::Host {
        return Attribution::Host;
    }
    if !processes.iter().any(|process| view.procfs.has_process(process.pid)) {
        return Attribution::Host;
    }
    view.namespace = PidNamespace::Shared;
    Attribution::SharedPidNamespace
}

/// Whether a row can be one: rows read at the wrong stride have impossible ids or sizes.
fn is_plausible(row: &Row, total: Option<Bytes>) -> bool {
    let fits = |used| total.is_none_or(|total| used <= total.get());
    (1..=PID_MAX).contains(&row.pid) && row.used_bytes.is_none_or(fits)
}

/// One entry a process, ascending: contexts and lists that repeat it count once, by the maximum.
fn merge(rows: &[Row]) -> Vec<ProcessMemory> {
    let mut used_by_pid: BTreeMap<u32, Option<Bytes>> = BTreeMap::new();
    for row in rows {
        let used = row.used_bytes.and_then(|used| Bytes::new(used).ok());
        let entry = used_by_pid.entry(row.pid).or_default();
        *entry = used.max(*entry);
    }
    used_by_pid.into_iter().map(|(pid, used)| ProcessMemory { pid, used }).collect()
}

/// Keeps the `processes_max` largest, in ascending order of their ids, and counts the others.
fn keep_largest(processes: &mut Vec<ProcessMemory>, processes_max: usize) -> u64 {
    let dropped = processes.len().saturating_sub(processes_max);
    if dropped > 0 {
        processes.sort_by_key(|process| std::cmp::Reverse(process.used));
        processes.truncate(processes_max);
        processes.sort_by_key(|process| process.pid);
    }
    u64::try_from(dropped).unwrap_or(u64::MAX)
}

/// Why a device, or NVML as a whole, gives no answer.
#[derive(Debug, thiserror::Error)]
enum GpuError {
    #[error("{call}: {reason}{}", code.advice())]
    Refused { call: &'static str, code: Code, reason: String },
    #[error("nvml counts 0 devices, {before} before")]
    NoDevices { before: usize },
    #[error("nvmlDeviceGetUUID: {reason}")]
    Uuid { reason: OutOfRange },
}

impl GpuError {
    fn code(&self) -> Code {
        match self {
            Self::Refused { code, .. } => *code,
            Self::NoDevices { .. } => Code::Nvml(28),
            Self::Uuid { .. } => Code::Nvml(999),
        }
    }

    fn as_label(&self) -> &'static str {
        self.code().as_label()
    }

    /// Whether a new initialisation may mend it.
    fn wants_restart(&self) -> bool {
        self.is_device_out() || self.code() == Code::Nvml(999)
    }

    /// Whether the device or all of NVML is out of order, not just the one call.
    fn is_device_out(&self) -> bool {
        matches!(self.code(), Code::Nvml(1 | 9 | 15 | 16 | 28))
    }

    fn report(&self, device: Option<GpuUuid>) -> GpuUnavailable {
        GpuUnavailable { device, code: self.as_label(), message: self.to_string() }
    }
}

/// Turns the refusal of `call` into an error.
fn refused(call: &'static str) -> impl Fn(NvmlError) -> GpuError {
    move |error| {
        let reason = match &error {
            NvmlError::UnexpectedVariant(number) => label(*number).replace('_', " "),
            other => other.to_string(),
        };
        GpuError::Refused { call, code: Code::from(error), reason }
    }
}

fn nothing_answers(error: &GpuError) -> GpuPoll {
    GpuPoll { unavailable: vec![error.report(None)], ..GpuPoll::default() }
}

/// What kind of refusal it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    /// One of NVML's numbers.
    Nvml(u32),
    LibraryMissing,
    SymbolMissing,
}

impl Code {
    fn as_label(self) -> &'static str {
        match self {
            Self::Nvml(number) => label(number),
            Self::LibraryMissing => "library_missing",
            Self::SymbolMissing => "symbol_missing",
        }
    }

    /// What the reader of the log can do, where NVML's own words don't say it.
    fn advice(self) -> &'static str {
        match self {
            Self::Nvml(18) => {
                "; the library and the kernel module are of different driver versions, \
                 which only a restart of the container or the node mends"
            }
            _ => "",
        }
    }
}

impl From<NvmlError> for Code {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::LibloadingError(_) => Self::LibraryMissing,
            NvmlError::FailedToLoadSymbol(_) => Self::SymbolMissing,
            other => Self::Nvml(other.into()),
        }
    }
}

/// NVML's name of an `nvmlReturn_t`, in lower case and without `NVML_ERROR_`.
fn label(number: u32) -> &'static str {
    match number {
        1 => "uninitialized",
        2 => "invalid_argument",
        3 => "not_supported",
        4 => "no_permission",
        5 => "already_initialized",
        6 => "not_found",
        7 => "insufficient_size",
        8 => "insufficient_power",
        9 => "driver_not_loaded",
        10 => "timeout",
        11 => "irq_issue",
        12 => "library_not_found",
        13 => "function_not_found",
        14 => "corrupted_inforom",
        15 => "gpu_is_lost",
        16 => "reset_required",
        17 => "operating_system",
        18 => "lib_rm_version_mismatch",
        19 => "in_use",
        20 => "memory",
        21 => "no_data",
        22 => "vgpu_ecc_not_supported",
        23 => "insufficient_resources",
        24 => "freq_not_supported",
        25 => "argument_version_mismatch",
        26 => "deprecated",
        27 => "not_ready",
        28 => "gpu_not_found",
        29 => "invalid_state",
        30 => "reset_type_not_supported",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::raw::{ProcessList, UNWRITTEN};
    use super::*;

    fn row(pid: u32, used_bytes: impl Into<Option<u64>>) -> Row {
        Row { pid, used_bytes: used_bytes.into() }
    }

    fn process(pid: u32, used: impl Into<Option<u64>>) -> ProcessMemory {
        ProcessMemory { pid, used: used.into().map(|used| Bytes::new(used).unwrap()) }
    }

    #[test]
    fn label_is_nvmls_own_name_in_lower_case() {
        let check = |number, expected| assert_eq!(label(number), expected);
        check(1, "uninitialized");
        check(15, "gpu_is_lost");
        check(18, "lib_rm_version_mismatch");
        check(25, "argument_version_mismatch");
        check(28, "gpu_not_found");
        check(999, "unknown");
        check(31, "unknown");
    }

    #[test]
    fn code_keeps_the_number_that_nvml_gave() {
        for number in (1..=30).chain([999]) {
            assert_eq!(Code::from(NvmlError::from(number)), Code::Nvml(number));
        }
        let missing = NvmlError::FailedToLoadSymbol("nvmlInit_v2".to_owned());
        assert_eq!(Code::from(missing).as_label(), "symbol_missing");
    }

    #[test]
    fn merge_takes_the_maximum_of_a_process_and_orders_by_id() {
        let check = |rows: &[Row], expected: &[ProcessMemory]| {
            assert_eq!(merge(rows), expected, "{rows:?}");
        };
        check(&[], &[]);
        check(&[row(9, 1), row(3, 2)], &[process(3, 2), process(9, 1)]);
        check(&[row(9, 5), row(9, 7), row(9, 6)], &[process(9, 7)]);
        check(&[row(9, None), row(9, 0)], &[process(9, 0)]);
        check(&[row(9, 4), row(9, None)], &[process(9, 4)]);
        check(&[row(9, None), row(9, None)], &[process(9, None)]);
    }

    #[test]
    fn row_is_plausible_within_the_ids_of_linux_and_the_capacity() {
        let check = |row, total: Option<u64>, expected| {
            let total = total.map(|total| Bytes::new(total).unwrap());
            assert_eq!(is_plausible(&row, total), expected, "{row:?} {total:?}");
        };
        check(row(1, 100), Some(100), true);
        check(row(1, 101), Some(100), false);
        check(row(1, u64::MAX - 1), None, true);
        check(row(0, 1), Some(100), false);
        check(row(PID_MAX, None), Some(100), true);
        check(row(PID_MAX + 1, None), Some(100), false);
    }

    #[test]
    fn largest_are_kept_in_the_order_of_their_ids() {
        let check = |processes_max, expected: &[ProcessMemory], expected_dropped| {
            let mut processes =
                vec![process(1, 10), process(2, 30), process(3, None), process(4, 20)];
            assert_eq!(keep_largest(&mut processes, processes_max), expected_dropped);
            assert_eq!(processes, expected);
        };
        check(2, &[process(2, 30), process(4, 20)], 2);
        check(3, &[process(1, 10), process(2, 30), process(4, 20)], 1);
        check(4, &[process(1, 10), process(2, 30), process(3, None), process(4, 20)], 0);
        check(0, &[], 4);
    }

    #[test]
    fn false_zero_is_expected_of_drivers_from_535_113_to_560_35() {
        let check =
            |version, expected| assert_eq!(hides_memory(version), expected, "{version}");
        check("535.113.01", true);
        check("535.112", false);
        check("550.9.01", true);
        check("560.35.05", true);
        check("560.36", false);
        check("565.57.01", false);
        check("525.147.05", false);
        check("", false);
        check("545", false);
        check("five.six", false);
    }

    #[test]
    fn attribution_of_an_empty_list_is_the_namespaces() {
        let check = |namespace, expected| {
            let mut view = View { procfs: Procfs::new("/nonexistent"), namespace };
            let seen = attribute(Some(Vec::new()), None, false, &mut view);
            assert_eq!(seen, Seen::nothing(expected));
        };
        check(PidNamespace::Host, Attribution::Host);
        check(PidNamespace::Shared, Attribution::SharedPidNamespace);
        check(PidNamespace::Own, Attribution::OwnPidNamespace);
    }

    #[test]
    fn list_written_past_its_end_has_no_rows() {
        // (pid, used, instance ids) of two processes at 24 bytes, in room for two rows of 32.
        let right = [41, 7, u64::MAX, 42, u64::MAX, u64::MAX, UNWRITTEN, UNWRITTEN];
        let check = |words: &[u64], n_rows, expected: Option<Vec<Row>>| {
            // The id is the lower half on every machine that CUDA runs on.
            let list = ProcessList { words: words.to_vec(), n_rows };
            assert_eq!(list.rows(), expected, "{words:?} {n_rows}");
        };
        check(&right, 2, Some(vec![row(41, 7), row(42, None)]));
        check(&right, 1, Some(vec![row(41, 7)]));
        check(&right, 3, None);
        check(&[41, 7, u64::MAX, 0, 42, 8, u64::MAX, 0], 2, None);
        check(&[41, 7, u64::MAX, 0], 1, None);
        check(&[41, 7, u64::MAX, UNWRITTEN], 1, Some(vec![row(41, 7)]));
        check(&[], 0, Some(Vec::new()));
    }

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
