//! Outputs: each reads the same immutable status and knows no input.

pub mod answers;
pub mod otlp;
pub mod prometheus;
pub mod web;
