//! The trace, event by event: what was allocated and freed in order, and by which line. Also
//! how long it lived, what ended it, and which earlier block's memory it took.

pub(crate) mod order;

pub(crate) mod ending;

pub(crate) mod reuse;

pub(crate) mod filter;

pub(crate) mod list;

pub(crate) mod chains;

pub(crate) mod totals;

pub(crate) mod tree;

pub(crate) mod words;

mod told;

pub(crate) mod answer;

pub(crate) mod page;
