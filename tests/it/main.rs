//! Behaviour through the front door: real sockets, the real binary, real peers.
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

mod rig;

mod architecture;
mod closed_output;
mod compare;
mod creep;
mod diagnoses;
mod generated;
mod invariance;
mod lifecycle;
mod nvml;
mod nvml_faults;
mod nvml_soak;
mod nvml_storm;
mod nvml_who;
mod ops;
mod outputs;
mod peers;
mod processes;
mod push;
mod settings;
mod snapshot_files;
mod snapshot_vectors;
mod snapshots;
mod state;
mod summaries;
mod summary;
mod traceml;
