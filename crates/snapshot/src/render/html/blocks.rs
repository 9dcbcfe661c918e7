//! The blocks of a window as columns of numbers, for the list of events: as many as the byte
//! budget allows, the largest.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;

use serde::Serialize;

use crate::analyze::casts::{self, CastSource};
use crate::analyze::categories::ALL;
use crate::analyze::device_report::DeviceReport;
use crate::analyze::mirrors;
use crate::analyze::phases::StepPhase;
use crate::events::ending::Ending;
use crate::events::filter::EventFilter;
use crate::events::list::EventList;
use crate::events::words;
use crate::integer::{at, count, difference, id};
use crate::model::NO_STACK;
use crate::render::html::bands::UNIT_BYTES;
use crate::render::html::detail::Detail;
use crate::render::words::{frame, name_of, phase};
use crate::replay::Allocation;

/// A base above the number of every phase: a pair of phases makes one number.
const PHASE_BASE: u32 = 8;

/// A device's blocks. Each column has an entry for each of them, in the order of their
/// allocation.
#[derive(Debug, Default, Serialize)]
pub(crate) struct BlockTable {
    device: u64,
    /// Blocks that are not listed.
    left_out: u64,
    /// Bytes of the largest of them.
    left_out_bytes_max: u64,
    /// Bytes of a unit.
    unit: u64,
    /// First state in which it is alive, less that of the block before; state 0 is before the
    /// window.
    from: Vec<u32>,
    /// States from its allocation to its free; 0 if the window has no free of it.
    lifetime: Vec<u32>,
    /// First byte in units, less that of the block before.
    address: Vec<i64>,
    /// Bytes that the tensor requested.
    requested: Vec<u64>,
    /// Units of the block beyond those that the request fills.
    extra: Vec<u64>,
    /// Indices into `stacks` of the allocation's stack, and of the free's; the first stack is
    /// empty.
    stack: Vec<u32>,
    free_stack: Vec<u32>,
    /// Indices into the lists of the same name below.
    line: Vec<u32>,
    category: Vec<u32>,
    ending: Vec<u32>,
    /// Eight times the phase of the allocation, and the phase of the free.
    phase: Vec<u32>,
    /// The distance, in blocks, to the earlier block whose memory this one takes; 0 if none
    /// that is listed.
    reuse: Vec<u32>,
    /// Indices into `notes`; the first is empty.
    note: Vec<u32>,
    /// Units by which what is active after each event of the list differs from the sum of the
    /// listed blocks, less that of the event before; empty if all blocks are listed.
    unlisted: Vec<i64>,
    stacks: Vec<Vec<u32>>,
    frames: Vec<String>,
    lines: Vec<String>,
    categories: Vec<&'static str>,
    endings: Vec<String>,
    notes: Vec<String>,
    phases: Vec<&'static str>,
}

impl BlockTable {
    /// Lists the largest blocks of a device; what is alive at its peak or its first failed
    /// allocation goes first.
    pub(crate) fn new(report: &DeviceReport<'_>, detail: Detail) -> Self {
        let list = EventList::new(report, EventFilter::default());
        let (numbers, n_left, left_out_bytes_max) = chosen(report, detail.blocks);
        let mut table = Self {
            device: report.scene.device.index,
            left_out: count(n_left),
            left_out_bytes_max,
            unit: UNIT_BYTES,
            categories: ALL.into_iter().map(words::category).collect(),
            phases: StepPhase::ALL.into_iter().map(phase).collect(),
            unlisted: unlisted(&list, &numbers),
            ..Self::default()
        };
        let copies = casts::copies(&report.scene, &report.categories);
        let mut texts = Texts::new(&list, detail.frames);
        let mut places: HashMap<u32, u32> = HashMap::with_capacity(numbers.len());
        let mut before = (0, 0);
        for (place, number) in (0..).zip(&numbers) {
            let Some(allocation) = list.allocation(*number) else { continue };
            let earlier = list.reuse(*number).and_then(|(earlier, _)| places.get(&earlier));
            table.reuse.push(earlier.map_or(0, |earlier| place - earlier));
            places.insert(*number, place);
            table.add(&list, *number, &mut texts);
            table.note.push(texts.note(*number, copies.get(number).copied()));
            let unit = allocation.address / UNIT_BYTES;
            table.from.push(allocation.from.saturating_sub(before.0));
            table.address.push(difference(unit, before.1));
            before = (allocation.from, unit);
        }
        table.stacks = texts.stacks.values;
        table.frames = texts.frames.values;
        table.lines = texts.lines.values;
        table.endings = texts.endings.values;
        table.notes = texts.notes.values;
        table
    }

    fn add(&mut self, list: &EventList<'_>, number: u32, texts: &mut Texts<'_>) {
        let Some(allocation) = list.allocation(number) else { return };
        let free = list.free_event(allocation);
        let lifetime = free.map_or(0, |free| (free + 1).saturating_sub(allocation.from));
        let place =
            |phase| StepPhase::ALL.iter().position(|other| *other == phase).unwrap_or(0);
        let phase_at =
            |event: Option<u32>| id(event.map_or(0, |event| place(list.phase(event))));
        let category = list.report.categories.get(at(number)).copied().unwrap_or_default();
        self.lifetime.push(lifetime);
        self.requested.push(allocation.requested);
        self.extra.push(units(allocation) - filled(allocation));
        self.stack.push(texts.stack(allocation.stack));
        self.free_stack.push(texts.stack(list.free_stack(allocation)));
        self.line.push(texts.line(allocation));
        self.category.push(id(ALL.iter().position(|other| *other == category).unwrap_or(0)));
        self.ending.push(texts.ending(allocation));
        self.phase.push(PHASE_BASE * phase_at(list.alloc_event(allocation)) + phase_at(free));
    }
}

/// Units that a block's request fills.
fn filled(allocation: &Allocation) -> u64 {
    allocation.requested.div_ceil(UNIT_BYTES).max(1)
}

/// Units of a block.
fn units(allocation: &Allocation) -> u64 {
    filled(allocation).max(allocation.size / UNIT_BYTES)
}

/// The bytes that are active beyond the listed blocks, as in [`BlockTable::unlisted`].
fn unlisted(list: &EventList<'_>, numbers: &[u32]) -> Vec<i64> {
    let scene = &list.report.scene;
    let mut levels = (1..).zip(scene.timeline.levels(scene.events)).peekable();
    let mut active = scene.timeline.at_start.active;
    let mut listed = 0_u64;
    let mut events: Vec<(u32, usize, bool, u64)> = Vec::with_capacity(2 * numbers.len());
    for (place, number) in numbers.iter().enumerate() {
        let Some(allocation) = list.allocation(*number) else { continue };
        let units = units(allocation);
        match list.alloc_event(allocation) {
            Some(event) => events.push((event, place, false, units)),
            None => listed = listed.saturating_add(units),
        }
        events.extend(list.free_event(allocation).map(|event| (event, place, true, units)));
    }
    events.sort_unstable();
    let mut before = 0;
    let changes = events.into_iter().map(|(event, _, is_free, units)| {
        listed =
            if is_free { listed.saturating_sub(units) } else { listed.saturating_add(units) };
        let state = scene.timeline.state_after(event);
        while let Some((_, level)) = levels.next_if(|(after, _)| *after <= state) {
            active = level.active;
        }
        let unlisted = difference(active / UNIT_BYTES, listed);
        let change = unlisted.saturating_sub(before);
        before = unlisted;
        change
    });
    let changes: Vec<i64> = changes.collect();
    if changes.iter().all(|change| *change == 0) { Vec::new() } else { changes }
}

/// The blocks that are listed, in the order of their allocation; the number of the others, and
/// the bytes of the largest of them.
fn chosen(report: &DeviceReport<'_>, n_max: usize) -> (Vec<u32>, usize, u64) {
    let allocations = &report.scene.timeline.allocations;
    let mut moments = vec![report.scene.timeline.peak.state];
    moments.extend(report.oom.first().map(|failure| failure.event));
    let is_held =
        |allocation: &Allocation| moments.iter().any(|moment| allocation.is_alive(*moment));
    let mut numbers: Vec<u32> = (0..id(allocations.len())).collect();
    if numbers.len() > n_max {
        let rank = |number: &u32| {
            let allocation = allocations.get(at(*number));
            let is_held = allocation.is_some_and(is_held);
            Reverse((is_held, allocation.map_or(0, |allocation| allocation.size), *number))
        };
        numbers.select_nth_unstable_by_key(n_max, rank);
    }
    let size = |number: &u32| allocations.get(at(*number)).map_or(0, |other| other.size);
    let left_out = numbers.get(n_max..).unwrap_or(&[]);
    let (n_left, bytes_max) = (left_out.len(), left_out.iter().map(size).max().unwrap_or(0));
    numbers.truncate(n_max);
    numbers.shrink_to_fit();
    numbers.sort_unstable_by_key(|number| {
        (allocations.get(at(*number)).map_or(0, |allocation| allocation.from), *number)
    });
    (numbers, n_left, bytes_max)
}

/// Values that are written once.
#[derive(Debug)]
struct Distinct<K, T> {
    places: HashMap<K, u32>,
    values: Vec<T>,
}

impl<K: Eq + Hash, T> Distinct<K, T> {
    fn empty() -> Self {
        Self { places: HashMap::new(), values: Vec::new() }
    }

    /// The place of a value by its key; a new one is made.
    fn place(&mut self, key: K, value: impl FnOnce() -> T) -> u32 {
        let values = &mut self.values;
        *self.places.entry(key).or_insert_with(|| {
            values.push(value());
            id(values.len() - 1)
        })
    }
}

/// The key of an ending: its kind, and what its text depends on.
type EndingKey = (u8, u32, u32, u32);

/// The texts and stacks that blocks share.
struct Texts<'a> {
    list: &'a EventList<'a>,
    frames_max: usize,
    stacks: Distinct<u32, Vec<u32>>,
    frames: Distinct<u32, String>,
    lines: Distinct<u32, String>,
    endings: Distinct<EndingKey, String>,
    notes: Distinct<(Option<CastSource>, Option<u32>), String>,
}

impl<'a> Texts<'a> {
    fn new(list: &'a EventList<'a>, frames_max: usize) -> Self {
        let mut texts = Self {
            list,
            frames_max,
            stacks: Distinct::empty(),
            frames: Distinct::empty(),
            lines: Distinct::empty(),
            endings: Distinct::empty(),
            notes: Distinct::empty(),
        };
        texts.stacks.place(NO_STACK, Vec::new);
        texts.notes.place((None, None), String::new);
        texts
    }

    fn stack(&mut self, stack: u32) -> u32 {
        let (report, frames_max, all) = (self.list.report, self.frames_max, &mut self.frames);
        let snapshot = report.scene.snapshot;
        let mut place = |number: u32| {
            all.place(number, || {
                let of = snapshot.frame(number);
                frame(&snapshot.text(of.file), of.line, &snapshot.text(of.name))
            })
        };
        self.stacks.place(stack, || {
            let frames = words::frames(report, stack).into_iter().take(frames_max);
            frames.map(&mut place).collect()
        })
    }

    fn line(&mut self, allocation: &Allocation) -> u32 {
        let report = self.list.report;
        // As the bands of the timeline are named.
        let site = report.scene.sites.of(allocation);
        self.lines.place(site, || name_of(&report.scene, site))
    }

    /// Adds the text of what an allocation is a copy of, and of the line that it mirrors.
    fn note(&mut self, number: u32, cast: Option<CastSource>) -> u32 {
        let report = self.list.report;
        self.notes.place((cast, report.scene.mirrored_line(number)), || {
            let cast = cast.map(|source| words::cast(source).to_owned());
            let told: Vec<String> =
                cast.into_iter().chain(words::mirrors(report, number)).collect();
            told.join("; ")
        })
    }

    fn ending(&mut self, allocation: &Allocation) -> u32 {
        let list = self.list;
        let site = |event: Option<u32>| {
            let timeline = &list.report.scene.timeline;
            let other = event.and_then(|event| timeline.allocation_of(at(event)));
            match other {
                Some(other) if mirrors::is_of_backward(&list.report.scene, other) => u32::MAX,
                Some(other) => list.report.scene.sites.of(other),
                None => u32::MAX - 1,
            }
        };
        let scene = &list.report.scene;
        let of_stack = |stack: u32| scene.sites.of_origin(stack);
        let of_event = |event: u32| {
            of_stack(scene.events.get(at(event)).map_or(NO_STACK, |event| event.stack))
        };
        let key = match list.ending(allocation) {
            Ending::EndOfWindow => (0, 0, 0, 0),
            Ending::Stack(stack) => (1, of_stack(stack), 0, 0),
            Ending::Call(stack, before, after) => {
                (6, of_stack(stack), of_event(before), of_event(after))
            }
            Ending::Backward => (2, 0, 0, 0),
            Ending::Replaced => (3, 0, 0, 0),
            Ending::Between(before, after) => (4, site(before), site(after), 0),
            Ending::Lost => (5, 0, 0, 0),
        };
        self.endings.place(key, || words::ending(list, allocation))
    }
}
