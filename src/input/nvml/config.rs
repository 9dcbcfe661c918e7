//! What the poller must know: which library, which devices.

use std::path::PathBuf;

use crate::model::ids::GpuUuid;

/// What the poller must know.
#[derive(Clone, Debug)]
pub struct PollerConfig {
    /// The NVML library; `None` means `libnvidia-ml.so.1` where the loader finds it.
    pub library: Option<PathBuf>,
    /// Where procfs is mounted, `/proc` as a rule.
    pub procfs: PathBuf,
    /// How many processes of one device are reported, largest first.
    pub processes_max: usize,
    /// Which devices are opened.
    pub devices: Devices,
}

/// Which devices are opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// Every GPU that NVML counts, with its MIG devices.
    #[default]
    All,
    /// These.
    Listed(Vec<DeviceName>),
    /// Those that ranks push from, as the poller was told last.
    Pushed,
}

/// How a device is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceName {
    /// The GPU with this index of NVML.
    Index(u32),
    /// The GPU or MIG device with this UUID.
    Uuid(GpuUuid),
}
