//! The engine: events and the time come in; findings, effects and a status go out. Pure: nothing here
//! waits, logs, reads a clock, spawns or touches files.
//!
//! ```
//! use std::time::Duration;
//!
//! use stepmem_engine::wire::{Layout, decode_end, decode_steps};
//! use stepmem_engine::{DiagnosisKind, Engine, EngineConfig, Event, Severity};
//! use stepmem_types::ids::Run;
//! use stepmem_types::units::Uptime;
//!
//! let mut engine = Engine::new(EngineConfig::default(), 1.76e9);
//! let mut handle = |event, seconds| {
//!     let now = Uptime(Duration::from_secs(seconds));
//!     engine.handle(&event, now).unwrap().transitions
//! };
//!
//! // A rank takes two steps, and ends with an out-of-memory error.
//! for step in [1, 2] {
//!     let record = format!(r#"{{"run":"llm","rank":3,"step":{step},"allocated_bytes":8000000000}}"#);
//!     let steps = decode_steps(record.as_bytes(), Layout::Json).unwrap();
//!     assert_eq!(handle(Event::Steps(steps), step), []);
//! }
//! let end = decode_end(br#"{"rank":3,"outcome":"oom","requested_bytes":2000000000}"#).unwrap();
//! let found = handle(Event::End(Run::new("llm").unwrap(), end), 3);
//!
//! assert_eq!(found.len(), 1);
//! assert_eq!((found[0].kind, found[0].severity), (DiagnosisKind::OutOfMemory, Severity::Critical));
//! ```

#![warn(missing_docs)]

mod config;
mod containers;
mod devices;
mod diagnosis;
mod effects;
mod engine;
mod event;
mod findings;
mod kind;
pub mod metrics;
mod output;
mod processes;
mod ranks;
mod requests;
mod thresholds;
pub mod wire;

pub use config::EngineConfig;
pub use diagnosis::Evidence;
pub use diagnosis::high_pressure::{PressureEvidence, never_live_ratio, private_pools_bytes};
pub use diagnosis::imbalance::PRESSURE_WARNING_MIN;
pub use diagnosis::shared::balance::COMPARABLE_STEPS_MIN;
pub use diagnosis::shared::figures::Score;
pub use diagnosis::shared::growth::LIVE_SIGNALS;
pub use diagnosis::shared::host_words::described as host_view;
pub use diagnosis::shared::kept_blocks::KeptBlocks;
pub use diagnosis::shared::pressure::of_rank as pressures;
pub use diagnosis::shared::trend_figures::TrendFigures;
pub use engine::Engine;
pub use event::{Effect, Event, Handled, Receipt};
pub use findings::{Finding, Transition, TransitionState};
pub use kind::{About, DiagnosisKind, Severity};
pub use output::run::{RunLaunch, RunView};
pub use processes::ProcessView;
pub use ranks::basis::Basis;
pub use ranks::host::{ChildView, HostView};
pub use ranks::limits::LimitOrigin;
pub use ranks::name_conflicts::NameConflict;
pub use ranks::refusal::Refusal;
pub use ranks::view::RankView;
pub use requests::causes::{
    AnalysisOutcome, AnalysisRequest, HoldersOutcome, HoldersReport, SnapshotAnalysis,
    TimelineOutcome,
};
pub use requests::checkpoint::CheckpointDue;
pub use requests::schedule::{STEPS_MAX as SNAPSHOT_STEPS_MAX, ScheduleSettings};
pub use requests::snapshots::SnapshotSettings;
pub use requests::tracker::{RankRequest, RequestKind};
pub use thresholds::Thresholds;

/// Acknowledgments of findings.
pub mod acks {
    pub use crate::findings::acks::{ACKS_MAX, Ack, FOR_SECONDS_MAX, REASON_BYTES_MAX};
}

/// The memory of a rank over time.
pub mod history {
    pub use crate::ranks::history::{Figures, History, MarkerKind};
}

/// An incarnation of a rank, summed up.
pub mod lifetime {
    pub use crate::ranks::lifetime::{Bands, Figure, Kept, LifetimeStats, Moment, PhaseStats};
}

/// The state that outlasts a restart of the exporter.
pub mod saved {
    pub use crate::output::saved_state::{
        FINDINGS_SAVED_MAX, SaveCursor, SavedPart, SavedRest, SavedState,
    };
}

/// The published status, and its parts.
pub mod status {
    pub use crate::devices::{FailingDevice, NvmlStatus, XidErrors};
    pub use crate::output::snapshot_status::SnapshotStatus;
    pub use crate::output::status::{
        AckStatus, CollectorStatus, ContainerStatus, DeviceProcessStatus, DeviceStatus,
        ExporterStatus, FindingStatus, LabelCounts, ProcessStatus, RankStatus, RunStatus,
        SignalStatus, Status, TrendStatus,
    };
    pub use crate::output::status_words::StatedStatus;
    pub use crate::ranks::table::RecordCounts;
    pub use crate::ranks::totals::RankTotals;
    pub use crate::ranks::view::RankActivity;
}

/// Sentences and advice that reports say, too.
pub mod words {
    pub use crate::diagnosis::high_pressure::advice as pressure_advice;
    pub use crate::diagnosis::shared::growth::CALLS_ADVICE;
    pub use crate::diagnosis::shared::names::document as diagnoses_document;
    pub use crate::diagnosis::shared::shm_figures::SHM_ADVICE;
    pub use crate::diagnosis::shared::site_words::verdict;
    pub use crate::output::status_words::{acknowledged, notes, shared_names};
    pub use crate::ranks::limits::capacity_words;
}
