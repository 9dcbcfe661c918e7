//! The stop of the exporter: its signals, its tasks, and the order in which they end.

use std::io;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::exporter::listen::SocketFile;
use crate::output::otlp::export::Export;

/// Time limit of the wait for the scrape of a rank that ended badly, once the exporter has the
/// signal to stop.
pub(super) const SCRAPE_AWAITED_MAX: Duration = Duration::from_secs(25);

/// Time limit of the wait for snapshot analyses, after the command that the exporter runs next
/// to has ended.
pub(super) const ANALYSES_AWAITED_MAX: Duration = Duration::from_secs(10);

/// The signals that the program handles: none ends it without a message.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hangup: Signal,
    /// Signals without a meaning for the exporter.
    others: [Signal; 3],
    /// Counts the requests to read files again.
    reloads: watch::Sender<u64>,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hangup: signal(SignalKind::hangup())?,
            others: [
                signal(SignalKind::user_defined1())?,
                signal(SignalKind::user_defined2())?,
                signal(SignalKind::alarm())?,
            ],
            reloads: watch::Sender::new(0),
        })
    }

    /// Returns a channel that changes whenever files shall be read again.
    pub(super) fn reloads(&self) -> watch::Receiver<u64> {
        self.reloads.subscribe()
    }

    /// Resolves at the next signal to stop. Returns whether it is SIGTERM, as an orchestrator
    /// sends it.
    pub(super) async fn next(&mut self) -> bool {
        loop {
            let [user1, user2, alarm] = &mut self.others;
            tokio::select! {
                _ = self.terminate.recv() => return true,
                _ = self.interrupt.recv() => return false,
                _ = self.quit.recv() => return false,
                _ = self.hangup.recv() => {
                    tracing::info!("SIGHUP: reloading token and certificates");
                    self.reloads.send_modify(|n| *n = n.wrapping_add(1));
                }
                _ = user1.recv() => tracing::info!("SIGUSR1 ignored"),
                _ = user2.recv() => tracing::info!("SIGUSR2 ignored"),
                _ = alarm.recv() => tracing::info!("SIGALRM ignored"),
            }
        }
    }
}

/// Tasks that end together.
pub(super) type Tasks = JoinSet<anyhow::Result<()>>;

/// The conditions for which the exporter may wait before it stops.
#[derive(Debug)]
pub(super) struct Awaited<T> {
    /// True if a rank ended badly and Prometheus has not scraped since.
    pub(super) scrape: T,
    /// True if a snapshot is being analyzed or waits for it.
    pub(super) analysis: T,
}

impl Awaited<watch::Sender<bool>> {
    /// Returns the receiving and the sending side of the conditions.
    pub(super) fn channel() -> (Self, Awaited<watch::Receiver<bool>>) {
        let (scrape, of_scrape) = watch::channel(false);
        let (analysis, of_analysis) = watch::channel(false);
        (Self { scrape, analysis }, Awaited { scrape: of_scrape, analysis: of_analysis })
    }
}

/// The running exporter.
pub(super) struct App {
    pub(super) linger: Duration,
    pub(super) awaited: Awaited<watch::Receiver<bool>>,
    pub(super) export: Option<Export>,
    pub(super) socket: Option<SocketFile>,
    pub(super) stop_push: watch::Sender<bool>,
    pub(super) stop_web: watch::Sender<bool>,
    pub(super) push_servers: Tasks,
    pub(super) web_servers: Tasks,
    // The engine ends once no push server and no web server is left.
    pub(super) engine: Tasks,
    pub(super) gpu: Tasks,
}

impl App {
    pub(super) async fn until_stopped(
        mut self,
        mut signals: Signals,
        companion: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let is_terminated = tokio::select! {
            is_terminated = signals.next() => {
                tracing::info!("stopping");
                is_terminated
            }
            result = companion => {
                result?;
                self.last_analyses().await;
                false
            }
            died = self.died() => return died,
        };
        tokio::select! {
            result = self.wind_down(is_terminated) => result,
            _ = signals.next() => anyhow::bail!("aborted by a second signal"),
        }
    }

    /// Resolves when a task ends although it was not stopped.
    async fn died(&mut self) -> anyhow::Result<()> {
        let joined = tokio::select! {
            Some(joined) = self.push_servers.join_next() => joined,
            Some(joined) = self.web_servers.join_next() => joined,
            Some(joined) = self.engine.join_next() => joined,
            Some(joined) = self.gpu.join_next() => joined,
        };
        joined.context("a task died")??;
        anyhow::bail!("a task ended before the exporter was stopped")
    }

    /// Waits at most [`SCRAPE_AWAITED_MAX`] for the scrape of a rank that ended badly.
    async fn last_scrape(&mut self) {
        if !*self.awaited.scrape.borrow() {
            return;
        }
        tracing::info!(seconds_max = SCRAPE_AWAITED_MAX.as_secs(), "waiting for a last scrape");
        let scraped = self.awaited.scrape.wait_for(|is_awaited| !is_awaited);
        if tokio::time::timeout(SCRAPE_AWAITED_MAX, scraped).await.is_err() {
            tracing::warn!("no scrape came");
        }
    }

    /// Waits at most [`ANALYSES_AWAITED_MAX`] for snapshot analyses: the summary reports their
    /// results.
    async fn last_analyses(&mut self) {
        let analyzed = self.awaited.analysis.wait_for(|is_awaited| !is_awaited);
        if tokio::time::timeout(ANALYSES_AWAITED_MAX, analyzed).await.is_err() {
            tracing::warn!("a snapshot is not analyzed yet");
        }
    }

    /// Stops the push servers, then, after the linger, the web servers, the engine and the
    /// export. After a rank that ended badly, an exporter that an orchestrator stops awaits
    /// a scrape before it stops the web servers.
    async fn wind_down(mut self, is_terminated: bool) -> anyhow::Result<()> {
        self.stop_push.send_replace(true);
        while let Some(joined) = self.push_servers.join_next().await {
            joined??;
        }
        if let Some(socket) = &self.socket
            && let Err(error) = socket.remove()
        {
            // The last scrape and the last export matter more than a file.
            tracing::warn!(%error, socket = %socket.path().display(), "socket not removed");
        }
        tokio::time::sleep(self.linger).await;
        if is_terminated {
            self.last_scrape().await;
        }
        self.stop_web.send_replace(true);
        while let Some(joined) = self.web_servers.join_next().await {
            joined??;
        }
        while let Some(joined) = self.engine.join_next().await {
            joined??;
        }
        if let Some(export) = self.export.take() {
            // Blocks, and over gRPC needs this runtime meanwhile.
            tokio::task::spawn_blocking(|| export.stop()).await?;
        }
        Ok(())
    }
}
