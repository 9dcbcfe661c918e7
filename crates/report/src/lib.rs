//! After the run: the summary of a run and its card, two summaries against each other, and the
//! story of one rank. Also the verdict that TraceML would have given. During a run: its ranks
//! as a table. Pure: recordings, files and the time come from outside.

pub mod annotations;
pub mod closing;
pub mod compare;
pub mod explain;
pub mod gate;
pub mod job;
pub mod judge;
mod limits;
pub mod policy;
pub mod rank_table;
mod rates;
pub mod series;
pub mod summary;
pub mod traceml;
