//! Watches devices for Xid errors on its own thread, and ends the watch on request.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{
    Receiver as ThreadReceiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel,
};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::exporter::collectors::collected::Collected;
use crate::exporter::collectors::thread;
use crate::input::nvml::xid::{self, WatchEnd};
use stepmem_engine::Event;
use stepmem_types::ids::GpuUuid;

/// Time that the watch may take to end: twice the wait for one event, plus time for a shutdown
/// of NVML.
const WATCH_ENDS_WITHIN: Duration = Duration::from_secs(4);
/// The pause after a failed watch, doubled after each further failure.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The longest pause after a failed watch.
const RETRY_AFTER_MAX: Duration = Duration::from_mins(1);

/// Replaces the set of watched GPUs.
struct WatchRequest {
    gpus: BTreeSet<GpuUuid>,
    /// Resolves once the previous watch has ended and holds no device open.
    closed: oneshot::Sender<()>,
}

/// Handle of the thread that watches for Xid errors.
pub(super) struct XidWatch {
    requests: SyncSender<WatchRequest>,
    gpus: BTreeSet<GpuUuid>,
}

impl XidWatch {
    /// Starts the thread, which reports Xid errors to `events`.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub(super) fn start(
        library: Option<PathBuf>,
        events: mpsc::Sender<Collected>,
    ) -> std::io::Result<Self> {
        let (requests, received) = sync_channel(1);
        thread::start("nvml-xid", move || serve(library.as_deref(), &received, &events))?;
        Ok(Self { requests, gpus: BTreeSet::new() })
    }

    /// Watches these GPUs from now on. For an empty set, waits until no device is held open.
    pub(super) async fn watch(&mut self, gpus: BTreeSet<GpuUuid>) {
        if gpus == self.gpus {
            return;
        }
        if gpus.is_empty() {
            if !self.close().await {
                tracing::debug!("the wait for an event hangs");
            }
        } else if self.send(gpus.clone(), oneshot::channel().0) {
            // While the previous watch hangs, the next poll tries again.
            self.gpus = gpus;
        }
    }

    /// Ends the watch; returns whether it has ended in time.
    pub(super) async fn close(&mut self) -> bool {
        let (closed, has_closed) = oneshot::channel();
        if !self.send(BTreeSet::new(), closed) {
            return false;
        }
        self.gpus.clear();
        timeout(WATCH_ENDS_WITHIN, has_closed).await.is_ok_and(|closed| closed.is_ok())
    }

    fn send(&self, gpus: BTreeSet<GpuUuid>, closed: oneshot::Sender<()>) -> bool {
        self.requests.try_send(WatchRequest { gpus, closed }).is_ok()
    }
}

/// Serves one request after another until their sender is dropped.
fn serve(
    library: Option<&Path>,
    requests: &ThreadReceiver<WatchRequest>,
    events: &mpsc::Sender<Collected>,
) {
    let mut next = requests.recv().ok();
    while let Some(WatchRequest { gpus, closed }) = next.take() {
        // The previous watch has ended; the sender of the request need not wait for that.
        closed.send(()).ok();
        next = watch_until_next(library, &gpus, requests, events);
    }
}

/// Watches these GPUs until the next request, which it returns. Repeats a failed watch after
/// growing pauses.
fn watch_until_next(
    library: Option<&Path>,
    gpus: &BTreeSet<GpuUuid>,
    requests: &ThreadReceiver<WatchRequest>,
    events: &mpsc::Sender<Collected>,
) -> Option<WatchRequest> {
    let mut pause = RETRY_AFTER;
    while !gpus.is_empty() {
        let mut next = Err(TryRecvError::Empty);
        // The engine's end is the program's end.
        let report =
            |gpu, xid| drop(events.blocking_send(Collected::Event(Event::Xid(gpu, xid))));
        let end = xid::watch(library, gpus, report, || {
            next = requests.try_recv();
            matches!(next, Err(TryRecvError::Empty))
        });
        match (next, end) {
            (Ok(request), _) => return Some(request),
            (Err(TryRecvError::Disconnected), _) => return None,
            (_, WatchEnd::Stopped | WatchEnd::Unsupported) => break,
            (_, WatchEnd::Failed(error)) => {
                tracing::debug!(error, "watching for xid errors failed");
                match requests.recv_timeout(pause) {
                    Ok(request) => return Some(request),
                    Err(RecvTimeoutError::Disconnected) => return None,
                    Err(RecvTimeoutError::Timeout) => {
                        pause = (pause * 2).min(RETRY_AFTER_MAX);
                    }
                }
            }
        }
    }
    requests.recv().ok()
}
