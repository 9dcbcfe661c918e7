//! The metrics table over OTLP. `export` reads the last published status at an interval.
//! `resource` describes the exporter. `delivery` sends an export to the collector and reports
//! the reason for a failure.

pub mod config;
pub mod delivery;
pub mod export;
mod resource;
