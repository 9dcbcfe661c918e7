//! Calls that `nvml-wrapper` lacks, and process lists: its buffers are too small for drivers
//! 535.43 to 535.86, which write 32-byte rows. Most of the program's unsafe code. The rest: the
//! end of a session, calls of the allocator, and the signals that the command of `run`
//! inherits.

use std::ptr;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, EventSet};
use nvml_wrapper_sys::bindings::{
    nvmlDeviceAddressingMode_t, nvmlMemory_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
};

/// Maximum number of rows of one process list. A longer list counts as invalid.
const PROCESS_ROWS_MAX: usize = 65_536;
/// Number of requests of a process list that grew between count and list.
const LIST_TRIES: usize = 3;
/// 24 bytes: pid and padding, memory, two instance ids.
const ROW_WORDS: usize = 3;
/// 32 bytes, as drivers with the wrong stride write them.
const WRONG_ROW_WORDS: usize = 4;
/// Fills the buffer before NVML writes to it; not a possible id or size.
const UNWRITTEN: u64 = 0xa5a5_a5a5_a5a5_a5a5;
/// `NVML_STRUCT_VERSION(DeviceAddressingMode, 1)`: the version in the high byte, the size of 8
/// bytes in the low one.
const ADDRESSING_MODE_VERSION: u32 = (1 << 24) | 8;
const _: () = assert!(size_of::<nvmlDeviceAddressingMode_t>() == 8);

/// A row of a process list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessRow {
    pub(super) pid: u32,
    /// `None` when NVML reports it as unavailable.
    pub(super) used_bytes: Option<u64>,
}

/// The kinds of processes that NVML lists separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessKind {
    Compute,
    Graphics,
    Mps,
}

impl ProcessKind {
    pub(super) fn symbol(self) -> &'static str {
        match self {
            Self::Compute => "nvmlDeviceGetComputeRunningProcesses_v3",
            Self::Graphics => "nvmlDeviceGetGraphicsRunningProcesses_v3",
            Self::Mps => "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        }
    }
}

/// A process list as NVML wrote it.
pub(super) struct ProcessList {
    /// Space for the requested rows at the larger stride.
    words: Vec<u64>,
    /// The number of rows that NVML reports as written.
    n_rows: usize,
}

impl ProcessList {
    /// The rows; `None` if NVML wrote past the end of the requested rows at a stride of 24
    /// bytes.
    pub(super) fn rows(&self) -> Option<Vec<ProcessRow>> {
        let n_asked = self.words.len() / WRONG_ROW_WORDS;
        let mut beyond = self.words.iter().skip(n_asked * ROW_WORDS);
        if self.n_rows > n_asked || beyond.any(|word| *word != UNWRITTEN) {
            return None;
        }
        let rows = self.words.chunks_exact(ROW_WORDS).take(self.n_rows);
        rows.map(|words| match words {
            [pid, used, _] => Some(ProcessRow {
                pid: pid_of(*pid),
                used_bytes: Some(*used).filter(|used| *used != u64::MAX),
            }),
            _ => None,
        })
        .collect()
    }
}

/// The first four bytes in memory, where the C structure has the id.
fn pid_of(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

pub(super) fn processes(
    device: &Device<'_>,
    kind: ProcessKind,
) -> Result<ProcessList, NvmlError> {
    let lib = device.nvml().lib();
    let list = *nvml_sym(match kind {
        ProcessKind::Compute => lib.nvmlDeviceGetComputeRunningProcesses_v3.as_ref(),
        ProcessKind::Graphics => lib.nvmlDeviceGetGraphicsRunningProcesses_v3.as_ref(),
        ProcessKind::Mps => lib.nvmlDeviceGetMPSComputeRunningProcesses_v3.as_ref(),
    })?;
    let mut count = 0;
    // SAFETY: the handle comes from this library; with a count of 0 it writes only the count.
    let mut code = unsafe { list(device.handle(), &raw mut count, ptr::null_mut()) };
    for _ in 0..LIST_TRIES {
        if code != INSUFFICIENT_SIZE {
            break;
        }
        let n_asked = usize::try_from(count).unwrap_or(usize::MAX);
        if n_asked > PROCESS_ROWS_MAX {
            break;
        }
        let mut words = vec![UNWRITTEN; n_asked * WRONG_ROW_WORDS];
        let rows = words.as_mut_ptr().cast();
        // SAFETY: as above; the buffer holds `count` rows of either stride, suitably aligned.
        code = unsafe { list(device.handle(), &raw mut count, rows) };
        if code == SUCCESS {
            let n_rows = usize::try_from(count).unwrap_or(usize::MAX);
            return Ok(ProcessList { words, n_rows });
        }
    }
    nvml_try(code)?;
    Ok(ProcessList { words: Vec::new(), n_rows: 0 })
}

pub(super) fn memory_v1(device: &Device<'_>) -> Result<nvmlMemory_t, NvmlError> {
    let info = *nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: the handle comes from this library, the structure is the one that it declares.
    nvml_try(unsafe { info(device.handle(), &raw mut memory) })?;
    Ok(memory)
}

pub(super) fn addressing_mode(device: &Device<'_>) -> Result<u32, NvmlError> {
    let read = *nvml_sym(device.nvml().lib().nvmlDeviceGetAddressingMode.as_ref())?;
    let mut mode = nvmlDeviceAddressingMode_t { version: ADDRESSING_MODE_VERSION, value: 0 };
    // SAFETY: the handle comes from this library, the structure is the one that it declares.
    nvml_try(unsafe { read(device.handle(), &raw mut mode) })?;
    Ok(mode.value)
}

pub(super) fn gpu_instance_id(device: &Device<'_>) -> Result<u32, NvmlError> {
    let read = *nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let mut id = 0;
    // SAFETY: the handle comes from this library; it writes one number.
    nvml_try(unsafe { read(device.handle(), &raw mut id) })?;
    Ok(id)
}

/// Adds the device's Xid errors to `set`. Unlike with the wrapper's call, the set stays usable
/// after a failure.
pub(super) fn register_xids(device: &Device<'_>, set: &EventSet<'_>) -> Result<(), NvmlError> {
    let register = *nvml_sym(device.nvml().lib().nvmlDeviceRegisterEvents.as_ref())?;
    let types = EventTypes::CRITICAL_XID_ERROR.bits();
    // SAFETY: device and set come from this library and outlive the call.
    nvml_try(unsafe { register(device.handle(), types, set.handle()) })
}

/// The device's handle as a number, which identifies a device that answers no calls.
pub(super) fn handle_of(device: &Device<'_>) -> usize {
    // SAFETY: only the address of the handle is taken.
    unsafe { device.handle() }.addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pid: u32, used_bytes: impl Into<Option<u64>>) -> ProcessRow {
        ProcessRow { pid, used_bytes: used_bytes.into() }
    }

    #[test]
    fn list_written_past_its_end_has_no_rows() {
        // (pid, used, instance ids) of two processes at 24 bytes, in space for two rows of 32.
        let right = [41, 7, u64::MAX, 42, u64::MAX, u64::MAX, UNWRITTEN, UNWRITTEN];
        let check = |words: &[u64], n_rows, expected: Option<Vec<ProcessRow>>| {
            // The id is the lower half on every machine that CUDA runs on.
            let list = ProcessList { words: words.to_vec(), n_rows };
            assert_eq!(list.rows(), expected, "{words:?} {n_rows}");
        };
        check(&right, 2, Some(vec![row(41, 7), row(42, None)]));
        check(&right, 1, Some(vec![row(41, 7)]));
        check(&right, 3, None);
        check(&[41, 7, u64::MAX, 0, 42, 8, u64::MAX, 0], 2, None);
        check(&[41, 7, u64::MAX, 0], 1, None);
        check(&[41, 7, u64::MAX, UNWRITTEN], 1, Some(vec![row(41, 7)]));
        check(&[], 0, Some(Vec::new()));
    }
}
