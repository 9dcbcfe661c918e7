//! The processes that hold device memory without pushing: a window each, as if each were the only rank of a run of its
//! own. Which devices they are looked for on is decided elsewhere.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::analysis::creep::rules::CreepSettings;
use crate::analysis::rank::window::{DeviceView, RankWindow};
use crate::model::device::{GpuSample, ProcessMemory};
use crate::model::ids::{Rank, Run};
use crate::model::units::Uptime;

/// How many processes that do not push are judged, over all devices: as many as 8 devices of 8.
pub const PROCESSES_JUDGED_MAX: usize = 64;

/// How processes that do not push are looked at.
#[derive(Clone, Copy, Debug)]
pub struct ProcessSettings {
    /// The estimator's settings.
    pub creep: CreepSettings,
    /// Readings of a process reach its estimator at most this often, in seconds: it counts them.
    pub reading_every: f64,
    /// A process that was not listed for longer leaves every output.
    pub ttl: Duration,
}

/// A device as it was read.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    /// The device and its processes.
    pub sample: &'a GpuSample,
    /// When it was read.
    pub now: Uptime,
    /// The same as a Unix time.
    pub time: f64,
}

/// The processes that do not push, by the run that each stands for.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Processes {
    // Invariant: at most PROCESSES_JUDGED_MAX windows, each with a device and a pid.
    runs: BTreeMap<Run, BTreeMap<Rank, RankWindow>>,
}

impl Processes {
    /// Takes a reading of a device that no rank pushes about: whether a trend changed, and how many processes found no
    /// room.
    pub fn read(&mut self, reading: &Reading<'_>, settings: &ProcessSettings) -> (bool, u64) {
        let Reading { sample, now, time } = *reading;
        let mut largest_first: Vec<&ProcessMemory> =
            sample.processes.iter().filter(|process| process.used.is_some()).collect();
        largest_first.sort_by_key(|process| std::cmp::Reverse(process.used));
        let mut is_changed = false;
        let mut n_refused = 0;
        for process in largest_first {
            let Some(window) = self.window(reading, process.pid, settings) else {
                n_refused += 1;
                continue;
            };
            let view = DeviceView {
                total: sample.memory.map(|memory| memory.total),
                used: sample.memory.map(|memory| memory.used),
                process_used: process.used,
            };
            is_changed |= window.process(view, settings.reading_every, (now, time));
        }
        (is_changed, n_refused)
    }

    /// Forgets the processes of a device that a rank pushes about.
    pub fn leave(&mut self, sample: &GpuSample) {
        self.retain(|window| window.identity().device.as_ref() != Some(&sample.device));
    }

    /// Forgets the processes that were not listed for longer than `silence`.
    pub fn forget(&mut self, now: Uptime, silence: Duration) {
        self.retain(|window| now.since(window.last_seen()) <= silence);
    }

    /// Goes on with other settings, as after a restart of the exporter.
    pub fn configure(&mut self, creep: CreepSettings, peak_interval: Duration) {
        for window in self.runs.values_mut().flat_map(BTreeMap::values_mut) {
            window.configure(creep, peak_interval);
        }
    }

    /// Every process by the run and the rank that it stands for, ascending.
    pub fn runs(&self) -> impl Iterator<Item = (&Run, &BTreeMap<Rank, RankWindow>)> {
        self.runs.iter()
    }

    /// The process that stands for a rank.
    pub fn rank(&self, run: &Run, rank: Rank) -> Option<&RankWindow> {
        self.runs.get(run)?.get(&rank)
    }

    /// The window of a process on a device; `None` when there is no room for another.
    fn window(
        &mut self,
        reading: &Reading<'_>,
        pid: u32,
        settings: &ProcessSettings,
    ) -> Option<&mut RankWindow> {
        let run = Run::new(&format!("pid-{pid}")).ok()?;
        let device = &reading.sample.device;
        let is_it = |window: &RankWindow| window.identity().device.as_ref() == Some(device);
        let known = self
            .runs
            .get(&run)
            .and_then(|ranks| ranks.iter().find(|(_, window)| is_it(window)))
            .map(|(rank, _)| *rank);
        if known.is_none() && self.len() >= PROCESSES_JUDGED_MAX {
            self.forget(reading.now, settings.ttl);
            if self.len() >= PROCESSES_JUDGED_MAX {
                return None;
            }
        }
        let ranks = self.runs.entry(run).or_default();
        let free = || {
            let mut free = (0..=ranks.len())
                .filter_map(|rank| Rank::new(rank.try_into().ok()?).ok())
                .filter(|rank| !ranks.contains_key(rank));
            free.next()
        };
        let rank = known.or_else(free)?;
        Some(ranks.entry(rank).or_insert_with(|| {
            RankWindow::of_process(settings.creep, device.clone(), pid, reading.now)
        }))
    }

    fn len(&self) -> usize {
        self.runs.values().map(BTreeMap::len).sum()
    }

    fn retain(&mut self, is_kept: impl Fn(&RankWindow) -> bool) {
        for ranks in self.runs.values_mut() {
            ranks.retain(|_, window| is_kept(window));
        }
        self.runs.retain(|_, ranks| !ranks.is_empty());
    }
}
