//! The commands: a file each, named as the command.

pub mod args;
pub mod demo;
pub mod explain;
pub mod replay;
pub mod status;
pub mod summary;
