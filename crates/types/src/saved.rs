//! Checks of what is read back from a state: the file may be anybody's, however right its
//! checksum is. A field names its check by `#[serde(deserialize_with = …)]`, so that a value out
//! of range is an error of decoding, and nothing past it checks it again.
//!
//! Types with a range of their own (`Bytes`, `UnixTime`, names) need none.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use serde::de::{Deserialize, Deserializer};

use crate::refused::refused;
use crate::units::{
    Bytes, FIGURE_LIMIT, INTEGER_MAX, OutOfRange, Seconds, Uptime, checked_text,
};

/// The greatest Unix time: one in range, and an uptime after it.
const TIME_MAX: f64 = 3.0 * Seconds::MAX;
/// The greatest number of seconds between two events: [`Uptime::MAX`].
const SECONDS_MAX: f64 = 10_000.0 * 366.0 * 24.0 * 3600.0;
/// The greatest place on the axis of a series: that of a step, 2^53.
const PLACE_MAX: f64 = 9_007_199_254_740_992.0;

/// Adds to a count, up to the greatest that is read back.
#[must_use]
pub fn added(total: u64, more: u64) -> u64 {
    total.saturating_add(more).min(INTEGER_MAX)
}

/// Values that are made of floats.
pub trait Floats {
    /// Returns the first float for which `is_right` is false.
    fn wrong(&self, is_right: &dyn Fn(f64) -> bool) -> Option<f64>;
}

/// Values that are made of integers.
pub trait Integers {
    /// Returns the greatest of them; 0 without one.
    fn greatest(&self) -> u64;
}

/// Values that are made of texts.
pub trait Texts: Sized {
    /// Takes texts as [`checked_text`] does.
    ///
    /// # Errors
    /// A text is out of range.
    fn checked(self, bytes_max: usize) -> Result<Self, OutOfRange>;
}

/// Values of any number.
pub trait List {
    /// Returns the number of values.
    fn n_values(&self) -> usize;
}

/// Reads finite floats of at most `FIGURE_LIMIT` in magnitude.
///
/// # Errors
/// A float is out of range.
pub fn figures<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Floats,
{
    within(deserializer, -FIGURE_LIMIT, FIGURE_LIMIT)
}

/// Reads floats of 0 to `FIGURE_LIMIT`.
///
/// # Errors
/// A float is out of range.
pub fn amounts<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Floats,
{
    within(deserializer, 0.0, FIGURE_LIMIT)
}

/// Reads floats of 0 to 1.
///
/// # Errors
/// A float is out of range.
pub fn ratios<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Floats,
{
    within(deserializer, 0.0, 1.0)
}

/// Reads places on the axis of a series, or bytes: floats of 0 to 2^53.
///
/// # Errors
/// A float is out of range.
pub fn places<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Floats,
{
    within(deserializer, 0.0, PLACE_MAX)
}

/// Reads Unix times that are held as floats, 0 to `TIME_MAX`.
///
/// # Errors
/// A float is out of range.
pub fn times<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Floats,
{
    within(deserializer, 0.0, TIME_MAX)
}

/// Reads seconds between two events, 0 to `SECONDS_MAX`.
///
/// # Errors
/// A float is out of range.
pub fn spans<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Floats,
{
    within(deserializer, 0.0, SECONDS_MAX)
}

/// Reads floats from `min` to `max`.
///
/// # Errors
/// A float is out of range.
pub fn within<'de, D, T>(deserializer: D, min: f64, max: f64) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Floats,
{
    let value = T::deserialize(deserializer)?;
    match value.wrong(&|float| (min..=max).contains(&float)) {
        Some(float) => Err(refused(OutOfRange::number(&float, &min, &max))),
        None => Ok(value),
    }
}

/// Reads integers of 0 to `MAX`.
///
/// # Errors
/// An integer is out of range.
pub fn at_most<'de, D, T, const MAX: u64>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Integers,
{
    let value = T::deserialize(deserializer)?;
    match value.greatest() {
        greatest if greatest > MAX => Err(refused(OutOfRange::number(&greatest, &0, &MAX))),
        _ => Ok(value),
    }
}

/// Reads counts of 0 to `INTEGER_MAX`.
///
/// # Errors
/// A count is out of range.
pub fn counts<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Integers,
{
    at_most::<D, T, INTEGER_MAX>(deserializer)
}

/// Reads at most `MAX` values.
///
/// # Errors
/// There are more.
pub fn list<'de, D, T, const MAX: usize>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + List,
{
    let list = T::deserialize(deserializer)?;
    match list.n_values() {
        n_values if n_values > MAX => {
            Err(refused(Longer { what: "values", length: n_values, max: MAX }))
        }
        _ => Ok(list),
    }
}

/// Reads at most `MAX` values of floats, as [`figures`] does.
///
/// # Errors
/// There are more, or a float is out of range.
pub fn figure_list<'de, D, T, const MAX: usize>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Floats + List,
{
    let list: T = figures(deserializer)?;
    match list.n_values() {
        n_values if n_values > MAX => {
            Err(refused(Longer { what: "values", length: n_values, max: MAX }))
        }
        _ => Ok(list),
    }
}

/// Reads texts of 1 to `MAX` bytes without control characters; of invisible ones they get the
/// escapes.
///
/// # Errors
/// A text breaks one of the two limits.
pub fn texts<'de, D, T, const MAX: usize>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Texts,
{
    T::deserialize(deserializer)?.checked(MAX).map_err(refused)
}

/// A list that is too long.
struct Longer {
    what: &'static str,
    length: usize,
    max: usize,
}

impl fmt::Display for Longer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} exceed {}", self.length, self.what, self.max)
    }
}

impl Floats for f64 {
    fn wrong(&self, is_right: &dyn Fn(f64) -> bool) -> Option<f64> {
        Some(*self).filter(|float| !is_right(*float))
    }
}

impl Floats for f32 {
    fn wrong(&self, is_right: &dyn Fn(f64) -> bool) -> Option<f64> {
        f64::from(*self).wrong(is_right)
    }
}

/// The type checks its own range.
impl Floats for Bytes {
    fn wrong(&self, _: &dyn Fn(f64) -> bool) -> Option<f64> {
        None
    }
}

/// The type checks its own range.
impl Floats for Uptime {
    fn wrong(&self, _: &dyn Fn(f64) -> bool) -> Option<f64> {
        None
    }
}

impl<A: Floats, B: Floats> Floats for (A, B) {
    fn wrong(&self, is_right: &dyn Fn(f64) -> bool) -> Option<f64> {
        self.0.wrong(is_right).or_else(|| self.1.wrong(is_right))
    }
}

/// Implements [`Floats`] and [`List`] for collections.
macro_rules! lists {
    ($($list:ident),*) => {
        $(
            impl<T: Floats> Floats for $list<T> {
                fn wrong(&self, is_right: &dyn Fn(f64) -> bool) -> Option<f64> {
                    self.iter().find_map(|value| value.wrong(is_right))
                }
            }

            impl<T> List for $list<T> {
                fn n_values(&self) -> usize {
                    self.len()
                }
            }
        )*
    };
}

lists!(Vec, VecDeque);

impl<K, V> List for BTreeMap<K, V> {
    fn n_values(&self) -> usize {
        self.len()
    }
}

impl<T: Floats> Floats for Option<T> {
    fn wrong(&self, is_right: &dyn Fn(f64) -> bool) -> Option<f64> {
        self.as_ref()?.wrong(is_right)
    }
}

impl<T: Floats, const N: usize> Floats for [T; N] {
    fn wrong(&self, is_right: &dyn Fn(f64) -> bool) -> Option<f64> {
        self.iter().find_map(|value| value.wrong(is_right))
    }
}

/// Implements [`Integers`] for unsigned integers.
macro_rules! integers {
    ($($integer:ty),*) => {
        $(
            impl Integers for $integer {
                fn greatest(&self) -> u64 {
                    u64::try_from(*self).unwrap_or(u64::MAX)
                }
            }
        )*
    };
}

integers!(u32, u64, usize);

/// The type checks its own range.
impl Integers for Bytes {
    fn greatest(&self) -> u64 {
        0
    }
}

impl<A: Integers, B: Integers> Integers for (A, B) {
    fn greatest(&self) -> u64 {
        self.0.greatest().max(self.1.greatest())
    }
}

impl<T: Integers> Integers for Option<T> {
    fn greatest(&self) -> u64 {
        self.as_ref().map_or(0, Integers::greatest)
    }
}

impl<T: Integers, const N: usize> Integers for [T; N] {
    fn greatest(&self) -> u64 {
        self.iter().map(Integers::greatest).max().unwrap_or(0)
    }
}

impl Texts for Box<str> {
    fn checked(self, bytes_max: usize) -> Result<Self, OutOfRange> {
        checked_text(&self, bytes_max)
    }
}

impl Texts for String {
    fn checked(self, bytes_max: usize) -> Result<Self, OutOfRange> {
        checked_text(&self, bytes_max)
    }
}

impl<T: Texts> Texts for Option<T> {
    fn checked(self, bytes_max: usize) -> Result<Self, OutOfRange> {
        self.map(|text| text.checked(bytes_max)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, F64Deserializer, SeqDeserializer, U64Deserializer};

    use crate::saved::{SECONDS_MAX, added, at_most, figure_list, figures, ratios};
    use crate::units::{FIGURE_LIMIT, INTEGER_MAX, Uptime};

    #[test]
    fn floats_that_are_no_numbers_or_too_large_are_refused() {
        let read = |float: f64| {
            let deserializer: F64Deserializer<Error> = float.into_deserializer();
            figures::<_, f64>(deserializer)
        };
        for float in [0.0, -1.5, FIGURE_LIMIT, -FIGURE_LIMIT, f64::MIN_POSITIVE] {
            assert_eq!(read(float).unwrap().to_bits(), float.to_bits());
        }
        for float in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 2.0 * FIGURE_LIMIT] {
            assert!(read(float).is_err(), "{float}");
        }
        let ratio = |float: f64| {
            let deserializer: F64Deserializer<Error> = float.into_deserializer();
            ratios::<_, f64>(deserializer).is_ok()
        };
        assert_eq!(
            [0.0, 1.0, 1.1, -0.1, f64::NAN].map(ratio),
            [true, true, false, false, false]
        );
    }

    #[test]
    fn integers_and_lists_have_a_greatest_value() {
        let read = |integer: u64| {
            let deserializer: U64Deserializer<Error> = integer.into_deserializer();
            at_most::<_, u64, 3>(deserializer).is_ok()
        };
        assert_eq!([0, 3, 4, u64::MAX].map(read), [true, true, false, false]);
        let list = |floats: &[f64]| {
            let floats = floats.iter().copied();
            let deserializer: SeqDeserializer<_, Error> = SeqDeserializer::new(floats);
            figure_list::<_, Vec<f64>, 2>(deserializer).is_ok()
        };
        assert!(list(&[]) && list(&[1.0, 2.0]));
        assert!(!list(&[1.0, 2.0, 3.0]) && !list(&[f64::NAN]));
        assert!(u64::deserialize::<U64Deserializer<Error>>(7_u64.into_deserializer()).is_ok());
    }

    #[test]
    fn counts_end_at_the_greatest_that_is_read_back() {
        assert_eq!(added(1, 2), 3);
        assert_eq!(added(INTEGER_MAX - 1, INTEGER_MAX), INTEGER_MAX);
        assert!((Uptime::MAX.0.as_secs_f64() - SECONDS_MAX).abs() < 1.0);
    }
}
