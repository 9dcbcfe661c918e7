//! The scenario file: where it lies, what may stand in it, and the count of calls beside it.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs, ptr};

use serde::Deserialize;

/// Names the scenario file; without it, the file is the library's own path with `.json` appended.
const SCENARIO_VARIABLE: &str = "FAKE_NVML_SCENARIO";

/// The behavior of the driver at this moment.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Scenario {
    /// The answer of `nvmlSystemGetDriverVersion`.
    pub(crate) driver_version: String,
    /// Orders by symbol.
    pub(crate) calls: BTreeMap<String, Call>,
    /// The GPUs in the order of their indices.
    pub(crate) devices: Vec<Device>,
    /// The number of devices that there are said to be, where that is not so.
    #[serde(default)]
    pub(crate) device_count: Option<u32>,
    /// The bytes from one row of a process list to the next: 24, or 32 as drivers 535.43 to
    /// 535.86 wrote them.
    #[serde(default = "stride_right")]
    pub(crate) process_stride: usize,
    /// Xid errors, each handed out once in this order.
    pub(crate) events: Vec<Event>,
    /// Set when devices report events at all.
    #[serde(default = "yes")]
    pub(crate) has_events: bool,
}

/// An order that a call obeys instead of answering.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Call {
    /// The `nvmlReturn_t` that it returns.
    pub(crate) code: Option<u32>,
    /// Set when it blocks until the file says otherwise.
    pub(crate) hang: bool,
    /// The time before it answers, in milliseconds.
    pub(crate) delay_ms: u64,
}

/// A GPU or MIG instance; what is absent is "not supported".
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
    /// Set when the GPU could be in MIG mode while it is not.
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
    used: u64,
    /// The rest of the total, unless given.
    free: Option<u64>,
    /// The growth of `used`.
    ramp: Option<Ramp>,
}

impl Memory {
    pub(crate) fn used(&self) -> u64 {
        self.used + self.ramp.as_ref().map_or(0, Ramp::grown)
    }

    pub(crate) fn free(&self) -> u64 {
        let rest = || self.total.saturating_sub(self.reserved).saturating_sub(self.used());
        self.free.unwrap_or_else(rest)
    }
}

/// Memory that grows with time.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Ramp {
    /// The Unix time from which it grows.
    since: f64,
    bytes_per_second: f64,
    /// The height of the stairs by which it grows, as a caching allocator's memory does; 0 is
    /// smoothly.
    stair_bytes: u64,
    /// The most that it grows by.
    bytes_max: Option<u64>,
}

impl Ramp {
    fn grown(&self) -> u64 {
        #[expect(clippy::disallowed_methods, reason = "a driver has a clock of its own")]
        let now = SystemTime::now();
        let now = now.duration_since(UNIX_EPOCH).map_or(0.0, |it| it.as_secs_f64());
        let grown = ((now - self.since).max(0.0) * self.bytes_per_second) as u64;
        let grown = match self.stair_bytes {
            0 => grown,
            stair => grown / stair * stair,
        };
        grown.min(self.bytes_max.unwrap_or(u64::MAX))
    }
}

/// A row of a process list; without `used` it is 2^64-1, NVML's "not available".
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    used: Option<u64>,
    /// The growth of `used`.
    ramp: Option<Ramp>,
}

impl Process {
    pub(crate) fn used(&self) -> Option<u64> {
        Some(self.used? + self.ramp.as_ref().map_or(0, Ramp::grown))
    }
}

/// An Xid error.
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

fn yes() -> bool {
    true
}

/// Identity of one version of the file: inode, size and time of the last change.
type State = (u64, u64, i64, i64);

/// The scenario as it was read last, so that a call costs a look at the file and not its parsing.
static LAST: Mutex<Option<(State, Arc<Scenario>)>> = Mutex::new(None);

/// Gives the scenario as the file has it now.
pub(crate) fn read() -> Result<Arc<Scenario>, String> {
    let path = path().as_ref().ok_or("the library does not know its own path")?;
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let metadata = fs::metadata(path).map_err(|error| named(&error))?;
    let state = (metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((of, scenario)) = &*last
        && *of == state
    {
        return Ok(Arc::clone(scenario));
    }
    let text = fs::read(path).map_err(|error| named(&error))?;
    let scenario: Scenario = serde_json::from_slice(&text).map_err(|error| named(&error))?;
    let scenario = Arc::new(scenario);
    *last = Some((state, Arc::clone(&scenario)));
    Ok(scenario)
}

fn path() -> &'static Option<PathBuf> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    PATH.get_or_init(|| match env::var_os(SCENARIO_VARIABLE) {
        Some(path) => Some(PathBuf::from(path)),
        None => beside_library(".json"),
    })
}

/// Appends the symbol's name to `<library>.calls`, where a test has created that file.
pub(crate) fn count(symbol: &str) {
    static CALLS: OnceLock<Option<PathBuf>> = OnceLock::new();
    let path = CALLS.get_or_init(|| beside_library(".calls").filter(|path| path.exists()));
    let log =
        path.as_ref().and_then(|path| fs::OpenOptions::new().append(true).open(path).ok());
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

// Flags of dlfcn.h, as Linux has them.
const RTLD_LAZY: c_int = 1;
const RTLD_NOLOAD: c_int = 4;
const RTLD_NODELETE: c_int = 0x1000;

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
    fn dlopen(file_name: *const c_char, flags: c_int) -> *mut c_void;
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
    // Keeps the library loaded, so that its memory (the events handed out) outlasts a close.
    unsafe { dlopen(info.file_name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) };
    let name = unsafe { CStr::from_ptr(info.file_name) };
    Some(Path::new(OsStr::from_bytes(name.to_bytes())).to_path_buf())
}
