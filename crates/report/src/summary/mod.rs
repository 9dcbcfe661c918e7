//! The summary of a run: `model` has the types of `final_summary.json`, `build` fills them, `issues` says what is wrong,
//! `neutral` what stands where nothing is,
//! `merge` joins those of several exporters, and `traceml_shape` adds the sections that TraceML's tools read.

pub mod build;
pub mod issues;
pub mod merge;
pub mod model;
pub mod neutral;
pub mod peaks;
pub mod run_metrics;
pub mod traceml_shape;
