//! Numbers and indices: record numbers are 32 bits wide, positions in memory are not.

/// The position of a record.
#[inline]
pub fn at(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The number of the record at a position; saturates, and the reader refuses files that come
/// near.
#[inline]
pub fn id(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// A length as it is counted in reports.
#[inline]
pub(crate) fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// A number of bytes for statistics; exact up to 2^53.
#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "statistics round")]
pub fn real(value: u64) -> f64 {
    value as f64
}

/// The same for a difference.
#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "statistics round")]
pub(crate) fn signed_real(value: i64) -> f64 {
    value as f64
}

/// The difference of two numbers of bytes, each at most 2^63.
#[inline]
pub(crate) fn difference(after: u64, before: u64) -> i64 {
    i64::try_from(i128::from(after) - i128::from(before)).unwrap_or(i64::MAX)
}
