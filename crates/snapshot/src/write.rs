//! Writes a snapshot as PyTorch does: one pickle of protocol 4 in which keys, frames and stacks
//! are shared.

use crate::integer::{at, id};
use crate::model::arena::Arena;
use crate::model::rounding::Rounding;
use crate::model::{Action, Block, Event, Frame, NO_STACK, Segment, Snapshot, State};
use crate::read::keys;

/// The device of the host's segments: -1.
const NO_DEVICE: u64 = u64::MAX;

impl Snapshot {
    /// A snapshot of nothing.
    pub fn empty() -> Self {
        let mut snapshot = Self { protocol: 4, ..Self::default() };
        for known in keys::KNOWN {
            snapshot.strings.intern(known.as_bytes());
        }
        snapshot.stacks.intern(&[]);
        snapshot.streams.push(0);
        snapshot.pools.push((0, 0));
        snapshot
    }

    /// The number of a stack; `frames` are files, lines and functions, innermost first.
    pub fn stack(&mut self, frames: &[(&str, u64, &str)]) -> u32 {
        let mut numbers = Vec::with_capacity(frames.len());
        for (file, line, name) in frames {
            let frame = Frame {
                name: self.strings.intern(name.as_bytes()),
                file: self.strings.intern(file.as_bytes()),
                line: *line,
            };
            let known = self.frames.iter().position(|known| *known == frame);
            numbers.push(id(known.unwrap_or(self.frames.len())));
            if known.is_none() {
                self.frames.push(frame);
            }
        }
        self.stacks.intern(&numbers)
    }
}

/// The bytes of a snapshot's pickle.
pub fn write(snapshot: &Snapshot) -> Vec<u8> {
    let mut writer = Writer::new(snapshot);
    writer.bytes.extend([0x80, 4]);
    writer.open(b'}');
    writer.key(keys::SEGMENTS);
    writer.open(b']');
    for device in &snapshot.devices {
        for segment in &device.segments {
            writer.segment(device.index, segment);
        }
    }
    writer.bytes.push(b'e');
    writer.key(keys::DEVICE_TRACES);
    writer.traces();
    writer.key(keys::EXTERNAL_ANNOTATIONS);
    writer.annotations();
    if let Some(host) = &snapshot.host {
        writer.key(keys::HOST_SEGMENTS);
        writer.open(b']');
        for segment in &host.segments {
            writer.segment(NO_DEVICE, segment);
        }
        writer.bytes.push(b'e');
        writer.key(keys::HOST_TRACES);
        writer.events(host.events);
    }
    let has_rounding = snapshot.rounding != Rounding::default();
    let ring = snapshot.ring;
    if ring.entries_max.is_some() || ring.is_overflowed.is_some() || has_rounding {
        writer.key(keys::ALLOCATOR_SETTINGS);
        writer.settings(has_rounding);
    }
    writer.bytes.extend(*b"u.");
    writer.bytes
}

/// A pickle that grows.
struct Writer<'a> {
    snapshot: &'a Snapshot,
    bytes: Vec<u8>,
    /// Memo entries so far.
    n_memo: u32,
    /// Memo entries of strings, frames and stacks.
    strings: Vec<Option<u32>>,
    frames: Vec<Option<u32>>,
    stacks: Vec<Option<u32>>,
    /// Strings that are not the snapshot's.
    words: Arena<u8>,
    word_entries: Vec<u32>,
}

impl<'a> Writer<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        Self {
            snapshot,
            bytes: Vec::new(),
            n_memo: 0,
            strings: vec![None; snapshot.strings.len()],
            frames: vec![None; snapshot.frames.len()],
            stacks: vec![None; snapshot.stacks.len()],
            words: Arena::default(),
            word_entries: Vec::new(),
        }
    }

    /// An empty dict or list and a mark: what follows until `u` or `e` fills it.
    fn open(&mut self, opcode: u8) {
        self.bytes.extend([opcode, b'(']);
    }

    fn memoize(&mut self) -> u32 {
        self.bytes.push(0x94);
        self.n_memo += 1;
        self.n_memo - 1
    }

    fn get(&mut self, entry: u32) {
        if let Ok(entry) = u8::try_from(entry) {
            self.bytes.extend([b'h', entry]);
        } else {
            self.bytes.push(b'j');
            self.bytes.extend(entry.to_le_bytes());
        }
    }

    fn number(&mut self, number: u64) {
        if let Ok(number) = u8::try_from(number) {
            self.bytes.extend([b'K', number]);
        } else if let Ok(number) = i32::try_from(number) {
            self.bytes.push(b'J');
            self.bytes.extend(number.to_le_bytes());
        } else {
            // A ninth byte keeps what is above 2^63 positive.
            let length = if number >> 63 == 0 { 8 } else { 9 };
            self.bytes.extend([0x8a, length]);
            self.bytes.extend(number.to_le_bytes());
            if length == 9 {
                self.bytes.push(0);
            }
        }
    }

    fn flag(&mut self, is_set: bool) {
        self.bytes.push(if is_set { 0x88 } else { 0x89 });
    }

    fn text(&mut self, text: &[u8]) {
        if let Ok(length) = u8::try_from(text.len()) {
            self.bytes.extend([0x8c, length]);
        } else {
            self.bytes.push(b'X');
            self.bytes.extend(id(text.len()).to_le_bytes());
        }
        self.bytes.extend(text);
    }

    /// A string of the snapshot.
    fn string(&mut self, number: u32) {
        if let Some(Some(entry)) = self.strings.get(at(number)).copied() {
            return self.get(entry);
        }
        let snapshot = self.snapshot;
        self.text(snapshot.strings.get(number));
        let entry = self.memoize();
        if let Some(slot) = self.strings.get_mut(at(number)) {
            *slot = Some(entry);
        }
    }

    /// A string that means something in every snapshot.
    fn key(&mut self, number: u32) {
        self.word(keys::KNOWN.get(at(number)).copied().unwrap_or_default());
    }

    fn word(&mut self, word: &str) {
        let number = self.words.intern(word.as_bytes());
        if let Some(entry) = self.word_entries.get(at(number)).copied() {
            return self.get(entry);
        }
        self.text(word.as_bytes());
        let entry = self.memoize();
        self.word_entries.push(entry);
    }

    fn field(&mut self, key: u32, number: u64) {
        self.key(key);
        self.number(number);
    }

    fn segment(&mut self, device: u64, segment: &Segment) {
        let sum = |state: &dyn Fn(State) -> bool| {
            segment.blocks.iter().filter(|b| state(b.state)).map(|b| b.size).sum()
        };
        let stream = self.snapshot.streams.get(at(segment.stream)).copied().unwrap_or(0);
        self.open(b'}');
        self.field(keys::DEVICE, device);
        self.field(keys::ADDRESS, segment.address);
        self.field(keys::TOTAL_SIZE, segment.size);
        self.word("allocated_size");
        self.number(sum(&|state| state == State::Allocated));
        self.field(keys::ACTIVE_SIZE, sum(&|state| state != State::Inactive));
        self.field(keys::STREAM, stream);
        self.key(keys::SEGMENT_TYPE);
        self.word(if segment.is_small { "small" } else { "large" });
        self.key(keys::SEGMENT_POOL_ID);
        self.pool(segment.pool);
        self.key(keys::IS_EXPANDABLE);
        self.flag(segment.is_expandable);
        self.key(keys::BLOCKS);
        self.open(b']');
        for block in &segment.blocks {
            self.block(block);
        }
        self.bytes.extend(*b"eu");
    }

    fn pool(&mut self, number: u32) {
        let (first, second) = self.snapshot.pools.get(at(number)).copied().unwrap_or((0, 0));
        self.number(first);
        self.number(second);
        self.bytes.push(0x86);
    }

    fn block(&mut self, block: &Block) {
        self.open(b'}');
        self.field(keys::ADDRESS, block.address);
        self.field(keys::SIZE, block.size);
        self.field(keys::REQUESTED_SIZE, block.requested);
        self.key(keys::STATE);
        self.word(match block.state {
            State::Allocated => "active_allocated",
            State::Pending => "active_pending_free",
            State::Inactive => "inactive",
        });
        self.key(keys::FRAMES);
        self.stack(block.stack);
        self.bytes.push(b'u');
    }

    fn stack(&mut self, number: u32) {
        if let Some(Some(entry)) = self.stacks.get(at(number)).copied() {
            return self.get(entry);
        }
        self.bytes.push(b']');
        let entry = self.memoize();
        if let Some(slot) = self.stacks.get_mut(at(number)) {
            *slot = Some(entry);
        }
        if number == NO_STACK {
            return;
        }
        self.bytes.push(b'(');
        let snapshot = self.snapshot;
        for frame in snapshot.stacks.get(number) {
            self.frame(*frame);
        }
        self.bytes.push(b'e');
    }

    fn frame(&mut self, number: u32) {
        if let Some(Some(entry)) = self.frames.get(at(number)).copied() {
            return self.get(entry);
        }
        let frame = self.snapshot.frame(number);
        self.bytes.push(b'}');
        let entry = self.memoize();
        self.bytes.push(b'(');
        self.key(keys::NAME);
        self.string(frame.name);
        self.key(keys::FILENAME);
        self.string(frame.file);
        self.field(keys::LINE, frame.line);
        self.bytes.push(b'u');
        if let Some(slot) = self.frames.get_mut(at(number)) {
            *slot = Some(entry);
        }
    }

    /// A list for every device number up to the last one with events.
    fn traces(&mut self) {
        let snapshot = self.snapshot;
        let of = |index: u64| snapshot.devices.iter().find(|device| device.index == index);
        let last = snapshot.devices.iter().map(|device| device.index).max();
        self.open(b']');
        for index in 0..last.map_or(0, |last| last.saturating_add(1)) {
            self.events(of(index).map_or((0, 0), |device| device.events));
        }
        self.bytes.push(b'e');
    }

    /// A list of the events from one on and before another.
    fn events(&mut self, (first, end): (usize, usize)) {
        let snapshot = self.snapshot;
        self.open(b']');
        for (number, event) in snapshot.events.iter().enumerate().take(end).skip(first) {
            self.event(event, snapshot.metadata_of(id(number)));
        }
        self.bytes.push(b'e');
    }

    fn event(&mut self, event: &Event, metadata: u32) {
        self.open(b'}');
        self.key(keys::ACTION);
        self.word(match event.action {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::Snapshot => "snapshot",
            Action::OutOfMemory => "oom",
            Action::Other => "annotate",
        });
        let is_oom = event.action == Action::OutOfMemory;
        self.field(if is_oom { keys::DEVICE_FREE } else { keys::ADDR }, event.address);
        self.field(keys::SIZE, event.size);
        let stream = self.snapshot.streams.get(at(event.place.stream())).copied().unwrap_or(0);
        self.field(keys::STREAM, stream);
        self.field(keys::TIME_US, event.time_us);
        if metadata != 0 {
            self.key(keys::USER_METADATA);
            self.string(metadata);
        }
        if let Some(pool) = event.place.pool() {
            self.key(keys::POOL_ID);
            self.pool(pool);
        }
        self.key(keys::FRAMES);
        self.stack(event.stack);
        self.bytes.push(b'u');
    }

    fn annotations(&mut self) {
        let snapshot = self.snapshot;
        self.open(b']');
        for mark in &snapshot.annotations {
            self.open(b'}');
            self.key(keys::STAGE);
            self.word(if mark.is_start { "START" } else { "END" });
            self.key(keys::NAME);
            self.string(mark.name);
            if let Some(device) = mark.device {
                self.field(keys::DEVICE, device);
            }
            self.field(keys::TIME_US, mark.time_us);
            self.bytes.push(b'u');
        }
        self.bytes.push(b'e');
    }

    fn settings(&mut self, has_rounding: bool) {
        let ring = self.snapshot.ring;
        self.open(b'}');
        if let Some(max) = ring.entries_max {
            self.field(keys::TRACE_ALLOC_MAX_ENTRIES, max);
        }
        if let Some(is_overflowed) = ring.is_overflowed {
            self.key(keys::TRACE_ALLOC_OVERFLOWED);
            self.flag(is_overflowed);
        }
        if has_rounding {
            self.key(keys::ROUNDUP_POWER2_DIVISIONS);
            self.open(b'}');
            for (key, divisions) in
                (keys::FIRST_DIVISION..).zip(self.snapshot.rounding.divisions)
            {
                self.field(key, divisions);
            }
            self.bytes.push(b'u');
        }
        self.bytes.push(b'u');
    }
}
