//! The online estimator of memory creep. Read it bottom up: `axis`, `signal`, `rules` and
//! `record`; blocks of records in a `pyramid` of windows; the `gates` that a `window`, its
//! `shape` and its `climbs` must pass; its `slope` and the `trend` that it then shows; `watch`, `stairs` and their `marks`, `surge` and `readings` over time;
//! the `estimator` of one rank, of steps or of `samples` by time, and the `soonest` of its trends. `without` leaves rules out, to measure them.

pub mod axis;
mod batch;
mod climbs;
mod context;
mod course;
mod curve;
pub mod estimator;
pub mod gates;
mod marks;
mod pace;
mod pyramid;
mod readings;
pub mod record;
pub mod rules;
mod samples;
mod shape;
pub mod signal;
#[cfg(test)]
mod simulation;
mod slope;
pub mod soonest;
pub mod stairs;
pub mod surge;
pub mod trend;
mod watch;
pub mod window;
pub mod without;
