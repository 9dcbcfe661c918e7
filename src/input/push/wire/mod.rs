//! The push format, version 1: bytes to samples, and verdicts to bytes. The only room that knows its JSON; it does no
//! I/O and keeps nothing.

pub mod answer;
pub mod control;
pub mod error;
mod field;
mod json;
mod number;
pub mod recorded;
pub mod step;
