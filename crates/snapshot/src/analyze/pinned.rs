//! Pinned memory of the host, as PyTorch's allocator for it keeps it: in use, or free and kept.

use crate::analyze::pools::{self, PoolSums, Totals};
use crate::analyze::sites::{SiteRow, Sites, Sum};
use crate::integer::{at, count};
use crate::model::{Action, Event, Snapshot, State};

/// The memory that is pinned at the end.
#[derive(Clone, Debug)]
pub struct Pinned<'a> {
    /// The file that it is of.
    pub snapshot: &'a Snapshot,
    /// The sites of the file's stacks.
    pub sites: &'a Sites,
    /// Sums over its segments; a segment is one block.
    pub totals: Totals,
    /// The same by memory pool.
    pub pools: Vec<PoolSums>,
    /// Lines whose memory is in use, the largest first.
    pub rows: Vec<SiteRow>,
    /// Events of its trace.
    pub n_events: u64,
    /// Most bytes in use at one moment of the trace; `None` without one.
    pub peak: Option<u64>,
}

/// Measures the pinned memory of a snapshot; `None` where none was recorded.
pub fn pinned<'a>(snapshot: &'a Snapshot, sites: &'a Sites) -> Option<Pinned<'a>> {
    let host = snapshot.host.as_ref()?;
    let totals = Totals::of(&host.segments);
    let mut of_stack = vec![Sum::default(); sites.n_origins()];
    let blocks = host.segments.iter().flat_map(|segment| &segment.blocks);
    for block in blocks.filter(|block| block.state != State::Inactive) {
        if let Some(sum) = of_stack.get_mut(at(block.stack)) {
            sum.join(Sum { bytes: block.size, requested: block.requested, blocks: 1 });
        }
    }
    let events = snapshot.events_in(host.events);
    Some(Pinned {
        snapshot,
        sites,
        totals,
        pools: pools::sums(snapshot, &host.segments),
        rows: sites.rows(snapshot, (0..).zip(of_stack)),
        n_events: count(events.len()),
        peak: (!events.is_empty()).then(|| peak(events, totals.active)),
    })
}

/// The most that was in use, by what is in use after the last event.
fn peak(events: &[Event], end: u64) -> u64 {
    let mut now = end;
    let mut most = end;
    for event in events.iter().rev() {
        match event.action {
            Action::Alloc => now = now.saturating_sub(event.size),
            Action::FreeCompleted => now = now.saturating_add(event.size),
            _ => {}
        }
        most = most.max(now);
    }
    most
}
