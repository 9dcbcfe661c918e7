//! After the run: the summary of a run and its card, two summaries against each other, and the
//! story of one rank. Also the verdict that TraceML would have given. During a run: its ranks
//! as a table. Pure: recordings, files and the time come from outside.
//!
//! ```
//! use stepmem_engine::EngineConfig;
//! use stepmem_report::judge::Judged;
//! use stepmem_report::series::{Wanted, decode};
//! use stepmem_types::units::{GIBIBYTE, MEBIBYTE};
//!
//! // A log of two hours: a reading every ten seconds, 8 MiB more each time.
//! let row = |n: u64| format!("{},{}\n", 1_760_000_000 + 10 * n, (1024 + 8 * n) << 20);
//! let table = format!("time,memory_used_bytes\n{}", (0..720).map(row).collect::<String>());
//!
//! let wanted = Wanted { capacity: Some(24.0 * GIBIBYTE), ..Wanted::default() };
//! let mut decoded = decode(table.as_bytes(), &wanted).unwrap();
//! let judged = Judged::of(decoded.series.remove(0), &EngineConfig::default()).unwrap();
//!
//! assert_eq!(judged.verdict.words(), "CREEP");
//! let growth = judged.growth.unwrap();
//! let slope = growth.slope_bytes_per_second.unwrap();
//! assert!((slope / (0.8 * MEBIBYTE) - 1.0).abs() < 0.01);
//! ```

#![warn(missing_docs)]

pub mod annotations;
mod closing;
pub mod compare;
pub mod explain;
mod gate;
pub mod job;
pub mod judge;
mod limits;
mod policy;
mod rank_table;
mod rates;
pub mod series;
pub mod summary;
pub mod traceml;

pub use closing::{
    ClosingFiles, ClosingRun, KeptAway, cleared_line, closing, ended_line, finding_line,
    gate_lines, oom_kills_line, unwatched,
};
pub use gate::{ExitGate, FAILED_ON_CODE, FailOn, GateAnswer, GateVerdict, UNJUDGED_CODE};
pub use policy::IssueSeverity;
pub use rank_table::{RankOrder, diagnoses, quantity, rank_table, slope, sort_ranks};
