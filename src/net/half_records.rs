//! Bytes of TLS connections that have arrived and are not read. A client can make the server
//! hold 16 KiB of a record before the record's last byte comes. The same holds for bytes that
//! wait behind an answer that the client does not read. Few connections may hold so much, and
//! the oldest of them is evicted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Maximum number of a server's connections that hold more than 4 KiB of unread bytes: an
/// incomplete record or handshake, or requests that wait for the answer to an earlier one.
pub const HALF_RECORDS_MAX: usize = 32;
/// Bytes that every connection may hold.
pub(super) const FREE_BYTES: usize = 4 * 1024;

/// The half records of a server.
#[derive(Debug, Default)]
pub struct HalfRecords {
    n_entered: AtomicU64,
    /// The held records, the oldest first.
    held: Mutex<VecDeque<(u64, Arc<Notify>)>>,
}

/// The half record of a connection.
pub(super) struct HalfRecord {
    records: Arc<HalfRecords>,
    id: u64,
}

impl HalfRecords {
    /// Enters a record, whose connection is closed when `evict` is notified. Returns whether
    /// the oldest is evicted for it.
    pub(super) fn enter(self: &Arc<Self>, evict: Arc<Notify>) -> (HalfRecord, bool) {
        let id = self.n_entered.fetch_add(1, Ordering::Relaxed);
        let mut held = self.held();
        let oldest = if held.len() < HALF_RECORDS_MAX { None } else { held.pop_front() };
        held.push_back((id, evict));
        drop(held);
        if let Some((_, oldest)) = &oldest {
            oldest.notify_one();
        }
        (HalfRecord { records: Arc::clone(self), id }, oldest.is_some())
    }

    fn held(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<Notify>)>> {
        // A panic elsewhere leaves the list as it was.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HalfRecord {
    fn drop(&mut self) {
        self.records.held().retain(|(id, _)| *id != self.id);
    }
}
