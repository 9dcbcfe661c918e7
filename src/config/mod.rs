//! Settings: a table, the sources of their values, and how they become the rooms' configurations.

pub mod settings;
