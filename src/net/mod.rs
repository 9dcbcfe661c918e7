//! Connections within bounds, below inputs and outputs: it serves any router and knows no
//! route.

pub mod access;
pub mod byte_budget;
mod certificate;
pub mod guard;
pub mod listener;
pub mod password_turns;
pub mod passwords;
pub mod peer;
pub mod problem;
pub mod server;
pub mod tls;
pub mod tls_config;
