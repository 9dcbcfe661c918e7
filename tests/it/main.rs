//! Behavior through the front door: real sockets, the real binary, real peers. To be read in this order.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::float_cmp,
    clippy::format_push_string,
    clippy::string_slice,
    clippy::too_many_arguments,
    unreachable_pub,
    reason = "tests stop at the first surprise"
)]

// The helper: an exporter on free ports, a driver that answers from a file, jobs that push.
mod rig;

// Records come in: accepted or refused, and what they begin and end.
mod push;
mod recorded;
mod recordings;
mod reports;
mod restarts;
mod verbs;

mod lifecycle;
mod limits;
mod live_blocks;
mod lives;

// Devices are read beside them.
mod names;
mod nvml;

// Both are judged: what is found, of whom, and what must not change it.
mod annotations;
mod claims;
mod claims_of_commands;
mod conclusion;
mod creep;
mod explained;
mod judge;

mod evaluation;
mod meaning;

mod diagnoses;
mod full;
mod history;

mod peaks;
mod phases;

mod children;
mod containers;
mod host_memory;
mod host_records;
mod malloc;

mod ends;

mod gpu_lost;

mod judged;

mod requested_bytes;

mod by_time;
mod calls;
mod replays;

mod invariance;

mod bounds;
mod captures;

mod outlook;
mod outside;
mod run_end;
mod surfaces;

// The status goes out.
mod outputs;

mod page;

// Behind locked doors.
mod tls;

// And under attack.
mod attacks;

mod peers;

// After the run: one summary, many, two compared, and TraceML's.
mod summary;

mod cards;

mod summary_files;

mod compare;

// What is refused, and in which words.
mod exit_codes;
mod mistakes;

mod checkpoints;
mod client_lists;
mod closed_output;

mod traceml;
mod urgent;

// Memory snapshots: files whose truth is known, and files that are hostile or odd.
mod snapshot_vectors;

mod snapshot_claims;
mod snapshot_files;
mod snapshot_generations;
mod snapshot_pools;
mod snapshot_states;

mod snapshot_html;

mod snapshot_docs;

mod snapshot_sites;

mod snapshot_guides;

mod snapshot_schema;

mod snapshot_events;

mod snapshot_pages;

// The operator's side: packages, settings, restarts, alerts, dashboards and the chart.
mod packages;

mod settings;

mod sidecar;
mod stairs;
mod state;
mod state_shape;

mod ops;
mod runbooks;
mod shells;

// The house itself: generated pages, decisions, defaults in two places, invariants of the source.
mod generated;

mod decisions;

mod defaults;

mod architecture;
mod layers;
