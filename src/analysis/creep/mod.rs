//! The online estimator of creeping memory. It reads bottom up: a [`signal`] and the rules for it, records, blocks of
//! them in a pyramid of windows, the gates that a window passes, and the trend that it then shows.

mod batch;
pub mod estimator;
pub mod gates;
#[cfg(test)]
mod job;
mod pace;
mod pyramid;
mod readings;
pub mod record;
mod room;
pub mod rules;
pub mod signal;
pub mod stairs;
pub mod trend;
mod watch;
pub mod window;
