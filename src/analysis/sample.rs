//! What the engine takes in: step samples of ranks and readings of devices. If one exists, it is in range;
//! nothing past this file checks a figure again. No decoding and no state lives here.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The largest byte count and step that is taken: 2^53, above which an `f64` no longer tells neighbours apart.
pub const INTEGER_MAX: u64 = 1 << 53;

/// A value that may not enter, with the limit that it breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfRange {
    /// A number outside its closed range.
    #[error("{value} is outside {min}..={max}")]
    Number {
        /// The value as it was given.
        value: String,
        /// The least value allowed.
        min: String,
        /// The greatest value allowed.
        max: String,
    },
    /// A text that is empty or too long.
    #[error("a text of {bytes} bytes is outside 1..={max} bytes")]
    Length {
        /// How long it is, in bytes.
        bytes: usize,
        /// The greatest length allowed, in bytes.
        max: usize,
    },
    /// A text with a control character in it.
    #[error("{0:?} contains a control character")]
    Control(String),
}

impl OutOfRange {
    fn number(value: &impl ToString, min: &impl ToString, max: &impl ToString) -> Self {
        Self::Number { value: value.to_string(), min: min.to_string(), max: max.to_string() }
    }
}

/// The name of one training job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run(Box<str>);

impl Run {
    /// The longest name that is taken, in bytes.
    pub const BYTES_MAX: usize = 128;

    /// Takes a name of 1 to [`Self::BYTES_MAX`] bytes without control characters.
    ///
    /// # Errors
    /// Says which of the two limits `name` breaks.
    pub fn new(name: &str) -> Result<Self, OutOfRange> {
        checked_text(name, Self::BYTES_MAX).map(Self)
    }

    /// The name itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A global rank, 0 to [`Rank::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(u32);

impl Rank {
    /// The greatest rank that is taken: 2^20 - 1, more than any job has.
    pub const MAX: u32 = (1 << 20) - 1;

    /// Takes a rank of 0 to [`Self::MAX`].
    ///
    /// # Errors
    /// Names the value and the range.
    pub fn new(value: u64) -> Result<Self, OutOfRange> {
        u32::try_from(value)
            .ok()
            .filter(|rank| *rank <= Self::MAX)
            .map(Self)
            .ok_or_else(|| OutOfRange::number(&value, &0, &Self::MAX))
    }

    /// The rank as a number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The UUID of a GPU or MIG instance as NVML writes it (`GPU-…`, `MIG-…`), or [`GpuUuid::CPU`] for host memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuUuid(Box<str>);

impl GpuUuid {
    /// The longest UUID that is taken, in bytes; NVML's own buffers hold 96.
    pub const BYTES_MAX: usize = 96;
    /// What a pusher names as its device when its bytes are host memory.
    pub const CPU: &'static str = "cpu";

    /// Takes a UUID of 1 to [`Self::BYTES_MAX`] bytes without control characters.
    ///
    /// # Errors
    /// Says which of the two limits `uuid` breaks.
    pub fn new(uuid: &str) -> Result<Self, OutOfRange> {
        checked_text(uuid, Self::BYTES_MAX).map(Self)
    }

    /// The UUID itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is neither host memory nor written as NVML writes UUIDs (`GPU-…`, `MIG-…`), so that it may be any
    /// GPU.
    pub fn is_unknown_gpu(&self) -> bool {
        self.as_str() != Self::CPU && !["GPU-", "MIG-"].iter().any(|of| self.0.starts_with(of))
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A byte count, 0 to [`INTEGER_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(u64);

impl Bytes {
    /// Takes a count of 0 to [`INTEGER_MAX`].
    ///
    /// # Errors
    /// Names the value and the range.
    pub fn new(value: u64) -> Result<Self, OutOfRange> {
        checked_integer(value).map(Self)
    }

    /// The count.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The count as a float, exactly.
    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "at most 2^53, so exact"
    )]
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }
}

/// A step number or a count of a training process, 0 to [`INTEGER_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(u64);

impl Count {
    /// Takes a count of 0 to [`INTEGER_MAX`].
    ///
    /// # Errors
    /// Names the value and the range.
    pub fn new(value: u64) -> Result<Self, OutOfRange> {
        checked_integer(value).map(Self)
    }

    /// The count.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The count as a float, exactly.
    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "at most 2^53, so exact"
    )]
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }
}

/// A finite, non-negative number of seconds: a Unix time or a duration as pushers send it.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Seconds(f64);

impl Seconds {
    /// The greatest value that is taken: the end of the year 9999 as a Unix time.
    pub const MAX: f64 = 253_402_300_799.0;

    /// Takes a finite value of 0 to [`Self::MAX`].
    ///
    /// # Errors
    /// Names the value and the range.
    pub fn new(value: f64) -> Result<Self, OutOfRange> {
        if (0.0..=Self::MAX).contains(&value) {
            Ok(Self(value))
        } else {
            Err(OutOfRange::number(&value, &0, &Self::MAX))
        }
    }

    /// The number of seconds.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// How long the program (or the replayed recording) had run when something happened.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct Uptime(pub Duration);

impl Uptime {
    /// The time from `earlier` to this, zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// What ran since the rank's last record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// An optimizer step.
    #[default]
    Train,
    /// Evaluation.
    Eval,
    /// Writing a checkpoint.
    Checkpoint,
}

/// One completed step of one rank as its training process saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSample {
    /// The training job.
    pub run: Run,
    /// Restart count of the run.
    pub attempt: Count,
    /// The global rank.
    pub rank: Rank,
    /// The rank within its node.
    pub local_rank: Option<Rank>,
    /// How many ranks the run has, 1 to [`Rank::MAX`] + 1.
    pub world_size: Option<u32>,
    /// The node's rank.
    pub node_rank: Option<Rank>,
    /// The global step just completed.
    pub step: Count,
    /// When the step ended, as a Unix time; `None` means on arrival.
    pub time: Option<Seconds>,
    /// How long the step took.
    pub step_seconds: Option<Seconds>,
    /// What ran since the last record.
    pub phase: Phase,
    /// The device that the figures are about.
    pub device: Option<GpuUuid>,
    /// The pusher's process id in its own namespace.
    pub pid: Option<u32>,
    /// Live tensor memory at the end of the step.
    pub allocated: Bytes,
    /// Maximum of allocated within the step.
    pub peak_allocated: Option<Bytes>,
    /// What the caching allocator holds from the driver.
    pub reserved: Option<Bytes>,
    /// Maximum of reserved within the step.
    pub peak_reserved: Option<Bytes>,
    /// Free parts of split blocks.
    pub inactive_split: Option<Bytes>,
    /// Failed mallocs that flushed the cache, since the process started.
    pub alloc_retries: Option<Count>,
    /// Out-of-memory errors, since the process started.
    pub ooms: Option<Count>,
    /// Records that the pusher gave up before this one, since its process started.
    pub dropped_records: Option<Count>,
    /// The device's capacity as the process sees it.
    pub total: Option<Bytes>,
    /// The device's free memory as the process sees it.
    pub free: Option<Bytes>,
}

impl StepSample {
    /// Whether two figures contradict each other: a peak below its current value, reserved below allocated, or
    /// allocated above the total. Pluggable allocators and managed memory do that.
    pub fn is_inconsistent(&self) -> bool {
        let below =
            |upper: Option<Bytes>, lower: Bytes| upper.is_some_and(|upper| upper < lower);
        below(self.peak_allocated, self.allocated)
            || below(self.reserved, self.allocated)
            || self.reserved.is_some_and(|reserved| below(self.peak_reserved, reserved))
            || below(self.total, self.allocated)
            || self.free.is_some_and(|free| below(self.total, free))
    }
}

/// One reading of one device that answered.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuSample {
    /// The device or MIG instance.
    pub device: GpuUuid,
    /// What describes the device.
    pub info: DeviceInfo,
    /// Its memory; `None` where the driver has no meaningful figure (NUMA mode, not supported).
    pub memory: Option<DeviceMemory>,
    /// The processes seen on it, one entry a pid, ascending.
    pub processes: Vec<ProcessMemory>,
    /// What the process list can mean here.
    pub attribution: Attribution,
}

/// What describes a device; `None` where the driver does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// NVML's index on this node, as text (`0`, or `0:1` for a MIG instance).
    pub index: Option<String>,
    /// The product name.
    pub model: Option<String>,
    /// The driver's version.
    pub driver_version: Option<String>,
    /// The MIG profile (`1g.10gb`), for a MIG instance.
    pub mig_profile: Option<String>,
    /// The GPU that a MIG instance is part of.
    pub parent: Option<GpuUuid>,
    /// How its memory is addressed (`none`, `hmm`, `ats`).
    pub addressing: Option<String>,
    /// The MIG device whose memory this is too, as both are of one GPU instance; `None` where the memory is its own.
    pub memory_of: Option<GpuUuid>,
}

/// A device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceMemory {
    /// The capacity.
    #[serde(rename = "total_bytes")]
    pub total: Bytes,
    /// What is in use by everything on the device.
    #[serde(rename = "used_bytes")]
    pub used: Bytes,
    /// What is free; `None` in recordings that lack it.
    #[serde(rename = "free_bytes")]
    pub free: Option<Bytes>,
    /// What the driver keeps for itself, where the driver tells it apart (memory info v2).
    #[serde(rename = "reserved_bytes")]
    pub reserved: Option<Bytes>,
}

/// One process on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Its id in the namespace that the driver answered for.
    pub pid: u32,
    /// What it uses on the device; `None` when the driver does not know (N/A, or its false zero).
    pub used: Option<Bytes>,
    /// The id by which the process knows itself, and pushes; `None` where it cannot be told from here.
    pub own_pid: Option<u32>,
    /// The container that it runs in, where that can be seen.
    pub container: Option<Container>,
}

impl ProcessMemory {
    /// A process that is listed by the id that it knows itself by.
    pub fn new(pid: u32, used: Option<Bytes>) -> Self {
        Self { pid, used, own_pid: Some(pid), container: None }
    }
}

/// A container, as the control group of its processes names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Container {
    /// The container runtime's id, 64 hexadecimal digits.
    pub id: Box<str>,
    /// The UID of its pod; `None` outside Kubernetes, and where only the container's own group is seen.
    pub pod_uid: Option<Box<str>>,
}

/// A container that the kubelet gave a device to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DevicePod {
    /// The device.
    pub uuid: GpuUuid,
    /// The pod's namespace.
    pub namespace: Box<str>,
    /// The pod's name.
    pub pod: Box<str>,
    /// The container's name.
    pub container: Box<str>,
}

/// What a device's process list can mean from where the exporter runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attribution {
    /// The host's process ids are seen.
    Host,
    /// The processes of a namespace shared with the training process are seen.
    SharedPidNamespace,
    /// The exporter's own namespace hides the training processes.
    OwnPidNamespace,
    /// The ids are those of another namespace (an older driver's, from within a container): nobody here can tell whose.
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
    /// NVML's name of the error in lower case (`gpu_is_lost`), or `library_missing`, `symbol_missing`, `timeout`.
    pub code: &'static str,
    /// The error in words, for the log.
    pub message: String,
}

/// Takes a text of 1 to `bytes_max` bytes without control characters.
///
/// # Errors
/// Says which of the two limits `text` breaks.
pub fn checked_text(text: &str, bytes_max: usize) -> Result<Box<str>, OutOfRange> {
    if text.is_empty() || text.len() > bytes_max {
        return Err(OutOfRange::Length { bytes: text.len(), max: bytes_max });
    }
    let is_plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if !is_plain && text.chars().any(char::is_control) {
        return Err(OutOfRange::Control(text.to_owned()));
    }
    Ok(text.into())
}

fn checked_integer(value: u64) -> Result<u64, OutOfRange> {
    if value <= INTEGER_MAX {
        Ok(value)
    } else {
        Err(OutOfRange::number(&value, &0, &INTEGER_MAX))
    }
}

/// How the samples' types are written in a status and in saved state, and read back from the latter: through the
/// constructors, so that what exists is in range.
mod serialized {
    use std::borrow::Cow;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::analysis::sample::{Attribution, Bytes, Count, GpuUuid, Rank, Run, Seconds};

    macro_rules! serialized {
        ($type:ty as $plain:ty, $write:ident, $get:ident, |$read:ident| $new:expr) => {
            impl Serialize for $type {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.$write(self.$get())
                }
            }

            impl<'de> Deserialize<'de> for $type {
                fn deserialize<D: Deserializer<'de>>(
                    deserializer: D,
                ) -> Result<Self, D::Error> {
                    let $read = <$plain>::deserialize(deserializer)?;
                    $new.map_err(D::Error::custom)
                }
            }
        };
    }

    serialized!(Bytes as u64, serialize_u64, get, |read| Bytes::new(read));
    serialized!(Count as u64, serialize_u64, get, |read| Count::new(read));
    serialized!(Seconds as f64, serialize_f64, get, |read| Seconds::new(read));
    serialized!(Rank as u32, serialize_u32, get, |read| Rank::new(read.into()));
    serialized!(Run as Cow<'de, str>, serialize_str, as_str, |read| Run::new(&read));
    serialized!(GpuUuid as Cow<'de, str>, serialize_str, as_str, |read| GpuUuid::new(&read));

    impl Serialize for Attribution {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_str(self.as_label())
        }
    }
}
