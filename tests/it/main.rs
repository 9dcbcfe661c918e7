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
mod compare;
mod creep;
mod diagnoses;
mod generated;
mod invariance;
mod lifecycle;
mod nvml;
mod nvml_faults;
mod outputs;
mod peers;
mod processes;
mod push;
mod settings;
mod state;
mod summaries;
mod summary;
mod traceml;
