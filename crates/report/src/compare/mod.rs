//! Two summaries against each other: which got worse, which better, by how much, and whether
//! that is more than noise. `read` takes a summary of ours or of TraceML's; `comparable` checks
//! that they are of the same job. `changes` and `judge` compare; `text` puts the result into
//! words.

pub mod changes;
pub mod comparable;
pub mod comparison;
pub mod figures;
pub mod from_job;
pub mod from_stepmem;
pub mod from_traceml;
pub mod judge;
pub mod read;
pub mod text;
