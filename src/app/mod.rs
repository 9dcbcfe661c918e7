//! Composition: who is built, joined and stopped. Only this room spawns and reads the clock.

mod access;
mod clock;
pub mod collectors;
mod engine_task;
mod figures;
pub mod launch;
pub mod listen;
pub mod log;
mod memory;
pub mod notices;
mod oom_kills;
mod own_process;
mod recorder;
mod recording_files;
mod reload;
mod run_launches;
pub mod serve;
mod startup;
mod state_file;
mod stop;
mod summary_files;
mod summary_folders;
mod summary_requests;
pub mod termination;
