//! Two summaries against each other: which got worse, which better, by how much, and whether
//! that is more than noise. `read` takes a summary of ours or of TraceML's; `comparable` checks
//! that they are of the same job. `changes` and `judge` compare; `text` puts the result into
//! words.

mod changes;
mod comparable;
mod comparison;
mod figures;
pub(crate) mod from_job;
mod from_stepmem;
mod from_traceml;
mod judge;
mod read;
mod text;

pub use comparison::OldNew;
pub use figures::RunFigures;
pub use from_job::figures as of_job;
pub use from_stepmem::figures as of_summary;
pub use judge::compare;
pub use read::read;
pub use text::{render, render_within};
