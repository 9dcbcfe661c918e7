//! The forecast of growth: the slope with its interval, the remaining bytes, and the time to
//! OOM. Nothing here decides a finding.

pub(crate) mod headroom;
pub(crate) mod overview;
pub(crate) mod power_law;
pub(crate) mod slope_interval;
pub(crate) mod time_to_oom;
