//! Windows of growing length over one sequence of records: blocks, and levels of blocks twice as long. What a
//! window means is decided elsewhere.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::axis::AxisPoint;
use crate::analysis::creep::record::MemoryRecord;
use crate::analysis::creep::signal::Signal;
use crate::analysis::estimate::POINTS_MAX;

/// How many train pushes make a block of the lowest level.
pub(super) const RECORDS_PER_BLOCK: u32 = 16;
/// How many readings make a block of the lowest level; they come seconds apart, pushes faster.
pub(super) const READINGS_PER_BLOCK: u32 = 2;
/// How many blocks a level keeps; a window is one level's blocks.
pub(super) const BLOCKS_MAX: usize = POINTS_MAX;
/// How many levels there are: 16 × 2^16 × 32 pushes, 33 million, and half that of readings at
/// two a block.
pub(super) const LEVELS_MAX: usize = 17;

/// Windows of growing length over one sequence of blocks: a block of a level is two of the
/// level below.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Pyramid {
    pub(super) levels: Vec<Level>,
}

impl Pyramid {
    /// Adds a block to the lowest level and returns how many levels got one.
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

    pub(super) fn clear(&mut self) {
        for level in &mut self.levels {
            level.blocks.clear();
            level.is_half = false;
            level.high = [f64::NEG_INFINITY; 2];
        }
    }

    /// How many bytes the levels take.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        let blocks = self.levels.iter().map(|level| level.blocks.capacity());
        self.levels.capacity() * size_of::<Level>() + blocks.sum::<usize>() * size_of::<Block>()
    }
}

/// One window of a pyramid.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Level {
    // Invariant: at most BLOCKS_MAX, the oldest first, in context allocated once.
    pub(super) blocks: Vec<Block>,
    /// Whether the newest block still waits for the one that it goes up with.
    is_half: bool,
    /// The highest values that ever left the window: of the floor, of the reserved floor.
    high: [f64; 2],
}

impl Level {
    fn new() -> Self {
        Self {
            blocks: Vec::with_capacity(BLOCKS_MAX),
            is_half: false,
            high: [f64::NEG_INFINITY; 2],
        }
    }

    /// Adds a block; returns two as one for the level above when it is the second.
    fn add(&mut self, block: Block) -> Option<Block> {
        let pair = self.blocks.last().filter(|_| self.is_half).map(|last| last.joined(&block));
        self.is_half = !self.is_half;
        if self.blocks.len() == BLOCKS_MAX {
            let left = self.blocks.remove(0);
            let [floor, reserved] = self.high;
            let left_reserved = Some(left.reserved_floor).filter(|bytes| bytes.is_finite());
            self.high =
                [floor.max(left.floor), reserved.max(left_reserved.unwrap_or(reserved))];
        }
        self.blocks.push(block);
        pair
    }

    /// The half of the blocks that says how much is in use now.
    pub(super) fn newer_half(&self) -> &[Block] {
        self.blocks.get(self.blocks.len() / 2..).unwrap_or(&[])
    }

    pub(super) fn high(&self, signal: Signal) -> f64 {
        let [floor, reserved] = self.high;
        match signal {
            Signal::Allocated | Signal::OutsideAllocator | Signal::Process => floor,
            Signal::Reserved => reserved,
        }
    }
}

/// What is left of some consecutive records.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Block {
    /// Where it ends.
    pub(super) end: AxisPoint,
    /// The least live bytes of pushes, the least bytes of the series of readings.
    pub(super) floor: f64,
    /// The least that a step needed on top of what was live; 0 for readings.
    pub(super) transient_floor: f64,
    /// The least reserved bytes; infinite when no record told.
    pub(super) reserved_floor: f64,
    /// The highest peak of any phase.
    pub(super) peak_max: f64,
    /// The most reserved bytes; the peak where no record told.
    pub(super) reserved_max: f64,
}

impl Block {
    pub(super) fn of_record(record: &MemoryRecord) -> Self {
        Self {
            end: record.at,
            floor: record.allocated,
            transient_floor: record.peak - record.allocated,
            reserved_floor: record.reserved.unwrap_or(f64::INFINITY),
            peak_max: record.peak,
            reserved_max: record.reserved.unwrap_or(record.peak),
        }
    }

    /// What a reading says at the moment of `record`.
    pub(super) fn of_reading(record: &MemoryRecord, bytes: f64) -> Self {
        Self {
            end: record.at,
            floor: bytes,
            transient_floor: 0.0,
            reserved_floor: f64::INFINITY,
            peak_max: record.peak,
            reserved_max: record.peak_reserved.or(record.reserved).unwrap_or(record.peak),
        }
    }

    /// This block and the one after it as one.
    fn joined(&self, later: &Self) -> Self {
        Self {
            end: later.end,
            floor: self.floor.min(later.floor),
            transient_floor: self.transient_floor.min(later.transient_floor),
            reserved_floor: self.reserved_floor.min(later.reserved_floor),
            peak_max: self.peak_max.max(later.peak_max),
            reserved_max: self.reserved_max.max(later.reserved_max),
        }
    }

    /// What the block says of a signal; of a block of readings only the floor has a meaning.
    pub(super) fn value(&self, signal: Signal) -> f64 {
        match signal {
            Signal::Allocated | Signal::OutsideAllocator | Signal::Process => self.floor,
            Signal::Reserved => self.reserved_floor,
        }
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
        self.n_records += 1;
        if self.n_records < n_full {
            self.block = Some(block);
            return None;
        }
        *self = Self::default();
        Some(block)
    }
}

/// A small number as a float.
pub(super) fn count(n: usize) -> f64 {
    u32::try_from(n).map_or(f64::MAX, f64::from)
}
