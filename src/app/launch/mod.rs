//! `stepmem run`: one supervisor, which is the process that was started, and its three children: the exporter, the
//! command, and a witness of the signals that the command gets. `docs/adr/0023-run-invisible.md` says why they are four.

mod client;
pub mod client_use;
mod environment;
pub mod exporter;
mod folder;
mod inherited;
pub mod live;
mod narrator;
pub mod processes;
mod signals;
mod snapshots;
pub mod supervisor;
mod terminal;
pub mod witness;
pub mod world;
