//! The online estimator of memory creep. Read it bottom up: `axis`, `signal`, `rules` and
//! `record`; blocks of records in a `pyramid` of windows; the `gates` that a `window` must
//! pass; the `trend` that it then shows; `watch`, `stairs`, `surge` and `readings` over time; and the
//! `estimator` of one rank.

pub mod axis;
mod batch;
mod context;
mod course;
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
pub mod surge;
pub mod trend;
mod watch;
pub mod window;
