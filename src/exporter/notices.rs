//! The exporter's notices to a person at a terminal next to it: findings as they come,
//! summaries as they are written.

use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::mpsc;

use crate::exporter::summaries::directory::WrittenFiles;
use crate::store::left;
use stepmem_engine::Transition;
use stepmem_engine::lifetime::Moment;
use stepmem_report::summary::{RestartsSoFar, Summary};

/// Maximum number of notices that wait to be read. Later ones are lost; a person reads no more.
const WAITING_MAX: usize = 1024;

/// A notice.
#[derive(Debug)]
pub(crate) enum Notice {
    Finding(Box<Transition>),
    /// A finding that holds, of which the line or the object behind it is known now.
    Named(Box<Transition>),
    Summary(Box<SummaryNotice>),
    /// Number of processes that the kernel killed for lack of memory, none of which is known to
    /// be a rank's.
    OomKills(u64),
}

/// A run that ended, or was still going on when the exporter stopped.
#[derive(Debug)]
pub(crate) struct SummaryNotice {
    pub(crate) summary: Summary,
    /// The summary's files, if they were written.
    pub(crate) files: Option<WrittenFiles>,
    /// The reason that the files were not written, if they should have been.
    pub(crate) problem: Option<String>,
}

/// The receiver of notices; none if there is no person.
#[derive(Clone, Debug, Default)]
pub struct Notices {
    sender: Option<mpsc::Sender<Notice>>,
    /// The exit code of the command: the reader of notices follows the command to its end.
    command_code: Arc<OnceLock<u8>>,
    restarts: PlannedSoFar,
}

/// The planned restarts of the command so far: the reader of notices learns of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlannedSoFar(Arc<Mutex<Option<RestartsSoFar>>>);

impl PlannedSoFar {
    pub(crate) fn set(&self, so_far: RestartsSoFar) {
        if let Ok(mut held) = self.0.lock() {
            *held = Some(so_far);
        }
    }

    /// Returns them, and the first step of the newest attempt once it has taken one.
    pub(crate) fn get(&self) -> Option<(RestartsSoFar, Option<Moment>)> {
        let so_far = self.0.lock().ok()?.clone()?;
        let began = left::of_lowest(&so_far.folder, "began");
        Some((so_far, began))
    }
}

impl Notices {
    pub(crate) fn channel() -> (Self, mpsc::Receiver<Notice>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self { sender: Some(sender), ..Self::default() }, receiver)
    }

    /// Returns the command's exit code; empty until the command has ended.
    pub(crate) fn command_code(&self) -> &Arc<OnceLock<u8>> {
        &self.command_code
    }

    /// Returns the planned restarts of the command.
    pub(crate) fn restarts(&self) -> &PlannedSoFar {
        &self.restarts
    }

    /// Sends a notice, which is built only if there is a receiver.
    pub(crate) fn send(&self, notice: impl FnOnce() -> Notice) {
        if let Some(sender) = &self.sender {
            sender.try_send(notice()).ok();
        }
    }
}
