//! The mind: events and the time come in, a status goes out. Pure: nothing here waits, logs, reads a clock, spawns
//! or touches files.

pub mod acks;
pub mod basis;
pub mod capture;
pub mod captures;
pub mod challengers;
pub mod config;
pub mod devices;
pub mod diagnosis;
pub mod engine;
pub mod episodes;
pub mod event;
pub mod findings;
pub mod looks;
pub mod metrics;
pub mod processes;
pub mod publish;
pub mod rank;
mod rank_status;
pub mod ranks;
pub mod refusal;
mod resume;
pub mod runs;
pub mod saved;
pub mod sites;
pub mod snapshot_status;
pub mod status;
pub mod wire;
