//! Why a file cannot be read as a snapshot.

use std::borrow::Cow;
use std::fmt;

/// The fault, without the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An opcode that resolves or runs code.
    Code(&'static str),
    /// Another opcode that no snapshot needs.
    Opcode(u8),
    /// The pickle is not well formed, or too large in some way.
    Pickle(Cow<'static, str>),
    /// A pickle, but not of a snapshot.
    Shape(Cow<'static, str>),
    /// The file ends before the pickle does.
    Truncated,
    NotPickle(Cow<'static, str>),
}

/// A file that is not a readable snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The reason.
    pub fault: Fault,
    /// Offset in the (unpacked) bytes.
    pub offset: u64,
}

impl std::error::Error for Unreadable {}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offset = self.offset;
        match &self.fault {
            Fault::Code(opcode) => write!(
                f,
                "refused: this pickle wants to run code ({opcode} at byte {offset}); no snapshot needs to"
            ),
            Fault::Opcode(opcode) => {
                write!(f, "opcode 0x{opcode:02x} at byte {offset} does not occur in snapshots")
            }
            Fault::Pickle(what) => write!(f, "not a valid pickle: {what} (byte {offset})"),
            Fault::Shape(what) => write!(f, "not a memory snapshot: {what} (byte {offset})"),
            Fault::Truncated => {
                write!(f, "truncated: the file ends at byte {offset}, inside the pickle")
            }
            Fault::NotPickle(what) => write!(f, "not a memory snapshot: {what}"),
        }
    }
}

impl From<&'static str> for Fault {
    fn from(what: &'static str) -> Self {
        Self::Shape(Cow::Borrowed(what))
    }
}
