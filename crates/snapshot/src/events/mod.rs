//! The trace, event by event: what was allocated and freed in order, and by which line. Also
//! how long it lived, what ended it, and which earlier block's memory it took.

pub mod order;

pub mod ending;

pub mod reuse;

pub mod filter;

pub mod list;

pub mod chains;

pub mod totals;

pub mod tree;

pub mod words;

pub mod answer;

pub mod page;
