//! A snapshot as it was recorded: segments, blocks, events, stacks. Nothing here is interpreted.

use crate::snapshot::arena::Arena;
use crate::snapshot::num::at;

/// The stack without frames.
pub const NO_STACK: u32 = 0;

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
    /// Devices with segments or events, by index.
    pub devices: Vec<Device>,
    /// Marks that PyTorch wrote while it recorded, by time.
    pub annotations: Vec<Annotation>,
    /// What the file says of its ring of events.
    pub ring: Ring,
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
    /// By address.
    pub segments: Vec<Segment>,
    /// First and one past the last of its events.
    pub events: (usize, usize),
}

/// Memory that was taken from the driver: one `cudaMalloc`, or one mapped range of an expandable segment.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    /// First byte.
    pub address: u64,
    pub size: u64,
    /// Sum of its blocks that are not inactive, as the file says.
    pub active_size: u64,
    pub stream: u32,
    pub pool: u32,
    /// Whether it is of the small pool.
    pub is_small: bool,
    /// Whether it can be mapped and unmapped in pieces.
    pub is_expandable: bool,
    /// Blocks by address.
    pub blocks: Vec<Block>,
}

// Same name as analysis::creep::pyramid::Block: it is PyTorch's word.
/// A piece of a segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Block {
    /// First byte.
    pub address: u64,
    pub size: u64,
    /// Bytes of the tensor; stale if inactive.
    pub requested: u64,
    /// Whether it is in use.
    pub state: State,
    /// Stack of the allocation.
    pub stack: u32,
}

/// What a block is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// By a tensor.
    Allocated,
    /// Freed, but another stream may still use it.
    Pending,
    /// Not in use.
    #[default]
    Inactive,
}

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
    OutOfMemory,
    /// Anything newer.
    #[default]
    Other,
}

// Same name as analysis::event::Event: an entry of PyTorch's trace is one too.
/// One entry of a trace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Event {
    /// First byte; of `OutOfMemory` the device's free bytes.
    pub address: u64,
    /// Requested bytes.
    pub size: u64,
    /// Unix time in µs; 0 where the file has none.
    pub time_us: u64,
    pub stack: u32,
    pub stream: u32,
    /// String number of `user_metadata`; 0 is the empty string.
    pub metadata: u32,
    /// Pool number; [`NO_POOL`] where the file has none.
    pub pool: u16,
    pub action: Action,
}

/// The pool number of an event that does not name its pool.
pub const NO_POOL: u16 = u16::MAX;

/// A moment that PyTorch or the user named.
#[derive(Clone, Copy, Debug)]
pub struct Annotation {
    /// String number.
    pub name: u32,
    /// Whether something begins here.
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
    /// Whether older events were lost on any device.
    pub is_overflowed: Option<bool>,
}

impl Snapshot {
    /// The events of a device.
    pub fn events_of(&self, device: &Device) -> &[Event] {
        self.events.get(device.events.0..device.events.1).unwrap_or(&[])
    }

    /// A string; what is not UTF-8 is replaced.
    pub fn text(&self, number: u32) -> String {
        String::from_utf8_lossy(self.strings.get(number)).into_owned()
    }

    /// A frame; an empty one for a number that was never given out.
    pub fn frame(&self, number: u32) -> Frame {
        self.frames.get(at(number)).copied().unwrap_or_default()
    }

    /// Whether any block or event has a stack.
    pub fn has_stacks(&self) -> bool {
        self.stacks.len() > 1
    }
}
