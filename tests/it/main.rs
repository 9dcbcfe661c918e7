//! Behaviour through the front door: real sockets, the real binary, real peers.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "tests stop at the first surprise"
)]

mod rig;

mod architecture;
mod creep;
mod generated;
mod nvml;
mod peers;

mod push;
