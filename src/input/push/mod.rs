//! Pushes: the endpoint, the bounded queue to the engine, and the format.

pub mod bodies;
pub mod deadline;
pub mod http;
pub mod inbox;
mod problem;
pub mod refusal_log;
pub mod roles;
