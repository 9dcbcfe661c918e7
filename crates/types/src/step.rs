//! One step of one rank, as its training process reports it.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::device::{DeviceMemoryKind, OwnProcessMemory};
use crate::format::units::{bytes, rate};
use crate::host::{ContainerReading, HostParts};
use crate::ids::{GpuUuid, Rank, RankId, Run};
use crate::launch::{Instance, Launch};
use crate::units::{Bytes, Count, OutOfRange, Seconds, ascii_name, serialized};

// Same name as detect::Phase: there it is of growth, here of training.
/// The phases that ran since the rank's last record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Steps of training.
    #[default]
    Train,
    /// An evaluation.
    Eval,
    /// Writing a checkpoint.
    Checkpoint,
    /// The model ran without optimizer steps: the record is a sample by time.
    Sample,
    /// Neither steps nor the model ran: the record shows that the process is alive.
    Idle,
    /// A phase that the program names, with [`StepSample::phase_name`].
    Named,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Self; 6] =
        [Self::Train, Self::Eval, Self::Checkpoint, Self::Sample, Self::Idle, Self::Named];

    /// Returns its name in records on the wire; of one that the program names the word for all
    /// of these.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Eval => "eval",
            Self::Checkpoint => "checkpoint",
            Self::Sample => "sample",
            Self::Idle => "idle",
            Self::Named => "named",
        }
    }

    /// Returns whether the process sends the record by time, and not for something that ended.
    pub fn is_by_time(self) -> bool {
        matches!(self, Self::Sample | Self::Idle)
    }
}

/// The name of a phase of the program's own, such as `sleep`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PhaseName(Arc<str>);

impl PhaseName {
    /// The longest name that is taken, in bytes.
    pub const BYTES_MAX: usize = 32;

    /// Takes a name of 1 to [`Self::BYTES_MAX`] bytes of letters, digits, `.`, `_` and `-`.
    ///
    /// # Errors
    ///
    /// Names the length, or the characters that are allowed.
    pub fn new(text: &str) -> Result<Self, OutOfRange> {
        let form = "letters, digits, '.', '_' and '-'";
        ascii_name(text, Self::BYTES_MAX, b"._-", form).map(Self)
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

serialized!(PhaseName as Cow<'de, str>, serialize_str, as_str, |read| PhaseName::new(&read));

/// An event since the rank's last record after which its memory may hold more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepMark {
    /// An evaluation.
    Eval,
    /// A checkpoint was written.
    Checkpoint,
    /// The training data began from its start again.
    Epoch,
}

impl StepMark {
    /// Every event marker.
    pub const ALL: [Self; 3] = [Self::Eval, Self::Checkpoint, Self::Epoch];

    /// Returns its name in records on the wire.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Eval => "eval",
            Self::Checkpoint => "checkpoint",
            Self::Epoch => "epoch",
        }
    }
}

/// A set of event markers, in the order of [`StepMark::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkSet([bool; StepMark::ALL.len()]);

impl MarkSet {
    /// Adds an event marker.
    pub fn add(&mut self, mark: StepMark) {
        for (is_set, of) in self.0.iter_mut().zip(StepMark::ALL) {
            *is_set |= of == mark;
        }
    }

    /// Returns whether there is none.
    pub fn is_empty(self) -> bool {
        self.iter().next().is_none()
    }

    /// Returns their names on the wire.
    pub fn names(self) -> Vec<&'static str> {
        self.iter().map(StepMark::as_label).collect()
    }

    /// Returns the event markers.
    pub fn iter(self) -> impl Iterator<Item = StepMark> {
        StepMark::ALL
            .into_iter()
            .zip(self.0)
            .filter_map(|(mark, is_set)| is_set.then_some(mark))
    }
}

/// The unit that a rank counts, by its own word.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepUnit {
    /// Steps of training.
    #[default]
    Steps,
    /// Calls of a program that takes no steps: requests to a server, answers of a model.
    Calls,
    /// Iterations that replay CUDA graphs, of a program whose steps are in them or that has none.
    Replays,
}

impl StepUnit {
    /// Every unit.
    pub const ALL: [Self; 3] = [Self::Steps, Self::Calls, Self::Replays];

    /// Returns its name in records.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Calls => "calls",
            Self::Replays => "replays",
        }
    }

    /// Returns the unit of a name in records.
    pub fn from_label(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.as_label() == label)
    }

    /// Returns the word for one of them.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Steps => "step",
            Self::Calls => "call",
            Self::Replays => "replay",
        }
    }

    /// Returns whether it counts steps.
    pub fn is_steps(&self) -> bool {
        *self == Self::Steps
    }

    /// Returns whether it counts calls, which come as they like, and not the iterations of a loop.
    pub fn is_calls(self) -> bool {
        self == Self::Calls
    }

    /// Writes a rate of growth. A call is so short that a thousand of them count.
    pub fn rate(self, bytes_per_unit: f64) -> String {
        match self {
            Self::Steps | Self::Replays => rate(bytes_per_unit, self.noun()),
            Self::Calls => format!("{}{}", bytes(1000.0 * bytes_per_unit), self.per()),
        }
    }

    /// Returns the end of such a rate.
    pub fn per(self) -> &'static str {
        match self {
            Self::Steps => "/step",
            Self::Calls => " per 1,000 calls",
            Self::Replays => "/replay",
        }
    }
}

/// The answer of a training side to the exporter's word that memory runs out soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDeadline {
    /// The program writes a checkpoint, and goes on.
    Checkpoint,
}

impl OnDeadline {
    /// Every answer.
    pub const ALL: [Self; 1] = [Self::Checkpoint];

    /// Returns its name in records.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
        }
    }
}

/// A record stands for at most this many train steps.
pub const STEPS_PER_RECORD_MAX: u32 = 1_000_000;

/// The description that a rank gives of itself, named as in records.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Identity {
    /// The restart count of the run.
    pub attempt: Count,
    /// The device that its figures are about.
    pub device: Option<GpuUuid>,
    /// The kind of the device's memory, where that is not its own alone.
    #[serde(rename = "device_memory")]
    pub memory_kind: Option<DeviceMemoryKind>,
    /// The process's id, in its own namespace.
    pub pid: Option<u32>,
    /// The process's rank within the node.
    pub local_rank: Option<Rank>,
    /// The rank of its node.
    pub node_rank: Option<Rank>,
    /// Number of ranks of the run, 1 to [`Rank::MAX`] + 1.
    pub world_size: Option<u32>,
    /// The device's capacity as the process sees it.
    #[serde(rename = "total_bytes")]
    pub total: Option<Bytes>,
    /// The most that its allocator may reserve, by a limit of the program's own.
    #[serde(default, rename = "reserved_limit_bytes")]
    pub reserved_limit: Option<Bytes>,
    /// The step with which its training ends, as its process knows it now.
    #[serde(default)]
    pub total_steps: Option<Count>,
    /// The time at which others end the run, as a Unix time: a scheduler's time limit.
    #[serde(default)]
    pub deadline: Option<Seconds>,
    /// The action of its program when memory runs out soon; `None` where it can do nothing.
    #[serde(default)]
    pub on_deadline: Option<OnDeadline>,
    /// The unit that it counts.
    #[serde(default)]
    pub unit: StepUnit,
}

impl Identity {
    /// Returns whether it reports that its figures are about host memory.
    pub fn is_host(&self) -> bool {
        self.device.as_ref().is_some_and(GpuUuid::is_host)
    }

    /// Returns whether its device uses the machine's memory as its own.
    pub fn is_unified(&self) -> bool {
        self.memory_kind == Some(DeviceMemoryKind::Unified)
    }
}

/// The figures of one step, as its process saw them. They travel as a whole from the record to
/// the state and the status, named as in records.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct StepFigures {
    /// The global step just completed.
    pub step: Count,
    /// The step's duration.
    pub step_seconds: Option<Seconds>,
    /// Live tensor memory at its end.
    #[serde(rename = "allocated_bytes")]
    pub allocated: Bytes,
    /// Bytes that the program requested in it, before the allocator rounds up.
    #[serde(rename = "requested_bytes")]
    pub requested: Option<Bytes>,
    /// Blocks of the allocator that are live at its end.
    pub live_blocks: Option<Count>,
    /// Maximum of allocated within the steps that the record stands for.
    #[serde(rename = "peak_allocated_bytes")]
    pub peak_allocated: Option<Bytes>,
    /// Bytes that the caching allocator held from the driver at its end.
    #[serde(rename = "reserved_bytes")]
    pub reserved: Option<Bytes>,
    /// Maximum of reserved within these steps.
    #[serde(rename = "peak_reserved_bytes")]
    pub peak_reserved: Option<Bytes>,
    /// Bytes that it held for private pools: those of CUDA graphs and of `MemPool`s.
    #[serde(rename = "private_pools_bytes")]
    pub private_pools: Option<Bytes>,
    /// Free parts of split blocks.
    #[serde(rename = "inactive_split_bytes")]
    pub inactive_split: Option<Bytes>,
    /// Failed mallocs that flushed the cache, since the process started.
    pub alloc_retries: Option<Count>,
    /// Out-of-memory errors, since the process started.
    pub ooms: Option<Count>,
    /// Records that the client gave up before this one, since the process started.
    pub dropped_records: Option<Count>,
    /// The device's free memory as the process saw it.
    #[serde(rename = "free_bytes")]
    pub free: Option<Bytes>,
}

/// One completed step of one rank as its training process saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSample {
    /// The run.
    pub run: Run,
    /// The rank within the run.
    pub rank: Rank,
    /// The names of the process and of its device.
    pub identity: Identity,
    /// The memory and the time of the step.
    pub figures: StepFigures,
    /// Number of train steps that the record stands for: this one, and those before it whose
    /// memory was not read; 1 to [`STEPS_PER_RECORD_MAX`].
    pub n_steps: u32,
    /// The time at which the step ended, as a Unix time; `None` means on arrival.
    pub time: Option<Seconds>,
    /// The phase that ran since the last record.
    pub phase: Phase,
    /// The name of that phase, if the program gave it one.
    pub phase_name: Option<PhaseName>,
    /// Further events since then.
    pub marks: MarkSet,
    /// The pushing process.
    pub instance: Option<Instance>,
    /// The launch that it belongs to.
    pub launch: Option<Launch>,
    /// Maximum of allocated since the client's process began.
    pub high_water_allocated: Option<Bytes>,
    /// Maximum of reserved since the client's process began.
    pub high_water_reserved: Option<Bytes>,
    /// The process's own memory on the device, where NVML was read since the last record.
    pub own_process: Option<OwnProcessMemory>,
    /// Host memory in addition to `allocated`, as far as it was read.
    pub host: Option<Box<HostParts>>,
    /// The container that the process runs in, where it was read since the last record.
    pub container: Option<Box<ContainerReading>>,
}

impl StepSample {
    /// Returns the rank that it is of.
    pub fn id(&self) -> RankId {
        RankId { run: self.run.clone(), rank: self.rank }
    }

    /// Returns whether two figures contradict each other: a peak or a high-water mark below its
    /// current value, reserved below allocated, or allocated above the total. Pluggable
    /// allocators and managed memory do that.
    pub fn is_inconsistent(&self) -> bool {
        let below =
            |upper: Option<Bytes>, lower: Bytes| upper.is_some_and(|upper| upper < lower);
        let StepFigures { allocated, peak_allocated, reserved, peak_reserved, free, .. } =
            self.figures;
        let total = self.identity.total;
        below(peak_allocated, allocated)
            || below(self.high_water_allocated, peak_allocated.unwrap_or(allocated))
            || below(reserved, allocated)
            || reserved.is_some_and(|reserved| below(peak_reserved, reserved))
            || below(total, allocated)
            || free.is_some_and(|free| below(total, free))
    }
}
