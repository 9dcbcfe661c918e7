//! One step of one rank, as its training process reports it.

use crate::device::{DeviceMemoryKind, OwnProcessMemory};
use crate::host::{ContainerReading, HostParts};
use crate::ids::{GpuUuid, Rank, Run};
use crate::launch::{Instance, Launch};
use crate::units::{Bytes, Count, Seconds};

// Same name as detect::trend::Phase: there it is of growth, here of training.
/// The phases that ran since the rank's last record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    #[default]
    Train,
    Eval,
    /// Writing a checkpoint.
    Checkpoint,
    /// The model ran without optimizer steps: the record is a sample by time.
    Sample,
    /// Neither steps nor the model ran: the record shows that the process is alive.
    Idle,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Self; 5] =
        [Self::Train, Self::Eval, Self::Checkpoint, Self::Sample, Self::Idle];

    /// Returns its name in records on the wire.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Eval => "eval",
            Self::Checkpoint => "checkpoint",
            Self::Sample => "sample",
            Self::Idle => "idle",
        }
    }

    /// Returns whether the process sends the record by time, and not for something that ended.
    pub fn is_by_time(self) -> bool {
        matches!(self, Self::Sample | Self::Idle)
    }
}

/// An event since the rank's last record after which its memory may hold more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepMark {
    Eval,
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

    /// Returns the event markers.
    pub fn iter(self) -> impl Iterator<Item = StepMark> {
        StepMark::ALL
            .into_iter()
            .zip(self.0)
            .filter_map(|(mark, is_set)| is_set.then_some(mark))
    }
}

/// A record stands for at most this many train steps.
pub const STEPS_PER_RECORD_MAX: u32 = 1_000_000;

/// One completed step of one rank as its training process saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSample {
    pub run: Run,
    /// Restart count of the run.
    pub attempt: Count,
    pub rank: Rank,
    /// The rank within its node.
    pub local_rank: Option<Rank>,
    /// Number of ranks of the run, 1 to [`Rank::MAX`] + 1.
    pub world_size: Option<u32>,
    pub node_rank: Option<Rank>,
    /// The global step just completed.
    pub step: Count,
    /// Number of train steps that the record stands for: this one, and those before it whose
    /// memory was not read; 1 to [`STEPS_PER_RECORD_MAX`].
    pub n_steps: u32,
    /// When the step ended, as a Unix time; `None` means on arrival.
    pub time: Option<Seconds>,
    /// The duration of the step.
    pub step_seconds: Option<Seconds>,
    /// The phase that ran since the last record.
    pub phase: Phase,
    /// Further events since then.
    pub marks: MarkSet,
    /// The device that the figures are about.
    pub device: Option<GpuUuid>,
    /// The kind of its memory, where that is not its own alone.
    pub memory_kind: Option<DeviceMemoryKind>,
    /// The client's process id in its own namespace.
    pub pid: Option<u32>,
    /// The pushing process.
    pub instance: Option<Instance>,
    /// The launch that it belongs to.
    pub launch: Option<Launch>,
    /// Live tensor memory at the end of the step.
    pub allocated: Bytes,
    /// Bytes that the program requested in it, before the allocator rounds up.
    pub requested: Option<Bytes>,
    /// Maximum of allocated within the steps that the record stands for.
    pub peak_allocated: Option<Bytes>,
    /// Bytes that the caching allocator holds from the driver.
    pub reserved: Option<Bytes>,
    /// Maximum of reserved within these steps.
    pub peak_reserved: Option<Bytes>,
    /// Maximum of allocated since the client's process began.
    pub high_water_allocated: Option<Bytes>,
    /// Maximum of reserved since the client's process began.
    pub high_water_reserved: Option<Bytes>,
    /// Free parts of split blocks.
    pub inactive_split: Option<Bytes>,
    /// Failed mallocs that flushed the cache, since the process started.
    pub alloc_retries: Option<Count>,
    /// Out-of-memory errors, since the process started.
    pub ooms: Option<Count>,
    /// Records that the client gave up before this one, since its process started.
    pub dropped_records: Option<Count>,
    /// The device's capacity as the process sees it.
    pub total: Option<Bytes>,
    /// The device's free memory as the process sees it.
    pub free: Option<Bytes>,
    /// The process's own memory on the device, where NVML was read since the last record.
    pub own_process: Option<OwnProcessMemory>,
    /// Host memory in addition to `allocated`, as far as it was read.
    pub host: Option<Box<HostParts>>,
    /// The container that the process runs in, where it was read since the last record.
    pub container: Option<Box<ContainerReading>>,
}

impl StepSample {
    /// Returns whether two figures contradict each other: a peak or a high-water mark below its
    /// current value, reserved below allocated, or allocated above the total. Pluggable
    /// allocators and managed memory do that.
    pub fn is_inconsistent(&self) -> bool {
        let below =
            |upper: Option<Bytes>, lower: Bytes| upper.is_some_and(|upper| upper < lower);
        below(self.peak_allocated, self.allocated)
            || below(self.high_water_allocated, self.peak_allocated.unwrap_or(self.allocated))
            || below(self.reserved, self.allocated)
            || self.reserved.is_some_and(|reserved| below(self.peak_reserved, reserved))
            || below(self.total, self.allocated)
            || self.free.is_some_and(|free| below(self.total, free))
    }
}
