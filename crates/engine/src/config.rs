//! The engine's limits and its settings for judging.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::processes::ProcessSettings;
use crate::ranks::table::RankSettings;
use crate::requests::causes::HEAP_SCAN_COOLDOWN;
use crate::requests::checkpoint::CHECKPOINT_BEFORE;
use crate::requests::snapshots::SnapshotSettings;
use crate::thresholds::Thresholds;
use stepmem_detect::Config as DetectConfig;
use stepmem_types::ids::Run;

/// The engine's limits and its settings for judging.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The limits of findings.
    pub thresholds: Thresholds,
    /// The numbers by which growth is judged.
    pub creep: DetectConfig,
    /// Number of train records at the start of an incarnation that are not used, of runs that
    /// have a number of their own.
    pub warmup_pushes: BTreeMap<Run, u32>,
    /// A rank silent for longer leaves every output.
    pub rank_ttl: Duration,
    /// A rank silent for longer is forgotten.
    pub rank_retention: Duration,
    /// Number of ranks that are held at most, over all runs.
    pub ranks_max: usize,
    /// Number of runs that are held at most.
    pub runs_max: usize,
    /// A device that was not read for longer leaves every output.
    pub gpu_ttl: Duration,
    /// Number of processes that are listed one by one for each device.
    pub processes_max: usize,
    /// The length of the intervals of the interval peak.
    pub peak_interval: Duration,
    /// The interval at which the detector of an unmanaged process gets a reading.
    pub process_reading_every: Duration,
    /// The settings of memory snapshots: when ranks are asked for them.
    pub snapshots: SnapshotSettings,
    /// Set when ranks whose live memory grows are asked for a heap scan.
    pub heap_scans_on_creep: bool,
    /// The time from one heap scan of a run to the next while its memory grows.
    pub heap_scan_cooldown: Duration,
    /// Ranks are asked to checkpoint once memory may run out within this time; once in so long a
    /// time. 0 asks none.
    pub checkpoint_before: Duration,
    /// The declared workload of all runs, for summaries.
    pub workload: Option<Box<str>>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            thresholds: Thresholds::default(),
            creep: DetectConfig::default(),
            warmup_pushes: BTreeMap::new(),
            rank_ttl: Duration::from_mins(10),
            rank_retention: Duration::from_hours(6),
            ranks_max: 1024,
            runs_max: 64,
            gpu_ttl: Duration::from_secs(10),
            processes_max: 64,
            peak_interval: Duration::from_mins(1),
            process_reading_every: Duration::from_secs(10),
            snapshots: SnapshotSettings::default(),
            heap_scans_on_creep: false,
            heap_scan_cooldown: HEAP_SCAN_COOLDOWN,
            checkpoint_before: CHECKPOINT_BEFORE,
            workload: None,
        }
    }
}

impl EngineConfig {
    /// Returns the settings of the rank table.
    pub fn ranks(&self) -> RankSettings {
        RankSettings {
            creep: self.creep,
            warmup_pushes: self.warmup_pushes.clone(),
            ttl: self.rank_ttl,
            ranks_max: self.ranks_max,
            runs_max: self.runs_max,
            peak_interval: self.peak_interval,
        }
    }

    /// Returns the settings of unmanaged processes.
    pub fn processes(&self) -> ProcessSettings {
        ProcessSettings {
            creep: self.creep,
            reading_every: self.process_reading_every.as_secs_f64(),
            ttl: self.gpu_ttl,
        }
    }
}
