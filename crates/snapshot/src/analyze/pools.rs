//! Memory by PyTorch's pools: the default one, and private ones, whose memory nothing else can use.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::integer::at;
use crate::model::{Segment, Snapshot, State};

/// Sums over segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes taken from the driver.
    pub reserved: u64,
    /// Bytes of blocks that are not inactive.
    pub active: u64,
    /// Bytes of blocks that tensors use.
    pub allocated: u64,
    /// Bytes that tensors requested.
    pub requested: u64,
    /// Number of segments.
    pub segments: u64,
    /// Number of blocks that are not inactive.
    pub live_blocks: u64,
}

impl Totals {
    /// The sums over some segments.
    pub fn of(segments: &[Segment]) -> Self {
        let mut totals = Self::default();
        for segment in segments {
            totals.add(segment);
        }
        totals
    }

    /// Adds others.
    pub fn join(&mut self, other: Self) {
        self.reserved += other.reserved;
        self.active += other.active;
        self.allocated += other.allocated;
        self.requested += other.requested;
        self.segments += other.segments;
        self.live_blocks += other.live_blocks;
    }

    fn add(&mut self, segment: &Segment) {
        self.segments += 1;
        self.reserved += segment.size;
        for block in segment.blocks.iter().filter(|block| block.state != State::Inactive) {
            self.active += block.size;
            self.requested += block.requested;
            self.live_blocks += 1;
            self.allocated += if block.state == State::Allocated { block.size } else { 0 };
        }
    }
}

/// A pool by what made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// `(0, 0)`, which everything uses that names no other.
    Default,
    /// `(N, 0)`: the private pool of one CUDA graph.
    CudaGraph,
    /// `(0, N)`: `torch.cuda.MemPool`, or `torch.cuda.graph_pool_handle()`, which graphs share.
    Shared,
}

/// The memory of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolSums {
    /// PyTorch's name of it.
    pub id: (u64, u64),
    /// Sums over its segments.
    pub totals: Totals,
}

impl PoolSums {
    /// The kind that its name shows.
    pub fn kind(&self) -> PoolKind {
        match self.id {
            (0, 0) => PoolKind::Default,
            (_, 0) => PoolKind::CudaGraph,
            _ => PoolKind::Shared,
        }
    }

    /// Returns whether nothing but those who name it can use its memory.
    pub fn is_private(&self) -> bool {
        self.kind() != PoolKind::Default
    }
}

/// PyTorch's name of a pool by number.
pub(crate) fn id(snapshot: &Snapshot, pool: u32) -> (u64, u64) {
    snapshot.pools.get(at(pool)).copied().unwrap_or_default()
}

/// Returns whether a pool by number is private.
pub(crate) fn is_private(snapshot: &Snapshot, pool: u32) -> bool {
    id(snapshot, pool) != (0, 0)
}

/// The pools of some segments, the largest first.
pub(crate) fn sums(snapshot: &Snapshot, segments: &[Segment]) -> Vec<PoolSums> {
    let mut pools: BTreeMap<(u64, u64), Totals> = BTreeMap::new();
    for segment in segments {
        pools.entry(id(snapshot, segment.pool)).or_default().add(segment);
    }
    let mut pools: Vec<PoolSums> =
        pools.into_iter().map(|(id, totals)| PoolSums { id, totals }).collect();
    pools.sort_by_key(|pool| std::cmp::Reverse(pool.totals.reserved));
    pools
}
