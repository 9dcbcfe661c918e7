//! Requests to training processes: for memory snapshots, and for heap scans that find the
//! holder of growth. Also the causes that their reports name.

pub mod causes;
pub mod heap_scans;
pub mod schedule;
pub mod snapshot;
pub mod snapshots;
pub mod tracker;
