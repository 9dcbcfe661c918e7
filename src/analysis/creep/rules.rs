//! The settings of the estimator: warm-ups, the horizon, and the thresholds of each signal.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::without::Without;

/// Train pushes to skip at the start of a life: lazy optimizer state, autotuning, skipped AMP
/// steps.
pub(super) const WARMUP_PUSHES: u32 = 96;
/// Time to skip at the start of a process that does not push: it loads its model and its cache
/// settles.
const PROCESS_WARMUP_SECONDS: f64 = 600.0;
/// Growth that leaves more time than this is left to a later window: three days, a long
/// weekend.
const HORIZON_SECONDS: f64 = 72.0 * 3600.0;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct CreepSettings {
    /// A budget in bytes, above 0: where less than the capacity, growth is judged against it.
    pub capacity: Option<f64>,
    /// Train pushes to skip at the start of a life.
    pub warmup_pushes: u32,
    /// Seconds to skip after the first reading of a process that does not push.
    pub process_warmup_seconds: f64,
    /// A leak that leaves more time than this does not become `Stage::Creeping`.
    pub horizon_seconds: f64,
    /// Thresholds for live memory.
    pub allocated: SignalRules,
    /// Thresholds for reserved memory.
    pub reserved: SignalRules,
    /// Thresholds for memory outside the allocator.
    pub outside_allocator: SignalRules,
    /// Thresholds for a process that does not push.
    pub process: SignalRules,
    /// What is left out, to measure its worth.
    #[serde(skip)]
    pub without: Without,
}

impl CreepSettings {
    /// Returns what growth is judged against, in bytes: the `known` capacity or the budget,
    /// whichever is less.
    pub fn capacity(&self, known: Option<f64>) -> Option<f64> {
        let known = known.filter(|bytes| *bytes > 0.0);
        known.into_iter().chain(self.capacity).reduce(f64::min)
    }

    /// Returns the rules of a signal.
    pub fn rules(&self, signal: Signal) -> &SignalRules {
        match signal {
            Signal::Allocated => &self.allocated,
            Signal::Reserved => &self.reserved,
            Signal::OutsideAllocator => &self.outside_allocator,
            Signal::Process => &self.process,
        }
    }
}

impl Default for CreepSettings {
    fn default() -> Self {
        Self {
            capacity: None,
            warmup_pushes: WARMUP_PUSHES,
            process_warmup_seconds: PROCESS_WARMUP_SECONDS,
            horizon_seconds: HORIZON_SECONDS,
            allocated: SignalRules::ALLOCATED,
            reserved: SignalRules::RESERVED,
            outside_allocator: SignalRules::OUTSIDE_ALLOCATOR,
            process: SignalRules::PROCESS,
            without: Without::default(),
        }
    }
}

/// The thresholds of one signal.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct SignalRules {
    /// The growth of a `Stage::Rising` trend as a share of headroom and growth, 0 to 1.
    pub rising_share_ratio: f64,
    /// The same for a `Stage::Creeping` trend.
    pub creeping_share_ratio: f64,
    /// The share from which a window shorter than `records_min` may call `Stage::Creeping`;
    /// above 1: never.
    pub urgent_share_ratio: f64,
    /// The fewest equal moves that the window's path must be worth; a random walk reaches the
    /// root of this number, √10 = 3.2 standard deviations, once in 1,300 windows.
    pub straightness_min: f64,
    /// The fewest blocks in a window.
    pub blocks_min: usize,
    /// The fewest records between a window's first and last block for `Stage::Creeping`.
    pub records_min: f64,
    /// Windows with fewer records than this must show larger shares.
    pub records_full: f64,
    /// The share of the memory above the peak that counts as headroom although the allocator
    /// caches it, 0 to 1.
    pub peak_weight: f64,
}

impl SignalRules {
    /// The rules of [`Signal::Allocated`], tuned on simulated jobs: 1 of 780 healthy ones
    /// paged.
    pub const ALLOCATED: Self = Self {
        rising_share_ratio: 0.02,
        creeping_share_ratio: 0.07,
        urgent_share_ratio: 0.30,
        straightness_min: 10.0,
        blocks_min: 12,
        records_min: 256.0,
        records_full: 2048.0,
        peak_weight: 0.5,
    };
    /// The rules of [`Signal::Reserved`]: caches settle for long, so that only long windows
    /// count.
    pub const RESERVED: Self = Self {
        rising_share_ratio: 0.03,
        creeping_share_ratio: 0.08,
        urgent_share_ratio: 9.0,
        blocks_min: 16,
        records_min: 2048.0,
        ..Self::ALLOCATED
    };
    /// The rules of [`Signal::Process`], whose records are readings of what a caching allocator
    /// holds: a staircase while it settles, so that short windows must show much.
    pub const PROCESS: Self = Self {
        rising_share_ratio: 0.04,
        creeping_share_ratio: 0.15,
        blocks_min: 16,
        records_min: 60.0,
        records_full: 720.0,
        ..Self::OUTSIDE_ALLOCATOR
    };
    /// The rules of [`Signal::OutsideAllocator`], whose records are readings: few and slow.
    pub const OUTSIDE_ALLOCATOR: Self = Self {
        rising_share_ratio: 0.03,
        creeping_share_ratio: 0.08,
        urgent_share_ratio: 9.0,
        straightness_min: 9.0,
        records_min: 20.0,
        records_full: 1.0,
        peak_weight: 0.0,
        ..Self::ALLOCATED
    };
}

/// The thresholds of growth since the first records of a life.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SurgeRules {
    /// The record that growth is counted from; 1 for the first.
    pub first_record: u32,
    /// Records per block at first.
    pub records_per_block: u32,
    /// The fewest blocks to judge.
    pub blocks_min: usize,
    /// After this many records only growth that was found is followed further.
    pub records_max: u32,
    /// The same in units of the axis.
    pub span_max: f64,
    /// The fewest equal moves that the path must be worth.
    pub straightness_min: f64,
    /// The same of growth that set in after the first records: it is counted from where it suits it best.
    pub later_straightness_min: f64,
    /// The least gain of the last quarter as a share of the first quarter's.
    pub steady_ratio: f64,
    /// The most growth as a share of the bytes held at the start.
    pub growth_of_held_max: f64,
    /// The longest time to the end, in times of the growth seen so far.
    pub left_of_seen_max: f64,
    /// The growth of a `Stage::Rising` trend.
    pub rising: SurgeShare,
    /// The growth of a `Stage::Creeping` trend.
    pub creeping: SurgeShare,
}

/// A share of what was left at the start; growth over few records must take more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SurgeShare {
    /// Of at most `FEW` records.
    pub few: f64,
    /// Of however many.
    pub least: f64,
}

impl SurgeShare {
    /// From this number of records on the share falls with the root of their number, as noise
    /// does.
    const FEW: f64 = 40.0;

    /// Returns the share that growth over so many records must take.
    pub fn of(&self, n_records: f64) -> f64 {
        let lack = (Self::FEW / n_records.max(1.0)).sqrt().min(1.0);
        (self.few * lack).max(self.least)
    }
}

impl SurgeRules {
    /// Returns the rules of a signal; of one that has no surges those of live memory.
    pub fn of(signal: Signal) -> &'static Self {
        match signal {
            Signal::Process => &Self::PROCESS,
            Signal::Allocated | Signal::Reserved | Signal::OutsideAllocator => &Self::ALLOCATED,
        }
    }

    /// The rules of [`Signal::Allocated`]: a few steps until an optimizer has its state, then
    /// steeper and straighter growth than a cache's that fits.
    const ALLOCATED: Self = Self {
        first_record: 12,
        records_per_block: 2,
        blocks_min: 12,
        records_max: 1024,
        span_max: f64::INFINITY,
        straightness_min: 10.0,
        later_straightness_min: 16.0,
        // A cache that fills exponentially passes until it holds 1 - 0.93² = 13.5 % of its size:
        // one that fits never takes the share of a creep.
        steady_ratio: 0.93,
        growth_of_held_max: f64::INFINITY,
        left_of_seen_max: 10.0,
        rising: SurgeShare { few: 0.15, least: 0.10 },
        // Garbage that waits for its collection takes at most 12 % on simulated jobs.
        creeping: SurgeShare { few: 0.25, least: 0.13 },
    };
    /// The rules of [`Signal::Process`], counted in seconds: a model that is loaded grows in a
    /// straight line from next to nothing, so that growth beyond what was held at first is left
    /// to windows after the warm-up.
    const PROCESS: Self = Self {
        first_record: 1,
        records_per_block: 1,
        blocks_min: 11,
        records_max: 120,
        span_max: 1200.0,
        straightness_min: 9.0,
        steady_ratio: 0.9,
        growth_of_held_max: 1.0,
        rising: SurgeShare { few: 0.10, least: 0.10 },
        creeping: SurgeShare { few: 0.20, least: 0.20 },
        ..Self::ALLOCATED
    };
}
