//! Asks the kubelet which containers have which devices, over its pod-resources socket. That
//! socket is a host path, so only an exporter that monitors a whole node has it.
//!
//! The messages contain only the fields of `v1/api.proto` that are used here; protobuf ignores
//! the rest.

use std::path::Path;
use std::time::Duration;

use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use stepmem_types::device::DevicePod;
use stepmem_types::ids::GpuUuid;
use stepmem_types::units::checked_text;

/// The largest response, in bytes: the limit of the kubelet's own clients.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Timeout of one request.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of pairs of device and container per response; a node has a few hundred pods
/// at most.
pub const DEVICE_PODS_MAX: usize = 4096;
/// The gRPC method.
const LIST: &str = "/v1.PodResourcesLister/List";
/// The prefix of resources whose devices NVML knows.
const RESOURCE_PREFIX: &str = "nvidia.com/";

/// A client of the kubelet.
#[derive(Debug)]
pub struct Kubelet {
    grpc: Grpc<Channel>,
}

/// The devices of all containers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Assignments {
    /// One entry per device and container.
    pub pods: Vec<DevicePod>,
    /// Pairs left out to keep [`DEVICE_PODS_MAX`].
    pub dropped: u64,
}

impl Assignments {
    /// Decodes an answer in the form that gRPC carries.
    ///
    /// # Errors
    /// The bytes are not such an answer.
    pub fn decode(answer: &[u8]) -> Result<Self, prost::DecodeError> {
        ListResponse::decode(answer).map(|answer| assignments(&answer))
    }
}

/// Reasons that a request failed.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// The path cannot be part of a URI.
    #[error("{0} is not the path of a socket")]
    Path(String),
    /// The kubelet refused the request, or cannot be reached.
    #[error("{}: {}", .0.code(), .0.message())]
    Refused(#[from] Status),
}

impl Kubelet {
    /// Creates a client of the kubelet at `socket`. It connects on the first request, and again
    /// after a disconnect.
    ///
    /// # Errors
    /// The path cannot be part of a URI.
    pub fn new(socket: &Path) -> Result<Self, KubeletError> {
        let uri = format!("unix://{}", socket.display());
        let endpoint = Endpoint::from_shared(uri)
            .map_err(|_| KubeletError::Path(socket.display().to_string()))?;
        let channel =
            endpoint.timeout(ANSWER_WITHIN).connect_timeout(ANSWER_WITHIN).connect_lazy();
        Ok(Self { grpc: Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX) })
    }

    /// Requests the devices of all containers.
    ///
    /// # Errors
    /// The kubelet refuses, cannot be reached, or responds too late or with too much.
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

/// `None` for an id that is not a UUID, and for names that Kubernetes does not allow.
fn device_pod(
    pod: &PodResources,
    container: &ContainerResources,
    id: &str,
) -> Option<DevicePod> {
    // Shares of a time-sliced device are numbered: `GPU-…::2`.
    let share = id.split_once("::");
    let uuid = share.map_or(id, |(uuid, _)| uuid);
    let is_uuid = uuid.starts_with("GPU-") || uuid.starts_with("MIG-");
    let name = |text: &str| checked_text(text, DevicePod::NAME_BYTES_MAX).ok();
    Some(DevicePod {
        uuid: GpuUuid::new(uuid).ok().filter(|_| is_uuid)?,
        namespace: name(&pod.namespace)?,
        pod: name(&pod.name)?,
        container: name(&container.name)?,
        is_whole: share.is_none(),
    })
}
