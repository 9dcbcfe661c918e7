//! How long growth can go on: the slope with its interval, what is left, and the time until it is used up. Nothing here
//! decides a finding.

pub mod headroom;
pub mod overview;
pub mod power_law;
pub mod slope_interval;
pub mod time_to_oom;
