//! Amounts of memory.

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// A count as metrics have it.
#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "numbers of tests are below 2^53"
)]
pub fn float(count: u64) -> f64 {
    count as f64
}

/// So many GiB as metrics have them.
pub fn gib(count: f64) -> f64 {
    count * float(GIB)
}
