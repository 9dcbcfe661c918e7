//! Windows of growing length over one sequence of records: blocks, and levels of blocks twice
//! as long. Judging a window happens elsewhere.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::axis::AxisPoint;
use crate::analysis::creep::record::MemoryRecord;
use crate::analysis::creep::signal::Signal;
use crate::analysis::estimate::POINTS_MAX;

/// Train records per block of the lowest level.
pub(super) const RECORDS_PER_BLOCK: u32 = 16;
/// Readings per block of the lowest level; readings come seconds apart, train records faster.
pub(super) const READINGS_PER_BLOCK: u32 = 2;
/// Blocks per level; a window is one level's blocks.
pub(super) const BLOCKS_MAX: usize = POINTS_MAX;
/// Levels of a pyramid: they span 16 × 2^13 × 32 = 4.2 million records, or an eighth of that in
/// readings at two per block. Growth that took longer than the horizon of three days to show 30 %
/// would leave more than the horizon; that is reached by steps of 62 ms and by readings every 0.5 s.
pub(super) const LEVELS_MAX: usize = 14;

/// Windows of growing length over one sequence of blocks: each block joins two of the level
/// below.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Pyramid {
    pub(super) levels: Vec<Level>,
}

impl Pyramid {
    /// Adds a block to the lowest level; returns how many levels received one.
    pub(super) fn add(&mut self, block: Block) -> usize {
        self.levels.reserve_exact(LEVELS_MAX.saturating_sub(self.levels.len()));
        let mut carried = Some(block);
        let mut n_grown = 0;
        while let Some(block) = carried
            && n_grown < LEVELS_MAX
        {
            if self.levels.len() == n_grown {
                self.levels.push(Level::new());
            }
            carried = self.levels.get_mut(n_grown).and_then(|level| level.add(block));
            n_grown += 1;
        }
        n_grown
    }

    /// Returns the highest floor of live memory since it was cleared.
    pub(super) fn top(&self) -> PackedBytes {
        let Some(lowest) = self.levels.first() else { return PackedBytes::UNKNOWN };
        let [left, _] = lowest.high;
        let floors = lowest.blocks.iter().map(|block| PackedBytes::of(Some(block.floor)));
        floors.fold(left, PackedBytes::highest)
    }

    pub(super) fn clear(&mut self) {
        for level in &mut self.levels {
            level.blocks.clear();
            level.is_half = false;
            level.high = [PackedBytes::UNKNOWN; 2];
        }
    }

    /// Returns the bytes that the levels take.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        let blocks = self.levels.iter().map(|level| level.blocks.capacity());
        self.levels.capacity() * size_of::<Level>() + blocks.sum::<usize>() * size_of::<Block>()
    }
}

/// One window of a pyramid.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Level {
    // Invariant: at most BLOCKS_MAX, oldest first, in memory allocated once.
    pub(super) blocks: Vec<Block>,
    /// Whether the newest block still waits for the one it will be joined with.
    is_half: bool,
    /// The highest values that ever left the window: floor and reserved floor.
    high: [PackedBytes; 2],
}

impl Level {
    fn new() -> Self {
        Self {
            blocks: Vec::with_capacity(BLOCKS_MAX),
            is_half: false,
            high: [PackedBytes::UNKNOWN; 2],
        }
    }

    /// Adds a block; every second time, returns the last two joined, for the level above.
    fn add(&mut self, block: Block) -> Option<Block> {
        let pair = self.blocks.last().filter(|_| self.is_half).map(|last| last.joined(&block));
        self.is_half = !self.is_half;
        if self.blocks.len() == BLOCKS_MAX {
            let left = self.blocks.remove(0);
            let [floor, reserved] = self.high;
            self.high = [
                floor.highest(PackedBytes::of(Some(left.floor))),
                reserved.highest(left.reserved_floor),
            ];
        }
        self.blocks.push(block);
        pair
    }

    /// Returns the newer half of the blocks, which shows the current memory use.
    pub(super) fn newer_half(&self) -> &[Block] {
        self.blocks.get(self.blocks.len() / 2..).unwrap_or(&[])
    }

    /// Returns the highest value of a signal that ever left the window; `None` before one did.
    pub(super) fn high(&self, signal: Signal) -> Option<f64> {
        let [floor, reserved] = self.high;
        match signal {
            Signal::Allocated | Signal::OutsideAllocator | Signal::Process => floor.get(),
            Signal::Reserved => reserved.get(),
        }
    }
}

/// A summary of consecutive records.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Block {
    /// Where it ends.
    pub(super) end: AxisPoint,
    /// The lowest live bytes of records, or the lowest bytes of readings.
    pub(super) floor: f64,
    /// The lowest transient bytes of a step, beyond its live bytes, of the records that know them; 0 for readings.
    transient_floor: PackedBytes,
    /// The lowest live bytes less what the batch leaves, of the records that know it.
    pub(super) net_floor: PackedBytes,
    /// The lowest reserved bytes of the records that know them.
    reserved_floor: PackedBytes,
    /// The highest peak of any phase, or bound of one, of the records that know theirs; of
    /// readings the largest climb from one to the next.
    pub(super) peak_max: PackedBytes,
    /// The highest reserved bytes; if no record knows them, the peak or else live bytes.
    pub(super) reserved_max: f64,
}

impl Block {
    pub(super) fn of_record(record: &MemoryRecord) -> Self {
        Self {
            end: record.at,
            floor: record.allocated,
            transient_floor: PackedBytes::of(record.peak.map(|peak| peak - record.allocated)),
            net_floor: PackedBytes::UNKNOWN,
            reserved_floor: PackedBytes::of(record.reserved),
            peak_max: PackedBytes::of(record.peak_bound),
            reserved_max: record.reserved.or(record.peak_bound).unwrap_or(record.allocated),
        }
    }

    /// Makes a block of one reading, taken at the time of `record`, so many bytes above the one
    /// before.
    pub(super) fn of_reading(record: &MemoryRecord, bytes: f64, climb: f64) -> Self {
        Self {
            end: record.at,
            floor: bytes,
            transient_floor: PackedBytes::of(Some(0.0)),
            net_floor: PackedBytes::UNKNOWN,
            reserved_floor: PackedBytes::UNKNOWN,
            peak_max: PackedBytes::of(Some(climb)),
            reserved_max: record
                .peak_reserved
                .or(record.reserved)
                .or(record.peak_bound)
                .unwrap_or(record.allocated),
        }
    }

    /// Joins this block with the one after it.
    fn joined(&self, later: &Self) -> Self {
        Self {
            end: later.end,
            floor: self.floor.min(later.floor),
            transient_floor: self.transient_floor.lowest(later.transient_floor),
            net_floor: self.net_floor.lowest(later.net_floor),
            reserved_floor: self.reserved_floor.lowest(later.reserved_floor),
            peak_max: self.peak_max.highest(later.peak_max),
            reserved_max: self.reserved_max.max(later.reserved_max),
        }
    }

    /// Returns the block's value of a signal, if known; of a block of readings only the floor
    /// has a meaning.
    pub(super) fn value(&self, signal: Signal) -> Option<f64> {
        match signal {
            Signal::Allocated | Signal::OutsideAllocator | Signal::Process => Some(self.floor),
            Signal::Reserved => self.reserved_floor.get(),
        }
    }

    /// Returns the lowest reserved bytes less the highest peak: memory that a fragmented cache
    /// cannot hand out.
    pub(super) fn slack(&self) -> Option<f64> {
        Some(self.reserved_floor.get()? - self.peak_max.get()?)
    }

    /// Returns the largest climb from one reading to the next, of a block of readings.
    pub(super) fn climb_max(&self) -> f64 {
        self.peak_max.get().unwrap_or(0.0)
    }

    /// Returns the block with its floor less what the batch leaves, where that is known: its transient memory explains no
    /// more of it.
    pub(super) fn net(self) -> Self {
        let Some(floor) = self.net_floor.get() else { return self };
        Self { floor, transient_floor: PackedBytes::UNKNOWN, ..self }
    }

    /// Returns the lowest transient bytes of its steps; `None` if no record knows its peak.
    pub(super) fn transient(&self) -> Option<f64> {
        self.transient_floor.get()
    }
}

/// Bytes that may be unknown, in eight bytes: a rank keeps more than a thousand blocks, and an
/// `Option<f64>` takes sixteen.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct PackedBytes(
    // Invariant: NaN stands for unknown and does not leave this type; `min` and `max` skip it.
    f64,
);

impl PackedBytes {
    pub(super) const UNKNOWN: Self = Self(f64::NAN);

    pub(super) fn of(bytes: Option<f64>) -> Self {
        bytes.map_or(Self::UNKNOWN, Self)
    }

    pub(super) fn get(self) -> Option<f64> {
        Some(self.0).filter(|bytes| !bytes.is_nan())
    }

    /// Returns the lower of the two, ignoring an unknown one.
    pub(super) fn lowest(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// Returns the higher of the two, ignoring an unknown one.
    pub(super) fn highest(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

/// A block that is not full yet.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct OpenBlock {
    block: Option<Block>,
    n_records: u32,
}

impl OpenBlock {
    /// Adds a record; returns the block when it is the `n_full`-th.
    pub(super) fn add(&mut self, record: Block, n_full: u32) -> Option<Block> {
        let block = self.block.map_or(record, |block| block.joined(&record));
        self.n_records = self.n_records.saturating_add(1);
        if self.n_records < n_full {
            self.block = Some(block);
            return None;
        }
        *self = Self::default();
        Some(block)
    }
}

/// Converts a small number to a float.
pub(super) fn count(n: usize) -> f64 {
    u32::try_from(n).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use crate::analysis::creep::pyramid::{BLOCKS_MAX, Block, OpenBlock, Pyramid};
    use crate::analysis::creep::record::MemoryRecord;
    use crate::analysis::creep::signal::Signal;
    use crate::analysis::creep::simulation::{
        Simulation, assert_finite, assert_within, at, record,
    };
    use crate::analysis::creep::trend::Stage;

    /// A block that ends at a position, with so many bytes live and reserved.
    fn block(position: f64, allocated: f64, reserved: Option<f64>) -> Block {
        let at = at(position, position);
        Block::of_record(&MemoryRecord { at, allocated, reserved, ..record(0.0, 0.0) })
    }

    #[test]
    fn two_blocks_are_one_of_the_level_above() {
        let mut pyramid = Pyramid::default();
        assert_eq!(pyramid.add(block(16.0, 7.0, Some(9.0))), 1);
        assert_eq!(pyramid.add(block(32.0, 5.0, Some(9.5))), 2);
        let [_, above] = pyramid.levels.as_slice() else { panic!("two levels") };
        let [joined] = above.blocks.as_slice() else { panic!("one block") };
        assert_eq!(joined.end, at(32.0, 32.0));
        assert_eq!(joined.value(Signal::Allocated), Some(5.0));
        assert_eq!(joined.value(Signal::Reserved), Some(9.0));
    }

    #[test]
    fn unknown_bytes_leave_the_known_ones() {
        let (unknown, known) = (block(1.0, 5.0, None), block(2.0, 5.0, Some(8.0)));
        assert_eq!((unknown.value(Signal::Reserved), unknown.slack()), (None, None));
        for (older, newer) in [(unknown, known), (known, unknown)] {
            assert_eq!(older.joined(&newer).value(Signal::Reserved), Some(8.0));
        }
        assert_eq!(unknown.joined(&unknown).value(Signal::Reserved), None);
    }

    #[test]
    fn level_remembers_the_highest_value_that_left_it() {
        let mut pyramid = Pyramid::default();
        for i in 0..BLOCKS_MAX {
            pyramid.add(block(1.0, if i == 1 { 90.0 } else { 5.0 }, None));
        }
        let high = |pyramid: &Pyramid| {
            let lowest = pyramid.levels.first().unwrap();
            (lowest.high(Signal::Allocated), lowest.high(Signal::Reserved))
        };
        assert_eq!(high(&pyramid), (None, None), "nothing has left it");
        pyramid.add(block(1.0, 5.0, None));
        assert_eq!(high(&pyramid), (Some(5.0), None));
        pyramid.add(block(1.0, 5.0, None));
        assert_eq!(high(&pyramid), (Some(90.0), None));
        pyramid.clear();
        assert_eq!(high(&pyramid), (None, None));
    }

    #[test]
    fn open_block_is_complete_with_its_last_record() {
        let mut open = OpenBlock::default();
        assert!(open.add(block(1.0, 6.0, None), 3).is_none());
        assert!(open.add(block(2.0, 4.0, None), 3).is_none());
        let full = open.add(block(3.0, 5.0, None), 3).unwrap();
        assert_eq!((full.end, full.value(Signal::Allocated)), (at(3.0, 3.0), Some(4.0)));
        assert!(open.add(block(4.0, 6.0, None), 3).is_none());
    }

    #[test]
    fn ten_million_steps_take_no_more_memory_and_do_not_drift() {
        // 1 KiB a step takes 40 million steps to eat the headroom: more than the horizon.
        let slow = |step| record(step, 1024.0 * step);
        let mut rank = Simulation::new();
        rank.run(6_000_000, slow);
        let before = rank.estimator.pyramid.heap_bytes();
        rank.run(4_000_000, slow);
        // 375,000 and 625,000 blocks: both less than the 2^20 that open the next level.
        assert_eq!(rank.estimator.pyramid.heap_bytes(), before);
        assert_eq!(rank.stage(Signal::Allocated), Some(Stage::Rising));
        let trend = rank.trend(Signal::Allocated).unwrap();
        assert_within(trend.slope_bytes_per_unit.value, 1024.0, 0.1);
        assert_within(trend.seconds_per_unit().unwrap(), 1.0, 1e-9);
        assert_finite(&trend);
    }
}
