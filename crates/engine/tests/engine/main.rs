//! Behavior of the engine through its door: events at their times go in, findings and effects come out.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "tests stop at the first surprise"
)]

mod rig;

// What happens: records, ends, requests of operators, answers to ranks.
mod acks;
mod ends;
mod records;
mod requests;

// Each number that decides, from both sides.
mod amounts;
mod growth;
mod holders;
mod lifecycle;
mod snapshots;
mod times;
mod words;
