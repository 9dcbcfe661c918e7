//! Lists that are filled by references alone, which is how stacks are written. Equal bytes refer
//! to equal values as long as no memo entry is set again, so that a stack that was seen before
//! is known by its bytes.

use crate::integer::at;
use crate::model::arena::Arena;

/// Runs of references, each with the stack that it is.
#[derive(Debug, Default)]
pub struct Runs {
    /// References up to their `APPENDS`, which is included.
    bytes: Arena<u8>,
    /// The run by number: its stack, and the number of the run that last came after it.
    stacks: Vec<(u32, u32)>,
    /// The number of the last run.
    last: u32,
}

impl Runs {
    /// The stack of the run that the bytes begin with, if it is known, and what follows it.
    #[inline]
    pub fn known<'a>(&mut self, bytes: &'a [u8]) -> Option<(u32, &'a [u8])> {
        // A training loop repeats itself: the run is the one that came next before.
        let (_, next) = self.stacks.get(at(self.last)).copied()?;
        let expected = self.bytes.get(next);
        let (number, after) = match bytes.split_at_checked(expected.len()) {
            Some((run, after)) if run == expected => (next, after),
            _ => {
                let (run, after) = references(bytes)?;
                (self.bytes.find(run)?, after)
            }
        };
        self.follow(number);
        self.stacks.get(at(number)).map(|(stack, _)| (*stack, after))
    }

    /// Remembers the stack of a run that is not known.
    pub fn learn(&mut self, run: &[u8], stack: u32) {
        let number = self.bytes.intern(run);
        if at(number) == self.stacks.len() {
            self.stacks.push((stack, number));
        }
        self.follow(number);
    }

    /// Bytes of memory in use.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.heap_bytes() + self.stacks.capacity() * size_of::<(u32, u32)>()
    }

    /// Returns whether no run is known.
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    #[inline]
    fn follow(&mut self, number: u32) {
        if let Some((_, next)) = self.stacks.get_mut(at(self.last)) {
            *next = number;
        }
        self.last = number;
    }
}

/// The `BINGET`s and `LONG_BINGET`s up to and with an `APPENDS`, and what follows it.
#[inline]
pub fn references(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
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
