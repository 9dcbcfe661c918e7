//! Records of TLS that are not whole. A client can have 16 KiB of one held, which nothing can be done with before its last
//! byte: few of them are held, and the oldest gives way.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::Notify;

/// Connections of a server that hold more than 4 KiB of a record, or of a handshake, that is not whole.
pub const HALF_RECORDS_MAX: usize = 32;
/// What every connection may hold of one, in bytes.
pub(super) const FREE_BYTES: usize = 4 * 1024;

/// The half records of a server.
#[derive(Debug, Default)]
pub struct HalfRecords {
    n_entered: AtomicU64,
    /// The oldest first.
    held: Mutex<VecDeque<(u64, Arc<Notify>)>>,
}

/// The half record of a connection.
pub(super) struct HalfRecord {
    records: Arc<HalfRecords>,
    id: u64,
    evicted: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl HalfRecords {
    /// Enters one; the oldest gives way if there are too many.
    pub(super) fn enter(self: &Arc<Self>) -> HalfRecord {
        let id = self.n_entered.fetch_add(1, Ordering::Relaxed);
        let evict = Arc::new(Notify::new());
        let mut held = self.held();
        while held.len() >= HALF_RECORDS_MAX
            && let Some((_, oldest)) = held.pop_front()
        {
            oldest.notify_one();
        }
        held.push_back((id, Arc::clone(&evict)));
        drop(held);
        let evicted = Box::pin(async move { evict.notified().await });
        HalfRecord { records: Arc::clone(self), id, evicted }
    }

    fn held(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<Notify>)>> {
        // A panic elsewhere leaves the list as it was.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HalfRecord {
    /// Resolves when it has to give way; it is not polled again then.
    pub(super) fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.evicted.as_mut().poll(cx)
    }
}

impl Drop for HalfRecord {
    fn drop(&mut self) {
        self.records.held().retain(|(id, _)| *id != self.id);
    }
}
