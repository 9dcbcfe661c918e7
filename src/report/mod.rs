//! After the run: the summary of a run and its card, two summaries against each other, the story of one rank, and the
//! verdict that TraceML would have given. Pure: recordings, files and the time come from outside.

pub mod card;
pub mod closing;
pub mod compare;
pub mod explain;
pub mod gate;
pub mod policy;
pub mod summary;
pub mod traceml;
