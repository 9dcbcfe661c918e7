//! The limits of what a rank's process may take, each with the figure that it limits; and which
//! of them binds.

use serde::{Deserialize, Serialize};

use stepmem_detect::Capacity;
use stepmem_types::format::units::bytes;
use stepmem_types::units::Bytes;

/// The origin of a limit.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitOrigin {
    /// The device, or the host: its memory, or the part of it that the process's instance (MIG)
    /// or container has.
    Device,
    /// The program, which gave its allocator a fraction of the device.
    Program,
    /// `ulimit -d`, of the process's private writable mappings.
    Data,
    /// `ulimit -v`, of the process's address space.
    AddressSpace,
}

impl LimitOrigin {
    /// The value of the label `origin`.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Program => "program",
            Self::Data => "data",
            Self::AddressSpace => "address_space",
        }
    }

    /// Returns the origin of the limit in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Device => "of the device",
            Self::Program => "set by the program",
            Self::Data => "set by ulimit -d",
            Self::AddressSpace => "set by ulimit -v",
        }
    }
}

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    pub origin: LimitOrigin,
    /// The most that its figure may be.
    pub bytes: Bytes,
    /// Bytes of its figure beyond the memory that the rank reports. Below 0 where that has
    /// memory which is not limited.
    pub others: f64,
}

impl Limit {
    /// Returns the most that the rank's memory can be, in bytes.
    pub fn reachable(&self) -> f64 {
        self.bytes.as_f64() - self.others
    }

    /// Returns the share of the limit that is used while the rank's memory is `held` bytes. What
    /// others use of a device is not the rank's.
    pub fn ratio(&self, held: Bytes) -> f64 {
        let others = if self.origin == LimitOrigin::Device { 0.0 } else { self.others };
        (held.as_f64() + others) / self.bytes.as_f64()
    }

    /// Returns the one that leaves less.
    #[must_use]
    pub(crate) fn tighter(self, other: Self) -> Self {
        if other.reachable() < self.reachable() { other } else { self }
    }
}

/// The limits of a rank that are known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// The limit of the device or the host, which the process shares with others.
    pub shared: Option<Limit>,
    /// The limit of the process alone which leaves the least.
    pub own: Option<Limit>,
}

impl Limits {
    /// Returns the limit that binds: the one that leaves the least.
    pub fn binding(&self) -> Option<Limit> {
        self.shared.into_iter().chain(self.own).reduce(Limit::tighter)
    }

    /// Returns the limit that binds, if that is the process's own.
    pub(crate) fn own_binding(&self) -> Option<Limit> {
        self.binding().filter(|limit| limit.origin != LimitOrigin::Device)
    }

    /// Returns the capacity of growth. `others_bytes`: the part of the others that the detector
    /// does not know of.
    pub fn capacity(&self, others_bytes: f64) -> Capacity {
        let shared = self.shared.map(|limit| (limit.bytes.as_f64() - others_bytes).max(1.0));
        Capacity { shared, own: self.own.map(|limit| limit.reachable().max(1.0)) }
    }
}

/// Returns a capacity in words; of a limit of the process's own with who set it, and of how much.
pub fn capacity_words(
    capacity: Bytes,
    set_by: Option<LimitOrigin>,
    total: Option<Bytes>,
) -> String {
    let words = bytes(capacity.as_f64());
    let Some(origin) = set_by else { return words };
    let of = total.map_or_else(String::new, |total| format!(", of {}", bytes(total.as_f64())));
    format!("{words}, {}{of}", origin.words())
}
