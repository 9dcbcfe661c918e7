//! The commands: one file each, named after the command, and their table. `program.rs` runs the
//! named command. `playback.rs` and `snapshot_file.rs` read files for some of them.

pub mod ack;
pub mod analyze;
pub mod args;
pub mod check;
pub mod compare;
mod completions;
mod credentials;
pub mod demo;
mod demo_timeline;
pub mod end;
pub mod explain;
pub mod failure;
pub mod judge;
mod known;
mod launch_summary;
mod live;
mod man;
pub mod playback;
pub mod program;
mod prometheus;
mod reader;
pub mod release;
pub mod replay;
pub mod run;
mod run_report;
pub mod serve;
pub mod settings;
mod simulated_job;
mod simulated_snapshot;
pub mod snapshot;
mod snapshot_columns;
mod snapshot_common;
mod snapshot_events;
pub mod snapshot_file;
pub mod status;
pub mod summary;
mod take;

/// Every command, in the order of help; the two that write about all commands follow.
const COMMANDS: &[args::CommandRow] = &[
    run::RUN,
    serve::SERVE,
    demo::DEMO,
    replay::REPLAY,
    explain::EXPLAIN,
    judge::JUDGE,
    summary::SUMMARY,
    compare::COMPARE,
    snapshot::SNAPSHOT,
    status::STATUS,
    ack::ACK,
    end::END,
    release::RELEASE,
    check::CHECK,
    settings::SETTINGS_LIST,
    analyze::ANALYZE,
];
