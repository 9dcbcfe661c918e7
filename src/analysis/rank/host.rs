//! Host memory beyond that of a rank's own process: shared memory, `DataLoader` workers, other child processes.

use serde::{Deserialize, Serialize};

use crate::analysis::estimate;
use crate::model::host::{HostParts, ProcessGroup};
use crate::model::units::{Bytes, Count};

/// Readings of child processes that are kept; with more, every other one is given up.
const POINTS_MAX: usize = estimate::POINTS_MAX;
/// Readings that a slope needs.
const POINTS_MIN: usize = 4;
/// The part of the steps between two readings that the slope takes.
const GAP_RATIO: f64 = 0.1;
/// Processes that hold less than this share of what they held before have been replaced.
const REPLACED_RATIO: f64 = 0.75;

/// Shared memory and child processes of a rank, as far as they are known.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct HostMemory {
    shared: Option<Bytes>,
    split: Option<Bytes>,
    workers: ChildProcesses,
    others: ChildProcesses,
}

impl HostMemory {
    /// Takes a reading of step `step`.
    pub fn take(&mut self, parts: &HostParts, step: Count) {
        self.shared = parts.shared.or(self.shared);
        self.split = parts.split.or(self.split);
        self.workers.take(parts.workers, step);
        self.others.take(parts.others, step);
    }

    /// Returns what others see of it, not in words yet.
    pub fn view(&self) -> HostView {
        HostView {
            shared_bytes: self.shared,
            split_bytes: self.split,
            workers: self.workers.view(),
            child_processes: self.others.view(),
            sentence: String::new(),
        }
    }
}

/// The last reading of child processes that were there, and the readings before.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct ChildProcesses {
    count: u32,
    bytes: Option<Bytes>,
    step: Count,
    is_over: bool,
    bytes_per_step: Option<f64>,
    /// Step and bytes of readings since these processes were started.
    points: Vec<(f64, f64)>,
}

impl ChildProcesses {
    fn take(&mut self, reading: ProcessGroup, step: Count) {
        let Some(count) = reading.count else { return };
        if count == 0 {
            self.is_over = true;
            return;
        }
        let now = reading.bytes.map(Bytes::as_f64);
        let last = self.points.last().map(|(_, bytes)| *bytes);
        let is_less = now.zip(last).is_some_and(|(now, last)| now < REPLACED_RATIO * last);
        if self.is_over || count != self.count || is_less {
            self.points.clear();
            self.bytes_per_step = None;
        }
        (self.count, self.bytes, self.step, self.is_over) = (count, reading.bytes, step, false);
        let Some(now) = now else { return };
        if self.points.len() >= POINTS_MAX {
            let mut is_kept = false;
            self.points.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        }
        self.points.push((step.as_f64(), now));
        self.bytes_per_step = self.slope();
    }

    /// Returns how fast they grow, in bytes per step: over readings that are [`GAP_RATIO`] of the steps apart or more, since the first
    /// ones come much closer than the last ones.
    fn slope(&self) -> Option<f64> {
        let (first, last) = (self.points.first()?.0, self.points.last()?.0);
        let gap = GAP_RATIO * (last - first);
        let mut spread: Vec<(f64, f64)> = Vec::with_capacity(self.points.len());
        for point in self.points.iter().rev() {
            if spread.last().is_none_or(|(later, _)| later - point.0 >= gap) {
                spread.push(*point);
            }
        }
        spread.reverse();
        let line = (spread.len() >= POINTS_MIN).then(|| estimate::theil_sen(&spread))??;
        Some(line.slope)
    }

    fn view(&self) -> Option<ChildView> {
        (self.count > 0).then_some(ChildView {
            count: self.count,
            bytes: self.bytes,
            bytes_per_step: self.bytes_per_step,
            step: self.step,
            ended: self.is_over,
        })
    }
}

/// Host memory of a rank beyond that of its process.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct HostView {
    /// Shared memory that the rank holds, a part of what it has allocated where that is host memory.
    pub shared_bytes: Option<Bytes>,
    /// The part of it that is one n-th of segments that n ranks hold.
    pub split_bytes: Option<Bytes>,
    /// `DataLoader` workers, and other processes that `multiprocessing` started; absent if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<ChildView>,
    /// Other child processes that are not ranks; absent if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child_processes: Option<ChildView>,
    /// The same in words; empty if there is next to nothing.
    pub sentence: String,
}

/// Processes below a rank's, as they were read last.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct ChildView {
    pub count: u32,
    /// The memory that they share with no other process; `null` where it cannot be read.
    pub bytes: Option<Bytes>,
    /// Growth of that; `null` until there is an estimate.
    pub bytes_per_step: Option<f64>,
    /// The step at which they were read.
    pub step: Count,
    /// Whether they have ended since.
    pub ended: bool,
}
