//! A driver for machines without a GPU: a copy of `tests/fake-nvml` for each test, and what it shall answer.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};
use stepmem::input::nvml::config::{Devices, PollerConfig};
use stepmem::input::nvml::poller::Poller;
use stepmem_types::ids::GpuUuid;

use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::units::GIB;

/// A call that the driver obeys instead of answering.
#[derive(Clone, Copy)]
pub enum Order {
    /// The call returns this `nvmlReturn_t`.
    Code(u32),
    /// The call blocks until the scenario changes.
    Hang,
    /// The call takes this many milliseconds.
    Delay(u64),
}

impl Order {
    fn json(self) -> Value {
        match self {
            Self::Code(code) => json!({ "code": code }),
            Self::Hang => json!({ "hang": true }),
            Self::Delay(ms) => json!({ "delay_ms": ms }),
        }
    }
}

/// The scenario: all that the driver answers at one time.
#[derive(Clone)]
pub struct Driver(Value);

/// A driver with these GPUs, in the order of their indices.
pub fn driver(gpus: impl IntoIterator<Item = Gpu>) -> Driver {
    let gpus: Vec<Value> = gpus.into_iter().map(|gpu| gpu.0).collect();
    Driver(json!({ "driver_version": "570.86.15", "devices": gpus }))
}

impl Driver {
    pub fn version(self, version: &str) -> Self {
        self.with("driver_version", version)
    }

    /// Has every call by this name obey.
    pub fn call(self, symbol: &str, order: Order) -> Self {
        self.with("calls", json!({ symbol: order.json() }))
    }

    /// Writes the rows of process lists so many bytes apart.
    pub fn process_stride(self, bytes: u32) -> Self {
        self.with("process_stride", bytes)
    }

    /// Says that there are so many devices.
    pub fn device_count(self, n_devices: u32) -> Self {
        self.with("device_count", n_devices)
    }

    /// Raises Xid errors, each (index of the GPU, number) once; append to raise more.
    pub fn events(self, events: &[(u32, u64)]) -> Self {
        let event = |(device, xid): &(u32, u64)| json!({ "device": device, "xid": xid });
        self.with("events", events.iter().map(event).collect::<Vec<_>>())
    }

    pub fn without_events(self) -> Self {
        self.with("has_events", false)
    }

    /// Replaces a GPU by its index.
    pub fn replace(mut self, idx: usize, gpu: Gpu) -> Self {
        self.0["devices"][idx] = gpu.0;
        self
    }

    fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0[key] = value.into();
        self
    }
}

/// A GPU or a MIG device of the scenario.
#[derive(Clone)]
pub struct Gpu(Value);

/// A GPU of 80 GiB with 30 GiB used and no process.
pub fn gpu(uuid: &str) -> Gpu {
    Gpu(json!({
        "uuid": uuid,
        "name": "NVIDIA H100 80GB HBM3",
        "memory": { "total": 80 * GIB, "reserved": GIB, "used": 30 * GIB },
        "addressing": 1,
        "compute": [],
        "graphics": [],
        "mps": [],
    }))
}

/// A MIG device of 10 GiB with 4 GiB used, 1 GiB of it by process 100 and `gpu_instance`.
pub fn instance(uuid: &str, gpu_instance: u32, profile: &str) -> Gpu {
    Gpu(json!({
        "uuid": uuid,
        "name": format!("NVIDIA H100 80GB HBM3 MIG {profile}"),
        "memory": { "total": 10 * GIB, "reserved": 0, "used": 4 * GIB },
        "gpu_instance": gpu_instance,
        "compute": [{ "pid": 100 + gpu_instance, "used": GIB }],
    }))
}

impl Gpu {
    /// Has every call about it return this number: 15 is a lost GPU.
    pub fn code(self, code: u32) -> Self {
        self.with("code", code)
    }

    /// Has every call about it by this name obey.
    pub fn call(self, symbol: &str, order: Order) -> Self {
        self.with("calls", json!({ symbol: order.json() }))
    }

    pub fn memory(self, total: u64, reserved: u64, used: u64) -> Self {
        self.with("memory", json!({ "total": total, "reserved": reserved, "used": used }))
    }

    /// Takes away what a key of the README's table names: the driver does not support it.
    pub fn without(self, key: &str) -> Self {
        self.with(key, Value::Null)
    }

    pub fn compute(self, processes: &[ProcessRow]) -> Self {
        self.with("compute", rows(processes))
    }

    pub fn graphics(self, processes: &[ProcessRow]) -> Self {
        self.with("graphics", rows(processes))
    }

    pub fn mps(self, processes: &[ProcessRow]) -> Self {
        self.with("mps", rows(processes))
    }

    /// The name that the driver has for it.
    pub fn named(self, name: &str) -> Self {
        self.with("name", name)
    }

    /// 0 none, 1 HMM, 2 ATS.
    pub fn addressing(self, mode: u32) -> Self {
        self.with("addressing", mode)
    }

    pub fn numa_node(self, node: u32) -> Self {
        self.with("numa_node", node)
    }

    /// Divides it into these MIG devices, by index; `None` is a free slot.
    pub fn mig(self, instances: impl IntoIterator<Item = impl Into<Option<Self>>>) -> Self {
        let slots =
            instances.into_iter().map(|slot| slot.into().map_or(Value::Null, |it| it.0));
        self.with("mig", slots.collect::<Vec<_>>())
    }

    /// Makes it a device that could be divided and is not.
    pub fn mig_capable(self) -> Self {
        self.with("mig_capable", true)
    }

    fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0[key] = value.into();
        self
    }
}

/// A row of a process list.
#[derive(Clone, Copy, Debug)]
pub struct ProcessRow {
    pub pid: u32,
    used: Option<u64>,
}

/// A process that uses so many bytes.
pub fn process(pid: u32, used: u64) -> ProcessRow {
    ProcessRow { pid, used: Some(used) }
}

/// A process whose memory is "not available".
pub fn hidden(pid: u32) -> ProcessRow {
    ProcessRow { pid, used: None }
}

fn rows(processes: &[ProcessRow]) -> Vec<Value> {
    let row = |process: &ProcessRow| match process.used {
        Some(used) => json!({ "pid": process.pid, "used": used }),
        None => json!({ "pid": process.pid }),
    };
    processes.iter().map(row).collect()
}

/// A round that takes longer than this counts as one that hangs.
pub const HANGS_AFTER: [&str; 2] = ["--nvml.timeout", "200ms"];

/// The namespace that a poller runs in.
#[derive(Clone, Copy)]
pub enum Namespace {
    Host,
    /// A pod with a shared namespace, entered from outside as process 22.
    Shared,
    /// A container's own.
    Own,
}

/// A copy of the library with its scenario and a procfs, in a directory that goes with the test.
pub struct FakeNvml {
    folder: Folder,
}

impl FakeNvml {
    pub fn new(name: &str, driver: &Driver) -> Self {
        let fake = Self { folder: Folder::new(&format!("nvml-{name}")) };
        fs::copy(built_library(), fake.library()).unwrap();
        fs::write(fake.beside_library(".calls"), "").unwrap();
        fake.set(driver);
        fake
    }

    pub fn library(&self) -> PathBuf {
        self.folder.path("libnvidia-ml.so.1")
    }

    /// A file of the directory that does not exist.
    pub fn missing_library(&self) -> PathBuf {
        self.folder.path("absent.so")
    }

    fn beside_library(&self, suffix: &str) -> PathBuf {
        self.folder.path(&format!("libnvidia-ml.so.1{suffix}"))
    }

    /// Changes what the library answers from now on.
    pub fn set(&self, driver: &Driver) {
        let fresh = self.folder.write("fresh.json", &driver.0.to_string());
        fs::rename(fresh, self.beside_library(".json")).unwrap();
    }

    /// Takes a symbol out of the library, which must not be loaded yet.
    pub fn without(self, symbol: &str) -> Self {
        let mut bytes = fs::read(self.library()).unwrap();
        let wanted = [b"\0", symbol.as_bytes(), b"\0"].concat();
        let places: Vec<usize> = memchr::memmem::find_iter(&bytes, &wanted).collect();
        assert!(!places.is_empty(), "no symbol {symbol}");
        for start in places {
            bytes[start + 1] = b'x';
        }
        fs::write(self.library(), bytes).unwrap();
        self
    }

    /// Keeps the library, which must not be loaded yet, from writing down its calls.
    pub fn count_no_calls(&self) {
        fs::remove_file(self.beside_library(".calls")).unwrap();
    }

    /// The number of calls of the library by this name.
    pub fn n_calls(&self, symbol: &str) -> usize {
        let calls = fs::read_to_string(self.beside_library(".calls")).unwrap();
        calls.lines().filter(|line| *line == symbol).count()
    }

    /// The configuration of a poller in this namespace, in which these processes exist.
    pub fn config(&self, namespace: Namespace, pids: &[u32]) -> PollerConfig {
        let procfs = self.folder.path("proc");
        fs::create_dir_all(procfs.join("self/ns")).unwrap();
        let (number, status) = match namespace {
            Namespace::Host => (4_026_531_836_u32, "Pid:\t700\nPPid:\t1\n"),
            Namespace::Shared => (4_026_532_998, "Pid:\t22\nPPid:\t0\n"),
            Namespace::Own => (4_026_532_998, "Pid:\t1\nPPid:\t0\n"),
        };
        let link = procfs.join("self/ns/pid");
        if !link.is_symlink() {
            symlink(format!("pid:[{number}]"), link).unwrap();
        }
        fs::write(procfs.join("self/status"), status).unwrap();
        for pid in pids {
            fs::create_dir_all(procfs.join(pid.to_string())).unwrap();
        }
        let library = Some(self.library());
        PollerConfig {
            library,
            procfs,
            processes_max: 64,
            reads_names: true,
            devices: Devices::All,
        }
    }

    pub fn poller(&self, namespace: Namespace, pids: &[u32]) -> Poller {
        Poller::new(self.config(namespace, pids))
    }

    /// A poller on the host that opens every device.
    pub fn host(&self) -> Poller {
        self.poller(Namespace::Host, &[])
    }

    /// A poller on the host that opens these devices.
    pub fn poller_of(&self, devices: Devices) -> Poller {
        Poller::new(PollerConfig { devices, ..self.config(Namespace::Host, &[]) })
    }

    /// `stepmem serve` with this driver, polled 20 times a second, which counts as hanging after 10 seconds: no driver
    /// that answers takes that long, however busy the machine is.
    pub fn serve(&self, arguments: &[&str]) -> Exporter {
        self.serve_with(arguments, &[])
    }

    /// The same with environment variables.
    pub fn serve_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Exporter {
        let library = text(&self.library());
        let mut nvml = vec!["--nvml.library", &library];
        for usual in [["--nvml.interval", "50ms"], ["--nvml.timeout", "10s"]] {
            if !arguments.contains(&usual[0]) {
                nvml.extend(usual);
            }
        }
        Exporter::start_command("serve", &[&nvml[..], arguments].concat(), variables)
    }
}

/// UUIDs as the poller takes them.
pub fn uuids(names: &[&str]) -> BTreeSet<GpuUuid> {
    names.iter().map(|name| GpuUuid::new(name).unwrap()).collect()
}

/// Builds the library into the directory that this test was built into, once, and returns its path.
fn built_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let executable = env::current_exe().unwrap();
        let profile_dir = executable.parent().and_then(Path::parent).unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "fake-nvml", "--target-dir"]);
        build.arg(profile_dir.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile_dir.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success());
        profile_dir.join("libfake_nvml.so")
    })
}
