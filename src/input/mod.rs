//! Inputs: pushes, device readings and recordings. They are decoded, checked and passed to the
//! engine. Depends on no output.

pub mod attribution;
pub mod nvml;
pub mod push;
pub mod recording;
pub mod series;
pub mod unpacked;
