//! Connections within bounds, below inputs and outputs: it serves any router and knows no
//! route.

pub mod access;
mod certificate;
mod first_head;
pub mod guard;
pub mod half_records;
pub mod listener;
pub mod password_turns;
pub mod passwords;
pub mod peer;
pub mod room;
pub mod server;
pub mod tls;
pub mod tls_config;
