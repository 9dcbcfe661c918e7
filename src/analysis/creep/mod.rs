//! The online estimator of creeping memory. It reads bottom up: a [`signal`] and the rules for it, records, blocks of
//! them in a pyramid of windows, the gates that a window passes, and the trend that it then shows.

pub mod axis;
mod batch;
mod context;
pub mod estimator;
pub mod gates;
mod pace;
mod pyramid;
mod readings;
pub mod record;
pub mod rules;
pub mod signal;
#[cfg(test)]
mod simulation;
pub mod stairs;
pub mod trend;
mod watch;
pub mod window;
