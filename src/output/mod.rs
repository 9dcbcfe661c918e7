//! Outputs: each reads the same immutable status and knows no input.

pub mod answers;
pub mod otlp;
mod page;
pub mod prometheus;
pub mod report;
mod timelines;
pub mod web;
