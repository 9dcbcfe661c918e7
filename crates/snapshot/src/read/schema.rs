//! The way from dicts and lists to records. A dict that closes with `action` becomes an event,
//! one with `filename` a frame, a list of frames a stack. Unknown keys are skipped at every
//! level; a required field must have its type.

use crate::error::Fault;
use crate::integer::{at, id};
use crate::model::arena::Arena;
use crate::model::rounding::Rounding;
use crate::model::{Annotation, Event, Frame, MetadataRun, NO_STACK, Place};
use crate::read::keys;
use crate::read::lists::{ListKind, Lists};
use crate::read::raw::{
    List, PackedRecord, RawBlock, RawHistory, RawRoot, RawSegment, RawSettings, Record,
    RecordKind,
};
use crate::read::value::Value;

/// The most that all sizes of a file may add up to: sums of any of them fit into 63 bits.
const SIZES_SUM_MAX: u64 = 1 << 62;
/// Streams and pools that have numbers of their own.
const STREAMS_MAX: usize = 1024;
/// A list of frames grows in batches of a thousand, as Python writes them, or one by one up to
/// this length.
const STACK_PIECES_MAX: usize = 256;
const STACK_BATCH: usize = 1000;

/// Everything that was read so far.
#[derive(Debug)]
pub struct Records {
    pub(crate) strings: Arena<u8>,
    pub(crate) frames: Arena<u32>,
    pub(crate) stacks: Arena<u32>,
    pub(crate) events: Vec<Event>,
    /// The runs in the order in which they were read.
    pub(crate) metadata: Vec<MetadataRun>,
    pub(crate) blocks: Vec<RawBlock>,
    pub(crate) segments: Vec<RawSegment>,
    pub(crate) histories: Vec<RawHistory>,
    pub(crate) annotations: Vec<Annotation>,
    pub(crate) roots: Vec<RawRoot>,
    pub(crate) settings: Vec<RawSettings>,
    pub(crate) roundings: Vec<Rounding>,
    pub(crate) streams: Vec<u64>,
    pub(crate) pools: Vec<(u64, u64)>,
    dicts: Vec<PackedRecord>,
    pub(crate) lists: Lists,
    sizes_sum: u64,
    scratch: Vec<u32>,
    last_stream: u32,
    last_string: u32,
}

impl Default for Records {
    fn default() -> Self {
        let mut strings = Arena::default();
        for known in keys::KNOWN {
            strings.intern(known.as_bytes());
        }
        let mut stacks = Arena::default();
        stacks.intern(&[]);
        Self {
            strings,
            frames: Arena::default(),
            stacks,
            events: Vec::new(),
            metadata: Vec::new(),
            blocks: Vec::new(),
            segments: Vec::new(),
            histories: Vec::new(),
            annotations: Vec::new(),
            roots: Vec::new(),
            settings: Vec::new(),
            roundings: Vec::new(),
            streams: vec![0],
            pools: vec![(0, 0)],
            dicts: Vec::new(),
            lists: Lists::default(),
            sizes_sum: 0,
            scratch: Vec::new(),
            last_stream: 0,
            last_string: 0,
        }
    }
}

impl Records {
    /// A new dict.
    #[inline]
    pub fn open_dict(&mut self) -> Value {
        self.dicts.push(PackedRecord::EMPTY);
        Value::Dict(id(self.dicts.len() - 1))
    }

    /// A new list.
    #[inline]
    pub fn open_list(&mut self) -> Value {
        Value::List(self.lists.open())
    }

    /// A tuple of two; a pool's name is one.
    pub fn pair(&mut self, values: [Value; 2]) -> Value {
        let [Value::Int(a), Value::Int(b)] = values else { return Value::Opaque };
        if let Some(known) = self.pools.iter().position(|pool| *pool == (a, b)) {
            return Value::Pair(id(known));
        }
        if self.pools.len() >= STREAMS_MAX {
            return Value::Opaque;
        }
        self.pools.push((a, b));
        Value::Pair(id(self.pools.len() - 1))
    }

    /// Returns the record that a dict has become.
    pub fn record(&self, dict: u32) -> Record {
        self.dicts.get(at(dict)).map_or(Record::Other, |record| record.unpack())
    }

    /// Bytes of memory in use.
    pub fn heap_bytes(&self) -> usize {
        self.strings.heap_bytes()
            + self.frames.heap_bytes()
            + self.stacks.heap_bytes()
            + self.events.capacity() * size_of::<Event>()
            + self.blocks.capacity() * size_of::<RawBlock>()
            + self.segments.capacity() * size_of::<RawSegment>()
            + self.histories.capacity() * size_of::<RawHistory>()
            + self.annotations.capacity() * size_of::<Annotation>()
            + self.roots.capacity() * size_of::<RawRoot>()
            + self.roundings.capacity() * size_of::<Rounding>()
            + self.metadata.capacity() * size_of::<MetadataRun>()
            + self.dicts.capacity() * size_of::<PackedRecord>()
            + self.lists.heap_bytes()
    }

    /// Puts keys and values, alternating, into a dict.
    ///
    /// # Errors
    /// A key that Python could not hash, or a value of the wrong type under a key that matters.
    pub fn fill(&mut self, dict: u32, items: &[Value]) -> Result<(), Fault> {
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(Fault::Pickle("a dict with an odd number of items".into()));
        }
        let record = match self.record(dict) {
            Record::Empty | Record::Other => self.classify(pairs)?,
            known @ Record::Of(..) => known,
            Record::Frame(_) => return refill(pairs),
        };
        match record {
            Record::Of(RecordKind::Event, number) => self.fill_event(number, pairs)?,
            Record::Of(RecordKind::Block, number) => self.fill_block(number, pairs)?,
            Record::Of(RecordKind::Segment, number) => self.fill_segment(number, pairs)?,
            Record::Of(RecordKind::History, number) => self.fill_history(number, pairs)?,
            Record::Of(RecordKind::Annotation, number) => {
                self.fill_annotation(number, pairs)?;
            }
            Record::Of(RecordKind::Root, number) => self.fill_root(number, pairs),
            Record::Of(RecordKind::Settings, number) => self.fill_settings(number, pairs)?,
            Record::Of(RecordKind::Rounding, number) => self.fill_rounding(number, pairs),
            Record::Frame(_) | Record::Empty | Record::Other => {}
        }
        if let Some(slot) = self.dicts.get_mut(at(dict)) {
            *slot = PackedRecord::pack(record).ok_or_else(|| {
                Fault::Pickle("it has more than 2^28 records of a kind".into())
            })?;
        }
        Ok(())
    }

    /// Returns the kind of a dict, by its first key that shows it; makes its record.
    fn classify(&mut self, pairs: &[[Value; 2]]) -> Result<Record, Fault> {
        let mut kind = None;
        for [key, _] in pairs {
            kind = match *key {
                Value::Str(keys::ACTION) => Some(RecordKind::Event),
                Value::Str(keys::FILENAME) => return self.frame(pairs),
                Value::Str(keys::STATE) => Some(RecordKind::Block),
                Value::Str(keys::BLOCKS | keys::TOTAL_SIZE) => Some(RecordKind::Segment),
                Value::Str(keys::REAL_SIZE) => Some(RecordKind::History),
                Value::Str(keys::STAGE) => Some(RecordKind::Annotation),
                Value::Str(keys::SEGMENTS) => Some(RecordKind::Root),
                Value::Str(
                    keys::PYTORCH_CUDA_ALLOC_CONF
                    | keys::TRACE_ALLOC_MAX_ENTRIES
                    | keys::TRACE_ALLOC_OVERFLOWED
                    | keys::ROUNDUP_POWER2_DIVISIONS,
                ) => Some(RecordKind::Settings),
                Value::Str(keys::FIRST_DIVISION) => Some(RecordKind::Rounding),
                Value::Dict(_) | Value::List(_) => {
                    return Err(Fault::Pickle("a list or dict as a key".into()));
                }
                _ => None,
            };
            if kind.is_some() {
                break;
            }
        }
        let Some(kind) = kind else { return Ok(Record::Other) };
        Ok(Record::Of(kind, id(self.push(kind))))
    }

    /// A new record; its position.
    #[inline]
    fn push(&mut self, kind: RecordKind) -> usize {
        match kind {
            RecordKind::Event => push(&mut self.events, Event::unknown()),
            RecordKind::Block => push(&mut self.blocks, RawBlock::default()),
            RecordKind::Segment => push(&mut self.segments, RawSegment::default()),
            RecordKind::History => push(&mut self.histories, RawHistory::default()),
            RecordKind::Annotation => push(
                &mut self.annotations,
                Annotation { name: 0, is_start: false, device: None, time_us: 0 },
            ),
            RecordKind::Root => push(&mut self.roots, RawRoot::default()),
            RecordKind::Settings => push(&mut self.settings, RawSettings::default()),
            RecordKind::Rounding => push(&mut self.roundings, Rounding::default()),
        }
    }

    fn frame(&mut self, pairs: &[[Value; 2]]) -> Result<Record, Fault> {
        let mut frame = Frame::default();
        for [key, value] in pairs {
            match *key {
                Value::Str(keys::NAME) => frame.name = string(*value, "a frame's name")?,
                Value::Str(keys::FILENAME) => {
                    frame.file = string(*value, "a frame's filename")?;
                }
                Value::Str(keys::LINE) => frame.line = number(*value, "a frame's line")?,
                _ => {}
            }
        }
        let [low, high] = split(frame.line);
        Ok(Record::Frame(self.frames.intern(&[frame.name, frame.file, low, high])))
    }

    #[inline]
    fn fill_event(&mut self, event: u32, pairs: &[[Value; 2]]) -> Result<(), Fault> {
        let Some(mut event_now) = self.events.get(at(event)).copied() else { return Ok(()) };
        for [key, value] in pairs {
            match (*key, *value) {
                (Value::Str(keys::USER_METADATA), Value::Str(text)) => {
                    self.set_metadata(event, text);
                }
                (Value::Str(key), value) => self.set(&mut event_now, key, value)?,
                _ => {}
            }
        }
        if let Some(slot) = self.events.get_mut(at(event)) {
            *slot = event_now;
        }
        Ok(())
    }

    /// Sets a field of an event, other than its metadata.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "half as fast else, for millions of events")]
    pub(super) fn set(
        &mut self,
        event: &mut Event,
        key: u32,
        value: Value,
    ) -> Result<(), Fault> {
        match key {
            keys::ACTION => event.action = keys::action(string(value, "an event's action")?),
            keys::ADDR => event.address = number(value, "an event's addr")?,
            keys::DEVICE_FREE => event.address = number(value, "device_free")?,
            keys::SIZE => event.size = self.size(value, "an event's size")?,
            keys::STREAM => {
                event.place = Place::new(self.stream(value)?, event.place.pool());
            }
            keys::TIME_US => event.time_us = number(value, "an event's time_us")?,
            keys::POOL_ID => {
                if let Value::Pair(pool) = value {
                    event.place = Place::new(event.place.stream(), Some(pool));
                }
            }
            keys::FRAMES => event.stack = self.stack(value)?,
            _ => {}
        }
        Ok(())
    }

    /// Makes an empty dict a whole event; `metadata` is a string. Returns false if it is not
    /// empty, or there are too many.
    #[inline]
    pub(super) fn add_event(&mut self, dict: u32, event: Event, metadata: u32) -> bool {
        let number = id(self.events.len());
        let record = PackedRecord::pack(Record::Of(RecordKind::Event, number));
        let (Some(slot), Some(record)) = (self.dicts.get_mut(at(dict)), record) else {
            return false;
        };
        if *slot != PackedRecord::EMPTY {
            return false;
        }
        *slot = record;
        self.events.push(event);
        self.set_metadata(number, metadata);
        true
    }

    /// Sets the `user_metadata` of an event; the empty string is none.
    #[inline]
    fn set_metadata(&mut self, event: u32, text: u32) {
        match self.metadata.last_mut() {
            _ if text == 0 => {}
            Some(run) if run.end == event && run.text == text => run.end += 1,
            _ => self.metadata.push(MetadataRun { first: event, end: event + 1, text }),
        }
    }

    /// A string.
    #[inline]
    pub(super) fn string(&mut self, text: &[u8]) -> Value {
        if self.strings.get(self.last_string) != text {
            self.last_string = self.strings.intern(text);
        }
        Value::Str(self.last_string)
    }

    /// The lists and the sum of sizes as they are now, to [`reset`](Self::reset) them to.
    #[inline]
    pub(super) fn mark(&self) -> (usize, u64) {
        (self.lists.len(), self.sizes_sum)
    }

    /// Forgets the stacks and sizes since a mark.
    pub(super) fn reset(&mut self, (n_lists, sizes_sum): (usize, u64)) {
        self.lists.truncate(n_lists);
        self.sizes_sum = sizes_sum;
    }

    fn fill_block(&mut self, block: u32, pairs: &[[Value; 2]]) -> Result<(), Fault> {
        let Some(mut block_now) = self.blocks.get(at(block)).copied() else { return Ok(()) };
        for [key, value] in pairs {
            let Value::Str(key) = *key else { continue };
            match key {
                keys::ADDRESS => block_now.address = Some(number(*value, "a block's address")?),
                keys::SIZE => block_now.size = self.size(*value, "a block's size")?,
                keys::REQUESTED_SIZE => {
                    block_now.requested = Some(self.size(*value, "a block's requested_size")?);
                }
                keys::STATE => {
                    block_now.state = keys::state(string(*value, "a block's state")?);
                }
                keys::FRAMES => block_now.stack = self.stack(*value)?,
                keys::HISTORY => block_now.history = self.first_of_history(*value),
                _ => {}
            }
        }
        if let Some(slot) = self.blocks.get_mut(at(block)) {
            *slot = block_now;
        }
        Ok(())
    }

    fn fill_segment(&mut self, segment: u32, pairs: &[[Value; 2]]) -> Result<(), Fault> {
        let Some(mut now) = self.segments.get(at(segment)).copied() else { return Ok(()) };
        for [key, value] in pairs {
            let Value::Str(key) = *key else { continue };
            match key {
                keys::DEVICE => now.device = number(*value, "a segment's device")?,
                keys::ADDRESS => now.address = number(*value, "a segment's address")?,
                keys::TOTAL_SIZE => now.size = self.size(*value, "a segment's total_size")?,
                keys::ACTIVE_SIZE => {
                    now.active_size = self.size(*value, "a segment's active_size")?;
                }
                keys::STREAM => now.stream = self.stream(*value)?,
                keys::SEGMENT_TYPE => now.is_small = *value == Value::Str(keys::SMALL),
                keys::SEGMENT_POOL_ID => {
                    now.pool = if let Value::Pair(pool) = *value { pool } else { 0 };
                }
                keys::IS_EXPANDABLE => now.is_expandable = *value == Value::Bool(true),
                keys::BLOCKS => now.blocks = Some(*value),
                _ => {}
            }
        }
        if let Some(slot) = self.segments.get_mut(at(segment)) {
            *slot = now;
        }
        Ok(())
    }

    fn fill_history(&mut self, history: u32, pairs: &[[Value; 2]]) -> Result<(), Fault> {
        let Some(mut now) = self.histories.get(at(history)).copied() else { return Ok(()) };
        for [key, value] in pairs {
            match *key {
                Value::Str(keys::REAL_SIZE) => {
                    now.requested = self.size(*value, "real_size")?;
                }
                Value::Str(keys::FRAMES) => now.stack = self.stack(*value)?,
                _ => {}
            }
        }
        if let Some(slot) = self.histories.get_mut(at(history)) {
            *slot = now;
        }
        Ok(())
    }

    fn fill_annotation(&mut self, mark: u32, pairs: &[[Value; 2]]) -> Result<(), Fault> {
        let Some(now) = self.annotations.get_mut(at(mark)) else { return Ok(()) };
        for [key, value] in pairs {
            match *key {
                Value::Str(keys::STAGE) => now.is_start = *value == Value::Str(keys::START),
                Value::Str(keys::NAME) => now.name = string(*value, "an annotation's name")?,
                Value::Str(keys::TIME_US) => {
                    now.time_us = number(*value, "an annotation's time_us")?;
                }
                Value::Str(keys::DEVICE) => {
                    now.device =
                        if let Value::Int(index) = *value { Some(index) } else { None };
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn fill_root(&mut self, root: u32, pairs: &[[Value; 2]]) {
        let Some(now) = self.roots.get_mut(at(root)) else { return };
        for [key, value] in pairs {
            match *key {
                Value::Str(keys::SEGMENTS) => now.segments = Some(*value),
                Value::Str(keys::DEVICE_TRACES) => now.traces = Some(*value),
                Value::Str(keys::EXTERNAL_ANNOTATIONS) => now.annotations = Some(*value),
                Value::Str(keys::ALLOCATOR_SETTINGS) => now.settings = Some(*value),
                Value::Str(keys::HOST_SEGMENTS) => now.host_segments = Some(*value),
                Value::Str(keys::HOST_TRACES) => now.host_traces = Some(*value),
                _ => {}
            }
        }
    }

    fn fill_settings(&mut self, settings: u32, pairs: &[[Value; 2]]) -> Result<(), Fault> {
        let Some(now) = self.settings.get_mut(at(settings)) else { return Ok(()) };
        for [key, value] in pairs {
            match (*key, *value) {
                (Value::Str(keys::TRACE_ALLOC_MAX_ENTRIES), value) => {
                    now.ring.entries_max = Some(number(value, "trace_alloc_max_entries")?);
                }
                (Value::Str(keys::TRACE_ALLOC_OVERFLOWED), Value::Bool(is_overflowed)) => {
                    now.ring.is_overflowed = Some(is_overflowed);
                }
                (Value::Str(keys::ROUNDUP_POWER2_DIVISIONS), value) => {
                    now.rounding = Some(value);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn fill_rounding(&mut self, rounding: u32, pairs: &[[Value; 2]]) {
        let Some(now) = self.roundings.get_mut(at(rounding)) else { return };
        for [key, value] in pairs {
            let (Value::Str(key), Value::Int(divisions)) = (*key, *value) else { continue };
            let power = key.checked_sub(keys::FIRST_DIVISION).map(at);
            if let Some(slot) = power.and_then(|power| now.divisions.get_mut(power)) {
                *slot = divisions;
            }
        }
    }

    /// Appends to a list.
    ///
    /// # Errors
    /// A stack that grows in too many pieces.
    pub fn append(&mut self, list: u32, items: &[Value]) -> Result<(), Fault> {
        let Some(first) = items.first() else { return Ok(()) };
        if let ListKind::Stack(stack) = self.lists.kind(list) {
            return self.append_frames(list, stack, items);
        }
        let next = match (self.lists.take(list), *first) {
            (List::Empty, Value::Dict(dict)) => match self.record(dict) {
                Record::Frame(_) => return self.append_frames(list, NO_STACK, items),
                Record::Of(kind, number) => {
                    self.append_records(List::Run(kind, number, number), items)
                }
                Record::Empty | Record::Other => List::Mixed,
            },
            (List::Empty, Value::List(_)) => append_lists(Vec::new(), items),
            (List::Mixed | List::Empty, _) => List::Mixed,
            (List::Lists(lists), _) => append_lists(*lists, items),
            (runs @ (List::Run(..) | List::Runs(..)), _) => self.append_records(runs, items),
        };
        self.lists.set(list, next, items.len());
        Ok(())
    }

    #[inline]
    fn append_frames(&mut self, list: u32, stack: u32, items: &[Value]) -> Result<(), Fault> {
        self.scratch.clear();
        if stack != NO_STACK {
            let before = self.stacks.get(stack);
            if before.len() > STACK_PIECES_MAX && !before.len().is_multiple_of(STACK_BATCH) {
                return Err("a stack is written in too many pieces".into());
            }
            self.scratch.extend_from_slice(before);
        }
        for item in items {
            let frame =
                if let Value::Dict(dict) = *item { self.record(dict) } else { Record::Other };
            let Record::Frame(frame) = frame else {
                self.lists.set(list, List::Mixed, 0);
                return Ok(());
            };
            self.scratch.push(frame);
        }
        self.lists.set_stack(list, self.stacks.intern(&self.scratch));
        Ok(())
    }

    fn append_records(&self, mut list: List, items: &[Value]) -> List {
        for item in items {
            let Value::Dict(dict) = *item else { return List::Mixed };
            let Record::Of(kind, number) = self.record(dict) else { return List::Mixed };
            list = match list {
                List::Run(of, start, end) if of == kind && end == number => {
                    List::Run(of, start, number + 1)
                }
                List::Run(of, start, end) if of == kind => {
                    List::Runs(of, Box::new(vec![(start, end), (number, number + 1)]))
                }
                List::Runs(of, mut runs) if of == kind => {
                    match runs.last_mut() {
                        Some((_, until)) if *until == number => *until += 1,
                        _ => runs.push((number, number + 1)),
                    }
                    List::Runs(of, runs)
                }
                _ => return List::Mixed,
            };
        }
        list
    }

    /// The stack of a `frames` value.
    #[inline]
    fn stack(&self, value: Value) -> Result<u32, Fault> {
        match value {
            Value::None => Ok(NO_STACK),
            Value::List(list) => match self.lists.kind(list) {
                ListKind::Stack(stack) => Ok(stack),
                ListKind::Empty => Ok(NO_STACK),
                _ => Err("frames is not a list of frames".into()),
            },
            _ => Err("frames is not a list".into()),
        }
    }

    fn first_of_history(&self, value: Value) -> Option<u32> {
        let Value::List(list) = value else { return None };
        match self.lists.get(list) {
            List::Run(RecordKind::History, start, _) => Some(*start),
            List::Runs(RecordKind::History, runs) => runs.first().map(|run| run.0),
            _ => None,
        }
    }

    /// A number of bytes.
    #[inline]
    fn size(&mut self, value: Value, what: &'static str) -> Result<u64, Fault> {
        let size = number(value, what)?;
        match self.sizes_sum.checked_add(size) {
            Some(sum) if sum <= SIZES_SUM_MAX => {
                self.sizes_sum = sum;
                Ok(size)
            }
            _ if size > SIZES_SUM_MAX => {
                Err(Fault::Shape(format!("{what} is negative or beyond 2^62").into()))
            }
            _ => Err("the sizes add up to more than 2^62 bytes".into()),
        }
    }

    /// The number of a stream.
    #[inline]
    fn stream(&mut self, value: Value) -> Result<u32, Fault> {
        let stream = number(value, "a stream")?;
        if self.streams.get(at(self.last_stream)) == Some(&stream) {
            return Ok(self.last_stream);
        }
        self.last_stream = match self.streams.iter().position(|known| *known == stream) {
            Some(known) => id(known),
            None if self.streams.len() < STREAMS_MAX => {
                self.streams.push(stream);
                id(self.streams.len() - 1)
            }
            None => return Err("more than 1,024 streams".into()),
        };
        Ok(self.last_stream)
    }
}

/// A frame is complete when it first closes.
fn refill(pairs: &[[Value; 2]]) -> Result<(), Fault> {
    let changes = pairs
        .iter()
        .any(|[key, _]| matches!(key, Value::Str(keys::NAME | keys::FILENAME | keys::LINE)));
    if changes { Err("a frame is filled twice".into()) } else { Ok(()) }
}

fn append_lists(mut lists: Vec<u32>, items: &[Value]) -> List {
    for item in items {
        let Value::List(list) = *item else { return List::Mixed };
        lists.push(list);
    }
    List::Lists(Box::new(lists))
}

fn push<T>(records: &mut Vec<T>, record: T) -> usize {
    records.push(record);
    records.len() - 1
}

#[inline]
fn number(value: Value, what: &'static str) -> Result<u64, Fault> {
    match value {
        Value::Int(number) => Ok(number),
        _ => Err(Fault::Shape(format!("{what} is not a number of 64 bits").into())),
    }
}

#[inline]
fn string(value: Value, what: &'static str) -> Result<u32, Fault> {
    match value {
        Value::Str(text) => Ok(text),
        _ => Err(Fault::Shape(format!("{what} is not a string").into())),
    }
}

/// The halves of a number, lower first.
fn split(number: u64) -> [u32; 2] {
    let low = u32::try_from(number & 0xffff_ffff).unwrap_or(0);
    [low, u32::try_from(number >> 32).unwrap_or(0)]
}
