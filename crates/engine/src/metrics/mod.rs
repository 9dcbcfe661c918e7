//! The metrics: what one is, the table of all of them, and how their values are read. Every
//! output walks the table.

pub mod readers;
pub mod table;
pub mod types;
