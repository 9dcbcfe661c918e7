//! A stand-in for the driver's `libnvidia-ml.so.1`: NVML's C ABI on one side, a scenario file on the other that
//! is read again at every call. Only the symbols that an exporter of memory needs; no figure is made up here.

mod scenario;

use std::ffi::{c_char, c_uint, c_ulonglong, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use scenario::{Call, Device, Process, Scenario};

const SUCCESS: c_uint = 0;
const UNINITIALIZED: c_uint = 1;
const INVALID_ARGUMENT: c_uint = 2;
const NOT_SUPPORTED: c_uint = 3;
const NOT_FOUND: c_uint = 6;
const INSUFFICIENT_SIZE: c_uint = 7;
const TIMEOUT: c_uint = 10;
const GPU_IS_LOST: c_uint = 15;
const ARGUMENT_VERSION_MISMATCH: c_uint = 25;
const UNKNOWN: c_uint = 999;

/// The number of times that the library is initialized and not yet shut down.
static INITIALIZED: AtomicUsize = AtomicUsize::new(0);
/// The number of the scenario's events that have been handed out.
static EVENTS_DELIVERED: AtomicUsize = AtomicUsize::new(0);
/// The time that a hanging call sleeps before it checks whether the scenario still orders it
/// to.
const HANG_LOOK: Duration = Duration::from_millis(10);

/// The time that a wait for an event sleeps before it checks the scenario for one; a driver is
/// woken by it instead.
const EVENT_LOOK: Duration = Duration::from_millis(250);

/// A device handle as a number: never dereferenced, so any number does.
type Handle = usize;
const HANDLE_TAG: Handle = 0x4e56_0000;

fn handle_of(gpu_idx: usize, instance_idx: Option<usize>) -> Handle {
    HANDLE_TAG | (gpu_idx << 8) | instance_idx.map_or(0, |idx| idx + 1)
}

#[repr(C)]
struct MemoryV1 {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[repr(C)]
struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[repr(C)]
struct AddressingMode {
    version: c_uint,
    value: c_uint,
}

#[repr(C)]
struct EventData {
    device: Handle,
    event_type: c_ulonglong,
    event_data: c_ulonglong,
    gpu_instance_id: c_uint,
    compute_instance_id: c_uint,
}

/// `NVML_STRUCT_VERSION`: the size of the structure and its version in one word.
fn version_word<T>(version: usize) -> c_uint {
    (size_of::<T>() | (version << 24)) as c_uint
}

/// Answers one call: hangs, fails or goes on to `answer`, as the scenario says at this moment.
fn call(symbol: &str, answer: impl FnOnce(&Scenario) -> c_uint) -> c_uint {
    scenario::count(symbol);
    let scenario = match obey(|scenario| scenario.calls.get(symbol).copied()) {
        Ok(scenario) => scenario,
        Err(code) => return code,
    };
    if symbol != "nvmlInit_v2" && INITIALIZED.load(Ordering::SeqCst) == 0 {
        return UNINITIALIZED;
    }
    answer(&scenario)
}

/// [`call`], for a call about one device: the device's own orders hold as well as the library's.
fn call_device(
    symbol: &str,
    handle: Handle,
    answer: impl FnOnce(&Device, &Scenario) -> c_uint,
) -> c_uint {
    call(symbol, |_| ask_device(symbol, handle, answer))
}

/// The part of [`call_device`] that is about the device.
fn ask_device(
    symbol: &str,
    handle: Handle,
    answer: impl FnOnce(&Device, &Scenario) -> c_uint,
) -> c_uint {
    let order = |scenario: &Scenario| {
        let device = device_of(scenario, handle)?;
        let own = device.calls.get(symbol).copied();
        own.or(device.code.map(|code| Call { code: Some(code), ..Call::default() }))
    };
    match obey(order) {
        Ok(scenario) => match device_of(&scenario, handle) {
            Some(device) => answer(device, &scenario),
            None => GPU_IS_LOST,
        },
        Err(code) => code,
    }
}

/// Carries out the order that the scenario has for a call, and gives the scenario as it is afterwards.
fn obey(order: impl Fn(&Scenario) -> Option<Call>) -> Result<Arc<Scenario>, c_uint> {
    loop {
        let scenario = scenario::read().map_err(|error| {
            eprintln!("fake-nvml: {error}");
            UNKNOWN
        })?;
        let order = order(&scenario).unwrap_or_default();
        if order.hang {
            thread::sleep(HANG_LOOK);
            continue;
        }
        thread::sleep(Duration::from_millis(order.delay_ms));
        return match order.code {
            Some(code) if code != SUCCESS => Err(code),
            _ => Ok(scenario),
        };
    }
}

fn device_of(scenario: &Scenario, handle: Handle) -> Option<&Device> {
    let gpu = scenario.devices.get((handle & 0xff00) >> 8)?;
    match handle & 0xff {
        0 => Some(gpu),
        idx => gpu.mig.as_ref()?.get(idx - 1)?.as_ref(),
    }
}

/// Writes `text` and its terminating zero into the caller's buffer.
///
/// # Safety
/// `out` must be writable for `length` bytes.
unsafe fn write_text(text: &str, out: *mut c_char, length: c_uint) -> c_uint {
    if out.is_null() {
        return INVALID_ARGUMENT;
    }
    if text.len() + 1 > length as usize {
        return INSUFFICIENT_SIZE;
    }
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast::<u8>(), text.len());
        out.add(text.len()).write(0);
    }
    SUCCESS
}

/// Writes what the scenario has, or says that the call is not supported.
///
/// # Safety
/// `out` must be null or writable.
unsafe fn write_value<T>(value: Option<T>, out: *mut T) -> c_uint {
    match value {
        _ if out.is_null() => INVALID_ARGUMENT,
        None => NOT_SUPPORTED,
        Some(value) => {
            unsafe { out.write(value) };
            SUCCESS
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> c_uint {
    call("nvmlInit_v2", |_| {
        INITIALIZED.fetch_add(1, Ordering::SeqCst);
        SUCCESS
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> c_uint {
    call("nvmlShutdown", |_| {
        if INITIALIZED.fetch_sub(1, Ordering::SeqCst) == 1 {
            scenario::count("closed");
        }
        SUCCESS
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(out: *mut c_char, length: c_uint) -> c_uint {
    call("nvmlSystemGetDriverVersion", |scenario| unsafe {
        write_text(&scenario.driver_version, out, length)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(out: *mut c_uint) -> c_uint {
    call("nvmlDeviceGetCount_v2", |scenario| unsafe {
        write_value(scenario.device_count.or(Some(scenario.devices.len() as c_uint)), out)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: *mut Handle) -> c_uint {
    let handle = handle_of(index as usize, None);
    call("nvmlDeviceGetHandleByIndex_v2", |scenario| {
        if scenario.devices.get(index as usize).is_none() {
            return INVALID_ARGUMENT;
        }
        ask_device("nvmlDeviceGetHandleByIndex_v2", handle, |_, _| unsafe {
            write_value(Some(handle), out)
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    out: *mut Handle,
) -> c_uint {
    call("nvmlDeviceGetHandleByUUID", |scenario| {
        let wanted = unsafe { std::ffi::CStr::from_ptr(uuid) }.to_string_lossy();
        let handle = scenario.devices.iter().enumerate().find_map(|(gpu_idx, gpu)| {
            if gpu.uuid == wanted {
                return Some(handle_of(gpu_idx, None));
            }
            let instances = gpu.mig.iter().flatten();
            let instance_idx = instances
                .enumerate()
                .find(|(_, instance)| instance.as_ref().is_some_and(|it| it.uuid == wanted))?;
            Some(handle_of(gpu_idx, Some(instance_idx.0)))
        });
        match handle {
            None => NOT_FOUND,
            Some(handle) => ask_device("nvmlDeviceGetHandleByUUID", handle, |_, _| unsafe {
                write_value(Some(handle), out)
            }),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(
    handle: Handle,
    out: *mut c_char,
    length: c_uint,
) -> c_uint {
    call_device("nvmlDeviceGetUUID", handle, |device, _| unsafe {
        write_text(&device.uuid, out, length)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(
    handle: Handle,
    out: *mut c_char,
    length: c_uint,
) -> c_uint {
    call_device("nvmlDeviceGetName", handle, |device, _| unsafe {
        write_text(&device.name, out, length)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetIndex(handle: Handle, out: *mut c_uint) -> c_uint {
    // Of a MIG device it is the index within its GPU.
    let idx = match handle & 0xff {
        0 => (handle & 0xff00) >> 8,
        instance => instance - 1,
    };
    call_device("nvmlDeviceGetIndex", handle, |_, _| unsafe {
        write_value(Some(idx as c_uint), out)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(handle: Handle, out: *mut MemoryV1) -> c_uint {
    call_device("nvmlDeviceGetMemoryInfo", handle, |device, _| {
        let memory = device.memory.as_ref().map(|memory| MemoryV1 {
            total: memory.total,
            free: memory.free(),
            used: memory.used() + memory.reserved,
        });
        unsafe { write_value(memory, out) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: Handle, out: *mut MemoryV2) -> c_uint {
    call_device("nvmlDeviceGetMemoryInfo_v2", handle, |device, _| {
        let version = version_word::<MemoryV2>(2);
        if out.is_null() || unsafe { (*out).version } != version {
            return ARGUMENT_VERSION_MISMATCH;
        }
        let memory = device.memory.as_ref().map(|memory| MemoryV2 {
            version,
            total: memory.total,
            reserved: memory.reserved,
            free: memory.free(),
            used: memory.used(),
        });
        unsafe { write_value(memory, out) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetAddressingMode(
    handle: Handle,
    out: *mut AddressingMode,
) -> c_uint {
    call_device("nvmlDeviceGetAddressingMode", handle, |device, _| {
        let version = version_word::<AddressingMode>(1);
        if out.is_null() || unsafe { (*out).version } != version {
            return ARGUMENT_VERSION_MISMATCH;
        }
        unsafe {
            write_value(device.addressing.map(|value| AddressingMode { version, value }), out)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNumaNodeId(handle: Handle, out: *mut c_uint) -> c_uint {
    call_device("nvmlDeviceGetNumaNodeId", handle, |device, _| unsafe {
        write_value(device.numa_node, out)
    })
}

/// Writes a process list as NVML does: the count first, the rows when they fit.
///
/// # Safety
/// `count` must be writable; `rows` null or writable for `*count` rows of the scenario's stride.
unsafe fn write_processes(
    processes: &[Process],
    stride: usize,
    count: *mut c_uint,
    rows: *mut u8,
) -> c_uint {
    if count.is_null() {
        return INVALID_ARGUMENT;
    }
    let capacity = unsafe { count.read() } as usize;
    unsafe { count.write(processes.len() as c_uint) };
    if capacity < processes.len() {
        return INSUFFICIENT_SIZE;
    }
    for (idx, process) in processes.iter().enumerate() {
        let mut row = [0_u8; 32];
        row[0..4].copy_from_slice(&process.pid.to_ne_bytes());
        row[8..16].copy_from_slice(&process.used().unwrap_or(u64::MAX).to_ne_bytes());
        row[16..24].fill(0xff);
        unsafe {
            let out = rows.add(idx * stride);
            std::ptr::copy_nonoverlapping(row.as_ptr(), out, stride.min(row.len()));
        }
    }
    SUCCESS
}

/// The process list of one device, picked by `list`.
///
/// # Safety
/// As [`write_processes`].
unsafe fn processes(
    symbol: &str,
    handle: Handle,
    out: (*mut c_uint, *mut c_void),
    list: impl FnOnce(&Device) -> Option<&Vec<Process>>,
) -> c_uint {
    call_device(symbol, handle, |device, scenario| match list(device) {
        None => NOT_SUPPORTED,
        Some(processes) => unsafe {
            write_processes(processes, scenario.process_stride, out.0, out.1.cast())
        },
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: Handle,
    count: *mut c_uint,
    rows: *mut c_void,
) -> c_uint {
    let symbol = "nvmlDeviceGetComputeRunningProcesses_v3";
    unsafe { processes(symbol, handle, (count, rows), |device| device.compute.as_ref()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    handle: Handle,
    count: *mut c_uint,
    rows: *mut c_void,
) -> c_uint {
    let symbol = "nvmlDeviceGetGraphicsRunningProcesses_v3";
    unsafe { processes(symbol, handle, (count, rows), |device| device.graphics.as_ref()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    handle: Handle,
    count: *mut c_uint,
    rows: *mut c_void,
) -> c_uint {
    let symbol = "nvmlDeviceGetMPSComputeRunningProcesses_v3";
    unsafe { processes(symbol, handle, (count, rows), |device| device.mps.as_ref()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMigMode(
    handle: Handle,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> c_uint {
    call_device("nvmlDeviceGetMigMode", handle, |device, _| {
        let mode = device.mig.as_ref().map(|_| 1).or(device.mig_capable.then_some(0));
        match unsafe { write_value(mode, current) } {
            SUCCESS => unsafe { write_value(mode, pending) },
            code => code,
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(
    handle: Handle,
    out: *mut c_uint,
) -> c_uint {
    call_device("nvmlDeviceGetMaxMigDeviceCount", handle, |device, _| {
        let count = device.mig.as_ref().map(|instances| instances.len() as c_uint);
        unsafe { write_value(count, out) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    handle: Handle,
    index: c_uint,
    out: *mut Handle,
) -> c_uint {
    let symbol = "nvmlDeviceGetMigDeviceHandleByIndex";
    call_device(symbol, handle, |device, _| {
        let instance = handle | (index as usize + 1);
        match device.mig.as_ref().map(|instances| instances.get(index as usize)) {
            None => NOT_SUPPORTED,
            Some(None | Some(None)) => NOT_FOUND,
            Some(Some(Some(_))) => {
                ask_device(symbol, instance, |_, _| unsafe { write_value(Some(instance), out) })
            }
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    handle: Handle,
    out: *mut Handle,
) -> c_uint {
    call_device("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle, |_, _| unsafe {
        write_value(Some(handle & !0xff), out)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuInstanceId(handle: Handle, out: *mut c_uint) -> c_uint {
    call_device("nvmlDeviceGetGpuInstanceId", handle, |device, _| unsafe {
        write_value(device.gpu_instance, out)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetCreate(out: *mut Handle) -> c_uint {
    call("nvmlEventSetCreate", |_| unsafe { write_value(Some(1), out) })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(_set: Handle) -> c_uint {
    call("nvmlEventSetFree", |_| SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(
    handle: Handle,
    _types: c_ulonglong,
    _set: Handle,
) -> c_uint {
    call_device("nvmlDeviceRegisterEvents", handle, |_, scenario| {
        if scenario.has_events { SUCCESS } else { NOT_SUPPORTED }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetWait_v2(
    _set: Handle,
    out: *mut EventData,
    timeout_ms: c_uint,
) -> c_uint {
    let deadline = Duration::from_millis(timeout_ms.into());
    let mut waited = Duration::ZERO;
    loop {
        let code = call("nvmlEventSetWait_v2", |scenario| {
            let delivered = EVENTS_DELIVERED.load(Ordering::SeqCst);
            let Some(event) = scenario.events.get(delivered) else { return TIMEOUT };
            EVENTS_DELIVERED.store(delivered + 1, Ordering::SeqCst);
            let data = EventData {
                device: handle_of(event.device, None),
                event_type: 8,
                event_data: event.xid,
                gpu_instance_id: c_uint::MAX,
                compute_instance_id: c_uint::MAX,
            };
            unsafe { write_value(Some(data), out) }
        });
        if code != TIMEOUT || waited >= deadline {
            return code;
        }
        thread::sleep(EVENT_LOOK);
        waited += EVENT_LOOK;
    }
}
