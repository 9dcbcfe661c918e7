//! Polls the kubelet for the containers of all devices, or of those of one pod.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use crate::exporter::collectors::collected::{Collected, CollectorRound, DropCounts};
use crate::input::attribution::kubelet::{Assignments, Kubelet};
use stepmem_engine::Event;
use stepmem_types::device::{DevicePod, PodName};
use stepmem_types::ids::GpuUuid;

/// The devices of the exporter's own pod; `None` before the kubelet's first answer.
pub(in crate::exporter) type PodDevices = Option<BTreeSet<GpuUuid>>;

/// The pod to which the answers of the kubelet are limited.
pub(in crate::exporter) struct OwnPod {
    pub(in crate::exporter) name: PodName,
    /// Receives the pod's devices. A container keeps its devices, so they stay valid while the
    /// kubelet does not answer.
    pub(in crate::exporter) devices: watch::Sender<PodDevices>,
}

impl OwnPod {
    /// Leaves out the containers of other pods, and publishes the devices of this one.
    fn select(&self, pods: &mut Vec<DevicePod>) {
        pods.retain(|pod| pod.is_of(&self.name));
        let devices = Some(pods.iter().map(|pod| pod.uuid.clone()).collect());
        self.devices.send_if_modified(|known| {
            let is_new = *known != devices;
            if is_new {
                *known = devices;
            }
            is_new
        });
    }
}

/// Polls the kubelet until the engine ends, for all pods or only `own`.
pub(in crate::exporter) async fn ask_kubelet(
    mut kubelet: Kubelet,
    own: Option<OwnPod>,
    every: Duration,
    collected: mpsc::Sender<Collected>,
) -> anyhow::Result<()> {
    let mut is_failing = false;
    loop {
        let began = Instant::now();
        let mut listed = kubelet.list().await;
        if let (Ok(listed), Some(own)) = (&mut listed, &own) {
            own.select(&mut listed.pods);
        }
        match &listed {
            Err(error) if !is_failing => tracing::warn!(%error, "kubelet: no answer"),
            Ok(_) if is_failing => tracing::info!("kubelet: answers again"),
            _ => {}
        }
        is_failing = listed.is_err();
        let is_success = listed.is_ok();
        let Assignments { pods, dropped } = listed.unwrap_or_default();
        let round = CollectorRound {
            collector: "kubelet",
            duration_seconds: began.elapsed().as_secs_f64(),
            is_success,
            dropped: DropCounts { pods: dropped, ..DropCounts::default() },
        };
        collected.send(Collected::Round(round, vec![Event::Pods(pods)])).await?;
        sleep(every).await;
    }
}
