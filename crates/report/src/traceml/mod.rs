//! TraceML 0.3.6: the verdict that its summary would give of the same steps, and its own
//! summaries as `compare` reads them. Its formulas are kept as they are, also where ours differ
//! on purpose; nothing here reaches an alert.

pub mod card;
pub mod file;
pub mod issue;
pub mod metric;
pub mod rows;
pub mod rules;
pub mod trend;
pub mod verdict;
