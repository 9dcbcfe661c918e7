//! The metrics: what one is, the table of all of them, and how their values are read. Every
//! output walks the table. `recorded` has those by which a whole job is judged later.

pub mod readers;
pub mod recorded;
pub mod table;
pub mod types;
