//! The summaries of runs that have ended, or are asked for: when, where, and how they are
//! written.

pub mod directory;
pub mod launches;
pub mod requests;
pub mod termination;
pub mod writer;
