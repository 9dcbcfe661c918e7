//! Does a series of memory figures grow, how fast, since when, how surely, and how long until
//! the end. What grows, and what that is called, is decided elsewhere; so is what a restart is.

mod batch;
#[cfg(test)]
mod behaviour;
pub mod capacity;
pub mod config;
pub mod detector;
pub mod forecast;
mod heights;
mod intervals;
mod ladder;
pub mod outlook;
mod pace;
mod rapid;
mod readings;
pub mod sample;
mod series;
pub mod shifts;
pub mod signal;
mod slack;
pub mod stats;
mod surroundings;
pub mod tests;
pub mod tracker;
pub mod trend;
pub mod witness;
