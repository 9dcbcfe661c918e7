//! What is fuzzed: each target takes any bytes, and panics if something does not hold. It runs under libFuzzer
//! (`fuzz/run.sh`), under cargo-fuzz, and under a plain mutator in this crate's test.

pub mod config;
pub mod decoders;
pub mod engine;
pub mod engine_steps;
pub mod http;
pub mod jobs;
pub mod kubelet;
pub mod owner;
pub mod recordings;
pub mod scratch;
pub mod series_events;
pub mod series_matrix;
pub mod series_tables;
pub mod snapshot;
pub mod snapshot_events;
pub mod state;
pub mod summaries;

/// One target.
pub struct Target {
    /// As in `fuzz/seeds/NAME`.
    pub name: &'static str,
    pub run: fn(&[u8]),
}

/// Every target.
pub const TARGETS: [Target; 16] = [
    Target { name: "decoders", run: decoders::run },
    Target { name: "engine", run: engine::run },
    Target { name: "engine_steps", run: engine_steps::run },
    Target { name: "http", run: http::run },
    Target { name: "state", run: state::run },
    Target { name: "config", run: config::run },
    Target { name: "recordings", run: recordings::run },
    Target { name: "summaries", run: summaries::run },
    Target { name: "jobs", run: jobs::run },
    Target { name: "kubelet", run: kubelet::run },
    Target { name: "owner", run: owner::run },
    Target { name: "snapshot", run: snapshot::run },
    Target { name: "snapshot_events", run: snapshot_events::run },
    Target { name: "series_tables", run: series_tables::run },
    Target { name: "series_events", run: series_events::run },
    Target { name: "series_matrix", run: series_matrix::run },
];
