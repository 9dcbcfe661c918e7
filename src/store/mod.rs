//! Files that outlast the process.

pub mod atomic;
pub mod state;
