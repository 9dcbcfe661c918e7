//! `stepmem run`: one supervisor, which is the process that was started, and its three
//! children: the exporter, the command, and the monitor of the signals that the command gets.
//! `docs/adr/0023-run-invisible.md` gives the reasons for four processes.

pub mod annotations;
mod client_archive;
pub mod client_use;
mod console;
mod environment;
pub mod exporter;
mod inherited;
mod private_directory;
pub mod processes;
pub mod restarts;
pub mod signal_monitor;
mod signals;
mod snapshots;
pub mod supervisor;
mod terminal;
pub mod world;
