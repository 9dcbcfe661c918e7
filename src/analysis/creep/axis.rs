//! The axis along which a series is counted: steps of training, or time.

/// The unit of a series' axis.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Axis {
    /// Global steps of training.
    Steps,
    /// Seconds since the first reading.
    Seconds,
}
