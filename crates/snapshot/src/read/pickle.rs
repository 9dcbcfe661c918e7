//! A stack machine over the opcodes that a snapshot needs. It resolves nothing, runs nothing
//! and builds no tree: dicts and lists become records as they close. Bytes are fed in pieces,
//! so that a file is never in memory as a whole.

use crate::error::{Fault, Unreadable};
use crate::integer::{at, count};
use crate::read::lists::ListKind;
use crate::read::runs::{self, Runs};
use crate::read::schema::Records;
use crate::read::value::{Handle, Value};

/// Open marks: how deep a pickle may nest. Snapshots need 8.
const DEPTH_MAX: usize = 64;
/// Bytes of a string that are kept; the longest C++ name seen has 1,110.
pub(crate) const STRING_BYTES_MAX: usize = 1 << 14;
/// Bytes of an integer, as text of an unknown key may have.
const INTEGER_BYTES_MAX: usize = 1 << 10;
/// Memory that is granted before the file has shown what it needs, and then for every byte of
/// it. Genuine files need less than one and a half bytes of records a byte.
const GRANT_BYTES: u64 = 16 << 20;
const GRANT_A_BYTE: u64 = 4;
/// Bytes after which the grant is checked.
const CHECK_BYTES: usize = 1 << 16;
/// A piece that is shorter than this may end inside an opcode's fixed part.
pub const PIECE_BYTES_MIN: usize = STRING_BYTES_MAX + 16;

/// Reads one pickle.
#[derive(Debug)]
pub struct Machine {
    stack: Vec<Value>,
    marks: Vec<usize>,
    pub(super) memo: Vec<Handle>,
    pub(super) ints: Vec<u64>,
    pub(super) runs: Runs,
    pub(super) records: Records,
    /// Bytes before the piece that is read now.
    offset: u64,
    /// Bytes of a long string that are still to be skipped.
    skip: u64,
    protocol: u8,
    root: Option<Value>,
}

/// The rest of the bytes; `None` if an opcode is not complete.
type Step<'a> = Result<Option<&'a [u8]>, Fault>;

impl Default for Machine {
    fn default() -> Self {
        Self {
            stack: Vec::with_capacity(1024),
            marks: Vec::with_capacity(DEPTH_MAX),
            memo: Vec::new(),
            ints: Vec::new(),
            runs: Runs::default(),
            records: Records::default(),
            offset: 0,
            skip: 0,
            protocol: 0,
            root: None,
        }
    }
}

impl Machine {
    /// Reads what it can of the next bytes and returns how many it used up; the rest is to be
    /// fed again, with more. A piece of [`PIECE_BYTES_MIN`] is always enough to go on. After
    /// the pickle's end everything is used up.
    ///
    /// # Errors
    /// The file is not a snapshot, or wants to run code.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<usize, Unreadable> {
        let mut used = 0;
        while let Some(rest) = bytes.get(used..).filter(|rest| !rest.is_empty()) {
            let part = rest.get(..CHECK_BYTES).unwrap_or(rest);
            let step = self.feed_part(part)?;
            used += step;
            self.offset += count(step);
            self.check_memory()?;
            if step == 0 {
                break;
            }
        }
        Ok(used)
    }

    /// Ends the file.
    ///
    /// # Errors
    /// It ended inside the pickle. `left` is how many bytes were not used up.
    pub fn finish(self, left: usize) -> Result<(Records, Value, u8), Unreadable> {
        match self.root {
            Some(root) => Ok((self.records, root, self.protocol)),
            None => Err(Unreadable {
                fault: if self.offset == 0 && left == 0 {
                    Fault::NotPickle("the file is empty".into())
                } else {
                    Fault::Truncated
                },
                offset: self.offset + count(left),
            }),
        }
    }

    /// Bytes that were used up.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns whether the pickle's end was read.
    pub fn is_done(&self) -> bool {
        self.root.is_some()
    }

    fn feed_part(&mut self, bytes: &[u8]) -> Result<usize, Unreadable> {
        let mut rest = bytes;
        if self.skip > 0 {
            let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(rest.len());
            self.skip -= count(skipped);
            rest = rest.get(skipped..).unwrap_or(&[]);
        }
        while self.root.is_none() {
            match self.step(rest) {
                Ok(Some(after)) => rest = after,
                Ok(None) => return Ok(bytes.len() - rest.len()),
                Err(fault) => {
                    let offset = self.offset + count(bytes.len() - rest.len());
                    return Err(Unreadable { fault, offset });
                }
            }
        }
        Ok(bytes.len())
    }

    fn check_memory(&self) -> Result<(), Unreadable> {
        let own = self.stack.capacity() * size_of::<Value>()
            + self.memo.capacity() * size_of::<Handle>()
            + self.ints.capacity() * 8
            + self.runs.heap_bytes();
        if count(own + self.records.heap_bytes()) > GRANT_BYTES + GRANT_A_BYTE * self.offset {
            let what = "it asks for more memory than any snapshot of its size needs";
            return Err(Unreadable { fault: Fault::Pickle(what.into()), offset: self.offset });
        }
        Ok(())
    }

    /// Takes an opcode; all but the frequent ones are left to `rare`.
    #[inline]
    fn step<'a>(&mut self, bytes: &'a [u8]) -> Step<'a> {
        let Some((opcode, rest)) = bytes.split_first() else { return Ok(None) };
        match *opcode {
            b'h' | b'j' => self.gets(bytes),
            0x94 => self.put(self.memo.len()).map(|()| Some(rest)),
            b'K' => {
                let Some((number, rest)) = rest.split_first() else { return Ok(None) };
                self.stack.push(Value::Int(u64::from(*number)));
                Ok(Some(rest))
            }
            b'M' => {
                let Some((number, rest)) = rest.split_first_chunk() else { return Ok(None) };
                self.stack.push(Value::Int(u64::from(u16::from_le_bytes(*number))));
                Ok(Some(rest))
            }
            b'J' => {
                let Some((number, rest)) = rest.split_first_chunk() else { return Ok(None) };
                let number = i64::from(i32::from_le_bytes(*number));
                self.stack.push(Value::Int(number.cast_unsigned()));
                Ok(Some(rest))
            }
            0x8a => self.integer(rest),
            b'}' => {
                let dict = self.records.open_dict();
                self.stack.push(dict);
                Ok(Some(rest))
            }
            b']' => {
                let list = self.records.open_list();
                self.stack.push(list);
                Ok(Some(rest))
            }
            b'(' => {
                let known = match self.stack.last().copied() {
                    Some(Value::List(list)) => self.list_of_references(list, rest)?,
                    Some(Value::Dict(dict)) => self.event(dict, rest),
                    _ => None,
                };
                if known.is_some() {
                    return Ok(known);
                }
                if self.marks.len() >= DEPTH_MAX {
                    return Err(Fault::Pickle("it nests more than 64 deep".into()));
                }
                self.marks.push(self.stack.len());
                Ok(Some(rest))
            }
            b'u' => self.set_items(true).map(|()| Some(rest)),
            b'e' => self.append(true).map(|()| Some(rest)),
            0x8c => {
                let Some((length, rest)) = rest.split_first() else { return Ok(None) };
                Ok(self.string(rest, u64::from(*length)))
            }
            b'q' => {
                let Some((number, rest)) = rest.split_first() else { return Ok(None) };
                self.put(usize::from(*number)).map(|()| Some(rest))
            }
            b'r' => {
                let Some((number, rest)) = rest.split_first_chunk() else { return Ok(None) };
                self.put(at(u32::from_le_bytes(*number))).map(|()| Some(rest))
            }
            other => self.rare(other, rest),
        }
    }

    /// Takes one of the other opcodes.
    fn rare<'a>(&mut self, opcode: u8, rest: &'a [u8]) -> Step<'a> {
        match opcode {
            b'X' | 0x8b => {
                let Some((length, after)) = rest.split_first_chunk() else { return Ok(None) };
                let length = u32::from_le_bytes(*length);
                if opcode == b'X' {
                    return Ok(self.string(after, u64::from(length)));
                }
                return self.long_integer(after, at(length));
            }
            0x8d => {
                let Some((length, rest)) = rest.split_first_chunk() else { return Ok(None) };
                return Ok(self.string(rest, u64::from_le_bytes(*length)));
            }
            // FRAME: its length is a hint.
            0x95 => return Ok(rest.get(8..)),
            b'G' => {
                self.stack.push(Value::Opaque);
                let after = rest.get(8..);
                if after.is_none() {
                    self.stack.pop();
                }
                return Ok(after);
            }
            0x80 => return self.protocol(rest),
            b's' => self.set_items(false)?,
            b'a' => self.append(false)?,
            b'N' => self.stack.push(Value::None),
            0x88 => self.stack.push(Value::Bool(true)),
            0x89 => self.stack.push(Value::Bool(false)),
            b')' => self.stack.push(Value::Opaque),
            0x85 => {
                self.pop()?;
                self.stack.push(Value::Opaque);
            }
            0x86 => {
                let (second, first) = (self.pop()?, self.pop()?);
                let pair = self.records.pair([first, second]);
                self.stack.push(pair);
            }
            0x87 => {
                let height = self.height_above(3)?;
                self.stack.truncate(height);
                self.stack.push(Value::Opaque);
            }
            b't' => {
                let height = self.pop_mark()?;
                self.stack.truncate(height);
                self.stack.push(Value::Opaque);
            }
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                let height = self.pop_mark()?;
                self.stack.truncate(height);
            }
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            b'.' => self.root = Some(self.pop()?),
            other => return Err(refusal(other)),
        }
        Ok(Some(rest))
    }

    fn protocol<'a>(&mut self, rest: &'a [u8]) -> Step<'a> {
        let Some((protocol, rest)) = rest.split_first() else { return Ok(None) };
        if !(2..=5).contains(protocol) {
            return Err(Fault::Pickle(format!("protocol {protocol} is not 2 to 5").into()));
        }
        self.protocol = *protocol;
        Ok(Some(rest))
    }

    /// `BINGET` and `LONG_BINGET` as long as they follow each other: most of a file is keys and
    /// frames by reference.
    #[inline]
    fn gets<'a>(&mut self, bytes: &'a [u8]) -> Step<'a> {
        let mut rest = bytes;
        loop {
            rest = match rest {
                [b'h', number, after @ ..] => {
                    let number = u32::from(*number);
                    if !self.get(number) {
                        return Err(never_set(number));
                    }
                    after
                }
                [b'j', a, b, c, d, after @ ..] => {
                    let number = u32::from_le_bytes([*a, *b, *c, *d]);
                    if !self.get(number) {
                        return Err(never_set(number));
                    }
                    after
                }
                [b'h' | b'j', ..] if rest.len() == bytes.len() => return Ok(None),
                _ => return Ok(Some(rest)),
            };
        }
    }

    /// Fills a list by references alone, if that is what follows.
    fn list_of_references<'a>(&mut self, list: u32, rest: &'a [u8]) -> Step<'a> {
        if self.records.lists.kind(list) != ListKind::Empty {
            return Ok(None);
        }
        if let Some((stack, after)) = self.runs.known(rest) {
            self.records.lists.set_stack(list, stack);
            return Ok(Some(after));
        }
        let Some((run, after)) = runs::references(rest) else { return Ok(None) };
        let start = self.stack.len();
        self.gets(run)?;
        self.records.append(list, self.stack.get(start..).unwrap_or(&[]))?;
        self.stack.truncate(start);
        if let ListKind::Stack(stack) = self.records.lists.kind(list) {
            self.runs.learn(run, stack);
        }
        Ok(Some(after))
    }

    /// Pushes a memo entry; false if it was never set.
    #[inline]
    fn get(&mut self, number: u32) -> bool {
        let value = self.memo.get(at(number)).and_then(|handle| handle.unpack(&self.ints));
        let Some(value) = value else { return false };
        self.stack.push(value);
        true
    }

    #[inline]
    fn put(&mut self, number: usize) -> Result<(), Fault> {
        let top = self.top()?;
        let handle = Handle::pack(top, &mut self.ints).ok_or_else(|| {
            Fault::Pickle("it has more than 2^29 dicts, lists or strings".into())
        })?;
        if number == self.memo.len() {
            self.memo.push(handle);
            return Ok(());
        }
        if number > self.memo.len() {
            // There is at least a byte before each entry.
            if count(number) > self.offset + count(CHECK_BYTES) {
                let what = format!("memo entry {number} lies beyond the bytes read so far");
                return Err(Fault::Pickle(what.into()));
            }
            self.memo.resize(number + 1, Handle::default());
        }
        if let Some(slot) = self.memo.get_mut(number) {
            *slot = handle;
            if !self.runs.is_empty() {
                self.runs = Runs::default();
            }
        }
        Ok(())
    }

    /// `LONG1`
    #[inline]
    fn integer<'a>(&mut self, rest: &'a [u8]) -> Step<'a> {
        let Some((length, after)) = rest.split_first() else { return Ok(None) };
        if let Some((number, after)) = short_integer(*length, after) {
            self.stack.push(Value::Int(number));
            return Ok(Some(after));
        }
        self.long_integer(after, usize::from(*length))
    }

    /// An integer of so many bytes, lowest first, in two's complement.
    fn long_integer<'a>(&mut self, rest: &'a [u8], length: usize) -> Step<'a> {
        if length > INTEGER_BYTES_MAX {
            return Err(Fault::Pickle(format!("an integer of {length} bytes").into()));
        }
        let Some((bytes, after)) = rest.split_at_checked(length) else { return Ok(None) };
        let is_negative = bytes.last().is_some_and(|last| *last >= 0x80);
        let mut low = if is_negative { [0xff; 8] } else { [0; 8] };
        for (to, from) in low.iter_mut().zip(bytes) {
            *to = *from;
        }
        // Nine bytes are an unsigned number above 2^63 if the ninth is zero.
        let fits = bytes.get(8..).is_none_or(|high| high.iter().all(|byte| *byte == 0));
        self.stack.push(if fits { Value::Int(u64::from_le_bytes(low)) } else { Value::Opaque });
        Ok(Some(after))
    }

    /// A string of so many bytes; only the beginning of a very long one is kept.
    #[inline]
    fn string<'a>(&mut self, rest: &'a [u8], length: u64) -> Option<&'a [u8]> {
        let kept = usize::try_from(length).unwrap_or(usize::MAX).min(STRING_BYTES_MAX);
        let (text, after) = rest.split_at_checked(kept)?;
        let text = self.records.string(text);
        self.stack.push(text);
        let more = length - count(kept);
        if more == 0 {
            return Some(after);
        }
        let skipped = usize::try_from(more).unwrap_or(usize::MAX).min(after.len());
        self.skip = more - count(skipped);
        after.get(skipped..)
    }

    /// `SETITEMS`, or `SETITEM` without a mark.
    #[inline]
    fn set_items(&mut self, is_marked: bool) -> Result<(), Fault> {
        let start = if is_marked { self.pop_mark()? } else { self.height_above(2)? };
        let items = self.stack.get(start..).unwrap_or(&[]);
        match start.checked_sub(1).and_then(|below| self.stack.get(below)) {
            Some(Value::Dict(dict)) => self.records.fill(*dict, items)?,
            _ => return Err(Fault::Pickle("items for what is not a dict".into())),
        }
        self.stack.truncate(start);
        Ok(())
    }

    /// `APPENDS`, or `APPEND` without a mark.
    #[inline]
    fn append(&mut self, is_marked: bool) -> Result<(), Fault> {
        let start = if is_marked { self.pop_mark()? } else { self.height_above(1)? };
        let items = self.stack.get(start..).unwrap_or(&[]);
        match start.checked_sub(1).and_then(|below| self.stack.get(below)) {
            Some(Value::List(list)) => self.records.append(*list, items)?,
            _ => return Err(Fault::Pickle("items for what is not a list".into())),
        }
        self.stack.truncate(start);
        Ok(())
    }

    #[inline]
    fn pop_mark(&mut self) -> Result<usize, Fault> {
        let start =
            self.marks.pop().ok_or_else(|| Fault::Pickle("items without a mark".into()))?;
        if start > self.stack.len() {
            return Err(Fault::Pickle("the stack ends below its mark".into()));
        }
        Ok(start)
    }

    /// The height of the stack without so many values.
    fn height_above(&self, values: usize) -> Result<usize, Fault> {
        let lowest = self.marks.last().copied().unwrap_or(0);
        match self.stack.len().checked_sub(values) {
            Some(height) if height >= lowest => Ok(height),
            _ => Err(Fault::Pickle("the stack is empty".into())),
        }
    }

    fn pop(&mut self) -> Result<Value, Fault> {
        self.height_above(1)?;
        self.stack.pop().ok_or_else(|| Fault::Pickle("the stack is empty".into()))
    }

    #[inline]
    fn top(&self) -> Result<Value, Fault> {
        self.stack.last().copied().ok_or_else(|| Fault::Pickle("the stack is empty".into()))
    }
}

/// An integer of up to eight bytes, if as many are there.
#[inline]
pub(super) fn short_integer(length: u8, rest: &[u8]) -> Option<(u64, &[u8])> {
    if !(1..=8).contains(&length) {
        return None;
    }
    let word = i64::from_le_bytes(*rest.first_chunk()?);
    let unused = 64 - 8 * u32::from(length);
    let after = rest.get(usize::from(length)..)?;
    Some(((word << unused >> unused).cast_unsigned(), after))
}

#[cold]
fn never_set(number: u32) -> Fault {
    Fault::Pickle(format!("memo entry {number} was never set").into())
}

/// Returns the fault of an opcode that is refused.
fn refusal(opcode: u8) -> Fault {
    match opcode {
        b'c' => Fault::Code("GLOBAL"),
        0x93 => Fault::Code("STACK_GLOBAL"),
        b'R' => Fault::Code("REDUCE"),
        b'b' => Fault::Code("BUILD"),
        b'i' => Fault::Code("INST"),
        b'o' => Fault::Code("OBJ"),
        0x81 => Fault::Code("NEWOBJ"),
        0x92 => Fault::Code("NEWOBJ_EX"),
        0x82 => Fault::Code("EXT1"),
        0x83 => Fault::Code("EXT2"),
        0x84 => Fault::Code("EXT4"),
        b'P' => Fault::Code("PERSID"),
        b'Q' => Fault::Code("BINPERSID"),
        other => Fault::Opcode(other),
    }
}
