//! The engine: events and the time come in; effects and a status go out. Pure: nothing here waits, logs,
//! reads a clock, spawns or touches files.

pub mod config;
pub mod containers;
pub mod devices;
pub mod diagnosis;
mod effects;
pub mod engine;
pub mod event;
pub mod findings;
pub mod kind;
pub mod metrics;
pub mod output;
pub mod processes;
pub mod ranks;
pub mod requests;
pub mod wire;
