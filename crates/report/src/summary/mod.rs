//! The summary of a run. `model` has the types of `final_summary.json`, `build` fills them, and
//! `issues` finds what is wrong. `neutral` has the text where nothing is wrong, and `merge`
//! joins the summaries of several exporters. `planned` has what planned restarts cost. `traceml_export` adds the sections that TraceML's
//! tools read.

pub(crate) mod build;
pub(crate) mod card;
mod issues;
mod merge;
pub(crate) mod model;
pub(crate) mod neutral;
mod peaks;
mod planned;
mod run_metrics;
mod traceml_export;

pub use card::{put, render, render_within, verdicts};
pub use merge::merged;
pub use model::{IssueEvidence, IssueKind, RankOutcome, Summary};
pub use planned::RestartsSoFar;
pub use traceml_export::TraceMlExport;
