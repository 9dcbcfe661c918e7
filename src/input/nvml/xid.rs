//! Watches devices for Xid errors, which the driver reports as events. Each watch has a
//! separate NVML session, so that polls do not wait for events. It keeps its devices open until
//! it ends.

use std::collections::BTreeSet;
use std::path::Path;

use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;

use crate::input::nvml::error::{GpuError, refused};
use crate::input::nvml::raw;
use crate::input::nvml::session::Session;
use stepmem_types::ids::GpuUuid;

/// Maximum time of one wait for an event, in milliseconds; a watch ends within this time.
const WAIT_MS: u32 = 1000;
/// NVML's number for an Xid error with an unknown number.
const XID_UNKNOWN: u64 = 999;

/// Reasons that a watch ended.
#[derive(Debug, PartialEq, Eq)]
pub enum WatchEnd {
    /// `is_wanted` returned false.
    Stopped,
    /// None of the devices supports Xid events.
    Unsupported,
    /// NVML failed, with this message.
    Failed(String),
}

/// Reports the Xid errors of these GPUs while `is_wanted` returns true, which is called about
/// once a second. Blocks meanwhile.
pub fn watch(
    library: Option<&Path>,
    devices: &BTreeSet<GpuUuid>,
    mut report: impl FnMut(GpuUuid, u64),
    is_wanted: impl FnMut() -> bool,
) -> WatchEnd {
    match watch_or_fail(library, devices, &mut report, is_wanted) {
        Ok(ended) => ended,
        Err(error) => WatchEnd::Failed(error.to_string()),
    }
}

fn watch_or_fail(
    library: Option<&Path>,
    devices: &BTreeSet<GpuUuid>,
    report: &mut impl FnMut(GpuUuid, u64),
    mut is_wanted: impl FnMut() -> bool,
) -> Result<WatchEnd, GpuError> {
    let session = Session::start(library)?;
    // The wrapper's event set panics on drop without this function.
    if session.nvml.lib().nvmlEventSetFree.is_err() {
        return Ok(WatchEnd::Unsupported);
    }
    let set = session.nvml.create_event_set().map_err(refused("nvmlEventSetCreate"))?;
    let mut watched = Vec::new();
    for uuid in devices {
        let device = session
            .nvml
            .device_by_uuid(uuid.as_str())
            .map_err(refused("nvmlDeviceGetHandleByUUID"))?;
        match raw::register_xids(&device, &set) {
            // After a fatal error, a device no longer returns its UUID: its handle identifies
            // it.
            Ok(()) => watched.push((raw::handle_of(&device), uuid)),
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => {}
            Err(error) => return Err(refused("nvmlDeviceRegisterEvents")(error)),
        }
    }
    if watched.is_empty() {
        return Ok(WatchEnd::Unsupported);
    }
    while is_wanted() {
        let event = match set.wait(WAIT_MS) {
            Ok(event) => event,
            Err(NvmlError::Timeout) => continue,
            Err(error) => return Err(refused("nvmlEventSetWait_v2")(error)),
        };
        let handle = raw::handle_of(&event.device);
        let from = watched.iter().find(|(watched, _)| *watched == handle);
        if let (Some((_, uuid)), Some(xid)) = (from, event.event_data) {
            let xid = match xid {
                XidError::Value(xid) => xid,
                XidError::Unknown => XID_UNKNOWN,
            };
            report((*uuid).clone(), xid);
        }
    }
    Ok(WatchEnd::Stopped)
}
