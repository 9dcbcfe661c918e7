//! Memory in use by the driver's last reading, against what the rank's allocator held then.

use serde::{Deserialize, Serialize};

use stepmem_types::units::Bytes;

/// The origin of a reading.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReadBy {
    /// The exporter, between two records: what the allocator held then is the larger of what
    /// they report.
    Exporter,
    /// The client, with a record.
    Client,
}

/// The last reading of what a device, or a process on it, uses.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct UsedNow {
    used: Bytes,
    reserved: Bytes,
    /// Set until the record after it has come.
    is_open: bool,
}

impl UsedNow {
    /// Takes a use that was read while the allocator holds `reserved`. One that has not changed
    /// may be the last reading again.
    pub(crate) fn renew(
        last: &mut Option<Self>,
        used: Option<Bytes>,
        reserved: Bytes,
        by: ReadBy,
    ) {
        let Some(used) = used else { return };
        if last.is_none_or(|last| last.used != used) {
            *last = Some(Self { used, reserved, is_open: by == ReadBy::Exporter });
        }
    }

    /// Takes what the allocator holds by the next record.
    pub(crate) fn close(&mut self, reserved: Option<Bytes>) {
        if std::mem::take(&mut self.is_open) {
            self.reserved = self.reserved.max(reserved.unwrap_or_default());
        }
    }

    /// Returns the bytes in use that were not the allocator's.
    pub(crate) fn other_bytes(&self) -> f64 {
        self.used.as_f64() - self.reserved.as_f64()
    }
}
