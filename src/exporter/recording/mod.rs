//! The recording of every event: the queue to the writer, and the files.

pub mod queue;
pub mod writer;
