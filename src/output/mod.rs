//! Statuses go out: each output reads the same immutable status, and none knows of the inputs.

pub mod otlp;
pub mod prometheus;
pub mod web;
