//! Pushes: the endpoint, the bounded queue to the engine, and the format.

pub mod http;
pub mod inbox;
pub mod wire;
