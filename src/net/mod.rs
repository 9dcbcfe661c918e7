//! Connections within bounds, below both sides: it serves whatever router it is given and knows no route.

pub mod guard;
pub mod peer;
pub mod room;
pub mod server;
