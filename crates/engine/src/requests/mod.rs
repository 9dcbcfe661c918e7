//! Requests to training processes: for memory snapshots, for heap scans that find the holder of
//! growth, and for a checkpoint before memory runs out. Also the causes that their reports name.

pub mod causes;
pub mod checkpoint;
pub mod heap_scans;
pub mod schedule;
pub mod snapshot;
pub mod snapshots;
pub mod tracker;
