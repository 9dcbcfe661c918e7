//! How reserved memory goes with live memory that grows.

use crate::stats::count;

/// Reserved memory follows live memory when it reaches a new high in this share of the points.
const FOLLOWED_RATIO: f64 = 0.5;
/// The most that slack is believed to grow for each byte of live memory.
const SLACK_RATIO_MAX: f64 = 10.0;

/// Returns whether reserved memory reaches a new high in at least half of some points. It is
/// then taken page by page as live memory grows, not in segments larger than that.
pub fn is_followed(mut reserved: impl ExactSizeIterator<Item = f64>) -> bool {
    let Some(mut high) = reserved.next() else { return false };
    let (n_rest, mut n_highs) = (count(reserved.len()), 0.0);
    for bytes in reserved {
        n_highs += if bytes > high { 1.0 } else { 0.0 };
        high = high.max(bytes);
    }
    n_highs >= FOLLOWED_RATIO * n_rest
}

/// Returns the bytes by which reserved memory grew beyond each byte of live memory, from the
/// older half of some blocks to the newer one; 0 where it did not.
pub fn slack_ratio<T>(blocks: &[T], live: fn(&T) -> f64, reserved: fn(&T) -> f64) -> f64 {
    let (older, newer) = blocks.split_at(blocks.len() / 2);
    let rise = |of: fn(&T) -> f64| {
        let mean = |blocks: &[T]| blocks.iter().map(of).sum::<f64>() / count(blocks.len());
        mean(newer) - mean(older)
    };
    let (live, reserved) = (rise(live), rise(reserved));
    let ratio = if live > 0.0 { reserved / live - 1.0 } else { 0.0 };
    if ratio > 0.0 { ratio.min(SLACK_RATIO_MAX) } else { 0.0 }
}
