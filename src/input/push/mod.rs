//! Pushes: the endpoint, the bounded way to the engine, and the format.

pub mod http;
pub mod inbox;
pub mod wire;
