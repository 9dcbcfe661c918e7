//! Outputs: each reads the same immutable status and knows no input.

mod answers;
pub mod otlp;
pub mod prometheus;
mod timelines;
pub mod web;
