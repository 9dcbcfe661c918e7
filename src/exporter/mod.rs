//! Composition: which parts are built, joined and stopped. Only this module spawns tasks and
//! reads the clock.

mod access;
pub mod clock;
pub mod collectors;
mod engine_task;
mod event_log;
pub mod listen;
pub mod log;
mod memory;
pub mod notices;
mod oom_kills;
mod own_process;
pub mod reload;
mod self_metrics;
pub mod start;
mod startup;
mod state_file;
mod stop;

pub mod recording;

pub mod summaries;

pub mod process_state;
