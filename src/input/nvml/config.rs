//! The poller's configuration: the library and the devices.

use std::collections::BTreeSet;
use std::path::PathBuf;

use stepmem_types::ids::GpuUuid;

/// The configuration of a poller.
#[derive(Clone, Debug)]
pub struct PollerConfig {
    /// The NVML library; `None` loads `libnvidia-ml.so.1` from the loader's search path.
    pub library: Option<PathBuf>,
    /// The mount point of procfs, normally `/proc`.
    pub procfs: PathBuf,
    /// Processes reported per device, the largest first.
    pub processes_max: usize,
    /// True if the names of processes are read.
    pub reads_names: bool,
    pub devices: Devices,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// Every GPU that NVML counts, with its MIG devices.
    #[default]
    All,
    /// The devices with these names.
    Listed(Vec<DeviceName>),
    /// The devices that ranks push from, as last given to the poller.
    Pushed,
}

/// The devices that the exporter's pod was given, as far as its environment shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GivenDevices {
    /// The devices of these UUIDs.
    Listed(BTreeSet<GpuUuid>),
    /// Every device that NVML counts here: a claim puts no others into the container.
    Claimed,
    /// The devices that the kubelet lists for the pod.
    OfPod,
    /// Unknown, for this reason.
    Unknown(&'static str),
}

/// The key by which NVML finds a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceName {
    /// NVML's index of the GPU.
    Index(u32),
    /// The UUID of the GPU or MIG device.
    Uuid(GpuUuid),
}
