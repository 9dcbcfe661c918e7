//! PyTorch memory snapshots: from the bytes of a pickle to the line that leaks.

pub mod analyze;
pub mod error;
pub mod events;
pub mod integer;
pub mod model;
pub mod read;
pub mod render;
pub mod replay;
pub mod write;
