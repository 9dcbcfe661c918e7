//! Events as recorders write them, read straight into their records: nearly all of a file. The
//! machine reads what is written in another way.

use crate::integer::at;
use crate::model::Event;
use crate::read::keys;
use crate::read::pickle::{Machine, short_integer};
use crate::read::value::{Handle, Value};

impl Machine {
    /// Reads the items of an event into an empty dict, from behind their mark; returns what
    /// follows them. `None`: they are the machine's to read, and nothing has changed.
    #[inline]
    pub(super) fn event<'a>(&mut self, dict: u32, rest: &'a [u8]) -> Option<&'a [u8]> {
        let before = (self.memo.len(), self.records.mark());
        let after = self.items(rest).and_then(|(event, metadata, after)| {
            self.records.add_event(dict, event, metadata).then_some(after)
        });
        if after.is_none() {
            self.memo.truncate(before.0);
            self.records.reset(before.1);
        }
        after
    }

    /// The event, its `user_metadata` and what follows it.
    #[inline]
    fn items<'a>(&mut self, rest: &'a [u8]) -> Option<(Event, u32, &'a [u8])> {
        let (mut event, mut metadata) = (Event::unknown(), 0);
        let (mut key, mut rest) = self.key(rest).filter(|(key, _)| *key == keys::ACTION)?;
        loop {
            let value;
            (value, rest) = self.value(rest)?;
            match (key, value) {
                (keys::USER_METADATA, Value::Str(text)) if metadata == 0 => metadata = text,
                _ => self.records.set(&mut event, key, value).ok()?,
            }
            if let [b'u', after @ ..] = rest {
                return Some((event, metadata, after));
            }
            (key, rest) = self.key(rest)?;
        }
    }

    /// A string by reference.
    #[inline]
    fn key<'a>(&self, rest: &'a [u8]) -> Option<(u32, &'a [u8])> {
        let (number, rest) = match rest {
            [b'h', number, rest @ ..] => (u32::from(*number), rest),
            [b'j', a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]), rest),
            _ => return None,
        };
        Some((self.memo.get(at(number))?.string()?, rest))
    }

    /// A value without its `MEMOIZE`, which is done.
    #[inline]
    fn value<'a>(&mut self, rest: &'a [u8]) -> Option<(Value, &'a [u8])> {
        Some(match rest {
            [b'h', number, rest @ ..] => (self.memoized(u32::from(*number))?, rest),
            [b'j', a, b, c, d, rest @ ..] => {
                (self.memoized(u32::from_le_bytes([*a, *b, *c, *d]))?, rest)
            }
            [b'K', first, b'K', second, 0x86, rest @ ..] => {
                let values = [*first, *second].map(|number| Value::Int(u64::from(number)));
                let pair = self.records.pair(values);
                self.memoize(pair, rest)?
            }
            [b'K', number, rest @ ..] => (Value::Int(u64::from(*number)), rest),
            [b'M', a, b, rest @ ..] => {
                (Value::Int(u64::from(u16::from_le_bytes([*a, *b]))), rest)
            }
            [b'J', a, b, c, d, rest @ ..] => {
                let number = i64::from(i32::from_le_bytes([*a, *b, *c, *d]));
                (Value::Int(number.cast_unsigned()), rest)
            }
            [0x8a, length, rest @ ..] => {
                let (number, rest) = short_integer(*length, rest)?;
                (Value::Int(number), rest)
            }
            [0x8c, length, rest @ ..] => {
                let (text, rest) = rest.split_at_checked(usize::from(*length))?;
                let text = self.records.string(text);
                self.memoize(text, rest)?
            }
            [b']', rest @ ..] => {
                let list = self.records.open_list();
                let (value, rest) = self.memoize(list, rest)?;
                (value, self.fill_list(value, rest)?)
            }
            [b'N', rest @ ..] => (Value::None, rest),
            _ => return None,
        })
    }

    #[inline]
    fn memoized(&self, number: u32) -> Option<Value> {
        self.memo.get(at(number))?.unpack(&self.ints)
    }

    /// Does the `MEMOIZE` that may follow a value.
    #[inline]
    fn memoize<'a>(&mut self, value: Value, rest: &'a [u8]) -> Option<(Value, &'a [u8])> {
        let [0x94, rest @ ..] = rest else { return Some((value, rest)) };
        self.memo.push(Handle::pack(value, &mut self.ints)?);
        Some((value, rest))
    }

    /// Makes a list the known stack that it is filled with, if it is filled.
    #[inline]
    fn fill_list<'a>(&mut self, list: Value, rest: &'a [u8]) -> Option<&'a [u8]> {
        let ([b'(', run @ ..], Value::List(list)) = (rest, list) else { return Some(rest) };
        let (stack, rest) = self.runs.known(run)?;
        self.records.lists.set_stack(list, stack);
        Some(rest)
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{Action, Event};
    use crate::read::load;

    /// The second of two events, which has its keys by reference: memo entries 7 (`action`), 8
    /// (`alloc`), 9 (`size`), 10 (`frames`), 11 (`other`).
    fn second_event(items: &[u8]) -> Event {
        let mut bytes =
            b"\x80\x04}\x94(\x8c\x08segments\x94]\x94\x8c\x0ddevice_traces\x94]\x94(]\x94(}\x94("
                .to_vec();
        for (key, value) in [("action", "alloc"), ("size", ""), ("frames", ""), ("other", "")] {
            for text in [key, value] {
                match text {
                    "" if key == "size" => bytes.extend(*b"K\x07"),
                    "" => bytes.push(b'N'),
                    text => {
                        bytes.extend([0x8c, u8::try_from(text.len()).unwrap()]);
                        bytes.extend(text.bytes());
                        bytes.push(0x94);
                    }
                }
            }
        }
        bytes.extend(*b"u}\x94(");
        bytes.extend(items);
        bytes.extend(*b"ueeu.");
        let snapshot = load::read(&bytes).unwrap();
        assert_eq!(snapshot.events.len(), 2);
        snapshot.events[1]
    }

    const HUGE: &[u8] = b"h\x07h\x08h\x09\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x3f";

    #[test]
    fn an_event_with_keys_by_reference_is_read() {
        let event = second_event(HUGE);
        assert_eq!((event.action, event.size), (Action::Alloc, 0x3f << 56));
    }

    #[test]
    fn an_event_that_is_written_otherwise_is_read_once() {
        // The list is memo entry 13, the dict 14, wherever they are read first.
        let event = second_event(&[HUGE, b"h\x0a]\x94h\x0b}\x94h\x0ah\x0d"].concat());
        assert_eq!((event.action, event.size), (Action::Alloc, 0x3f << 56));
    }
}
