//! Has devices watched for Xid errors on a thread of its own, and ends the watch on demand.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{
    Receiver as ThreadReceiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel,
};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::app::collectors::event::Collected;
use crate::app::collectors::thread;
use crate::input::nvml::xid::{self, Ended};
use crate::model::ids::GpuUuid;

/// How long the watch for Xid errors may take to end: twice the wait for one event, and time for a shutdown.
const WATCH_ENDS_WITHIN: Duration = Duration::from_secs(4);
/// The pause after a watch that failed, doubled each time that it fails again.
const WATCH_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The longest pause between two watches that failed.
const WATCH_AGAIN_MAX: Duration = Duration::from_mins(1);

/// What the thread that watches for Xid errors shall watch from now on; it answers once it holds nothing else open.
type Watch = (BTreeSet<GpuUuid>, oneshot::Sender<()>);

/// The way to the thread that watches.
pub(super) struct XidWatch {
    watches: SyncSender<Watch>,
    watched: BTreeSet<GpuUuid>,
}

impl XidWatch {
    /// Starts the thread.
    ///
    /// # Errors
    /// There is no room for a thread.
    pub(super) fn start(
        library: Option<PathBuf>,
        collected: mpsc::Sender<Collected>,
    ) -> std::io::Result<Self> {
        let (watches, told) = sync_channel(1);
        thread::start("nvml-xid", move || watch_xids(library.as_deref(), &told, &collected))?;
        Ok(Self { watches, watched: BTreeSet::new() })
    }

    /// Has these GPUs watched for Xid errors; without any, waits until nothing is held open for that.
    pub(super) async fn watch(&mut self, gpus: BTreeSet<GpuUuid>) {
        if gpus == self.watched {
            return;
        }
        if gpus.is_empty() {
            if !self.unwatch().await {
                tracing::debug!("the wait for an event hangs");
            }
        } else if self.watches.try_send((gpus.clone(), oneshot::channel().0)).is_ok() {
            // A watch that hangs hears of it after a later round.
            self.watched = gpus;
        }
    }

    /// Ends the watch, and says whether it has ended.
    pub(super) async fn unwatch(&mut self) -> bool {
        let (closed, has_closed) = oneshot::channel();
        if self.watches.try_send((BTreeSet::new(), closed)).is_err() {
            return false;
        }
        self.watched.clear();
        timeout(WATCH_ENDS_WITHIN, has_closed).await.is_ok_and(|closed| closed.is_ok())
    }
}

/// Watches the GPUs that it is told of for Xid errors, until nobody tells it any more.
fn watch_xids(
    library: Option<&Path>,
    watches: &ThreadReceiver<Watch>,
    found: &mpsc::Sender<Collected>,
) {
    let mut next = watches.recv().ok();
    while let Some((gpus, closed)) = next.take() {
        // The watch before has ended; nobody need want to know.
        closed.send(()).ok();
        next = watch_until_told(library, &gpus, watches, found);
    }
}

/// Watches these GPUs until it is told of others, which it gives; a watch that fails is tried again, ever more rarely.
fn watch_until_told(
    library: Option<&Path>,
    gpus: &BTreeSet<GpuUuid>,
    watches: &ThreadReceiver<Watch>,
    found: &mpsc::Sender<Collected>,
) -> Option<Watch> {
    let mut pause = WATCH_AGAIN_AFTER;
    while !gpus.is_empty() {
        let mut told = Err(TryRecvError::Empty);
        // When the engine has ended, so has the program.
        let report = |gpu, xid| drop(found.blocking_send(Collected::Xid(gpu, xid)));
        let ended = xid::watch(library, gpus, report, || {
            told = watches.try_recv();
            matches!(told, Err(TryRecvError::Empty))
        });
        match (told, ended) {
            (Ok(watch), _) => return Some(watch),
            (Err(TryRecvError::Disconnected), _) => return None,
            (_, Ended::Told | Ended::Unsupported) => break,
            (_, Ended::Failed(error)) => {
                tracing::debug!(error, "watch for xid errors failed");
                match watches.recv_timeout(pause) {
                    Ok(watch) => return Some(watch),
                    Err(RecvTimeoutError::Disconnected) => return None,
                    Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(WATCH_AGAIN_MAX),
                }
            }
        }
    }
    watches.recv().ok()
}
