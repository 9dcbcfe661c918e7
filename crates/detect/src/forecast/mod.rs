//! The forecast of growth: the slope with its interval, the remaining bytes, and the time to
//! OOM. Nothing here decides a finding.

pub mod headroom;
pub mod overview;
pub mod power_law;
pub mod slope_interval;
pub mod time_to_oom;
