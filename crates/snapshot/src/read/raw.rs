//! Dicts and lists as they stand in the file, before anything is joined.

use crate::integer::at;
use crate::model::{Ring, State};
use crate::read::value::Value;

/// The record that a dict has become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Nothing so far.
    Empty,
    /// A frame by number.
    Frame(u32),
    /// A record of a kind, by number.
    Of(RecordKind, u32),
    /// A dict that is skipped.
    Other,
}

/// Records that occur in lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// An entry of a trace.
    Event,
    /// A piece of a segment.
    Block,
    Segment,
    /// An allocation of a block, in files of torch before 2.1.
    History,
    /// A mark.
    Annotation,
    /// The outermost dict.
    Root,
    /// `allocator_settings`
    Settings,
    /// `roundup_power2_divisions`
    Rounding,
}

/// A [`Record`] in four bytes: there is one for every dict of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackedRecord(u32);

const PAYLOAD_BITS: u32 = 28;
const PAYLOAD: u32 = (1 << PAYLOAD_BITS) - 1;
const KINDS: [RecordKind; 8] = [
    RecordKind::Event,
    RecordKind::Block,
    RecordKind::Segment,
    RecordKind::History,
    RecordKind::Annotation,
    RecordKind::Root,
    RecordKind::Settings,
    RecordKind::Rounding,
];
const FRAME: u32 = 8;
const EMPTY: u32 = 9;
const OTHER: u32 = 10;

impl PackedRecord {
    /// A dict of which nothing is known.
    pub(crate) const EMPTY: Self = Self(EMPTY << PAYLOAD_BITS);

    /// Packs a record; `None` beyond 2^28 of a kind.
    #[inline]
    pub(crate) fn pack(record: Record) -> Option<Self> {
        let (tag, number) = match record {
            Record::Of(kind, number) => {
                (KINDS.iter().zip(0..).find(|(known, _)| **known == kind)?.1, number)
            }
            Record::Frame(number) => (FRAME, number),
            Record::Empty => (EMPTY, 0),
            Record::Other => (OTHER, 0),
        };
        (number <= PAYLOAD).then_some(Self(tag << PAYLOAD_BITS | number))
    }

    #[inline]
    pub(crate) fn unpack(self) -> Record {
        let number = self.0 & PAYLOAD;
        match self.0 >> PAYLOAD_BITS {
            FRAME => Record::Frame(number),
            EMPTY => Record::Empty,
            tag => KINDS.get(at(tag)).map_or(Record::Other, |kind| Record::Of(*kind, number)),
        }
    }
}

/// The record that a list has become, if it is no stack.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::box_collection, reason = "a file has a list for every stack: 16 bytes each")]
pub(crate) enum List {
    /// Nothing so far.
    Empty,
    /// Consecutive records: first and one past the last.
    Run(RecordKind, u32, u32),
    /// Records in several runs.
    Runs(RecordKind, Box<Vec<(u32, u32)>>),
    /// Lists by number.
    Lists(Box<Vec<u32>>),
    /// Anything else; skipped.
    Mixed,
}

/// A block as it stands in the file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawBlock {
    pub(crate) address: Option<u64>,
    pub(crate) size: u64,
    pub(crate) requested: Option<u64>,
    pub(crate) state: State,
    pub(crate) stack: u32,
    pub(crate) history: Option<u32>,
}

/// A segment as it stands in the file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawSegment {
    pub(crate) device: u64,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) active_size: u64,
    pub(crate) stream: u32,
    pub(crate) pool: u32,
    pub(crate) is_small: bool,
    pub(crate) is_expandable: bool,
    pub(crate) blocks: Option<Value>,
}

/// An allocation of a block as it stands in an old file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawHistory {
    pub(crate) requested: u64,
    pub(crate) stack: u32,
}

/// The file's facts about the allocator.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawSettings {
    pub(crate) ring: Ring,
    pub(crate) rounding: Option<Value>,
}

/// The outermost dict.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawRoot {
    pub(crate) segments: Option<Value>,
    pub(crate) traces: Option<Value>,
    pub(crate) annotations: Option<Value>,
    pub(crate) settings: Option<Value>,
    pub(crate) host_segments: Option<Value>,
    pub(crate) host_traces: Option<Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_records_unpack_the_same() {
        let numbered = KINDS.map(|kind| Record::Of(kind, 1 << 20));
        let plain = [Record::Empty, Record::Other, Record::Frame(0), Record::Frame(PAYLOAD)];
        for record in plain.into_iter().chain(numbered) {
            assert_eq!(PackedRecord::pack(record).map(PackedRecord::unpack), Some(record));
        }
        assert_eq!(PackedRecord::pack(Record::Frame(PAYLOAD + 1)), None);
        assert_eq!(PackedRecord::EMPTY.unpack(), Record::Empty);
    }
}
