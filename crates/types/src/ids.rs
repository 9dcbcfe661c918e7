//! Names of runs, ranks and devices.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::units::{OutOfRange, checked_name, serialized};

/// The name of one training job, shared by those who use it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run(Arc<str>);

impl Run {
    /// The longest name that is taken, in bytes.
    pub const BYTES_MAX: usize = 128;

    /// Takes a name of 1 to [`Self::BYTES_MAX`] bytes without control or invisible characters,
    /// not only blanks.
    ///
    /// # Errors
    ///
    /// Names the limit that `name` breaks.
    pub fn new(name: &str) -> Result<Self, OutOfRange> {
        checked_name(name, Self::BYTES_MAX).map(Self)
    }

    /// Returns the name.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// The UUID of a GPU or MIG instance as NVML writes it (`GPU-…`, `MIG-…`), `index-…` of a GPU that
/// NVML counts and that has not told its UUID, or [`GpuUuid::CPU`] for host memory. It is shared by
/// those who use it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuUuid(Arc<str>);

impl GpuUuid {
    /// The longest UUID that is taken, in bytes; NVML's own buffers hold 96.
    pub const BYTES_MAX: usize = 96;
    /// The name that a client sends as its device when its bytes are host memory.
    pub const CPU: &'static str = "cpu";

    /// Takes a UUID of 1 to [`Self::BYTES_MAX`] bytes without control or invisible characters,
    /// not only blanks.
    ///
    /// # Errors
    ///
    /// Names the limit that `uuid` breaks.
    pub fn new(uuid: &str) -> Result<Self, OutOfRange> {
        checked_name(uuid, Self::BYTES_MAX).map(Self)
    }

    /// Returns a stand-in for the UUID of the GPU with this index, which has not told its own.
    pub fn of_index(index: u32) -> Self {
        Self(format!("index-{index}").into())
    }

    /// Returns the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether it stands for host memory.
    pub fn is_host(&self) -> bool {
        self.as_str() == Self::CPU
    }

    /// Returns whether it is neither host memory nor written as NVML writes UUIDs (`GPU-…`,
    /// `MIG-…`), so that it may be any GPU.
    pub fn is_unknown_gpu(&self) -> bool {
        !self.is_host() && !["GPU-", "MIG-"].iter().any(|of| self.0.starts_with(of))
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A rank of a run.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct RankId {
    /// The run.
    pub run: Run,
    /// The rank within the run.
    pub rank: Rank,
}

/// A process on a device, by the id that NVML lists it under.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ProcessId {
    /// The device.
    pub uuid: GpuUuid,
    /// The process's id, as NVML lists it.
    pub pid: u32,
}

/// The subject of a diagnosis; ranks sort first, then processes, then devices.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub enum SubjectId {
    /// A rank that sends records.
    Rank(RankId),
    /// An unmanaged process.
    Process(ProcessId),
    /// A device, whatever uses it.
    Device(GpuUuid),
}

impl SubjectId {
    /// The rank, if it is one.
    pub fn rank(&self) -> Option<&RankId> {
        match self {
            Self::Rank(id) => Some(id),
            Self::Process(_) | Self::Device(_) => None,
        }
    }
}

impl fmt::Display for SubjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(RankId { run, rank }) => write!(f, "rank {rank} of {run}"),
            Self::Process(ProcessId { uuid, pid }) => write!(f, "process {pid} on {uuid}"),
            Self::Device(uuid) => write!(f, "device {uuid}"),
        }
    }
}

/// A [`SubjectId`] as fields of the object that it stands in: `run` and `rank`, `uuid` and
/// `pid`, or `uuid`.
pub mod subject_fields {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::ids::{GpuUuid, ProcessId, RankId, SubjectId};

    #[derive(Deserialize, Serialize)]
    struct DeviceFields<T> {
        uuid: T,
    }

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Fields {
        Rank(RankId),
        Process(ProcessId),
        Device(DeviceFields<GpuUuid>),
    }

    /// Writes the fields.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(
        subject: &SubjectId,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match subject {
            SubjectId::Rank(id) => id.serialize(serializer),
            SubjectId::Process(id) => id.serialize(serializer),
            SubjectId::Device(uuid) => DeviceFields { uuid }.serialize(serializer),
        }
    }

    /// Reads the fields.
    ///
    /// # Errors
    /// The fields are those of no subject, or a value is out of range.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<SubjectId, D::Error> {
        Ok(match Fields::deserialize(deserializer)? {
            Fields::Rank(id) => SubjectId::Rank(id),
            Fields::Process(id) => SubjectId::Process(id),
            Fields::Device(DeviceFields { uuid }) => SubjectId::Device(uuid),
        })
    }
}

serialized!(Rank as u32, serialize_u32, get, |read| Rank::new(read.into()));
serialized!(Run as Cow<'de, str>, serialize_str, as_str, |read| Run::new(&read));
serialized!(GpuUuid as Cow<'de, str>, serialize_str, as_str, |read| GpuUuid::new(&read));
