//! The bytes that memory may grow to, as far as they are known.

use crate::signal::Signal;

/// The bytes that a process may take, in two figures: each limits something else.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Capacity {
    /// Bytes of the device or the host, or the budget. What others hold of them is not free.
    pub shared: Option<f64>,
    /// The most that the process's allocator may hold, whatever others do.
    pub own: Option<f64>,
}

impl From<Option<f64>> for Capacity {
    fn from(shared: Option<f64>) -> Self {
        Self { shared, own: None }
    }
}

impl Capacity {
    /// Returns the capacity of growth of a signal. Memory outside the allocator has only the
    /// limit that all share.
    #[must_use]
    pub fn of(self, signal: Signal) -> Self {
        match signal {
            Signal::Allocated | Signal::Reserved => self,
            Signal::OutsideAllocator
            | Signal::Process
            | Signal::Host
            | Signal::Children
            | Signal::Shm => Self { own: None, ..self },
        }
    }

    /// Returns whether anything limits it, as far as is known.
    pub fn is_known(self) -> bool {
        self.shared.or(self.own).is_some()
    }

    /// Returns the most that the process could hold if there were no others, in bytes.
    pub fn whole(self) -> Option<f64> {
        self.shared.into_iter().chain(self.own).reduce(f64::min)
    }

    /// Returns the most that the process can hold while others hold `outside_bytes`.
    pub fn reachable(self, outside_bytes: f64) -> Option<f64> {
        self.shared.map(|all| all - outside_bytes).into_iter().chain(self.own).reduce(f64::min)
    }
}
