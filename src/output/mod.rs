//! Statuses go out: each output reads the same immutable status, and none knows of the inputs.

pub mod prometheus;

pub mod otlp;

pub mod http;
