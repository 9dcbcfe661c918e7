//! What the engine may hold and how it judges.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::diagnosis::scene::Thresholds;
use crate::processes::ProcessSettings;
use crate::ranks::table::RankSettings;
use crate::requests::causes::LOOKS_COOLDOWN;
use crate::requests::snapshots::CaptureSettings;
use stepmem_detect::config::Config as DetectConfig;
use stepmem_types::ids::Run;

/// What the engine may hold and how it judges.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The limits of findings.
    pub thresholds: Thresholds,
    pub creep: DetectConfig,
    /// How many train pushes at the start of a life are not used, of runs that have a number of their own.
    pub warmup_pushes: BTreeMap<Run, u32>,
    /// A rank silent for longer leaves every output.
    pub rank_ttl: Duration,
    /// A rank silent for longer is forgotten.
    pub rank_retention: Duration,
    /// How many ranks are held, over all runs.
    pub ranks_max: usize,
    /// How many runs are held.
    pub runs_max: usize,
    /// A device that was not read for longer leaves every output.
    pub gpu_ttl: Duration,
    /// How many processes a device are told apart.
    pub processes_max: usize,
    /// The length of the intervals of the interval peak.
    pub peak_interval: Duration,
    /// How often the detector of a process that does not push gets a reading.
    pub process_reading_every: Duration,
    /// When ranks are asked for memory snapshots.
    pub captures: CaptureSettings,
    /// Whether ranks whose live memory grows are asked to look at their live objects.
    pub looks_on_creep: bool,
    /// From one look of a run to the next while its memory grows.
    pub looks_cooldown: Duration,
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
            captures: CaptureSettings::default(),
            looks_on_creep: false,
            looks_cooldown: LOOKS_COOLDOWN,
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

    /// Returns the settings of processes that do not push.
    pub fn processes(&self) -> ProcessSettings {
        ProcessSettings {
            creep: self.creep,
            reading_every: self.process_reading_every.as_secs_f64(),
            ttl: self.gpu_ttl,
        }
    }
}
