//! The scenario file: where it lies, what may stand in it, and the count of calls beside it.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::{env, fs, ptr};

use serde::Deserialize;

/// Names the scenario file; without it, the file is the library's own path with `.json` appended.
const SCENARIO_VARIABLE: &str = "FAKE_NVML_SCENARIO";

/// What the driver does at this moment.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Scenario {
    /// What `nvmlSystemGetDriverVersion` says.
    pub(crate) driver_version: String,
    /// Orders by symbol.
    pub(crate) calls: BTreeMap<String, Call>,
    /// The GPUs in the order of their indices.
    pub(crate) devices: Vec<Device>,
    /// How many bytes apart the rows of process lists are written: 24, or 32 as drivers 535.43 to 535.86 did.
    #[serde(default = "stride_right")]
    pub(crate) process_stride: usize,
    /// Xid errors, each handed out once in this order.
    pub(crate) events: Vec<Event>,
}

/// What a call does instead of answering.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Call {
    /// The `nvmlReturn_t` that it returns.
    pub(crate) code: Option<u32>,
    /// Whether it blocks until the file says otherwise.
    pub(crate) hang: bool,
}

/// One GPU or MIG instance; what is absent is "not supported".
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Device {
    pub(crate) uuid: String,
    pub(crate) name: String,
    /// The `nvmlReturn_t` of every call about this device.
    pub(crate) code: Option<u32>,
    /// Orders by symbol, for this device only.
    pub(crate) calls: BTreeMap<String, Call>,
    pub(crate) memory: Option<Memory>,
    /// 0 none, 1 HMM, 2 ATS.
    pub(crate) addressing: Option<u32>,
    pub(crate) numa_node: Option<u32>,
    pub(crate) compute: Option<Vec<Process>>,
    pub(crate) graphics: Option<Vec<Process>>,
    pub(crate) mps: Option<Vec<Process>>,
    /// Whether the GPU could be in MIG mode while it is not.
    pub(crate) mig_capable: bool,
    /// The MIG devices by index, `null` where there is none; present means that MIG mode is on.
    pub(crate) mig: Option<Vec<Option<Self>>>,
    /// The id of the GPU instance, for a MIG device.
    pub(crate) gpu_instance: Option<u32>,
}

/// A device's memory as memory info v2 has it; v1 counts `reserved` as used.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) used: u64,
    /// What is left of the total, unless given.
    free: Option<u64>,
}

impl Memory {
    pub(crate) fn free(&self) -> u64 {
        let rest = || self.total.saturating_sub(self.reserved).saturating_sub(self.used);
        self.free.unwrap_or_else(rest)
    }
}

/// One row of a process list; without `used` it is 2^64-1, NVML's "not available".
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) used: Option<u64>,
}

/// One Xid error.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Event {
    /// The index of the GPU.
    pub(crate) device: usize,
    pub(crate) xid: u64,
}

fn stride_right() -> usize {
    24
}

/// Reads the scenario file as it is now.
pub(crate) fn read() -> Result<Scenario, String> {
    let path = match env::var_os(SCENARIO_VARIABLE) {
        Some(path) => PathBuf::from(path),
        None => beside_library(".json").ok_or("the library does not know its own path")?,
    };
    let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = fs::read(&path).map_err(|error| told(&error))?;
    serde_json::from_slice(&text).map_err(|error| told(&error))
}

/// Appends the symbol's name to `<library>.calls`, where a test has created that file.
pub(crate) fn count(symbol: &str) {
    let log = beside_library(".calls")
        .and_then(|path| fs::OpenOptions::new().append(true).open(path).ok());
    if let Some(mut log) = log {
        drop(writeln!(log, "{symbol}"));
    }
}

/// The library's own path with `suffix` appended.
fn beside_library(suffix: &str) -> Option<PathBuf> {
    let mut path = library_path()?.into_os_string();
    path.push(suffix);
    Some(path.into())
}

/// `Dl_info` of dlfcn.h.
#[repr(C)]
struct DlInfo {
    file_name: *const c_char,
    file_base: *mut c_void,
    symbol_name: *const c_char,
    symbol_address: *mut c_void,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
}

/// The path that this very copy of the library was loaded from.
fn library_path() -> Option<PathBuf> {
    let mut info = DlInfo {
        file_name: ptr::null(),
        file_base: ptr::null_mut(),
        symbol_name: ptr::null(),
        symbol_address: ptr::null_mut(),
    };
    let here = library_path as fn() -> Option<PathBuf> as *const c_void;
    if unsafe { dladdr(here, &mut info) } == 0 || info.file_name.is_null() {
        return None;
    }
    let name = unsafe { CStr::from_ptr(info.file_name) };
    Some(Path::new(OsStr::from_bytes(name.to_bytes())).to_path_buf())
}
