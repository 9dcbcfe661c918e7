//! What the allocator of a rank's process reports of its memory, at times while that grows.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use stepmem_types::host::MallocReading;
use stepmem_types::saved;
use stepmem_types::units::{Bytes, Count};

/// Readings of a rank that are kept: those of the last minutes.
const READINGS_MAX: usize = 8;

/// The newest readings of a process.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct MallocReadings(
    // Invariant: at most READINGS_MAX, the oldest first.
    #[serde(deserialize_with = "saved::list::<_, _, READINGS_MAX>")] VecDeque<MallocPoint>,
);

/// A reading.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct MallocPoint {
    /// The step of the record that had it.
    pub step: Count,
    /// Host memory of the process at that step.
    pub held: Bytes,
    /// Given out by the allocator.
    pub used: Bytes,
    /// Freed, and kept by it.
    pub free: Bytes,
    /// The part of these two in arenas other than the first.
    pub of_threads: Option<Bytes>,
}

impl MallocReadings {
    /// Takes a reading of step `step`. `held`: the process's memory of the host.
    pub(super) fn take(&mut self, reading: MallocReading, held: Bytes, step: Count) {
        let Some((used, free)) = reading.used.zip(reading.free) else { return };
        if self.0.len() >= READINGS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(MallocPoint {
            step,
            held,
            used,
            free,
            of_threads: reading.of_threads,
        });
    }

    /// Returns the newest reading.
    pub fn newest(&self) -> Option<&MallocPoint> {
        self.0.back()
    }

    /// Returns the oldest reading from a position on the axis of steps on, or of all without one.
    pub(crate) fn oldest_from(&self, step: Option<f64>) -> Option<&MallocPoint> {
        self.0.iter().find(|of| step.is_none_or(|step| of.step.as_f64() >= step))
    }
}
