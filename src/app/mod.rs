//! Composition: who is built, joined and stopped. Only this room spawns and reads the clock.

mod clock;
pub mod collectors;
mod engine_task;
pub mod listen;
pub mod log;
mod reload;
pub mod serve;
mod startup;
mod state_file;
mod stop;
mod summary_files;
pub mod termination;
