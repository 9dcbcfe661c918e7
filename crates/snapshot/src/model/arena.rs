//! Interned slices: equal ones are stored once and share a number. Strings and stacks are kept
//! this way, so that a stack that a million events share costs four bytes an event.

use std::hash::{BuildHasher, Hasher, RandomState};

use crate::integer::{at, id};

/// Slots that a new arena begins with; a power of two.
const SLOTS: usize = 1024;

/// The elements of an arena.
pub trait Word: Copy + Eq {
    /// Mixes a slice into 64 bits; `key` is secret, so that a file cannot aim at one slot.
    fn hash(slice: &[Self], key: [u64; 2]) -> u64;
}

/// Slices by number, in the order in which they were first seen.
#[derive(Debug)]
pub struct Arena<T> {
    data: Vec<T>,
    ends: Vec<usize>,
    /// Upper half: upper half of the hash; lower half: the number plus one, 0 for a vacant
    /// slot.
    slots: Vec<u64>,
    key: [u64; 2],
}

impl<T: Word> Default for Arena<T> {
    fn default() -> Self {
        let key = || RandomState::new().build_hasher().finish();
        Self {
            data: Vec::new(),
            ends: Vec::new(),
            slots: vec![0; SLOTS],
            key: [key() | 1, key() | 1],
        }
    }
}

impl<T: Word> Arena<T> {
    /// The number of a slice; a new one gets the next.
    pub fn intern(&mut self, slice: &[T]) -> u32 {
        if self.ends.len() * 2 >= self.slots.len() {
            self.grow();
        }
        let hash = T::hash(slice, self.key);
        let (slot, known) = self.probe(slice, hash);
        if let Some(number) = known {
            return number;
        }
        let number = id(self.ends.len());
        if let Some(entry) = self.slots.get_mut(slot) {
            *entry = hash & !LOW | (u64::from(number) + 1);
        }
        self.data.extend_from_slice(slice);
        self.ends.push(self.data.len());
        number
    }

    /// The number of a slice that was interned.
    pub fn find(&self, slice: &[T]) -> Option<u32> {
        self.probe(slice, T::hash(slice, self.key)).1
    }

    /// The slot of a slice, and its number if it has one.
    #[inline]
    fn probe(&self, slice: &[T], hash: u64) -> (usize, Option<u32>) {
        let mask = self.slots.len() - 1;
        let mut slot = usize::try_from(hash & LOW).unwrap_or(0) & mask;
        loop {
            let entry = self.slots.get(slot).copied().unwrap_or(0);
            if entry == 0 {
                return (slot, None);
            }
            let number = u32::try_from((entry & LOW) - 1).unwrap_or(0);
            if entry & !LOW == hash & !LOW && self.get(number) == slice {
                return (slot, Some(number));
            }
            slot = (slot + 1) & mask;
        }
    }

    /// The slice of a number; empty for one that was never given out.
    pub fn get(&self, number: u32) -> &[T] {
        let number = at(number);
        let start = match number.checked_sub(1) {
            Some(before) => self.ends.get(before).copied().unwrap_or(0),
            None => 0,
        };
        let end = self.ends.get(number).copied().unwrap_or(start);
        self.data.get(start..end).unwrap_or(&[])
    }

    /// Returns the number of slices.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of memory in use.
    pub fn heap_bytes(&self) -> usize {
        self.data.capacity() * size_of::<T>()
            + self.ends.capacity() * 8
            + self.slots.capacity() * 8
    }

    fn grow(&mut self) {
        let mask = self.slots.len() * 2 - 1;
        let mut slots = vec![0; mask + 1];
        for number in 0..id(self.ends.len()) {
            let hash = T::hash(self.get(number), self.key);
            let mut slot = usize::try_from(hash & LOW).unwrap_or(0) & mask;
            while slots.get(slot).is_some_and(|entry| *entry != 0) {
                slot = (slot + 1) & mask;
            }
            if let Some(entry) = slots.get_mut(slot) {
                *entry = (hash & !LOW) | (u64::from(number) + 1);
            }
        }
        self.slots = slots;
    }
}

/// The lower half of a slot.
const LOW: u64 = 0xffff_ffff;

impl Word for u8 {
    fn hash(slice: &[Self], key: [u64; 2]) -> u64 {
        let (words, rest) = slice.as_chunks::<8>();
        let mut state = key[0] ^ u64::try_from(slice.len()).unwrap_or(0);
        for word in words {
            state = fold(state ^ u64::from_le_bytes(*word), key[1]);
        }
        let mut last = [0; 8];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        fold(fold(state ^ u64::from_le_bytes(last), key[1]), key[0])
    }
}

impl Word for u32 {
    fn hash(slice: &[Self], key: [u64; 2]) -> u64 {
        let (pairs, rest) = slice.as_chunks::<2>();
        let mut state = key[0] ^ u64::try_from(slice.len()).unwrap_or(0);
        for [low, high] in pairs {
            state = fold(state ^ (u64::from(*low) | u64::from(*high) << 32), key[1]);
        }
        let last = rest.first().copied().unwrap_or(0);
        fold(fold(state ^ u64::from(last), key[1]), key[0])
    }
}

/// Both halves of the 128-bit product, one upon the other.
fn fold(a: u64, b: u64) -> u64 {
    let (low, high) = a.carrying_mul(b, 0);
    low ^ high
}

/// A hasher for maps with addresses as keys; keyed as the arena is.
#[derive(Clone, Debug)]
pub(crate) struct AddressHash {
    key: u64,
}

impl Default for AddressHash {
    fn default() -> Self {
        Self { key: RandomState::new().build_hasher().finish() | 1 }
    }
}

impl BuildHasher for AddressHash {
    type Hasher = AddressHasher;

    fn build_hasher(&self) -> AddressHasher {
        AddressHasher { key: self.key, state: self.key.rotate_left(32) }
    }
}

/// Folds every word that it is given.
#[derive(Debug)]
pub(crate) struct AddressHasher {
    key: u64,
    state: u64,
}

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.state
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.state = fold(self.state ^ word, self.key);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_slices_share_a_number() {
        let mut arena = Arena::default();
        let numbers: Vec<u32> =
            (0..5000_u32).map(|i| arena.intern(&[i % 1700, i % 1700 + 1, 7])).collect();
        assert_eq!(arena.len(), 1700);
        assert_eq!(numbers[1701], 1);
        assert_eq!(arena.get(1), [1, 2, 7]);
    }

    #[test]
    fn empty_and_zero_differ() {
        let mut arena = Arena::default();
        let strings: [&[u8]; 4] = [b"", b"\0", b"\0\0", b"abcdefgh\0"];
        let numbers = strings.map(|text| arena.intern(text));
        assert_eq!(numbers, [0, 1, 2, 3]);
        assert_eq!(arena.get(3), b"abcdefgh\0");
        assert_eq!(arena.get(9), b"");
    }
}
