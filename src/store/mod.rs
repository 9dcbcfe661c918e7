//! Files that outlive the process.

pub mod atomic;
pub mod directory;
pub mod launches;
pub mod left;
pub mod open;
pub mod recordings;
pub mod state;
pub mod timelines;
pub mod writable;
pub mod zstd;
