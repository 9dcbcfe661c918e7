//! Trends in a series of memory figures: whether it grows, since when and how surely; with
//! `stepmem_forecast` how fast, and how long until the end. What grows, and what that is called, is decided elsewhere; so is what a
//! restart is.
//!
//! ```
//! use stepmem_detect::{Asked, AxisPoint, Config, Detector, Sample, Signal, Stage};
//! use stepmem_types::units::{GIBIBYTE, MEBIBYTE, UnixTime};
//!
//! let capacity = Some(24.0 * GIBIBYTE);
//! let mut detector = Detector::new(Config::default());
//! for step in (1..=400).map(f64::from) {
//!     // Each step takes half a second and keeps 8 MiB.
//!     let allocated = 8.0 * GIBIBYTE + 8.0 * MEBIBYTE * step;
//!     let sample = Sample {
//!         at: AxisPoint { position: step, time: UnixTime::new(1.76e9 + 0.5 * step).unwrap() },
//!         allocated,
//!         requested: None,
//!         peak: Some(allocated),
//!         peak_bound: Some(allocated),
//!         reserved: None,
//!         peak_reserved: None,
//!         live_blocks: None,
//!     };
//!     detector.train(&sample, capacity);
//! }
//! let trend = detector.trend(Signal::Allocated).unwrap();
//! assert_eq!(trend.stage, Stage::Creeping);
//!
//! let asked = Asked::default();
//! let outlook = detector.outlook(Signal::Allocated, capacity, &asked).unwrap();
//! let slope = outlook.bytes_per_unit().unwrap();
//! assert!((slope.lower..=slope.upper).contains(&(8.0 * MEBIBYTE)));
//! // 12.9 GiB are left.
//! assert!(outlook.steps.unwrap().known.is_some_and(|steps| (1550.0..1750.0).contains(&steps)));
//! ```

#![warn(missing_docs)]

mod batch;
mod config;
mod detector;
mod explanations;
mod headroom;
mod heights;
mod intervals;
mod ladder;
mod overview;
mod rapid;
mod readings;
mod sample;
mod series;
mod shifts;
mod slack;
mod surroundings;
#[cfg(test)]
mod tests;
mod tracker;
mod witness;

pub use config::Config;
pub use detector::{Detector, WindowReport};
pub use explanations::{Bound, Explanation, LARGEST_T, Shown, Stopped};
pub use sample::{DeviceReading, Sample};
pub use shifts::HolderGrowth;
pub use stepmem_forecast::{
    Asked, Axis, AxisPoint, Bend, Capacity, Course, EndedGrowth, Outlook, Phase, Signal, Slope,
    Stage, TimeLeft, Trend,
};
pub use tracker::ShownBy;
pub use witness::{Accumulation, Testimony};
