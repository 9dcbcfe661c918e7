//! The mind: events and the time come in, a status goes out. Pure: nothing here waits, logs, reads a clock, spawns
//! or touches files.

pub mod estimate;

pub mod creep;

pub mod rank;

pub mod processes;

pub mod diagnosis;

pub mod acks;

pub mod captures;

pub mod status;

pub mod engine;
