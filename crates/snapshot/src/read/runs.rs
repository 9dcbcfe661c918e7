//! Lists that are filled by references alone, which is how stacks are written. Equal bytes refer
//! to equal values as long as no memo entry is set again, so that a stack that was seen before
//! is known by its bytes.

use crate::integer::at;
use crate::model::arena::Arena;

/// Runs of references, each with the stack that it is.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// References up to their `APPENDS`, which is included.
    bytes: Arena<u8>,
    known: Vec<Run>,
    /// The number of the last run.
    last: u32,
}

/// A run that was seen before.
#[derive(Clone, Copy, Debug)]
struct Run {
    stack: u32,
    /// The runs that came after it, the last first: a training loop repeats itself.
    next: [u32; 2],
}

impl Runs {
    /// The stack of the run that the bytes begin with, if it is known, and what follows it.
    #[inline]
    pub(crate) fn known<'a>(&mut self, bytes: &'a [u8]) -> Option<(u32, &'a [u8])> {
        let next = self.known.get(at(self.last))?.next;
        let after = |number| bytes.strip_prefix(self.bytes.get(number));
        let expected = next.into_iter().find_map(|number| Some((number, after(number)?)));
        let (number, after) = if let Some(expected) = expected {
            expected
        } else {
            let (run, after) = references(bytes)?;
            (self.bytes.find(run)?, after)
        };
        self.follow(number);
        self.known.get(at(number)).map(|run| (run.stack, after))
    }

    /// Remembers the stack of a run that is not known.
    pub(crate) fn learn(&mut self, run: &[u8], stack: u32) {
        let number = self.bytes.intern(run);
        if at(number) == self.known.len() {
            self.known.push(Run { stack, next: [number; 2] });
        }
        self.follow(number);
    }

    /// Bytes of memory in use.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.bytes.heap_bytes() + self.known.capacity() * size_of::<Run>()
    }

    /// Returns whether no run is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    #[inline]
    fn follow(&mut self, number: u32) {
        if let Some(Run { next: [first, second], .. }) = self.known.get_mut(at(self.last))
            && *first != number
        {
            (*first, *second) = (number, *first);
        }
        self.last = number;
    }
}

/// The `BINGET`s and `LONG_BINGET`s up to and with an `APPENDS`, and what follows it.
#[inline]
pub(crate) fn references(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut length = 0;
    loop {
        match bytes.get(length)? {
            b'h' => length += 2,
            b'j' => length += 5,
            b'e' if length > 0 => return bytes.split_at_checked(length + 1),
            _ => return None,
        }
    }
}
