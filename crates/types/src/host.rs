//! Host memory of a rank beyond the private memory of its process.

use crate::units::Bytes;

/// A reading of such memory; what was not read is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostParts {
    /// Anonymous memory of the process and `shared`, of a rank whose other figures are a
    /// device's.
    pub allocated: Option<Bytes>,
    /// The host memory that its process may use, likewise.
    pub total: Option<Bytes>,
    /// Shared memory that the rank holds; in `allocated`, else in [`StepSample::allocated`]
    /// where that is host memory.
    ///
    /// [`StepSample::allocated`]: crate::step::StepSample::allocated
    pub shared: Option<Bytes>,
    /// The part of `shared` that is one n-th of segments that n ranks hold.
    pub split: Option<Bytes>,
    /// `DataLoader` workers and other processes that `multiprocessing` started.
    pub workers: ProcessGroup,
    /// The other processes below the rank's, except those that are ranks.
    pub others: ProcessGroup,
}

/// Processes below a rank's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessGroup {
    pub count: Option<u32>,
    /// The memory that they share with no other process; `None` where it could not be read.
    pub bytes: Option<Bytes>,
}
