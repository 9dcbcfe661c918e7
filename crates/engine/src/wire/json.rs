//! Parsing of one JSON value, with errors that name record and field.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::requests::snapshot::PATH_BYTES_MAX;
use crate::wire::error::{DecodeError, DecodeFault};

pub(super) fn to_vec(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// Parses the value. On failure, parses again to find the place of the error.
pub(super) fn parse<'de, T: Deserialize<'de>>(json: &'de [u8]) -> Result<T, DecodeError> {
    if lacks_quotes(json) && has_long_text(json) {
        return Err(too_long());
    }
    // Checked once as a whole, so that the texts inside need no check.
    let text = std::str::from_utf8(json).ok();
    let parsed = text.and_then(|text| serde_json::from_str(text).ok());
    parsed.ok_or_else(|| explain::<T>(json))
}

/// The longest text of a push is a path of a snapshot, every character of which may be escaped:
/// no longer one is read.
const TEXT_BYTES_MAX: usize = 6 * PATH_BYTES_MAX;

/// Returns whether a text or a key is too long to be any of ours.
fn has_long_text(json: &[u8]) -> bool {
    let mut length = None;
    let mut is_escaped = false;
    for byte in json {
        match (&mut length, byte) {
            (None, b'"') => length = Some(0_usize),
            (None, _) => {}
            (Some(_), b'"') if !is_escaped => length = None,
            (Some(length), byte) => {
                is_escaped = *byte == b'\\' && !is_escaped;
                *length += 1;
                if *length > TEXT_BYTES_MAX {
                    return true;
                }
            }
        }
    }
    false
}

/// Returns whether some span has no quote that any text longer than [`TEXT_BYTES_MAX`] without
/// quotes of its own would cover. Reads a few bytes of each span.
fn lacks_quotes(json: &[u8]) -> bool {
    json.len() > TEXT_BYTES_MAX
        && json
            .chunks_exact(TEXT_BYTES_MAX / 2)
            .any(|part| memchr::memchr(b'"', part).is_none())
}

fn too_long() -> DecodeError {
    let problem = DecodeFault::Json(format!("a text exceeds {TEXT_BYTES_MAX} bytes"));
    DecodeError { record: None, field: String::new(), problem }
}

/// The reason why `json` is not a `T`.
fn explain<'de, T: Deserialize<'de>>(json: &'de [u8]) -> DecodeError {
    if has_long_text(json) {
        return too_long();
    }
    if json.trim_ascii().is_empty() {
        return DecodeError { record: None, field: String::new(), problem: DecodeFault::Empty };
    }
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    if let Err(error) = serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        return DecodeError::json(&error);
    }
    // The value was complete, and something follows it.
    let rest = deserializer.end().err().map(|error| error.to_string());
    let problem = DecodeFault::Json(rest.unwrap_or_default());
    DecodeError { record: None, field: String::new(), problem }
}

/// A value that must be a JSON object: a derived `Deserialize` alone would also accept an array
/// of its fields in order.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);
