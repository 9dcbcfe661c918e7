//! Block minima in windows of doubling length, from the first samples of an incarnation to all
//! of it.

use serde::{Deserialize, Serialize};
use stepmem_forecast::AxisPoint;

use stepmem_types::saved;

/// The blocks that a level keeps.
pub(super) const BLOCKS_MAX: usize = 32;
/// The blocks that a row has memory for: with four more, every fourth one moves the others.
pub(super) const ROW_CAPACITY: usize = BLOCKS_MAX + 4;
/// The levels of a ladder. Of two samples a block the highest spans four million of them.
pub(super) const LEVELS_MAX: usize = 17;

/// A few samples in a row.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Block {
    /// The point of its first sample.
    pub(super) at: AxisPoint,
    /// The least bytes of the series: what outlived all of its samples.
    #[serde(deserialize_with = "saved::figures")]
    pub(super) minimum: f64,
    /// The largest peak of live memory.
    #[serde(deserialize_with = "saved::places")]
    pub(super) peak: f32,
    /// The most reserved memory.
    #[serde(deserialize_with = "saved::places")]
    pub(super) reserved: f32,
}

/// A block, and the least number of the allocator's live blocks in it, if that is known.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Counted {
    pub(super) block: Block,
    #[serde(deserialize_with = "saved::places")]
    pub(super) live_blocks: Option<f32>,
}

/// Blocks in a row that are judged, with the highest minima of the incarnation before them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window<'a> {
    /// The blocks, the oldest first, at most [`BLOCKS_MAX`].
    pub(super) blocks: &'a [Block],
    /// The number of live blocks of each; empty where none is known.
    pub(super) live_blocks: &'a [Option<f32>],
    pub(super) before: Before,
    /// The number of intervals that the window must have to creep, where a block is an interval
    /// between events. Each increment may then be a level shift.
    pub(super) creeping_min: Option<usize>,
    /// Samples that make a block; `None` where a block is an interval.
    pub(super) samples_per_block: Option<u32>,
    /// The seconds within which memory must run out for the growth to creep, where a block is
    /// one reading.
    pub(super) pages_within: Option<f64>,
}

impl<'a> Window<'a> {
    /// Returns the first and the last block; `None` of an empty window.
    pub(super) fn ends(&self) -> Option<(&'a Block, &'a Block)> {
        self.blocks.first().zip(self.blocks.last())
    }

    /// Returns the units of the axis from the first block to the last.
    pub(super) fn span(&self) -> f64 {
        self.ends().map_or(0.0, |(first, last)| last.at.position - first.at.position)
    }
}

/// The highest minima of an incarnation before some blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Before {
    pub(super) bytes: Option<f64>,
    pub(super) live_blocks: Option<f64>,
    /// The highest minimum of the warm-up, which no window has.
    pub(super) warmup_bytes: Option<f64>,
}

impl Block {
    /// Returns the block that this one and the next make.
    #[must_use]
    pub(super) fn join(self, next: Self) -> Self {
        Self {
            at: self.at,
            minimum: self.minimum.min(next.minimum),
            peak: self.peak.max(next.peak),
            reserved: self.reserved.max(next.reserved),
        }
    }

    /// Returns its reserved bytes.
    pub(super) fn reserved(&self) -> f64 {
        self.reserved.into()
    }

    /// Returns its place and its minimum.
    pub(super) fn point(&self) -> (f64, f64) {
        (self.at.position, self.minimum)
    }
}

impl Counted {
    /// Returns the block that this one and the next make.
    #[must_use]
    pub(super) fn join(self, next: Self) -> Self {
        Self {
            block: self.block.join(next.block),
            live_blocks: self.live_blocks.into_iter().chain(next.live_blocks).reduce(f32::min),
        }
    }
}

impl From<Block> for Counted {
    fn from(block: Block) -> Self {
        Self { block, live_blocks: None }
    }
}

/// The newest blocks in a row.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Row {
    // Invariant: at most ROW_CAPACITY, in order. Those before the last BLOCKS_MAX are dropped
    // together, once the row is full.
    #[serde(deserialize_with = "saved::list::<_, _, ROW_CAPACITY>")]
    blocks: Vec<Block>,
    // Invariant: as many as blocks, or none.
    /// The number of live blocks of each; empty before the first that is known.
    #[serde(deserialize_with = "saved::figure_list::<_, _, ROW_CAPACITY>")]
    live_blocks: Vec<Option<f32>>,
    /// The highest minimum of a block that is no longer held.
    #[serde(deserialize_with = "saved::figures")]
    highest_before: Option<f64>,
    /// The highest number of live blocks of a block that is no longer held.
    #[serde(deserialize_with = "saved::places")]
    most_before: Option<f32>,
}

impl Row {
    /// Returns its blocks, the oldest first.
    pub(super) fn blocks(&self) -> &[Block] {
        newest_of(&self.blocks)
    }

    /// Returns the newest blocks, at most so many.
    pub(super) fn newest(&self, n_blocks: usize) -> Option<Window<'_>> {
        self.since(self.blocks().len().saturating_sub(n_blocks))
    }

    /// Returns the blocks from an index on; `None` beyond the end.
    pub(super) fn since(&self, from_idx: usize) -> Option<Window<'_>> {
        let (before, blocks) = self.blocks().split_at_checked(from_idx)?;
        let (counted_before, live_blocks) =
            newest_of(&self.live_blocks).split_at_checked(from_idx).unwrap_or_default();
        let bytes = before.iter().map(|block| block.minimum).chain(self.highest_before);
        let numbers = counted_before.iter().flatten().copied().chain(self.most_before);
        let before = Before {
            bytes: bytes.reduce(f64::max),
            live_blocks: numbers.reduce(f32::max).map(f64::from),
            warmup_bytes: None,
        };
        Some(Window { blocks, live_blocks, before, ..Window::default() })
    }

    /// Adds the next block.
    pub(super) fn push(&mut self, next: Counted) {
        if let Some(n_before) = self.blocks.len().checked_sub(BLOCKS_MAX)
            && let Some(oldest) = self.blocks.get(n_before)
        {
            let highest = self.highest_before.unwrap_or(oldest.minimum);
            self.highest_before = Some(highest.max(oldest.minimum));
            let number = self.live_blocks.get(n_before).copied().flatten();
            self.most_before = self.most_before.into_iter().chain(number).reduce(f32::max);
        }
        if self.blocks.len() >= ROW_CAPACITY {
            self.blocks.drain(..self.blocks.len() - BLOCKS_MAX);
            self.live_blocks.drain(..self.live_blocks.len().saturating_sub(BLOCKS_MAX));
        }
        if !self.live_blocks.is_empty() || next.live_blocks.is_some() {
            self.live_blocks.reserve_exact(ROW_CAPACITY.saturating_sub(self.live_blocks.len()));
            self.live_blocks.resize(self.blocks.len(), None);
            self.live_blocks.push(next.live_blocks);
        }
        self.blocks.reserve_exact(ROW_CAPACITY - self.blocks.len());
        self.blocks.push(next.block);
    }
}

/// Returns the last [`BLOCKS_MAX`] of what a row holds.
fn newest_of<T>(held: &[T]) -> &[T] {
    held.get(held.len().saturating_sub(BLOCKS_MAX)..).unwrap_or_default()
}

/// The newest blocks of one length.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Level {
    pub(super) row: Row,
    /// A block that waits for its second half.
    half: Option<Counted>,
    /// The place of the last sample in its blocks.
    #[serde(deserialize_with = "saved::places")]
    pub(super) until: f64,
}

impl Level {
    /// Returns its blocks, the oldest first.
    pub(super) fn blocks(&self) -> &[Block] {
        self.row.blocks()
    }

    /// Returns whether its newest block is less than so many bytes above its oldest.
    pub(super) fn gained_less(&self, bytes: f64) -> bool {
        let ends = self.blocks().first().zip(self.blocks().last());
        ends.is_some_and(|(first, last)| last.minimum - first.minimum < bytes)
    }

    /// Returns the number of live blocks of each; empty where none is known.
    pub(super) fn live_blocks(&self) -> &[Option<f32>] {
        newest_of(&self.row.live_blocks)
    }
}

/// Windows of doubling length: two blocks of a level make one of the next.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Ladder {
    // Invariant: at most LEVELS_MAX.
    #[serde(deserialize_with = "saved::list::<_, _, LEVELS_MAX>")]
    levels: Vec<Level>,
}

impl Ladder {
    /// Upper bound on its memory on the heap, in bytes.
    pub(super) const HEAP_BYTES_MAX: usize =
        LEVELS_MAX * (size_of::<Level>() + ROW_CAPACITY * size_of::<Block>());
    /// Upper bound on the memory of its numbers of live blocks on the heap, in bytes; one
    /// series has them.
    pub(super) const NUMBERS_BYTES_MAX: usize =
        LEVELS_MAX * ROW_CAPACITY * size_of::<Option<f32>>();

    /// Adds a block of the lowest level, whose last sample is at `until`; returns how many levels
    /// got one.
    pub(super) fn push(&mut self, block: Counted, until: f64) -> usize {
        let mut block = block;
        let mut n_grown = 0;
        loop {
            if n_grown == self.levels.len() {
                if n_grown == LEVELS_MAX {
                    return n_grown;
                }
                self.levels.reserve_exact(1);
                self.levels.push(Level::default());
            }
            let Some(level) = self.levels.get_mut(n_grown) else { return n_grown };
            level.row.push(block);
            level.until = until;
            n_grown += 1;
            let Some(half) = level.half.take() else {
                level.half = Some(block);
                return n_grown;
            };
            block = half.join(block);
        }
    }

    /// Returns its levels, the shortest blocks first.
    pub(super) fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// Returns the blocks since a position of the shortest window that goes back to it, how many
    /// blocks it has before, and the level of that window.
    pub(super) fn since(&self, position: f64) -> Option<(&[Block], usize, usize)> {
        let goes_back = |level: &&Level| {
            level.blocks().first().is_some_and(|first| first.at.position <= position)
        };
        let level_idx = self.levels.iter().position(|level| goes_back(&level))?;
        let blocks = self.levels.get(level_idx)?.blocks();
        let n_before = blocks.partition_point(|block| block.at.position < position);
        Some((blocks.get(n_before..)?, n_before, level_idx))
    }

    /// Returns the rise from the earlier half of the blocks since a position to the later one;
    /// `None` below two blocks.
    pub(super) fn rise_since(&self, position: f64) -> Option<f64> {
        let (blocks, ..) = self.since(position)?;
        let (earlier, later) = blocks.split_at(blocks.len() / 2);
        let least = |half: &[Block]| half.iter().map(|block| block.minimum).reduce(f64::min);
        Some(least(later)? - least(earlier)?)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Writes the points of blocks into `points`; returns the part that is filled.
pub(super) fn points_of<'p>(
    blocks: &[Block],
    points: &'p mut [(f64, f64); BLOCKS_MAX],
) -> &'p [(f64, f64)] {
    for (slot, block) in points.iter_mut().zip(blocks) {
        *slot = block.point();
    }
    points.get(..blocks.len().min(BLOCKS_MAX)).unwrap_or_default()
}

/// Returns bytes that serve only to compute the headroom: to one part in 16 million.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    reason = "bytes are at most 2^53"
)]
pub(super) fn narrow(bytes: f64) -> f32 {
    bytes as f32
}
