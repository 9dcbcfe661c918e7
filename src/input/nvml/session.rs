//! An initialized NVML, which is shut down on drop.

use std::mem::ManuallyDrop;
use std::path::Path;

use nvml_wrapper::Nvml;

use crate::input::nvml::error::{GpuError, refused};
use stepmem_types::device::device_text;

/// An initialized NVML, which is shut down on drop.
#[derive(Debug)]
pub(super) struct Session {
    // Invariant: dropped only in `drop`, and only if `nvmlShutdown` exists: the wrapper panics
    // without it.
    pub(super) nvml: ManuallyDrop<Nvml>,
    pub(super) driver_version: Option<String>,
}

impl Session {
    /// Initializes NVML from `library`, or from the system's library.
    pub(super) fn start(library: Option<&Path>) -> Result<Self, GpuError> {
        let mut builder = Nvml::builder();
        if let Some(library) = library {
            builder.lib_path(library.as_os_str());
        }
        let nvml = builder.init().map_err(refused("nvmlInit_v2"))?;
        let driver_version = nvml.sys_driver_version().ok();
        let driver_version = driver_version.as_deref().map(device_text);
        Ok(Self { nvml: ManuallyDrop::new(nvml), driver_version })
    }
}

impl Drop for Session {
    #[expect(unsafe_code, reason = "a missing nvmlShutdown panics in the wrapper's own drop")]
    fn drop(&mut self) {
        if self.nvml.lib().nvmlShutdown.is_ok() {
            // SAFETY: nothing else drops it, and it is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.nvml) }
        }
    }
}
