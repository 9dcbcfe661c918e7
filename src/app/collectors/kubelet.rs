//! Polls the kubelet for the containers of all devices.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use crate::app::collectors::event::{CollectorEvent, CollectorRound};
use crate::input::owner::kubelet::{Assignments, Kubelet};

/// Polls the kubelet until the engine ends.
pub(in crate::app) async fn ask_kubelet(
    mut kubelet: Kubelet,
    every: Duration,
    collected: mpsc::Sender<CollectorEvent>,
) -> anyhow::Result<()> {
    let mut is_failing = false;
    loop {
        let began = Instant::now();
        let listed = kubelet.list().await;
        match &listed {
            Err(error) if !is_failing => tracing::warn!(%error, "kubelet: no answer"),
            Ok(_) if is_failing => tracing::info!("kubelet: answers again"),
            _ => {}
        }
        is_failing = listed.is_err();
        let status = CollectorRound {
            collector: "kubelet",
            duration_seconds: began.elapsed().as_secs_f64(),
            is_success: listed.is_ok(),
        };
        let Assignments { pods, dropped } = listed.unwrap_or_default();
        collected.send(CollectorEvent::DevicePods(pods, dropped, status)).await?;
        sleep(every).await;
    }
}
