//! Devices and their processes, as NVML and the kubelet report them.

use std::ops::Not;

use serde::{Deserialize, Deserializer, Serialize};

use crate::format::clean::shortened;
use crate::ids::GpuUuid;
use crate::units::Bytes;

/// One reading of one device that answered.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct GpuSample {
    /// The device or MIG instance.
    pub device: GpuUuid,
    /// The description of the device.
    pub info: DeviceInfo,
    /// The device's memory; `None` where the driver has no meaningful figure (NUMA mode, not
    /// supported).
    pub memory: Option<DeviceMemory>,
    /// The processes seen on it, one entry a pid, ascending.
    pub processes: Vec<ProcessMemory>,
    /// The meaning of the process list where the exporter runs.
    pub attribution: Attribution,
    /// The machine's memory, of a device that uses it as its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_total: Option<Bytes>,
}

impl GpuSample {
    /// Returns the device's capacity and what is in use of it. Of unified memory they are the
    /// machine's memory and what the listed processes use. `None` where neither is known.
    pub fn capacity_and_use(&self) -> Option<(Bytes, Bytes)> {
        let own = self.memory.map(|memory| (memory.total, memory.used));
        own.or_else(|| {
            let used = self.processes.iter().filter_map(|process| Some(process.used?.get()));
            Some((self.machine_total?, Bytes::new(used.sum()).ok()?))
        })
    }
}

/// The kind of a device's memory, where that is not its own alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceMemoryKind {
    /// The device uses the machine's memory as its own: device and host have one capacity.
    Unified,
    /// The operating system manages the device's memory as a NUMA node: what is in use there is
    /// no sign of a leak.
    NumaNode,
}

impl DeviceMemoryKind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Unified, Self::NumaNode];

    /// Returns its name in records and labels.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Unified => "unified",
            Self::NumaNode => "numa_node",
        }
    }
}

/// Characters of a text that a driver has for a device: NVML's own buffers hold 96 bytes.
pub const DEVICE_TEXT_CHARS_MAX: usize = 96;

/// Returns the text of a driver about a device, clean and not longer than
/// [`DEVICE_TEXT_CHARS_MAX`].
pub fn device_text(text: &str) -> String {
    shortened(text, DEVICE_TEXT_CHARS_MAX)
}

/// Reads a [`device_text`].
fn read_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.map(|text| device_text(&text)))
}

/// The description of a device; `None` where the driver does not report a field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct DeviceInfo {
    /// NVML's index on this node, as text (`0`, or `0:1` for a MIG instance).
    #[serde(default, deserialize_with = "read_text")]
    pub index: Option<String>,
    /// The name of its model.
    #[serde(default, deserialize_with = "read_text")]
    pub model: Option<String>,
    /// The version of its driver.
    #[serde(default, deserialize_with = "read_text")]
    pub driver_version: Option<String>,
    /// The MIG profile (`1g.10gb`), for a MIG instance.
    #[serde(default, deserialize_with = "read_text")]
    pub mig_profile: Option<String>,
    /// The GPU that a MIG instance is part of.
    pub parent: Option<GpuUuid>,
    /// The mode by which its memory is addressed (`none`, `hmm`, `ats`).
    #[serde(default, deserialize_with = "read_text")]
    pub addressing: Option<String>,
    /// The kind of its memory, where that is not its own alone.
    pub memory_kind: Option<DeviceMemoryKind>,
    /// The MIG device whose memory this is too, as both are of one GPU instance; `None` where
    /// the memory is its own.
    pub memory_of: Option<GpuUuid>,
}

/// The memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct DeviceMemory {
    /// Bytes that the device has; 0 where that is unknown.
    #[serde(rename = "total_bytes")]
    pub total: Bytes,
    /// Bytes in use by everything on the device.
    #[serde(rename = "used_bytes")]
    pub used: Bytes,
    /// Free bytes; `None` in recordings that lack them.
    #[serde(rename = "free_bytes")]
    pub free: Option<Bytes>,
    /// Memory reserved by the driver, where it is reported separately (memory info v2).
    #[serde(rename = "reserved_bytes")]
    pub reserved: Option<Bytes>,
}

/// A process on a device.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ProcessMemory {
    /// The process's id in the namespace that the driver answered for.
    pub pid: u32,
    /// Bytes that it uses on the device; `None` when the driver does not know (N/A, or its
    /// false zero).
    pub used: Option<Bytes>,
    /// The id by which the process knows itself, and which its records carry; `None` where the
    /// exporter cannot find it.
    pub own_pid: Option<u32>,
    /// The process's name, as the kernel keeps it: the first 15 bytes of the program's, or of
    /// what the process calls itself.
    pub name: Option<Box<str>>,
    /// The container that it runs in, where that can be seen.
    pub container: Option<Container>,
    /// Set when no process of the machine has this id any more: its memory outlives it.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_gone: bool,
}

impl ProcessMemory {
    /// A process that is listed by the id that it knows itself by.
    pub fn new(pid: u32, used: Option<Bytes>) -> Self {
        Self { pid, used, own_pid: Some(pid), name: None, container: None, is_gone: false }
    }
}

/// The memory of a training process on its device, as the process itself reads it from NVML.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum OwnProcessMemory {
    /// The bytes that NVML lists for it.
    Known(Bytes),
    /// The state in which no bytes are known.
    Unknown(OwnProcessState),
}

impl OwnProcessMemory {
    /// Returns the bytes, where they are known.
    pub fn bytes(self) -> Option<Bytes> {
        match self {
            Self::Known(bytes) => Some(bytes),
            Self::Unknown(_) => None,
        }
    }

    /// Returns the state in which no bytes are known; `None` where they are.
    pub fn state(self) -> Option<OwnProcessState> {
        match self {
            Self::Known(_) => None,
            Self::Unknown(state) => Some(state),
        }
    }
}

/// The reason for which a training process does not know its memory on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnProcessState {
    /// NVML does not list its process id: an older driver lists ids of the host.
    ForeignPidNamespace,
    /// The driver lists the process without its memory.
    MemoryHidden,
    /// There is no usable NVML, or no list that makes sense.
    Unsupported,
    /// NVML has not answered for long.
    NoAnswer,
}

impl OwnProcessState {
    /// Every state.
    pub const ALL: [Self; 4] =
        [Self::ForeignPidNamespace, Self::MemoryHidden, Self::Unsupported, Self::NoAnswer];

    /// Returns its name in records, and the value of the label `state`.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::ForeignPidNamespace => "foreign_pid_namespace",
            Self::MemoryHidden => "memory_hidden",
            Self::Unsupported => "unsupported",
            Self::NoAnswer => "no_answer",
        }
    }

    /// Returns the rest of a sentence that begins with its process and "NVML".
    pub fn words(self) -> &'static str {
        match self {
            Self::ForeignPidNamespace => "does not list it by its own process id",
            Self::MemoryHidden => "lists it without its memory",
            Self::Unsupported => "is missing, or gives no usable list",
            Self::NoAnswer => "does not answer",
        }
    }
}

/// A container, as the control group of its processes names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct Container {
    /// The container runtime's id, 64 hexadecimal digits.
    pub id: Box<str>,
    /// The UID of its pod; `None` outside Kubernetes, and where only the container's own group
    /// is seen.
    pub pod_uid: Option<Box<str>>,
}

/// A pod, by the names that Kubernetes has for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodName {
    /// The namespace that it is in.
    pub namespace: Box<str>,
    /// The name within the namespace.
    pub name: Box<str>,
}

/// A container that the kubelet gave a device to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct DevicePod {
    /// The device.
    pub uuid: GpuUuid,
    /// The namespace of the pod.
    pub namespace: Box<str>,
    /// The name of the pod.
    pub pod: Box<str>,
    /// The name of the container.
    pub container: Box<str>,
    /// Set when it was given the device itself, not one of several shares: no other container
    /// has it.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_whole: bool,
}

impl DevicePod {
    /// The longest of its three names, in bytes: Kubernetes allows 253.
    pub const NAME_BYTES_MAX: usize = 253;

    /// Returns whether it is a container of `pod`.
    pub fn is_of(&self, pod: &PodName) -> bool {
        self.namespace == pod.namespace && self.pod == pod.name
    }
}

/// The meaning of a device's process list, which depends on where the exporter runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Attribution {
    /// The host's process ids are seen.
    Host,
    /// The processes of a namespace shared with the training process are seen.
    SharedPidNamespace,
    /// The exporter's own namespace hides the training processes.
    OwnPidNamespace,
    /// The ids belong to another namespace (an older driver, seen from a container) and cannot
    /// be resolved here.
    ForeignPidNamespace,
    /// Processes are seen, their memory is not.
    MemoryHidden,
    /// The driver gives no process list that makes sense.
    Unsupported,
}

impl Attribution {
    /// Every state, in the order of declaration.
    pub const ALL: [Self; 6] = [
        Self::Host,
        Self::SharedPidNamespace,
        Self::OwnPidNamespace,
        Self::ForeignPidNamespace,
        Self::MemoryHidden,
        Self::Unsupported,
    ];

    /// The value of the label `state`.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::SharedPidNamespace => "shared_pid_namespace",
            Self::OwnPidNamespace => "own_pid_namespace",
            Self::ForeignPidNamespace => "foreign_pid_namespace",
            Self::MemoryHidden => "memory_hidden",
            Self::Unsupported => "unsupported",
        }
    }
}

/// A device, or NVML as a whole, that gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuUnavailable {
    /// The device; `None` when nothing answers.
    pub device: Option<GpuUuid>,
    /// NVML's name of the error in lower case (`gpu_is_lost`), or `library_missing`,
    /// `symbol_missing`, `timeout`.
    pub code: &'static str,
    /// The error in words, for the log.
    pub message: String,
}
