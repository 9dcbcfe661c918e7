//! The metrics table over OTLP. `export` reads the last published status at an interval, `resource` describes the
//! exporter, `delivery` carries an export to the collector and reports why that failed.

pub mod config;
pub mod delivery;
pub mod export;
mod resource;
