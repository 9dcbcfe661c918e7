//! Bytes and devices come in: decoded, checked and handed to the engine. Nothing here knows an output.

pub mod nvml;
pub mod owner;
pub mod push;
pub mod recording;
