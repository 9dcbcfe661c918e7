//! A snapshot as it was recorded: segments, blocks, events, stacks. Nothing here is
//! interpreted.

pub(crate) mod arena;
pub(crate) mod rounding;

use crate::integer::at;
use crate::model::arena::Arena;
use crate::model::rounding::Rounding;

/// The stack without frames.
pub const NO_STACK: u32 = 0;

/// A snapshot.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Protocol of the pickle.
    pub protocol: u8,
    /// Every string, escaped nowhere.
    pub strings: Arena<u8>,
    /// Every frame; equal ones share a number.
    pub frames: Vec<Frame>,
    /// Every stack: numbers of frames, innermost first. Stack 0 is empty.
    pub stacks: Arena<u32>,
    /// Streams by number.
    pub streams: Vec<u64>,
    /// Private pools by number; number 0 is the default pool.
    pub pools: Vec<(u64, u64)>,
    /// Events of all devices.
    pub events: Vec<Event>,
    /// `user_metadata` of runs of events, rising; an event in no run has none.
    pub metadata: Vec<MetadataRun>,
    /// Devices with segments or events, by index.
    pub devices: Vec<Device>,
    /// Pinned memory of the host, where it was recorded.
    pub host: Option<HostMemory>,
    /// Marks that PyTorch wrote while it recorded, by time.
    pub annotations: Vec<Annotation>,
    /// The file's facts about its ring of events.
    pub ring: Ring,
    /// The allocator's rounding of requests, as the file gives it.
    pub rounding: Rounding,
}

/// A frame of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// String number of the function.
    pub name: u32,
    /// String number of the file.
    pub file: u32,
    /// 0 for C++.
    pub line: u64,
}

/// A device's share of a snapshot.
#[derive(Debug, Default)]
pub struct Device {
    /// CUDA index.
    pub index: u64,
    /// The segments by address.
    pub segments: Vec<Segment>,
    /// First and one past the last of its events.
    pub events: (usize, usize),
}

/// Pinned memory of the host, which the devices read and write: `host_segments` and
/// `host_traces` of PyTorch 2.15.
#[derive(Debug, Default)]
pub struct HostMemory {
    /// The segments by address; each is one block.
    pub segments: Vec<Segment>,
    /// First and one past the last of its events.
    pub events: (usize, usize),
}

/// Memory that was taken from the driver: one `cudaMalloc`, or one mapped range of an
/// expandable segment.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Sum of its blocks that are not inactive, as the file gives it.
    pub active_size: u64,
    /// The number of its stream.
    pub stream: u32,
    /// The number of its pool.
    pub pool: u32,
    /// Set when it is of the small pool.
    pub is_small: bool,
    /// Set when it can be mapped and unmapped in pieces.
    pub is_expandable: bool,
    /// Blocks by address.
    pub blocks: Vec<Block>,
}

// Same name as detect::ladder::Block: it is PyTorch's word.
/// A piece of a segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Block {
    /// First byte.
    pub address: u64,
    /// Bytes of the device.
    pub size: u64,
    /// Bytes of the tensor; stale if inactive.
    pub requested: u64,
    /// The block's state: in use, or not.
    pub state: State,
    /// Stack of the allocation.
    pub stack: u32,
}

/// The use of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Use by a tensor.
    Allocated,
    /// Freed, but another stream may still use it.
    Pending,
    /// Not in use.
    #[default]
    Inactive,
}

/// The subject of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Action {
    /// A tensor was allocated.
    Alloc,
    /// A tensor was freed; its block may be pending.
    FreeRequested,
    /// A block can be used again.
    FreeCompleted,
    /// A `cudaMalloc`.
    SegmentAlloc,
    /// A `cudaFree`.
    SegmentFree,
    /// A range was mapped.
    SegmentMap,
    /// A range was unmapped.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// An allocation failed.
    OutOfMemory,
    /// Anything newer.
    #[default]
    Other,
}

// Same name as analysis::event::Event: an entry of PyTorch's trace is one too.
/// An entry of a trace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Event {
    /// First byte; of `OutOfMemory` the device's free bytes.
    pub address: u64,
    /// Requested bytes.
    pub size: u64,
    /// Unix time in µs; 0 where the file has none.
    pub time_us: u64,
    /// The number of the stack.
    pub stack: u32,
    /// The stream and the pool.
    pub place: Place,
    /// The subject.
    pub action: Action,
}

impl Event {
    /// An event of which nothing is known.
    pub fn unknown() -> Self {
        Self { place: Place::new(0, None), ..Self::default() }
    }
}

/// The stream and the pool of an event, by number. Three bytes: a window has millions of
/// events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place([u8; 3]);

/// Bits of a number in a [`Place`]: streams and pools are below it, and all ones is the pool of
/// an event without one.
const PLACE_BITS: u32 = 12;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;

impl Place {
    /// A place; `pool` is `None` where the file names none.
    #[inline]
    pub fn new(stream: u32, pool: Option<u32>) -> Self {
        let pool = pool.unwrap_or(PLACE_MASK).min(PLACE_MASK);
        let [a, b, c, _] = (stream.min(PLACE_MASK) | pool << PLACE_BITS).to_le_bytes();
        Self([a, b, c])
    }

    /// The number of the stream.
    #[inline]
    pub fn stream(self) -> u32 {
        self.word() & PLACE_MASK
    }

    /// The number of the pool; `None` where the file names none.
    #[inline]
    pub fn pool(self) -> Option<u32> {
        Some(self.word() >> PLACE_BITS).filter(|pool| *pool != PLACE_MASK)
    }

    #[inline]
    fn word(self) -> u32 {
        let [a, b, c] = self.0;
        u32::from_le_bytes([a, b, c, 0])
    }
}

/// Consecutive events with one `user_metadata`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataRun {
    /// Position in [`Snapshot::events`].
    pub first: u32,
    /// The position behind the last.
    pub end: u32,
    /// String number.
    pub text: u32,
}

/// A moment that PyTorch or the user named.
#[derive(Clone, Copy, Debug)]
pub struct Annotation {
    /// String number.
    pub name: u32,
    /// Set when something begins here.
    pub is_start: bool,
    /// CUDA index, where it has one.
    pub device: Option<u64>,
    /// Unix time in µs.
    pub time_us: u64,
}

/// The ring that events are kept in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ring {
    /// Events a device that it can keep.
    pub entries_max: Option<u64>,
    /// True if older events were lost on any device.
    pub is_overflowed: Option<bool>,
}

impl Snapshot {
    /// The events of a device.
    pub fn events_of(&self, device: &Device) -> &[Event] {
        self.events_in(device.events)
    }

    /// The events from one on and before another.
    pub fn events_in(&self, (first, end): (usize, usize)) -> &[Event] {
        self.events.get(first..end).unwrap_or(&[])
    }

    /// String number of an event's `user_metadata`, by its position in `events`; 0 is the empty
    /// string.
    pub fn metadata_of(&self, event: u32) -> u32 {
        let next = self.metadata.partition_point(|run| run.end <= event);
        let run = self.metadata.get(next).filter(|run| run.first <= event);
        run.map_or(0, |run| run.text)
    }

    /// A string; what is not UTF-8 is replaced.
    pub fn text(&self, number: u32) -> String {
        String::from_utf8_lossy(self.strings.get(number)).into_owned()
    }

    /// A frame; an empty one for a number that was never given out.
    pub fn frame(&self, number: u32) -> Frame {
        self.frames.get(at(number)).copied().unwrap_or_default()
    }

    /// Returns whether any block or event of a device has a stack. Segments have some too, which
    /// show nothing about tensors.
    pub fn has_stacks(&self) -> bool {
        let segments = || self.devices.iter().flat_map(|device| &device.segments);
        let mut events = self.devices.iter().flat_map(|device| self.events_of(device));
        events.any(|event| event.stack != NO_STACK)
            || segments().any(|segment| segment.blocks.iter().any(|b| b.stack != NO_STACK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_takes_32_bytes() {
        assert_eq!(size_of::<Event>(), 32);
    }

    #[test]
    fn a_place_keeps_its_numbers() {
        for (stream, pool) in [(0, None), (1023, Some(0)), (0, Some(1023)), (7, Some(1))] {
            let place = Place::new(stream, pool);
            assert_eq!((place.stream(), place.pool()), (stream, pool));
        }
        assert_eq!(Place::default(), Place::new(0, Some(0)));
    }

    #[test]
    fn metadata_is_found_by_the_event() {
        let runs = [(2, 4, 50), (4, 5, 51), (9, 12, 52)];
        let metadata = runs.map(|(first, end, text)| MetadataRun { first, end, text });
        let snapshot = Snapshot { metadata: metadata.to_vec(), ..Snapshot::default() };
        let found: Vec<u32> = (0..13).map(|event| snapshot.metadata_of(event)).collect();
        assert_eq!(found, [0, 0, 50, 50, 51, 0, 0, 0, 0, 52, 52, 52, 0]);
    }
}
