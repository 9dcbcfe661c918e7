//! Reading of flat objects as programs write them: no blanks but one behind commas and colons,
//! no escapes, only texts and numbers. Twice as fast as JSON in general; whatever else a record
//! is, is left to that.

use std::fmt;

use serde::de::value::{BorrowedStrDeserializer, MapAccessDeserializer};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};

use crate::wire::number::Number;

/// Longer records are not read here.
const PLAIN_BYTES_MAX: usize = 2048;
/// The most digits of a number: as many as fit 64 bits whichever they are.
const DIGITS_MAX: usize = 19;

/// Reads a plain object as the seed wants it; `None` of anything else, which may be one in another
/// way, or be wrong.
pub(super) fn parse_plain<'de, S: DeserializeSeed<'de>>(
    json: &'de [u8],
    seed: S,
) -> Option<S::Value> {
    let inside = json.strip_prefix(b"{").filter(|_| json.len() <= PLAIN_BYTES_MAX)?;
    let text = std::str::from_utf8(inside).ok()?;
    let object = PlainObject { text, rest: inside, is_first: true };
    seed.deserialize(MapAccessDeserializer::new(object)).ok()
}

/// The text is not a plain object: the reason is found by who reads it in general.
#[derive(Debug)]
struct NotPlain;

impl fmt::Display for NotPlain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a plain object")
    }
}

impl std::error::Error for NotPlain {}

impl serde::de::Error for NotPlain {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

/// The rest of an object, behind its brace.
struct PlainObject<'a> {
    text: &'a str,
    /// The end of `text`.
    rest: &'a [u8],
    is_first: bool,
}

impl<'a> PlainObject<'a> {
    /// Returns the number of bytes of the text that are read.
    fn place(&self) -> usize {
        self.text.len() - self.rest.len()
    }

    fn skip(&mut self, n_bytes: usize) -> Result<(), NotPlain> {
        self.rest = self.rest.get(n_bytes..).ok_or(NotPlain)?;
        Ok(())
    }

    fn expect(&mut self, byte: u8) -> Result<(), NotPlain> {
        if self.rest.first() == Some(&byte) { self.skip(1) } else { Err(NotPlain) }
    }

    /// Takes a comma or a colon, and the one blank that may follow it.
    fn separator(&mut self, byte: u8) -> Result<(), NotPlain> {
        self.expect(byte)?;
        if self.rest.first() == Some(&b' ') { self.skip(1) } else { Ok(()) }
    }

    fn string(&mut self) -> Result<&'a str, NotPlain> {
        self.expect(b'"')?;
        let is_end = |byte: &u8| *byte == b'"' || *byte == b'\\' || *byte < b' ';
        let n_bytes = self.rest.iter().position(is_end).ok_or(NotPlain)?;
        let start = self.place();
        self.skip(n_bytes)?;
        let string = self.text.get(start..self.place()).ok_or(NotPlain)?;
        self.expect(b'"')?;
        Ok(string)
    }

    /// Reads digits; returns their value, unless there are too many, and their number.
    fn digits(&mut self) -> Result<(u64, usize), NotPlain> {
        let (mut value, mut n_digits) = (0_u64, 0);
        for byte in self.rest {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
            n_digits += 1;
        }
        self.skip(n_digits)?;
        if (1..=DIGITS_MAX).contains(&n_digits) { Ok((value, n_digits)) } else { Err(NotPlain) }
    }

    fn number(&mut self) -> Result<Number, NotPlain> {
        let (start, is_zero) = (self.place(), self.rest.first() == Some(&b'0'));
        let (value, n_digits) = self.digits()?;
        if is_zero && n_digits > 1 {
            return Err(NotPlain);
        }
        let number = if self.rest.first() == Some(&b'.') {
            self.skip(1)?;
            self.digits()?;
            let text = self.text.get(start..self.place()).ok_or(NotPlain)?;
            Number::Float(text.parse().map_err(|_| NotPlain)?)
        } else {
            Number::Unsigned(value)
        };
        // An exponent may follow.
        if matches!(self.rest.first(), Some(b',' | b'}')) { Ok(number) } else { Err(NotPlain) }
    }
}

impl<'de> MapAccess<'de> for PlainObject<'de> {
    type Error = NotPlain;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, NotPlain> {
        if self.rest == b"}" {
            return Ok(None);
        }
        if !self.is_first {
            self.separator(b',')?;
        }
        self.is_first = false;
        let key = self.string()?;
        self.separator(b':')?;
        seed.deserialize(BorrowedStrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, NotPlain> {
        seed.deserialize(PlainValue(self))
    }
}

/// The next value of an object.
struct PlainValue<'p, 'a>(&'p mut PlainObject<'a>);

impl<'de> Deserializer<'de> for PlainValue<'_, 'de> {
    type Error = NotPlain;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, NotPlain> {
        if self.0.rest.first() == Some(&b'"') {
            return visitor.visit_borrowed_str(self.0.string()?);
        }
        match self.0.number()? {
            Number::Unsigned(value) => visitor.visit_u64(value),
            Number::Negative(value) => visitor.visit_i64(value),
            Number::Float(value) => visitor.visit_f64(value),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, NotPlain> {
        visitor.visit_some(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}
