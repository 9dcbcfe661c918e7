//! The device around a series: how much memory is left to grow into, and how much growth is
//! worth.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::axis::{Axis, AxisPoint};
use crate::analysis::creep::pyramid::{Block, PackedBytes, count};
use crate::analysis::creep::record::MemoryRecord;
use crate::analysis::creep::rules::CreepSettings;
use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::without::Rule;
use crate::analysis::estimate;
use crate::model::units::{GIBIBYTE, Interval};

/// Headroom is at least this share of the capacity, so that noise on a full device does not
/// look like the end.
const HEADROOM_RATIO_MIN: f64 = 0.01;
/// The same of a process that does not push: it holds its allocator's cache, of which one that runs
/// out gives back first.
const PROCESS_HEADROOM_RATIO_MIN: f64 = 0.05;
/// What is left is at least this share of the capacity: a driver's own use comes and goes by that
/// much.
const ROOM_RATIO_MIN: f64 = 0.002;
/// What is left is at least this share of what no peak has used, since an allocator that runs out
/// gives cached memory back first.
const ROOM_OF_UNTOUCHED_MIN: f64 = 0.25;
/// The least that may be left, as a share of the likely number.
const ROOM_LEAST_RATIO: f64 = 0.25;
/// Reserved memory follows live memory when it reaches a new high in this share of the blocks.
const FOLLOWED_RATIO: f64 = 0.5;
/// Stands in for an unknown capacity: 80 GiB, as most training GPUs have (A100, H100). Doubled
/// until the memory seen in use fits.
const STAND_IN_CAPACITY_BYTES: f64 = 80.0 * GIBIBYTE;
/// Scales a confidence whose headroom is a guess.
const STAND_IN_CONFIDENCE_RATIO: f64 = 0.8;

/// The surroundings in which one block is judged: the device, the pace and the settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeriesContext {
    pub(super) axis: Axis,
    pub(super) capacity: Option<f64>,
    /// Whether the bytes are host memory, whose size bounds nothing that a step needs.
    pub(super) is_host: bool,
    pub(super) outside_bytes: f64,
    /// Records of this life, or readings, that windows were made of.
    pub(super) n_lived: f64,
    /// The highest live memory of an earlier life that grew no more when it ended.
    pub(super) settled: Option<f64>,
    /// The share of a larger batch that stays live between steps: 0 to 1, sometimes slightly
    /// outside.
    pub(super) batch_share: f64,
    /// Seconds per unit of the axis; `None` while unknown.
    pub(super) seconds_per_unit: Option<f64>,
    pub(super) settings: CreepSettings,
    /// Where the block ends.
    pub(super) at: AxisPoint,
}

impl SeriesContext {
    /// Returns whether a rule is left out, to measure its worth.
    pub(super) fn is_off(&self, rule: Rule) -> bool {
        self.settings.without.is_off(rule)
    }

    /// Returns the bytes left to grow into, at least a hundredth of the capacity; for a process that
    /// does not push a twentieth.
    pub(super) fn headroom(&self, most: PeakUse, signal: Signal) -> f64 {
        let capacity = self.capacity.unwrap_or_else(|| {
            let mut capacity = STAND_IN_CAPACITY_BYTES;
            while capacity < most.peak.max(most.reserved) + self.outside_bytes {
                capacity *= 2.0;
            }
            capacity
        });
        let of_process = signal == Signal::Process && !self.is_off(Rule::FullDevice);
        let least = if of_process { PROCESS_HEADROOM_RATIO_MIN } else { HEADROOM_RATIO_MIN };
        let free = capacity - self.outside_bytes;
        let peak_weight = self.settings.rules(signal).peak_weight;
        (free - most.reserved).max(peak_weight * (free - most.peak)).max(least * capacity)
    }

    /// Returns the bytes left until the end, as far as they are known: where the capacity is.
    pub(super) fn room(&self, most: PeakUse, growth: &Growing) -> BytesLeft {
        let Some(capacity) = self.capacity else { return BytesLeft::UNKNOWN };
        if self.is_off(Rule::CacheLeft) {
            return BytesLeft::new(self.headroom(most, growth.signal), 0.0);
        }
        let free = capacity - self.outside_bytes;
        let uncached = (free - most.reserved).max(ROOM_RATIO_MIN * capacity);
        let untouched = (free - most.peak).max(uncached);
        let cache = untouched - uncached;
        match growth.signal {
            Signal::OutsideAllocator | Signal::Process => BytesLeft::new(uncached, 0.0),
            // What has grown stays in the cache; the rest of the cache is given back.
            Signal::Reserved => BytesLeft::new((untouched - growth.bytes).max(uncached), cache),
            // An allocator that takes page by page gives pages back: half of its cache.
            Signal::Allocated if growth.is_followed => {
                BytesLeft::new(uncached + 0.5 * cache, cache)
            }
            // One that takes segments keeps those in which anything lives.
            Signal::Allocated => {
                BytesLeft::new(uncached.max(ROOM_OF_UNTOUCHED_MIN * untouched), cache)
            }
        }
    }

    /// Returns how long the headroom lasts at a slope per unit of the axis; `None` while the
    /// pace is unknown.
    pub(super) fn seconds_left(&self, headroom: f64, slope: f64) -> Option<f64> {
        self.seconds_per_unit.map(|seconds| headroom / slope * seconds)
    }

    /// Returns the probability that growth worth `straightness` equal moves of `n_moves`
    /// exceeds a random walk's.
    pub(super) fn confidence(&self, straightness: f64, n_moves: f64) -> f64 {
        let chance = estimate::succession(estimate::normal_cdf(straightness.sqrt()), n_moves);
        if self.capacity.is_some() { chance } else { STAND_IN_CONFIDENCE_RATIO * chance }
    }
}

/// The growth that what is left is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growing {
    pub(super) signal: Signal,
    pub(super) bytes: f64,
    /// Whether reserved memory rises along with live memory.
    pub(super) is_followed: bool,
}

/// Returns whether reserved memory reaches a new high in at least half of the blocks: it is taken
/// page by page as live memory grows, not in segments larger than that.
pub(super) fn is_followed(blocks: &[Block]) -> bool {
    let Some((first, rest)) = blocks.split_first() else { return false };
    let (mut high, mut n_highs) = (first.reserved_max, 0.0);
    for block in rest {
        n_highs += if block.reserved_max > high { 1.0 } else { 0.0 };
        high = high.max(block.reserved_max);
    }
    n_highs >= FOLLOWED_RATIO * count(rest.len())
}

/// The bytes left until the end, and how far off they may be.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct BytesLeft {
    likely: PackedBytes,
    spread: f64,
}

impl BytesLeft {
    pub(super) const UNKNOWN: Self = Self { likely: PackedBytes::UNKNOWN, spread: 0.0 };

    pub(super) fn new(likely: f64, spread: f64) -> Self {
        Self { likely: PackedBytes::of(Some(likely)), spread }
    }

    /// Returns the bytes with their interval; `None` while the capacity is unknown.
    pub(super) fn bytes(&self) -> Option<Interval> {
        let likely = self.likely.get()?;
        let around = Interval::around(likely, self.spread);
        Some(Interval { lower: around.lower.max(ROOM_LEAST_RATIO * likely), ..around })
    }
}

/// The highest memory use of some blocks.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct PeakUse {
    peak: f64,
    reserved: f64,
}

impl PeakUse {
    pub(super) const NONE: Self = Self { peak: 0.0, reserved: 0.0 };

    /// Counts a record in, with the highest known `peak` since the one before.
    pub(super) fn include(&mut self, record: &MemoryRecord, peak: PackedBytes) {
        // Where a peak is unknown, live memory is the least that was in use.
        let peak = peak.highest(PackedBytes::of(record.peak_bound));
        let peak = peak.get().unwrap_or(record.allocated);
        let reserved = record.peak_reserved.or(record.reserved).unwrap_or(peak);
        self.peak = self.peak.max(peak);
        self.reserved = self.reserved.max(reserved);
    }

    pub(super) fn of<'a>(blocks: impl IntoIterator<Item = &'a Block>) -> Self {
        blocks.into_iter().fold(Self::NONE, |most, block| Self {
            // Where a peak is unknown, live memory is the least that was in use.
            peak: most.peak.max(block.peak_max.get().unwrap_or(block.floor)),
            reserved: most.reserved.max(block.reserved_max),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::analysis::creep::axis::Axis;
    use crate::analysis::creep::context::SeriesContext;
    use crate::analysis::creep::estimator::CreepEstimator;
    use crate::analysis::creep::record::MemoryRecord;
    use crate::analysis::creep::rules::CreepSettings;
    use crate::analysis::creep::signal::Signal;
    use crate::analysis::creep::simulation::{
        CAPACITY, Simulation, assert_finite, assert_within, at, record,
    };
    use crate::analysis::creep::trend::Stage;
    use crate::model::units::{GIBIBYTE, Interval, MEBIBYTE};

    #[test]
    fn leak_is_found_without_capacity_and_reserved_bytes() {
        let of = |capacity: Option<f64>| {
            let mut estimator = CreepEstimator::new(CreepSettings::default());
            for i in 0..4000 {
                let step = f64::from(i);
                let leak = record(step, 2.0 * MEBIBYTE * step);
                estimator.train(
                    &MemoryRecord { reserved: None, peak_reserved: None, ..leak },
                    capacity,
                );
            }
            assert_eq!(estimator.slope(Signal::Reserved), None);
            *estimator.trends().next().unwrap()
        };
        let (blind, seeing) = (of(None), of(CAPACITY));
        assert_eq!(blind.stage, Stage::Creeping);
        assert_eq!(
            (blind.headroom_bytes(), blind.eta_steps(), blind.eta_seconds()),
            (None, None, None)
        );
        assert!(blind.confidence_ratio() < seeing.confidence_ratio());
        // Where reserved bytes are unknown, the peak is: 80 - 20 - 10.5 - 7.8 GiB.
        assert_within(seeing.headroom_bytes().unwrap(), 41.7 * GIBIBYTE, 0.3 * GIBIBYTE);
        assert_finite(&blind);
    }

    #[test]
    fn evaluation_peak_takes_headroom() {
        let headroom = |extra: f64| {
            let mut rank = Simulation::new();
            rank.run(3000, |step| MemoryRecord {
                reserved: None,
                ..record(step, 3.0 * MEBIBYTE * step)
            });
            let peak = record(rank.step, 0.0).peak.map(|peak| peak + extra);
            rank.estimator.other_phase(&MemoryRecord {
                peak,
                peak_bound: peak,
                ..record(rank.step, 0.0)
            });
            rank.run(16, |step| MemoryRecord {
                reserved: None,
                ..record(step, 3.0 * MEBIBYTE * step)
            });
            rank.trend(Signal::Allocated).unwrap().headroom_bytes().unwrap()
        };
        assert!(headroom(20.0 * GIBIBYTE) < headroom(0.0) - 5.0 * GIBIBYTE);
    }

    /// What is left of 80 GiB after 4,000 steps of 2 MiB, with so many bytes reserved, and its
    /// interval by the steps left.
    fn left(reserved: impl Fn(f64) -> f64) -> (f64, Interval) {
        let mut rank = Simulation::new();
        rank.run(4000, |step| MemoryRecord {
            reserved: Some(reserved(step)),
            peak_reserved: Some(reserved(step)),
            ..record(step, 2.0 * MEBIBYTE * step)
        });
        let trend = rank.trend(Signal::Allocated).unwrap();
        (trend.headroom_bytes().unwrap(), trend.room.bytes().unwrap())
    }

    #[test]
    fn allocator_that_takes_page_by_page_gives_half_of_its_cache_back() {
        let (headroom, room) = left(|step| 50.0 * GIBIBYTE + 2.0 * MEBIBYTE * step);
        // 22.2 GiB are not reserved, and the peak leaves 41.7.
        assert_within(headroom, 31.9 * GIBIBYTE, 0.3 * GIBIBYTE);
        assert!(room.lower < 22.3 * GIBIBYTE && room.upper > 41.6 * GIBIBYTE, "{room:?}");
    }

    #[test]
    fn allocator_that_takes_segments_keeps_its_cache() {
        let (headroom, room) = left(|step| GIBIBYTE * (50.0 + 4.0 * (step / 2000.0).floor()));
        assert_within(headroom, 26.0 * GIBIBYTE, 0.3 * GIBIBYTE);
        assert!(room.lower < 16.0 * GIBIBYTE && room.upper > 41.0 * GIBIBYTE, "{room:?}");
    }

    #[test]
    fn cache_is_given_back_where_nothing_else_is_left() {
        let (headroom, room) = left(|_| 79.9 * GIBIBYTE);
        // A quarter of what the peak leaves.
        assert_within(headroom, 10.4 * GIBIBYTE, 0.3 * GIBIBYTE);
        assert!(room.lower > 0.0 && room.lower < 3.0 * GIBIBYTE, "{room:?}");
    }

    #[test]
    fn fragmentation_leaves_the_cache_that_was_there_before_it() {
        let mut rank = Simulation::new();
        rank.run(20_000, |step| MemoryRecord {
            reserved: Some(40.0 * GIBIBYTE + 0.5 * MEBIBYTE * step),
            ..record(step, 0.0)
        });
        let trend = rank.trend(Signal::Reserved).unwrap();
        // The peak leaves 49.5 GiB; what this window saw grow does not come back.
        let left = 49.5 * GIBIBYTE - trend.growth_bytes;
        assert_within(trend.headroom_bytes().unwrap(), left, 0.3 * GIBIBYTE);
    }

    #[test]
    fn time_left_is_unknown_without_a_pace() {
        let context = SeriesContext {
            axis: Axis::Steps,
            capacity: CAPACITY,
            is_host: false,
            outside_bytes: 0.0,
            n_lived: 0.0,
            settled: None,
            batch_share: 0.0,
            seconds_per_unit: Some(2.0),
            settings: CreepSettings::default(),
            at: at(0.0, 0.0),
        };
        assert_eq!(context.seconds_left(120.0, 6.0), Some(40.0));
        let unpaced = SeriesContext { seconds_per_unit: None, ..context };
        assert_eq!(unpaced.seconds_left(120.0, 6.0), None);
    }
}
