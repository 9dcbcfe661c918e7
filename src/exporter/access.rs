//! The password file of clients over TCP, which is read again while the exporter runs, and the
//! comparison of passwords.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use crate::config::web_file::WebFile;
use crate::exporter::clock::Clock;
use crate::exporter::reload::ReloadedFiles;
use crate::exporter::stop::Tasks;
use crate::net::access::{AccessCounts, AccessPolicy, Bucket, Gate};
use crate::net::passwords::Passwords;

/// Counts of how often the file was read again, by outcome.
#[derive(Debug, Default)]
pub(super) struct ReloadCounts {
    ok: AtomicU64,
    failed: AtomicU64,
}

impl ReloadCounts {
    /// The counts by result, ascending.
    pub(super) fn results(&self) -> [(&'static str, u64); 2] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [("failed", read(&self.failed)), ("ok", read(&self.ok))]
    }
}

/// The parts from which the servers' gates are made.
pub(super) struct Access {
    policy: watch::Receiver<Arc<AccessPolicy>>,
    passwords: Arc<Passwords>,
    counts: Arc<AccessCounts>,
    clock: Clock,
}

/// The file, and the counts of refusals and of reloads; of the latter none without a file.
pub(super) struct AccessSource {
    file: Option<WebFile>,
    pub(super) refused: Arc<AccessCounts>,
    pub(super) reloads: Option<Arc<ReloadCounts>>,
}

impl AccessSource {
    pub(super) fn new(file: Option<WebFile>) -> Self {
        let reloads = file.as_ref().map(|_| Arc::default());
        Self { file, refused: Arc::default(), reloads }
    }
}

impl Access {
    /// Returns the access with the tasks that keep it up to date.
    pub(super) fn start(source: AccessSource, clock: Clock) -> (Self, AccessTasks) {
        let AccessSource { file, refused: counts, reloads } = source;
        let policy = file.as_ref().map(WebFile::policy).unwrap_or_default();
        let (policies, policy) = watch::channel(policy);
        let passwords = Arc::new(Passwords::new());
        let access = Self { policy, passwords: Arc::clone(&passwords), counts, clock };
        let reloads = reloads.unwrap_or_default();
        (access, AccessTasks { file, policies, reloads, passwords })
    }

    /// Returns the gate of a server.
    pub(super) fn gate(&self, asks_users: bool) -> Arc<Gate> {
        let clock = self.clock;
        Arc::new(Gate {
            policy: self.policy.clone(),
            asks_users,
            passwords: Arc::clone(&self.passwords),
            counts: Arc::clone(&self.counts),
            clock: Arc::new(move || clock.now()),
            bucket: Mutex::<Bucket>::default(),
        })
    }
}

/// The tasks that read the file again and compare passwords.
pub(super) struct AccessTasks {
    file: Option<WebFile>,
    policies: watch::Sender<Arc<AccessPolicy>>,
    reloads: Arc<ReloadCounts>,
    passwords: Arc<Passwords>,
}

impl AccessTasks {
    /// Spawns the tasks. Passwords are compared until `stop`, which may come later than that of
    /// `files`.
    pub(super) fn spawn(
        self,
        files: ReloadedFiles,
        stop: watch::Receiver<bool>,
        tasks: &mut Tasks,
    ) {
        let Self { file, policies, reloads, passwords } = self;
        if let Some(file) = file {
            tasks.spawn(keep_file(file, policies, reloads, files));
        }
        tasks.spawn(compare(passwords, stop));
    }
}

/// Compares passwords, one at a time and off the runtime's only thread.
async fn compare(
    passwords: Arc<Passwords>,
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    loop {
        let check = tokio::select! {
            _ = stop.wait_for(|is_stopped| *is_stopped) => return Ok(()),
            check = passwords.next() => check,
        };
        let compared = tokio::task::spawn_blocking(|| check.run()).await?;
        passwords.compared(compared);
    }
}

/// Reads the file again until the exporter stops. A file with an error leaves everything as it
/// was.
async fn keep_file(
    mut file: WebFile,
    policies: watch::Sender<Arc<AccessPolicy>>,
    counts: Arc<ReloadCounts>,
    mut files: ReloadedFiles,
) -> anyhow::Result<()> {
    let mut is_failing = false;
    while files.wait().await {
        let before = file.clone();
        match tokio::task::spawn_blocking(move || before.reread()).await? {
            Ok(None) => is_failing = false,
            Ok(Some(fresh)) => {
                is_failing = false;
                counts.ok.fetch_add(1, Ordering::Relaxed);
                policies.send_replace(fresh.policy());
                file = fresh;
                if let Some(warning) = file.warning() {
                    tracing::warn!("{warning}");
                }
                tracing::info!(path = %file.path().display(), "TLS and users reloaded");
            }
            Err(error) => {
                counts.failed.fetch_add(1, Ordering::Relaxed);
                if !is_failing {
                    tracing::warn!(%error, "TLS and users not reloaded; the previous ones stay in force");
                }
                is_failing = true;
            }
        }
    }
    Ok(())
}
