//! Every number that decides a finding or its forecast, with its unit and its reason.

use serde::{Deserialize, Serialize};
use stepmem_forecast::{Capacity, Signal};

use stepmem_types::units::{GIBIBYTE, MEBIBYTE};

/// The numbers of the detector, in the order of docs/detector/algorithm.md: the start, the
/// explanations in their order, each by its name, and what follows. Experiments change them; no
/// code is compiled in for one.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Config {
    /// A budget in bytes, above 0: where less than the capacity, growth is judged against it.
    pub budget: Option<f64>,
    /// Train samples left out at the start of an incarnation: caches warm up, lazy state is
    /// made.
    pub warmup_samples: u32,
    /// Seconds left out at the start of an unmanaged process that loads its model, unless it is
    /// level before.
    pub process_warmup_seconds: f64,
    /// The share of those for which it must be level.
    pub process_level_ratio: f64,
    /// Readings of memory outside the allocator, and of child processes, that are left out:
    /// libraries load.
    pub warmup_readings: u32,
    /// The time after the first reading in which memory outside the allocator is a process that
    /// starts: libraries load, compile and set buffers up, in a straight line at times.
    pub start_seconds: f64,
    /// The part of it in which nothing pages for that.
    pub start_quiet_seconds: f64,

    /// `too short`: the fewest blocks of a window.
    pub blocks_min: usize,
    /// `too short`: the fewest intervals between event markers: four equal increments. One fewer
    /// is MEMORY RISING.
    pub intervals_min: usize,
    /// The fewest samples of an interval between event markers.
    pub interval_samples_min: u32,
    /// A level shift without a marker is higher than this many times what memory varied by
    /// before it.
    pub shift_variations: f64,
    /// An object of the process grows with level shifts if it does by at least this share of
    /// those between two heap scans.
    pub shift_spanned_ratio: f64,
    /// The least seconds between two readings that are judged each by itself.
    pub rapid_seconds: f64,
    /// `too short`: the fewest of them: four equal increments.
    pub rapid_readings_min: usize,
    /// `small`: the least growth that counts, in bytes: less is within what allocators round.
    pub growth_min: f64,
    /// The share of that from which growth is suspected.
    pub suspected_ratio: f64,
    /// `random walk`: the normal quantile of the chance that a window of one passes: 1 in 14,000.
    pub walk_z: f64,
    /// `far off`: creep leaves at most this many seconds: a long weekend.
    pub horizon_seconds: f64,
    /// `far off`: the most seconds that are left by growth which readings show each by itself.
    pub rapid_horizon_seconds: f64,
    /// `ended`: growth that falls below this share of its slope has ended…
    pub ended_ratio: f64,
    /// …after this many samples without it…
    pub ended_samples: u32,
    /// …or intervals between event markers…
    pub ended_intervals: usize,
    /// …and this share of its own length…
    pub ended_of_growth: f64,
    /// …and this many times the longest gap between two of its rises.
    pub ended_gaps: f64,
    /// `ended`: growth goes on again at this many times the slope below which it has ended.
    pub resumed_of_ended: f64,
    /// `ended`: growth is cleared once level for this many times the time after which that was
    /// known.
    pub cleared_after: f64,
    /// `seen before`: growth above all that was before, as a share of the growth, 0 to 1.
    pub new_high_ratio: f64,
    /// `ever larger`: Kendall's tau of few increments, above which they are those of a batch that
    /// grows.
    pub larger_tau_max: f64,
    /// `ever larger`: increments of less than this share of the largest are not compared.
    pub larger_compared_ratio: f64,
    /// `ever larger`: increments that are worth this share of themselves in equal ones are not few.
    pub larger_many_ratio: f64,
    /// `comes and goes`: the least share of growth plus headroom that creep has used, 0 to 1. It
    /// sets the cost of a false page against that of a late one.
    pub share_ratio: f64,
    /// `comes and goes`: steps from which that share is enough. Ramps come and go, the more often
    /// the shorter they are.
    pub share_full_span: f64,
    /// `comes and goes`: increments from which that share is enough: what 16 blocks have.
    pub share_full_increments: f64,
    /// Multiplies the share for reserved memory, memory outside the allocator and that of child
    /// processes: they settle for longer.
    pub settling_factor: f64,
    /// Multiplies the share for an unmanaged process, whose memory is its allocator's cache.
    pub process_factor: f64,
    /// Steps that a second of an unmanaged process counts as.
    pub steps_per_second: f64,
    /// Stands in for an unknown capacity, in bytes: what most training GPUs have (A100, H100).
    /// Doubled until the memory seen in use fits.
    pub stand_in_capacity: f64,
    /// The share of the memory above the peak that counts as headroom although it is cached, 0
    /// to 1.
    pub untouched_ratio: f64,
    /// Headroom is at least this share of the capacity: noise on a full device is not its end.
    pub headroom_ratio_min: f64,
    /// The least headroom of an unmanaged process, as a share of the capacity: it gives cached
    /// memory back first.
    pub process_headroom_ratio_min: f64,
    /// `cache`: the largest cache of a healthy job, as a share of what is left when it began, 0
    /// to 1.
    pub cache_ratio: f64,

    /// MEMORY RISING: the deceleration ratio from which growth that has used little is a line.
    pub rising_line_ratio: f64,
    /// MEMORY RISING: the share of the limits of `comes and goes` and `cache` from which growth
    /// that slows down is reported.
    pub rising_ratio: f64,
    /// The least number of live blocks that a window keeps: fewer are lazy state, layers that are
    /// unfrozen, and what a collector leaves.
    pub kept_blocks_min: f64,
    /// The deceleration ratio below which new blocks come ever more rarely, 0 to 1: they raise
    /// nothing.
    pub fades_below: f64,
    /// A trend of memory outside the allocator is forgotten when its process was not read for
    /// this many seconds.
    pub silence_seconds: f64,

    /// A time to out-of-memory is known when the ends of its interval differ by at most this
    /// factor.
    pub known_within: f64,
    /// A power law counts unless it differs from the line by more than this factor.
    pub power_law_within: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            budget: None,
            warmup_samples: 23,
            process_warmup_seconds: 600.0,
            process_level_ratio: 0.1,
            warmup_readings: 8,
            start_seconds: 120.0,
            start_quiet_seconds: 60.0,
            blocks_min: 12,
            intervals_min: 5,
            interval_samples_min: 16,
            shift_variations: 8.0,
            shift_spanned_ratio: 0.5,
            rapid_seconds: 3.5,
            rapid_readings_min: 5,
            growth_min: 32.0 * MEBIBYTE,
            suspected_ratio: 0.5,
            walk_z: 3.8,
            horizon_seconds: 72.0 * 3600.0,
            rapid_horizon_seconds: 3600.0,
            ended_ratio: 0.25,
            ended_samples: 24,
            ended_intervals: 2,
            ended_of_growth: 0.125,
            ended_gaps: 3.0,
            resumed_of_ended: 2.0,
            cleared_after: 2.0,
            new_high_ratio: 0.5,
            larger_tau_max: 0.7,
            larger_compared_ratio: 0.1,
            larger_many_ratio: 0.5,
            share_ratio: 0.045,
            share_full_span: 3200.0,
            share_full_increments: 14.0,
            settling_factor: 1.6,
            process_factor: 3.0,
            steps_per_second: 1.5,
            stand_in_capacity: 80.0 * GIBIBYTE,
            untouched_ratio: 0.3,
            headroom_ratio_min: 0.01,
            process_headroom_ratio_min: 0.05,
            cache_ratio: 0.4,
            rising_line_ratio: 0.8,
            rising_ratio: 0.25,
            kept_blocks_min: 16.0,
            fades_below: 0.6,
            silence_seconds: 600.0,
            known_within: 3.0,
            power_law_within: 3.0,
        }
    }
}

impl Config {
    /// Returns the capacity that growth is judged against: the `known` one or the budget,
    /// whichever is less.
    pub fn capacity(&self, known: Capacity) -> Capacity {
        let shared = known.shared.filter(|bytes| *bytes > 0.0);
        Capacity { shared: shared.into_iter().chain(self.budget).reduce(f64::min), ..known }
    }

    /// Returns the number of blocks that make as many samples as growth must have ended for.
    pub(super) fn ended_blocks(&self, samples_per_block: u32) -> usize {
        usize::try_from(self.ended_samples.div_ceil(samples_per_block)).unwrap_or(usize::MAX)
    }

    /// Returns the slope from which on growth that has ended goes on again.
    pub(super) fn resumed_slope(&self, slope: f64) -> f64 {
        self.resumed_of_ended * self.ended_ratio * slope
    }

    /// Returns the share of growth plus headroom that creep of a signal has used at least.
    pub(super) fn share_ratio(&self, signal: Signal) -> f64 {
        self.share_ratio
            * match signal {
                Signal::Allocated | Signal::Host => 1.0,
                Signal::Process => self.process_factor,
                _ => self.settling_factor,
            }
    }
}
