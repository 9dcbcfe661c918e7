//! The metrics: what one is, the table of all of them, and how their values are read. Every
//! output walks the table. `recorded` has those by which a whole job is judged later.

mod readers;
mod recorded;
mod table;
mod types;

pub use readers::float;
pub use recorded::{Figure, IDENTITY, RECORDED, RecordedFamily, Reduction};
pub use table::{METRICS, RANK, count_series, document};
pub use types::{Kind, Metric, Read, SeriesLabels, Visit, rank_labels};
