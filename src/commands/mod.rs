//! The commands: one file each, named after the command, and their table. `program.rs` runs the one that is named.

pub mod analyse;
pub mod args;
pub mod check;
pub mod compare;
pub mod demo;
pub mod explain;
pub mod playback;
pub mod program;
pub mod replay;
pub mod serve;
mod simulated_snapshot;
pub mod snapshot;
pub mod status;
pub mod summary;
mod take;

/// Every command, in the order of help.
const COMMANDS: &[args::CommandRow] = &[
    serve::SERVE,
    demo::DEMO,
    replay::REPLAY,
    explain::EXPLAIN,
    summary::SUMMARY,
    compare::COMPARE,
    snapshot::SNAPSHOT,
    status::STATUS,
    check::CHECK,
    analyse::ANALYSE,
];
