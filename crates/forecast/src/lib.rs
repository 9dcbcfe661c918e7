//! What comes of memory that grows: its slope with an interval, the bytes that are left, and the
//! time until they are used up. Whether it grows, and since when, is decided elsewhere: a
//! [`Trend`] says so.
//!
//! ```
//! use stepmem_forecast::slope_since_onset;
//!
//! // A block of samples every 16 steps; each step keeps 8 MB.
//! let points: Vec<(f64, f64)> = (0..16).map(|n| f64::from(16 * n)).map(|x| (x, 8e6 * x)).collect();
//! let slope = slope_since_onset(&points, false).unwrap().slope;
//! assert!((slope.lower..=slope.upper).contains(&8e6));
//! ```

#![warn(missing_docs)]

mod axis;
mod capacity;
mod followed;
mod outlook;
mod overview;
mod pace;
mod power_law;
mod remaining;
mod signal;
mod slope_interval;
pub mod stats;
mod time_to_oom;
mod trend;
mod usage;

pub use axis::{Axis, AxisPoint};
pub use capacity::Capacity;
pub use followed::{is_followed, slack_ratio};
pub use outlook::{Asked, Basis, Course, Outlook, TimeLeft};
pub use overview::Overview;
pub use pace::Pace;
pub use signal::Signal;
pub use slope_interval::{Bend, SinceOnset, Spread, slope_of_test, slope_since_onset};
pub use trend::{EndedGrowth, Phase, Slope, Stage, Trend};
pub use usage::Usage;
