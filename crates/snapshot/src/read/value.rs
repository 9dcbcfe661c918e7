//! Values of a pickle while it is read. Containers are numbers, so that what is shared stays
//! shared and nothing nests.

use crate::integer::{at, id};

/// A value on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    None,
    /// `True` or `False`
    Bool(bool),
    /// An integer as 64 bits: negative ones wrap, as C++ writes addresses.
    Int(u64),
    /// A string by number.
    Str(u32),
    /// A dict by number.
    Dict(u32),
    /// A list by number.
    List(u32),
    /// A tuple of two integers by number.
    Pair(u32),
    /// Anything that no snapshot needs: floats, other tuples, longer integers.
    Opaque,
}

/// A value in four bytes, for the memo: it has an entry for every dict, list and string of the
/// file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Handle(u32);

const PAYLOAD_BITS: u32 = 29;
const PAYLOAD: u32 = (1 << PAYLOAD_BITS) - 1;
const STR: u32 = 1;
const DICT: u32 = 2;
const LIST: u32 = 3;
const PAIR: u32 = 4;
const PLAIN: u32 = 5;
const INT: u32 = 6;
const PLAIN_NONE: u32 = 0;
const PLAIN_FALSE: u32 = 1;
const PLAIN_TRUE: u32 = 2;
const PLAIN_OPAQUE: u32 = 3;

impl Handle {
    /// Packs a value; integers, which Python never memoizes, go to `ints`. `None` beyond 2^29
    /// of a kind.
    #[inline]
    pub(crate) fn pack(value: Value, ints: &mut Vec<u64>) -> Option<Self> {
        let (tag, number) = match value {
            Value::Str(number) => (STR, number),
            Value::Dict(number) => (DICT, number),
            Value::List(number) => (LIST, number),
            Value::Pair(number) => (PAIR, number),
            Value::None => (PLAIN, PLAIN_NONE),
            Value::Bool(false) => (PLAIN, PLAIN_FALSE),
            Value::Bool(true) => (PLAIN, PLAIN_TRUE),
            Value::Opaque => (PLAIN, PLAIN_OPAQUE),
            Value::Int(number) => {
                ints.push(number);
                (INT, id(ints.len() - 1))
            }
        };
        (number <= PAYLOAD).then_some(Self(tag << PAYLOAD_BITS | number))
    }

    /// The number of the string that it is.
    #[inline]
    pub(crate) fn string(self) -> Option<u32> {
        (self.0 >> PAYLOAD_BITS == STR).then_some(self.0 & PAYLOAD)
    }

    /// The value; `None` for an entry that was never set.
    #[inline]
    pub(crate) fn unpack(self, ints: &[u64]) -> Option<Value> {
        let number = self.0 & PAYLOAD;
        match self.0 >> PAYLOAD_BITS {
            STR => Some(Value::Str(number)),
            DICT => Some(Value::Dict(number)),
            LIST => Some(Value::List(number)),
            PAIR => Some(Value::Pair(number)),
            _ => self.unpack_plain(ints),
        }
    }

    /// Unpacks a value that is neither a string nor a container. Python never memoizes those.
    #[cold]
    fn unpack_plain(self, ints: &[u64]) -> Option<Value> {
        let number = self.0 & PAYLOAD;
        match self.0 >> PAYLOAD_BITS {
            INT => ints.get(at(number)).copied().map(Value::Int),
            PLAIN => Some(match number {
                PLAIN_NONE => Value::None,
                PLAIN_FALSE => Value::Bool(false),
                PLAIN_TRUE => Value::Bool(true),
                _ => Value::Opaque,
            }),
            _ => None,
        }
    }
}
