//! The segment map: the reserved memory of a moment in the order of addresses, neighbors too
//! small to be seen joined.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::analyze::device::DeviceScene;
use crate::analyze::fragmentation::page_bytes;
use crate::analyze::history::{History, Range};
use crate::analyze::pools;
use crate::integer::{at, id};
use crate::render::words::name_of;
use crate::replay::Allocation;

/// Lines that blocks of a map name; the others are called so.
const SITES_MAX: usize = 200;

/// The reserved memory of a moment.
#[derive(Debug, Default, Serialize)]
pub(crate) struct SegmentMap {
    /// The moment in words: "at the end".
    pub moment: String,
    /// Bytes of live blocks.
    pub live: u64,
    /// Bytes that wait for another stream; of `live`.
    pub pending: u64,
    /// Free bytes in segments that a live block holds.
    pub stranded: u64,
    /// Free bytes that could go back to the driver.
    pub releasable: u64,
    /// Names of lines.
    pub sites: Vec<String>,
    /// Segments that serve the same requests.
    pub groups: Vec<SegmentGroup>,
}

/// Segments of one pool, kind and stream.
#[derive(Debug, Serialize)]
pub(crate) struct SegmentGroup {
    /// The use of the memory.
    pub name: String,
    /// The pieces in the order of addresses.
    pub spans: Vec<MapSpan>,
}

/// A piece of reserved memory. Its bytes, its kind, the number of its line (-1 for another),
/// its blocks, its live bytes, and 1 if a segment begins with it. Kinds: 0 live, 1 pending, 2
/// stranded, 3 releasable, 4 many small blocks.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct MapSpan(u64, u8, i32, u64, u64, u8);

const LIVE: u8 = 0;
const PENDING: u8 = 1;
const STRANDED: u8 = 2;
const RELEASABLE: u8 = 3;
const MIXED: u8 = 4;

/// Draws the map of a moment that the history was rewound to. `n_max`: spans, about.
pub(crate) fn draw(
    scene: &DeviceScene<'_>,
    history: &History,
    moment: (&str, usize),
) -> SegmentMap {
    let (moment, n_max) = moment;
    let mut live: Vec<u32> = history.alive.clone();
    let address = |number: &u32| of(scene, *number).map_or(0, |allocation| allocation.address);
    live.retain(|number| of(scene, *number).is_some_and(|allocation| !allocation.is_vanished));
    live.sort_unstable_by_key(address);
    let mut map = SegmentMap { moment: moment.to_owned(), ..SegmentMap::default() };
    let mut groups: BTreeMap<(u32, bool, u32), Vec<MapSpan>> = BTreeMap::new();
    let mut numbers = HashMap::new();
    for (start, range) in joined(history) {
        let first = live.partition_point(|number| address(number) < start);
        let end = live.partition_point(|number| address(number) < range.end);
        let blocks = live.get(first..end).unwrap_or(&[]);
        let spans = groups.entry((range.pool, range.is_small, range.stream)).or_default();
        let is_private = pools::is_private(scene.snapshot, range.pool);
        let mapped = MappedSegment { start, range, is_private };
        let from = spans.len();
        let mut free_from = start;
        for number in blocks {
            let Some(allocation) = of(scene, *number) else { continue };
            mapped.free(spans, free_from, allocation.address);
            let is_pending = allocation.freed <= history.state()
                || (history.state() == scene.timeline.end() && allocation.is_pending);
            let site = map.number_of(scene, allocation, &mut numbers);
            let kind = if is_pending { PENDING } else { LIVE };
            spans.push(MapSpan(allocation.size, kind, site, 1, allocation.size, 0));
            free_from = allocation.address.saturating_add(allocation.size);
        }
        if blocks.is_empty() && !is_private {
            spans.push(MapSpan(range.end.saturating_sub(start), RELEASABLE, -1, 0, 0, 0));
        } else {
            mapped.free(spans, free_from, range.end);
        }
        if let Some(span) = spans.get_mut(from) {
            span.5 = 1;
        }
    }
    map.sum_up(&groups);
    let reserved: u64 = groups.values().flatten().map(|span| span.0).sum();
    let n_spans: usize = groups.values().map(Vec::len).sum();
    let grain = if n_spans > n_max { reserved / u64::from(id(n_max).max(1)) } else { 0 };
    map.groups = groups
        .into_iter()
        .map(|(key, spans)| SegmentGroup {
            name: title(scene, key),
            spans: joined_small(&spans, grain),
        })
        .collect();
    map
}

impl SegmentMap {
    fn number_of(
        &mut self,
        scene: &DeviceScene<'_>,
        allocation: &Allocation,
        numbers: &mut HashMap<u32, i32>,
    ) -> i32 {
        let site = scene.sites.of(allocation);
        if let Some(number) = numbers.get(&site) {
            return *number;
        }
        if self.sites.len() >= SITES_MAX {
            return -1;
        }
        let number = i32::try_from(self.sites.len()).unwrap_or(-1);
        self.sites.push(name_of(scene, site));
        numbers.insert(site, number);
        number
    }

    fn sum_up(&mut self, groups: &BTreeMap<(u32, bool, u32), Vec<MapSpan>>) {
        for MapSpan(size, kind, _, _, live, _) in groups.values().flatten() {
            self.live += live;
            match *kind {
                PENDING => self.pending += size,
                STRANDED => self.stranded += size,
                RELEASABLE => self.releasable += size,
                _ => {}
            }
        }
    }
}

fn of<'a>(scene: &'a DeviceScene<'_>, number: u32) -> Option<&'a Allocation> {
    scene.timeline.allocations.get(at(number))
}

/// Ranges by address; mapped pieces of an expandable segment that touch are one.
fn joined(history: &History) -> Vec<(u64, Range)> {
    let mut joined: Vec<(u64, Range)> = Vec::with_capacity(history.ranges.len());
    for (start, range) in &history.ranges {
        match joined.last_mut() {
            Some((_, before))
                if before.is_expandable
                    && range.is_expandable
                    && before.end == *start
                    && (before.pool, before.is_small, before.stream)
                        == (range.pool, range.is_small, range.stream) =>
            {
                before.end = range.end;
            }
            _ => joined.push((*start, *range)),
        }
    }
    joined
}

/// A range that has live blocks.
struct MappedSegment {
    start: u64,
    range: Range,
    /// Set when it is of a private pool: none of it could go back.
    is_private: bool,
}

impl MappedSegment {
    /// Adds free bytes: whole pages of an expandable range could go back.
    fn free(&self, spans: &mut Vec<MapSpan>, from: u64, to: u64) {
        let mut add = |size: u64, kind| {
            if size > 0 {
                spans.push(MapSpan(size, kind, -1, 0, 0, 0));
            }
        };
        let size = to.saturating_sub(from);
        let page = page_bytes(self.range.is_small);
        let (from, to) = (from.saturating_sub(self.start), to.saturating_sub(self.start));
        let (first, end) = (from.div_ceil(page).saturating_mul(page), to / page * page);
        if !self.range.is_expandable || self.is_private || end <= first {
            return add(size, STRANDED);
        }
        add(first - from, STRANDED);
        add(end - first, RELEASABLE);
        add(to - end, STRANDED);
    }
}

/// Joins neighbors below the grain.
fn joined_small(spans: &[MapSpan], grain: u64) -> Vec<MapSpan> {
    let mut joined: Vec<MapSpan> = Vec::new();
    let mut is_open = false;
    for span in spans {
        let is_small = span.0 < grain;
        match joined.last_mut().filter(|last| is_open && is_small && last.0 < grain) {
            Some(last) => {
                let kind = if last.1 == span.1 && last.2 == span.2 { last.1 } else { MIXED };
                *last = MapSpan(
                    last.0 + span.0,
                    kind,
                    if kind == MIXED { -1 } else { last.2 },
                    last.3 + span.3,
                    last.4 + span.4,
                    last.5,
                );
            }
            None => joined.push(*span),
        }
        is_open = is_small;
    }
    joined
}

fn title(scene: &DeviceScene<'_>, (pool, is_small, stream): (u32, bool, u32)) -> String {
    let size = if is_small { "small" } else { "large" };
    let stream = scene.snapshot.streams.get(at(stream)).copied().unwrap_or(0);
    let stream =
        if stream == 0 { "default stream".to_owned() } else { format!("stream {stream:#x}") };
    match scene.snapshot.pools.get(at(pool)) {
        Some((0, 0)) | None => format!("{size} segments, {stream}"),
        Some((a, b)) => format!("{size} segments of private pool ({a}, {b}), {stream}"),
    }
}

#[cfg(test)]
mod tests {
    use crate::render::html::map::{LIVE, MIXED, MapSpan, STRANDED, joined_small};

    #[test]
    fn small_neighbors_are_joined_and_no_byte_is_lost() {
        let spans =
            [(10, LIVE), (1, LIVE), (1, STRANDED), (1, LIVE), (10, STRANDED), (1, LIVE)];
        let spans = spans.map(|(size, kind)| MapSpan(size, kind, -1, 1, size, 0));
        let joined = joined_small(&spans, 5);
        let shown: Vec<(u64, u8)> = joined.iter().map(|span| (span.0, span.1)).collect();
        assert_eq!(shown, [(10, LIVE), (3, MIXED), (10, STRANDED), (1, LIVE)]);
    }
}
