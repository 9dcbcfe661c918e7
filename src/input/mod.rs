//! Inputs: pushes, device readings and recordings, decoded, checked and handed to the engine. Knows no
//! output.

pub mod attribution;
pub mod nvml;
pub mod push;
pub mod recording;
mod unpacked;
