//! Polls the host's control groups for the memory of pods that use a device.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::exporter::collectors::collected::{Collected, CollectorRound, DropCounts};
use crate::input::attribution::kubepods::Kubepods;
use stepmem_engine::Event;
use stepmem_types::device::Container;

/// Polls until the engine ends. `users` are the containers whose processes NVML listed last.
pub(in crate::exporter) async fn read_kubepods(
    mut kubepods: Kubepods,
    users: watch::Receiver<BTreeSet<Container>>,
    every: Duration,
    collected: mpsc::Sender<Collected>,
) -> anyhow::Result<()> {
    let mut is_failing = false;
    loop {
        let began = Instant::now();
        let seen = users.borrow().clone();
        let reading = spawn_blocking(move || {
            let read = kubepods.read(&seen);
            (kubepods, read)
        });
        let read;
        (kubepods, read) = reading.await?;
        match &read {
            Err(error) if !is_failing => tracing::warn!(%error, "kubepods: not read"),
            Ok(_) if is_failing => tracing::info!("kubepods: read again"),
            _ => {}
        }
        is_failing = read.is_err();
        let read = read.unwrap_or_default();
        let round = CollectorRound {
            collector: "kubepods",
            duration_seconds: began.elapsed().as_secs_f64(),
            is_success: !is_failing,
            dropped: DropCounts { containers: read.n_dropped, ..DropCounts::default() },
        };
        collected.send(Collected::Round(round, vec![Event::PodMemory(read.rows)])).await?;
        sleep(every).await;
    }
}
