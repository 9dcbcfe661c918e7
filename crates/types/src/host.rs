//! Host memory of a rank beyond the private memory of its process, and the container around it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Count, OutOfRange, checked_name, serialized};

/// A reading of such memory; what was not read is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostParts {
    /// Anonymous memory of the process and `shared`, of a rank whose other figures are a
    /// device's.
    pub allocated: Option<Bytes>,
    /// The host memory that its process may use, likewise.
    pub total: Option<Bytes>,
    /// The other figures of the host's memory.
    pub figures: HostFigures,
    /// `DataLoader` workers and other processes that `multiprocessing` started.
    pub workers: ProcessGroup,
    /// The other processes below the rank's, except those that are ranks.
    pub others: ProcessGroup,
    /// The kernel's limit of the process's private writable mappings (`ulimit -d`).
    pub data: KernelLimit,
    /// The kernel's limit of the process's address space (`ulimit -v`).
    pub address_space: KernelLimit,
    /// The figures of glibc's allocator about the process's memory.
    pub malloc: MallocReading,
}

/// The bytes that glibc's allocator has given out, and those that were freed and stay with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MallocReading {
    /// Bytes that it has given out.
    pub used: Option<Bytes>,
    /// Bytes that were freed and stay with it.
    pub free: Option<Bytes>,
    /// The part of both in arenas other than the first, which threads have.
    pub of_threads: Option<Bytes>,
}

/// Figures of host memory that state and status have as they were last read.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct HostFigures {
    /// Shared memory that the rank holds; in [`HostParts::allocated`], else in
    /// [`StepFigures::allocated`] where that is host memory.
    ///
    /// [`StepFigures::allocated`]: crate::step::StepFigures::allocated
    #[serde(rename = "shared_bytes")]
    pub shared: Option<Bytes>,
    /// The part of `shared` that is one n-th of segments that n ranks hold.
    #[serde(rename = "split_bytes")]
    pub split: Option<Bytes>,
    /// Pinned (page-locked) memory that PyTorch's allocator for it holds, in use or cached.
    #[serde(rename = "pinned_bytes")]
    pub pinned: Option<Bytes>,
    /// Anonymous memory that child processes share with others, each page counted in each of
    /// them: what they take in addition if no page stays shared.
    #[serde(rename = "children_shared_bytes")]
    pub children_shared: Option<Bytes>,
    /// Child processes beyond those that the client reads.
    pub children_unread: Option<u32>,
    /// Bytes of the files in `/dev/shm`, whoever made them.
    #[serde(rename = "shm_used_bytes")]
    pub shm_used: Option<Bytes>,
    /// The most that fits into it.
    #[serde(rename = "shm_limit_bytes")]
    pub shm_limit: Option<Bytes>,
}

impl HostParts {
    /// Returns whether child processes were read.
    pub fn has_children(&self) -> bool {
        self.workers.count.or(self.others.count).is_some()
    }
}

impl HostFigures {
    /// Returns these, and those of `before` that were not read since.
    #[must_use]
    pub fn or(self, before: Self) -> Self {
        Self {
            shared: self.shared.or(before.shared),
            split: self.split.or(before.split),
            pinned: self.pinned.or(before.pinned),
            children_shared: self.children_shared.or(before.children_shared),
            children_unread: self.children_unread.or(before.children_unread),
            shm_used: self.shm_used.or(before.shm_used),
            shm_limit: self.shm_limit.or(before.shm_limit),
        }
    }
}

/// A limit of the kernel, and the figure that it limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelLimit {
    /// The limit; `None` where none is known.
    pub limit: Option<Bytes>,
    /// The figure that it limits.
    pub used: Option<Bytes>,
}

/// Processes below a rank's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessGroup {
    /// Number of processes.
    pub count: Option<u32>,
    /// The memory that they share with no other process; `None` where it could not be read.
    pub bytes: Option<Bytes>,
    /// The part of it that they hold of their own: without pages that only stopped being shared
    /// since a process was first read; `None` where it could not be read.
    pub own: Option<Bytes>,
}

/// The name of a control group with a limit: that of a container, or one around it. It is the
/// same for all processes of the group, and no other group has it.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ContainerId(Box<str>);

impl ContainerId {
    /// The longest name that is taken, in bytes.
    pub const BYTES_MAX: usize = 64;

    /// Takes a name of 1 to [`Self::BYTES_MAX`] bytes without control or invisible characters,
    /// not only blanks.
    ///
    /// # Errors
    ///
    /// Names the limit that `text` breaks.
    pub fn new(text: &str) -> Result<Self, OutOfRange> {
        checked_name(text, Self::BYTES_MAX).map(Self)
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

serialized!(ContainerId as Cow<'de, str>, serialize_str, as_str, |read| ContainerId::new(
    &read
));

/// A reading of the control group that limits the host memory of a rank's process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ContainerReading {
    /// The name of the control group.
    pub id: ContainerId,
    /// The most that its processes may use.
    #[serde(rename = "limit_bytes")]
    pub limit: Bytes,
    /// Memory that the kernel cannot reclaim: anonymous, shared and its own.
    #[serde(rename = "used_bytes")]
    pub used: Option<Bytes>,
    /// Processes of the group that the kernel killed for lack of memory.
    pub oom_kills: Option<Count>,
}

/// The memory of a pod, or of one of its containers, as the control groups of its node show it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PodMemory {
    /// The process's control group, by the name that clients in it give it.
    #[serde(rename = "cgroup")]
    pub group: Option<ContainerId>,
    /// The id of the pod.
    pub pod_uid: Box<str>,
    /// `None` of the pod itself.
    pub container_id: Option<Box<str>>,
    /// `None` without a limit.
    #[serde(rename = "limit_bytes")]
    pub limit: Option<Bytes>,
    /// Memory that the kernel cannot reclaim; `None` without a limit.
    #[serde(rename = "used_bytes")]
    pub used: Option<Bytes>,
    /// Processes that the kernel killed for lack of memory: of a pod and all of its containers
    /// in version 2 of control groups, of a container in version 1.
    pub oom_kills: Option<Count>,
}

impl ContainerReading {
    /// Returns the bytes that are left until the limit.
    pub fn headroom_bytes(&self) -> Option<f64> {
        Some((self.limit.as_f64() - self.used?.as_f64()).max(0.0))
    }

    /// Returns the share of the limit that is used.
    pub fn used_ratio(&self) -> Option<f64> {
        Some(self.used?.as_f64() / self.limit.as_f64())
    }
}
