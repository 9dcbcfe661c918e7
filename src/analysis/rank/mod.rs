//! One rank: its life, its recent peaks, and its life summed up.

pub mod tally;
pub mod window;
