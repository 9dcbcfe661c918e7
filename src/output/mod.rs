//! Outputs: each reads the same immutable status and knows no input.

pub mod answers;
pub mod otlp;
pub mod prometheus;
mod timelines;
pub mod web;
