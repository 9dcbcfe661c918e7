//! Asks the kubelet which containers it gave devices to, through its pod-resources socket. That socket is a host path,
//! so only an exporter that watches a whole node has it.
//!
//! The messages are those parts of `v1/api.proto` that are read here; protobuf passes over the rest.

use std::path::Path;
use std::time::Duration;

use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::model::device::DevicePod;
use crate::model::ids::GpuUuid;
use crate::model::units::checked_text;

/// The longest answer that is read, in bytes: as the kubelet's own clients do.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
/// How long one question may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How many pairs of device and container are taken of one answer; a node has a few hundred pods at most.
pub const DEVICE_PODS_MAX: usize = 4096;
/// The longest name that is taken, in bytes: Kubernetes allows 253.
const NAME_BYTES_MAX: usize = 253;
/// The question.
const LIST: &str = "/v1.PodResourcesLister/List";
/// How the resources of device plugins begin whose devices NVML knows.
const RESOURCE_PREFIX: &str = "nvidia.com/";

/// The kubelet's socket.
#[derive(Debug)]
pub struct Kubelet {
    grpc: Grpc<Channel>,
}

/// Which containers have which devices.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Assignments {
    /// One entry for each device of each container.
    pub pods: Vec<DevicePod>,
    /// How many were left out to keep [`DEVICE_PODS_MAX`].
    pub dropped: u64,
}

/// Why the kubelet gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// The path cannot be a socket's.
    #[error("{0} is no path of a socket")]
    Path(String),
    /// It refused, or is not there.
    #[error("{}: {}", .0.code(), .0.message())]
    Refused(#[from] Status),
}

impl Kubelet {
    /// The kubelet behind `socket`, which is connected to when it is asked, and again whenever it has gone.
    ///
    /// # Errors
    /// The path is none that a URI can hold.
    pub fn new(socket: &Path) -> Result<Self, KubeletError> {
        let uri = format!("unix://{}", socket.display());
        let endpoint = Endpoint::from_shared(uri)
            .map_err(|_| KubeletError::Path(socket.display().to_string()))?;
        let channel =
            endpoint.timeout(ANSWER_WITHIN).connect_timeout(ANSWER_WITHIN).connect_lazy();
        Ok(Self { grpc: Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX) })
    }

    /// Asks once.
    ///
    /// # Errors
    /// The kubelet refuses, is not there, or answers too late or too much.
    pub async fn list(&mut self) -> Result<Assignments, KubeletError> {
        let unavailable =
            |error: tonic::transport::Error| Status::unavailable(error.to_string());
        self.grpc.ready().await.map_err(unavailable)?;
        let codec = ProstCodec::<ListRequest, ListResponse>::default();
        let path = PathAndQuery::from_static(LIST);
        let answer = self.grpc.unary(Request::new(ListRequest {}), path, codec).await?;
        Ok(assignments(answer.get_ref()))
    }
}

/// `ListPodResourcesRequest`
#[derive(Clone, Copy, PartialEq, Message)]
struct ListRequest {}

/// `ListPodResourcesResponse`
#[derive(Clone, PartialEq, Message)]
struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    pod_resources: Vec<PodResources>,
}

#[derive(Clone, PartialEq, Message)]
struct PodResources {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(message, repeated, tag = "3")]
    containers: Vec<ContainerResources>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerResources {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    devices: Vec<ContainerDevices>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerDevices {
    #[prost(string, tag = "1")]
    resource_name: String,
    #[prost(string, repeated, tag = "2")]
    device_ids: Vec<String>,
}

fn assignments(answer: &ListResponse) -> Assignments {
    let mut found = Assignments::default();
    for pod in &answer.pod_resources {
        for container in &pod.containers {
            let devices = container
                .devices
                .iter()
                .filter(|devices| devices.resource_name.starts_with(RESOURCE_PREFIX));
            for id in devices.flat_map(|devices| &devices.device_ids) {
                let Some(device_pod) = device_pod(pod, container, id) else { continue };
                if found.pods.contains(&device_pod) {
                    // Several shares of one device.
                } else if found.pods.len() < DEVICE_PODS_MAX {
                    found.pods.push(device_pod);
                } else {
                    found.dropped += 1;
                }
            }
        }
    }
    found
}

/// `None` for an id that is no UUID, and for names that Kubernetes does not give.
fn device_pod(
    pod: &PodResources,
    container: &ContainerResources,
    id: &str,
) -> Option<DevicePod> {
    // A device that is shared in time has its shares numbered: `GPU-…::2`.
    let uuid = id.split_once("::").map_or(id, |(uuid, _)| uuid);
    let is_uuid = uuid.starts_with("GPU-") || uuid.starts_with("MIG-");
    let name = |text: &str| checked_text(text, NAME_BYTES_MAX).ok();
    Some(DevicePod {
        uuid: GpuUuid::new(uuid).ok().filter(|_| is_uuid)?,
        namespace: name(&pod.namespace)?,
        pod: name(&pod.name)?,
        container: name(&container.name)?,
    })
}
