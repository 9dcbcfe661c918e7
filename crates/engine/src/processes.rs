//! The unmanaged processes: they hold device memory, and nobody pushes for them. The devices to
//! search are decided elsewhere.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ranks::peaks::{RecentPeaks, StepPeaks};
use stepmem_detect::{Asked, Config as DetectConfig, Detector, DeviceReading, Outlook, Signal};
use stepmem_types::device::{GpuSample, ProcessMemory};
use stepmem_types::ids::{GpuUuid, ProcessId};
use stepmem_types::saved;
use stepmem_types::units::{Bytes, UnixTime, Uptime};

/// Number of unmanaged processes that are judged, over all devices: as many as 8 devices of 8.
pub(crate) const PROCESSES_JUDGED_MAX: usize = 64;

/// A process that holds less than this share of what it held is another one with the same id,
/// or begins again.
const FALL_RATIO: f64 = 0.25;

/// The settings for unmanaged processes.
#[derive(Clone, Copy, Debug)]
pub struct ProcessSettings {
    pub creep: DetectConfig,
    /// Readings of a process reach its detector at most this often, in seconds: it counts them.
    pub reading_every: f64,
    /// A process that was not listed for longer leaves every output.
    pub ttl: Duration,
}

/// A device as it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'a> {
    /// The device and its processes.
    pub sample: &'a GpuSample,
    /// The time when it was read.
    pub now: Uptime,
    /// The time when it was read, as a Unix time.
    pub time: f64,
}

/// The outcome of one reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadingResult {
    /// Set when a trend changed.
    pub is_changed: bool,
    /// Number of processes that were over the limit.
    pub n_refused: u64,
}

/// The unmanaged processes.
#[derive(Debug, Default)]
pub(crate) struct ProcessTable {
    // Invariant: at most PROCESSES_JUDGED_MAX.
    processes: BTreeMap<ProcessId, ProcessState>,
}

/// An unmanaged process.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ProcessState {
    creep: Detector,
    last_seen: Uptime,
    /// Bytes that it holds on the device.
    used: Bytes,
    /// The most that it recently held: all of it counts as reserved, since the driver knows no
    /// more.
    recent: RecentPeaks,
    /// The capacity of the device.
    device_total: Option<Bytes>,
    /// The time when the detector last took a reading, as a Unix time.
    #[serde(deserialize_with = "saved::times")]
    read_at: Option<f64>,
}

/// The public view of one process at one time.
#[derive(Clone, Copy, Debug)]
pub struct ProcessView<'a> {
    /// Bytes that it holds on the device.
    pub used: Bytes,
    /// The most that it held in the last ten minutes, or 512 readings.
    pub recent_peak: Option<Bytes>,
    /// The capacity of the device; `None` where the driver does not report it.
    pub capacity: Option<Bytes>,
    /// The detector, for its trends and slopes.
    pub creep: &'a Detector,
    /// The time when it was last listed.
    pub last_seen: Uptime,
    /// The facts with which its outlook is asked for.
    pub asked: Asked,
}

impl ProcessView<'_> {
    /// Returns the outlook of its growth, as of now; `None` where it shows none.
    pub fn outlook(&self) -> Option<Outlook> {
        let capacity = self.capacity.map(Bytes::as_f64);
        self.creep.outlook(Signal::Process, capacity, &self.asked)
    }

    /// Returns the bytes that the process can still take before its device is full. They are
    /// the capacity less what others hold less what it holds, at least 0.
    pub fn headroom_bytes(&self) -> Option<f64> {
        let others = self.creep.outside_bytes().unwrap_or(0.0);
        Some((self.capacity?.as_f64() - others - self.used.as_f64()).max(0.0))
    }
}

impl ProcessTable {
    /// Adds a process of an earlier exporter.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn insert(&mut self, id: ProcessId, state: ProcessState) -> Result<(), String> {
        if self.processes.len() >= PROCESSES_JUDGED_MAX {
            return Err(format!("its processes exceed {PROCESSES_JUDGED_MAX}"));
        }
        self.processes.insert(id, state);
        Ok(())
    }

    /// Returns the first process, or the first after another.
    pub(crate) fn first_after(
        &self,
        after: Option<&ProcessId>,
    ) -> Option<(&ProcessId, &ProcessState)> {
        self.processes.range((after.map_or(Unbounded, Excluded), Unbounded)).next()
    }

    /// Takes a reading of a device that no rank pushes about; the largest processes are taken
    /// first.
    pub(crate) fn read(
        &mut self,
        reading: &Reading<'_>,
        settings: &ProcessSettings,
    ) -> ReadingResult {
        let mut largest_first: Vec<&ProcessMemory> =
            reading.sample.processes.iter().filter(|process| process.used.is_some()).collect();
        largest_first.sort_by_key(|process| std::cmp::Reverse(process.used));
        let mut result = ReadingResult::default();
        for process in largest_first {
            let (Some(state), Some(used)) =
                (self.state(reading, process.pid, settings), process.used)
            else {
                result.n_refused += 1;
                continue;
            };
            result.is_changed |= state.read(reading, used, settings.reading_every);
        }
        result
    }

    /// Forgets the processes of a device that a rank pushes about.
    pub(crate) fn leave(&mut self, device: &GpuUuid) {
        self.processes.retain(|id, _| id.uuid != *device);
    }

    /// Forgets the processes that were not listed for longer than `silence`.
    pub(crate) fn forget(&mut self, now: Uptime, silence: Duration) {
        self.processes.retain(|_, process| now.since(process.last_seen) <= silence);
    }

    /// Goes on with other settings, as after a restart of the exporter.
    pub(crate) fn configure(&mut self, creep: &DetectConfig) {
        for process in self.processes.values_mut() {
            process.creep.configure(*creep);
        }
    }

    /// Returns every process that was listed within `ttl`, ascending.
    pub(crate) fn present(
        &self,
        now: Uptime,
        ttl: Duration,
    ) -> impl Iterator<Item = (&ProcessId, ProcessView<'_>)> {
        let present = self
            .processes
            .iter()
            .filter(move |(_, process)| now.since(process.last_seen) <= ttl);
        present.map(move |(id, process)| (id, process.view(now)))
    }

    /// Returns a process, present or not; `None` when it is not held.
    pub(crate) fn get(&self, id: &ProcessId, now: Uptime) -> Option<ProcessView<'_>> {
        self.processes.get(id).map(|process| process.view(now))
    }

    /// Returns the names of all processes that are held, ascending.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &ProcessId> {
        self.processes.keys()
    }

    /// The state of a process on a device; `None` when the limit is reached.
    fn state(
        &mut self,
        reading: &Reading<'_>,
        pid: u32,
        settings: &ProcessSettings,
    ) -> Option<&mut ProcessState> {
        let id = ProcessId { uuid: reading.sample.device.clone(), pid };
        if !self.processes.contains_key(&id) && self.processes.len() >= PROCESSES_JUDGED_MAX {
            self.forget(reading.now, settings.ttl);
            if self.processes.len() >= PROCESSES_JUDGED_MAX {
                return None;
            }
        }
        Some(self.processes.entry(id).or_insert_with(|| ProcessState {
            creep: Detector::of_process(settings.creep),
            last_seen: reading.now,
            used: Bytes::default(),
            recent: RecentPeaks::default(),
            device_total: None,
            read_at: None,
        }))
    }
}

impl ProcessState {
    /// Takes a reading; whether a trend changed by it.
    fn read(&mut self, reading: &Reading<'_>, used: Bytes, reading_every: f64) -> bool {
        self.last_seen = reading.now;
        let Some((total, device_used)) = reading.sample.capacity_and_use() else {
            self.device_total = None;
            return false;
        };
        self.device_total = Some(total);
        let before = std::mem::replace(&mut self.used, used).as_f64();
        let mut is_changed = false;
        if used.as_f64() < FALL_RATIO * before {
            is_changed = self.creep.trends().next().is_some();
            self.creep.restart();
        }
        let peaks = StepPeaks { reserved_known: Some(used), ..StepPeaks::default() };
        self.recent.add(peaks, reading.now);
        if self.read_at.is_some_and(|read_at| reading.time - read_at < reading_every) {
            return is_changed;
        }
        self.read_at = Some(reading.time);
        let Ok(time) = UnixTime::new(reading.time) else { return is_changed };
        let device = DeviceReading {
            time,
            device_used: device_used.as_f64(),
            process_used: Some(used.as_f64()),
        };
        let capacity = self.capacity().map(Bytes::as_f64);
        self.creep.process(&device, capacity) || is_changed
    }

    fn capacity(&self) -> Option<Bytes> {
        self.device_total.filter(|total| total.get() > 0)
    }

    fn view(&self, now: Uptime) -> ProcessView<'_> {
        ProcessView {
            used: self.used,
            recent_peak: self.recent.max().reserved_known,
            capacity: self.capacity(),
            creep: &self.creep,
            last_seen: self.last_seen,
            asked: Asked {
                silence_seconds: now.since(self.last_seen).as_secs_f64(),
                ..Asked::default()
            },
        }
    }
}
