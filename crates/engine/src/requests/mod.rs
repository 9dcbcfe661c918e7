//! Requests to training processes: for memory snapshots, for heap scans that find the holder of
//! growth, and for a checkpoint before memory runs out. Also the causes that their reports name.

pub(crate) mod causes;
pub(crate) mod checkpoint;
pub(crate) mod heap_scans;
pub(crate) mod schedule;
pub(crate) mod snapshot;
pub(crate) mod snapshots;
pub(crate) mod tracker;
