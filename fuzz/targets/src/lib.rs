//! What is fuzzed: each target takes any bytes, and panics if something does not hold. It runs under libFuzzer
//! (`fuzz/run.sh`), under cargo-fuzz, and under a plain mutator in this crate's test.

mod config;
mod decoders;
mod engine;
mod http;
mod kubelet;
mod owner;
mod recordings;
pub mod scratch;
mod snapshot;
mod snapshot_events;
mod state;
mod summaries;

/// One target.
pub struct Target {
    /// As in `fuzz/seeds/NAME`.
    pub name: &'static str,
    pub run: fn(&[u8]),
}

/// Every target.
pub const TARGETS: [Target; 11] = [
    Target { name: "decoders", run: decoders::run },
    Target { name: "engine", run: engine::run },
    Target { name: "http", run: http::run },
    Target { name: "state", run: state::run },
    Target { name: "config", run: config::run },
    Target { name: "recordings", run: recordings::run },
    Target { name: "summaries", run: summaries::run },
    Target { name: "kubelet", run: kubelet::run },
    Target { name: "owner", run: owner::run },
    Target { name: "snapshot", run: snapshot::run },
    Target { name: "snapshot_events", run: snapshot_events::run },
];
