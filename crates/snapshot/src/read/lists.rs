//! The lists of a file in four bytes each: nearly all of them are stacks, a new one for every
//! event. Lists of records are few, and kept apart.

use crate::integer::{at, id};
use crate::read::raw::List;

/// A list: nothing so far, a stack, another one, or one that is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedList(u32);

const PAYLOAD_BITS: u32 = 30;
const PAYLOAD: u32 = (1 << PAYLOAD_BITS) - 1;
const STACK: u32 = 1;
const LONG: u32 = 2;
const MIXED: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListKind {
    Empty,
    /// A stack by number.
    Stack(u32),
    /// A list of records, by its number among them.
    Long(u32),
    Mixed,
}

impl PackedList {
    #[inline]
    fn new(kind: ListKind) -> Self {
        Self(match kind {
            ListKind::Empty => 0,
            ListKind::Stack(number) if number <= PAYLOAD => STACK << PAYLOAD_BITS | number,
            ListKind::Long(number) if number <= PAYLOAD => LONG << PAYLOAD_BITS | number,
            _ => MIXED << PAYLOAD_BITS,
        })
    }

    #[inline]
    fn kind(self) -> ListKind {
        match self.0 >> PAYLOAD_BITS {
            0 => ListKind::Empty,
            STACK => ListKind::Stack(self.0 & PAYLOAD),
            LONG => ListKind::Long(self.0 & PAYLOAD),
            _ => ListKind::Mixed,
        }
    }
}

/// Every list of a file, by number.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    packed: Vec<PackedList>,
    long: Vec<List>,
    /// Entries that the long ones keep.
    n_listed: usize,
}

impl Lists {
    /// A new list; its number.
    #[inline]
    pub(crate) fn open(&mut self) -> u32 {
        self.packed.push(PackedList::new(ListKind::Empty));
        id(self.packed.len() - 1)
    }

    /// Returns the number of lists.
    pub(super) fn len(&self) -> usize {
        self.packed.len()
    }

    /// Forgets the lists from a number on. None of them may be a list of records.
    pub(super) fn truncate(&mut self, n_lists: usize) {
        self.packed.truncate(n_lists);
    }

    #[inline]
    pub(crate) fn kind(&self, list: u32) -> ListKind {
        self.packed.get(at(list)).map_or(ListKind::Mixed, |list| list.kind())
    }

    /// The records of a list.
    pub(crate) fn get(&self, list: u32) -> &List {
        match self.kind(list) {
            ListKind::Empty => &List::Empty,
            ListKind::Long(number) => self.long.get(at(number)).unwrap_or(&List::Mixed),
            ListKind::Stack(_) | ListKind::Mixed => &List::Mixed,
        }
    }

    /// Takes the records of a list out of it; it is to be [`set`](Self::set) again.
    pub(crate) fn take(&mut self, list: u32) -> List {
        match self.kind(list) {
            ListKind::Empty => List::Empty,
            ListKind::Long(number) => {
                let long = self.long.get_mut(at(number));
                long.map_or(List::Mixed, |long| std::mem::replace(long, List::Mixed))
            }
            ListKind::Stack(_) | ListKind::Mixed => List::Mixed,
        }
    }

    /// Makes a list one of records; `n_added` is how many it has more than before.
    pub(crate) fn set(&mut self, list: u32, now: List, n_added: usize) {
        if matches!(now, List::Runs(..) | List::Lists(_)) {
            self.n_listed += n_added;
        }
        if let ListKind::Long(number) = self.kind(list) {
            if let Some(slot) = self.long.get_mut(at(number)) {
                *slot = now;
            }
            return;
        }
        let kind = match now {
            List::Empty => ListKind::Empty,
            List::Mixed => ListKind::Mixed,
            now => {
                self.long.push(now);
                ListKind::Long(id(self.long.len() - 1))
            }
        };
        self.put(list, kind);
    }

    /// Makes a list a stack.
    #[inline]
    pub(crate) fn set_stack(&mut self, list: u32, stack: u32) {
        self.put(list, ListKind::Stack(stack));
    }

    #[inline]
    fn put(&mut self, list: u32, kind: ListKind) {
        if let Some(slot) = self.packed.get_mut(at(list)) {
            *slot = PackedList::new(kind);
        }
    }

    /// Bytes of memory in use.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.packed.capacity() * size_of::<PackedList>()
            + self.long.capacity() * size_of::<List>()
            + self.n_listed * size_of::<(u32, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::raw::RecordKind;

    #[test]
    fn a_list_is_what_it_was_set_to() {
        let mut lists = Lists::default();
        let [empty, stack, run, skipped] = [0; 4].map(|_| lists.open());
        lists.set_stack(stack, 5);
        lists.set(run, List::Run(RecordKind::Event, 3, 4), 1);
        lists.set(skipped, List::Mixed, 1);
        assert_eq!(lists.kind(empty), ListKind::Empty);
        assert_eq!(lists.kind(stack), ListKind::Stack(5));
        let taken = lists.take(run);
        assert_eq!(taken, List::Run(RecordKind::Event, 3, 4));
        lists.set(run, List::Run(RecordKind::Event, 3, 9), 5);
        assert_eq!(*lists.get(run), List::Run(RecordKind::Event, 3, 9));
        assert_eq!(*lists.get(skipped), List::Mixed);
        assert_eq!(lists.kind(99), ListKind::Mixed);
    }
}
