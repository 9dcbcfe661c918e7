//! What is pushed.

/// One push record as JSON text: a rank's step with live and peak memory.
pub fn record(rank: u32, step: u64, allocated: u64) -> String {
    format!(r#"{{"rank":{rank},"step":{step},"allocated_bytes":{allocated}}}"#)
}
