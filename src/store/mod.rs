//! Files that outlive the process.

pub mod atomic;
pub mod open;
pub mod state;
