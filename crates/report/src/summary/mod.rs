//! The summary of a run. `model` has the types of `final_summary.json`, `build` fills them, and
//! `issues` finds what is wrong. `neutral` has the text where nothing is wrong, and `merge`
//! joins the summaries of several exporters. `planned` has what planned restarts cost. `traceml_export` adds the sections that TraceML's
//! tools read.

pub mod build;
pub mod card;
pub mod issues;
pub mod merge;
pub mod model;
pub mod neutral;
pub mod peaks;
pub mod planned;
pub mod run_metrics;
pub mod traceml_export;
