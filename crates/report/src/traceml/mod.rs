//! TraceML 0.3.6: the verdict that its summary would give of the same steps, and its own
//! summaries as `compare` reads them. Its formulas are kept as they are, also where ours differ
//! on purpose; nothing here reaches an alert.

mod card;
pub(crate) mod file;
mod issue;
mod metric;
mod rows;
mod rules;
mod trend;
mod verdict;

pub use card::render;
pub use rows::PeakRows;
pub use trend::WINDOW_STEPS;
