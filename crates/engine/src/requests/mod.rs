//! Requests to training processes: for memory snapshots, and for scans of the heap for what holds the memory that grows; and the causes that
//! their reports name.

pub mod causes;
pub mod heap_scans;
pub mod schedule;
pub mod snapshot;
pub mod snapshots;
