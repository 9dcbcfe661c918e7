//! Quantities with a range: if one exists, it is in range, and nothing past this file checks it
//! again.

use std::error::Error;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use crate::characters::{is_combining, is_hidden};
use crate::format::clean::{Quoted, clean};
use crate::refused::refused;

/// The largest byte count and step that is taken: 2^53, above which an `f64` cannot hold every
/// integer.
pub const INTEGER_MAX: u64 = 1 << 53;

/// 2^20 bytes.
pub const MEBIBYTE: f64 = 1024.0 * 1024.0;
/// 2^30 bytes.
pub const GIBIBYTE: f64 = 1024.0 * MEBIBYTE;

/// A value that may not enter, with the limit that it breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutOfRange {
    /// A number outside its closed range.
    Number {
        /// The value as it was given.
        value: String,
        /// The least value allowed.
        min: String,
        /// The greatest value allowed.
        max: String,
    },
    /// A text that is empty or too long.
    Length {
        /// The text's length, in bytes.
        bytes: usize,
        /// The greatest length allowed, in bytes.
        max: usize,
    },
    /// A text with a control character in it.
    Control(String),
    /// A name with an invisible character in it that moves or hides others.
    Hidden(String),
    /// A name in which there is nothing to see.
    Blank(String),
    /// A name whose first character is drawn onto what stands before the name.
    Combining(String),
    /// A text of another form.
    Form {
        /// The text in quotes, or its length where it is a secret.
        text: String,
        /// The form that is asked for.
        what: &'static str,
    },
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { value, min, max } => write!(f, "{value} is outside {min}..={max}"),
            Self::Length { bytes, max } => {
                write!(f, "a text of {bytes} bytes is outside 1..={max} bytes")
            }
            Self::Control(text) => write!(f, "{} contains a control character", Quoted(text)),
            Self::Hidden(text) => write!(f, "{} contains an invisible character", Quoted(text)),
            Self::Blank(text) => write!(f, "{} has no visible character", Quoted(text)),
            Self::Combining(text) => {
                write!(f, "{} begins with a combining character", Quoted(text))
            }
            Self::Form { text, what } => write!(f, "{text} is not made of {what}"),
        }
    }
}

impl Error for OutOfRange {}

impl OutOfRange {
    pub(super) fn number(
        value: &impl ToString,
        min: &impl ToString,
        max: &impl ToString,
    ) -> Self {
        Self::Number { value: value.to_string(), min: min.to_string(), max: max.to_string() }
    }

    /// Refuses a text that is not made of `what`.
    pub fn form(text: &str, what: &'static str) -> Self {
        Self::Form { text: Quoted(text).to_string(), what }
    }
}

/// Magnitudes from which on, and below which, a number is written with an exponent.
const EXPONENT_FROM: f64 = 1e21;
const EXPONENT_BELOW: f64 = 1e-7;

/// Returns a number in at most 25 characters: `1.5`, `1e300`.
pub fn number_shown(value: f64) -> String {
    let is_plain = (EXPONENT_BELOW..EXPONENT_FROM).contains(&value.abs());
    if is_plain || value == 0.0 { value.to_string() } else { format!("{value:e}") }
}

/// An integer of 0 to [`INTEGER_MAX`]. An `Option` of it takes no more memory: a record and the
/// state of a rank are mostly such figures.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Integer(NonZeroU64);

impl Integer {
    fn new(value: u64) -> Result<Self, OutOfRange> {
        if value <= INTEGER_MAX {
            // The lowest bit is set, so that 0 is free for `None`; order stays.
            Ok(Self(NonZeroU64::MIN | (value << 1)))
        } else {
            Err(OutOfRange::number(&value, &0, &INTEGER_MAX))
        }
    }

    fn get(self) -> u64 {
        self.0.get() >> 1
    }

    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "at most 2^53, so exact"
    )]
    fn as_f64(self) -> f64 {
        // Conversion of a signed integer is one instruction.
        self.get().cast_signed() as f64
    }
}

impl Default for Integer {
    fn default() -> Self {
        Self(NonZeroU64::MIN)
    }
}

impl fmt::Debug for Integer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// A byte count, 0 to [`INTEGER_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(Integer);

impl Bytes {
    /// Takes a count of 0 to [`INTEGER_MAX`].
    ///
    /// # Errors
    /// Names the value and the range.
    pub fn new(value: u64) -> Result<Self, OutOfRange> {
        Integer::new(value).map(Self)
    }

    /// Takes bytes without their fraction, to the nearest.
    ///
    /// # Errors
    /// They are below 0, no number, or above [`INTEGER_MAX`].
    pub fn rounded(bytes: f64) -> Result<Self, OutOfRange> {
        Self::new(format!("{bytes:.0}").parse().unwrap_or(u64::MAX))
    }

    /// Returns the number of bytes.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// The count as a float, exactly.
    pub fn as_f64(self) -> f64 {
        self.0.as_f64()
    }
}

/// A step number or a count of a training process, 0 to [`INTEGER_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(Integer);

impl Count {
    /// Takes a count of 0 to [`INTEGER_MAX`].
    ///
    /// # Errors
    /// Names the value and the range.
    pub fn new(value: u64) -> Result<Self, OutOfRange> {
        Integer::new(value).map(Self)
    }

    /// Takes the whole part of a count, such as a step on an axis; `None` beyond
    /// [`INTEGER_MAX`].
    #[expect(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and a count is never negative"
    )]
    pub fn whole(count: f64) -> Option<Self> {
        Self::new(count as u64).ok()
    }

    /// Returns the number.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// The count as a float, exactly.
    pub fn as_f64(self) -> f64 {
        self.0.as_f64()
    }
}

/// A finite, non-negative number of seconds: a Unix time or a duration as clients send it.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Seconds(f64);

impl Seconds {
    /// The greatest value that is taken: the end of the year 9999 as a Unix time.
    pub const MAX: f64 = 253_402_300_799.0;

    /// Takes a finite value of 0 to [`Self::MAX`].
    ///
    /// # Errors
    /// Names the value and the range.
    pub fn new(value: f64) -> Result<Self, OutOfRange> {
        if (0.0..=Self::MAX).contains(&value) {
            Ok(Self(value))
        } else {
            Err(OutOfRange::number(&number_shown(value), &0, &Self::MAX))
        }
    }

    /// The number of seconds.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// A time in seconds since 1970, in the range of [`Seconds`].
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct UnixTime(f64);

impl UnixTime {
    /// Takes a finite value of 0 to [`Seconds::MAX`].
    ///
    /// # Errors
    /// Names the value and the range.
    pub fn new(seconds: f64) -> Result<Self, OutOfRange> {
        Seconds::new(seconds).map(Self::from)
    }

    /// The seconds since 1970.
    pub fn get(self) -> f64 {
        self.0
    }

    /// Returns the seconds from `earlier` to this, negative when `earlier` is later.
    pub fn since(self, earlier: Self) -> f64 {
        self.0 - earlier.0
    }
}

impl From<Seconds> for UnixTime {
    fn from(seconds: Seconds) -> Self {
        Self(seconds.get())
    }
}

/// The greatest magnitude of a figure that was computed and is read back: squares of it and
/// their sums are finite, and nothing that comes from records reaches it.
pub(crate) const FIGURE_LIMIT: f64 = 1e60;

/// Reads a figure of at most [`FIGURE_LIMIT`] in magnitude.
fn figure<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let figure = f64::deserialize(deserializer)?;
    let is_right = (-FIGURE_LIMIT..=FIGURE_LIMIT).contains(&figure);
    let outside = || {
        let [value, min, max] = [figure, -FIGURE_LIMIT, FIGURE_LIMIT].map(number_shown);
        OutOfRange::Number { value, min, max }
    };
    is_right.then_some(figure).ok_or_else(|| refused(outside()))
}

/// An estimate with its 95 % interval, all in one unit.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Interval {
    /// The estimate.
    #[serde(deserialize_with = "figure")]
    pub value: f64,
    /// The interval's lower end.
    #[serde(deserialize_with = "figure")]
    pub lower: f64,
    /// The interval's upper end.
    #[serde(deserialize_with = "figure")]
    pub upper: f64,
}

impl Interval {
    /// The interval that reaches `half_width` to either side of `value`.
    pub fn around(value: f64, half_width: f64) -> Self {
        Self { value, lower: value - half_width, upper: value + half_width }
    }
}

/// The time that the program (or the replayed recording) had run when something happened.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Uptime(pub Duration);

impl<'de> Deserialize<'de> for Uptime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let uptime = Self(Duration::deserialize(deserializer)?);
        if uptime <= Self::MAX {
            Ok(uptime)
        } else {
            let (value, max) = (uptime.0.as_secs(), Self::MAX.0.as_secs());
            Err(refused(OutOfRange::number(&value, &0, &max)))
        }
    }
}

impl Uptime {
    /// The longest uptime that is read back: 10000 years, which leaves headroom to add to it.
    pub const MAX: Self = Self(Duration::from_hours(10_000 * 366 * 24));

    /// The time from `earlier` to this, zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Durations counted in buckets.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct DurationCounts {
    /// Ascending and cumulative.
    pub buckets: Vec<DurationBucket>,
    /// Number of durations.
    pub count: u64,
    /// The sum of all durations.
    pub sum_seconds: f64,
}

/// Number of durations that were at most this long.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct DurationBucket {
    /// The upper bound.
    pub within_seconds: f64,
    /// Number of durations.
    pub count: u64,
}

/// Takes a name of 1 to `bytes_max` bytes of ASCII letters, digits and `punctuation`.
///
/// # Errors
///
/// Names the length, or `form`: the characters that are allowed.
pub(crate) fn ascii_name(
    text: &str,
    bytes_max: usize,
    punctuation: &[u8],
    form: &'static str,
) -> Result<Arc<str>, OutOfRange> {
    if text.is_empty() || text.len() > bytes_max {
        return Err(OutOfRange::Length { bytes: text.len(), max: bytes_max });
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || punctuation.contains(&byte);
    let is_name = text.bytes().all(is_allowed);
    if is_name { Ok(text.into()) } else { Err(OutOfRange::form(text, form)) }
}

/// Takes a text of 1 to `bytes_max` bytes without control characters, to own or to share. Of
/// invisible characters it gets the escapes, and what does not fit then is cut.
///
/// # Errors
///
/// Names the one of the two limits that `text` breaks.
pub fn checked_text<T: for<'t> From<&'t str>>(
    text: &str,
    bytes_max: usize,
) -> Result<T, OutOfRange> {
    if text.is_empty() || text.len() > bytes_max {
        return Err(OutOfRange::Length { bytes: text.len(), max: bytes_max });
    }
    let is_plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if !is_plain && text.chars().any(char::is_control) {
        return Err(OutOfRange::Control(text.to_owned()));
    }
    if is_plain || !text.chars().any(is_hidden) {
        return Ok(text.into());
    }
    let cleaned = clean(text);
    let end = cleaned.floor_char_boundary(bytes_max);
    Ok(cleaned.get(..end).unwrap_or_default().into())
}

/// The units of a size in small letters, and how many bytes they are.
const SIZE_UNITS: [(&str, f64); 12] = [
    ("", 1.0),
    ("b", 1.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("tb", 1e12),
    ("kib", 1024.0),
    ("mib", MEBIBYTE),
    ("gib", GIBIBYTE),
    ("tib", 1024.0 * GIBIBYTE),
    ("pb", 1e15),
    ("pib", 1024.0 * 1024.0 * GIBIBYTE),
];
/// The greatest size, in bytes: 2^53, as for any byte count.
const SIZE_MAX: f64 = 8192.0 * 1024.0 * GIBIBYTE;

/// Parses a size in bytes of 1 to 2^53, such as `2GiB`, `512 MB` or `1000000`.
pub fn parse_size(text: &str) -> Option<f64> {
    let digits =
        text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = text.split_at_checked(digits)?;
    let unit = unit.trim_start().to_ascii_lowercase();
    let (_, factor) = SIZE_UNITS.iter().find(|(name, _)| *name == unit)?;
    let bytes = (number.parse::<f64>().ok()? * factor).round();
    Some(bytes).filter(|bytes| (1.0..=SIZE_MAX).contains(bytes))
}

/// Parses a size as [`parse_size`] does, as a whole number.
pub fn parse_whole_size(text: &str) -> Option<u64> {
    Bytes::rounded(parse_size(text)?).ok().map(Bytes::get)
}

/// Takes a name: a text as of [`checked_text`] that people can see, without characters that
/// move or hide others.
///
/// # Errors
///
/// Names the limit that `text` breaks.
pub fn checked_name<T: for<'t> From<&'t str>>(
    text: &str,
    bytes_max: usize,
) -> Result<T, OutOfRange> {
    if !text.is_ascii() && text.chars().any(is_hidden) && text.len() <= bytes_max {
        return Err(OutOfRange::Hidden(text.to_owned()));
    }
    let checked = checked_text(text, bytes_max)?;
    if text.trim().is_empty() {
        return Err(OutOfRange::Blank(text.to_owned()));
    }
    if text.starts_with(is_combining) {
        return Err(OutOfRange::Combining(text.to_owned()));
    }
    Ok(checked)
}

/// Writes a type as its plain value, and reads it back through its constructor, so that what
/// exists is in range.
macro_rules! serialized {
    ($type:ty as $plain:ty, $write:ident, $get:ident, |$read:ident| $new:expr) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(
                &self,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                serializer.$write(self.$get())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Self, D::Error> {
                let $read = <$plain as serde::Deserialize>::deserialize(deserializer)?;
                $new.map_err($crate::refused::refused)
            }
        }
    };
}

pub(super) use serialized;

serialized!(Bytes as u64, serialize_u64, get, |read| Bytes::new(read));
serialized!(Count as u64, serialize_u64, get, |read| Count::new(read));
serialized!(UnixTime as f64, serialize_f64, get, |read| UnixTime::new(read));
serialized!(Seconds as f64, serialize_f64, get, |read| Seconds::new(read));

#[cfg(test)]
mod tests {
    use crate::units::{Interval, UnixTime};

    #[test]
    fn unix_time_is_finite_and_not_before_1970() {
        for seconds in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
            assert!(UnixTime::new(seconds).is_err(), "{seconds}");
        }
        let (first, second) = (UnixTime::new(10.0).unwrap(), UnixTime::new(12.5).unwrap());
        assert!((second.since(first) - 2.5).abs() < 1e-9);
        assert!((first.since(second) + 2.5).abs() < 1e-9);
    }

    #[test]
    fn interval_around_a_value_has_it_in_the_middle() {
        let interval = Interval::around(10.0, 3.0);
        assert_eq!(interval, Interval { value: 10.0, lower: 7.0, upper: 13.0 });
    }
}
