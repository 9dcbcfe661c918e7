//! One rank: its life, its recent peaks, its life summed up, and what others see of it.

pub mod ended;
pub mod host;
pub mod lifecycle;
pub mod peaks;
pub mod state;
pub mod tally;
pub mod view;
