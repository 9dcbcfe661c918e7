//! Dicts and lists as they stand in the file, before anything is joined.

use crate::snapshot::model::State;
use crate::snapshot::value::Value;

/// What a dict has become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Nothing so far.
    Empty,
    /// A frame by number.
    Frame(u32),
    /// One of the numbered records.
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
}

/// What a list has become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum List {
    /// Nothing so far.
    Empty,
    /// A stack by number.
    Stack(u32),
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
pub struct RawBlock {
    pub(super) address: Option<u64>,
    pub(super) size: u64,
    pub(super) requested: Option<u64>,
    pub(super) state: State,
    pub(super) stack: u32,
    pub(super) history: Option<u32>,
}

/// A segment as it stands in the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct RawSegment {
    pub(super) device: u64,
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) active_size: u64,
    pub(super) stream: u32,
    pub(super) pool: u32,
    pub(super) is_small: bool,
    pub(super) is_expandable: bool,
    pub(super) blocks: Option<Value>,
}

/// An allocation of a block as it stands in an old file.
#[derive(Clone, Copy, Debug, Default)]
pub struct RawHistory {
    pub(super) requested: u64,
    pub(super) stack: u32,
}

/// The outermost dict.
#[derive(Clone, Copy, Debug, Default)]
pub struct RawRoot {
    pub(super) segments: Option<Value>,
    pub(super) traces: Option<Value>,
    pub(super) annotations: Option<Value>,
    pub(super) settings: Option<Value>,
}
