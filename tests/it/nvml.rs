//! The GPU poller against a library with NVML's C ABI: loaded by `dlopen` as the driver's is, a copy for every test,
//! told by a file beside it what to answer.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use std::{env, fs, thread};

use serde_json::{Value, json};
use stepmem::input::nvml::config::{DeviceName, Devices, PollerConfig};
use stepmem::input::nvml::cycle::{GpuPoll, RELEASED};
use stepmem::input::nvml::poller::{FAILURES_MAX, Poller};
use stepmem::model::device::{Attribution, GpuSample, ProcessMemory};
use stepmem::model::ids::GpuUuid;
use stepmem::model::units::Bytes;

pub const GIB: u64 = 1 << 30;

/// Where the poller runs.
#[derive(Clone, Copy)]
enum Namespace {
    Host,
    /// A pod with a shared namespace, entered from outside as process 22.
    Shared,
    /// A container's own.
    Own,
}

/// A copy of the fake library with its scenario and a procfs, removed at the end.
pub struct Fake {
    dir: PathBuf,
}

impl Fake {
    pub fn new(name: &str, scenario: &Value) -> Self {
        let dir = env::temp_dir().join(format!("stepmem-nvml-{name}-{}", process::id()));
        fs::create_dir_all(&dir).unwrap();
        let fake = Self { dir };
        fs::copy(built_library(), fake.library()).unwrap();
        fs::write(fake.library_with(".calls"), "").unwrap();
        fake.set(scenario);
        fake
    }

    pub fn library(&self) -> PathBuf {
        self.dir.join("libnvidia-ml.so.1")
    }

    fn library_with(&self, suffix: &str) -> PathBuf {
        self.dir.join(format!("libnvidia-ml.so.1{suffix}"))
    }

    /// Changes what the library answers from now on.
    pub fn set(&self, scenario: &Value) {
        let fresh = self.dir.join("fresh.json");
        fs::write(&fresh, scenario.to_string()).unwrap();
        fs::rename(fresh, self.library_with(".json")).unwrap();
    }

    /// Takes a symbol out of the library, which must not be loaded yet.
    pub fn without(self, symbol: &str) -> Self {
        let mut bytes = fs::read(self.library()).unwrap();
        let wanted = [b"\0", symbol.as_bytes(), b"\0"].concat();
        let places: Vec<usize> = (0..bytes.len() - wanted.len())
            .filter(|start| bytes[*start..].starts_with(&wanted))
            .collect();
        assert!(!places.is_empty(), "no symbol {symbol}");
        for start in places {
            bytes[start + 1] = b'x';
        }
        fs::write(self.library(), bytes).unwrap();
        self
    }

    /// Has the library, which must not be loaded yet, not tell its calls.
    pub fn count_no_calls(&self) {
        fs::remove_file(self.library_with(".calls")).unwrap();
    }

    /// How often the library was called by this name.
    pub fn n_calls(&self, symbol: &str) -> usize {
        let calls = fs::read_to_string(self.library_with(".calls")).unwrap();
        calls.lines().filter(|line| *line == symbol).count()
    }

    fn config(&self, namespace: Namespace, pids: &[u32]) -> PollerConfig {
        let procfs = self.dir.join("proc");
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
        PollerConfig { library, procfs, processes_max: 64, devices: Devices::All }
    }

    fn poller(&self, namespace: Namespace, pids: &[u32]) -> Poller {
        Poller::new(self.config(namespace, pids))
    }

    pub fn host(&self) -> Poller {
        self.poller(Namespace::Host, &[])
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.dir).unwrap();
    }
}

/// Builds the fake library into the directory that this test was built into, and says where it lies.
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

pub fn driver(devices: &Value) -> Value {
    json!({ "driver_version": "570.86.15", "devices": devices })
}

/// A GPU of 80 GiB with 30 GiB used and nothing running.
pub fn gpu(uuid: &str) -> Value {
    json!({
        "uuid": uuid,
        "name": "NVIDIA H100 80GB HBM3",
        "memory": { "total": 80 * GIB, "reserved": GIB, "used": 30 * GIB },
        "addressing": 1,
        "compute": [],
        "graphics": [],
        "mps": [],
    })
}

pub fn gpu_with(uuid: &str, changes: &Value) -> Value {
    let mut gpu = gpu(uuid);
    for (key, value) in changes.as_object().unwrap() {
        gpu[key] = value.clone();
    }
    gpu
}

pub fn instance(uuid: &str, gpu_instance: u32, profile: &str) -> Value {
    json!({
        "uuid": uuid,
        "name": format!("NVIDIA H100 80GB HBM3 MIG {profile}"),
        "memory": { "total": 10 * GIB, "reserved": 0, "used": 4 * GIB },
        "gpu_instance": gpu_instance,
        "compute": [{ "pid": 100 + gpu_instance, "used": GIB }],
    })
}

fn bytes(value: u64) -> Bytes {
    Bytes::new(value).unwrap()
}

/// (pid, used bytes) of every process of a sample.
fn processes(sample: &GpuSample) -> Vec<(u32, Option<u64>)> {
    let pair = |process: &ProcessMemory| (process.pid, process.used.map(Bytes::get));
    sample.processes.iter().map(pair).collect()
}

fn sampled(poll: &GpuPoll) -> Vec<&str> {
    poll.samples.iter().map(|sample| sample.device.as_str()).collect()
}

/// (device, code) of everything that did not answer.
fn unavailable(poll: &GpuPoll) -> Vec<(Option<&str>, &str)> {
    poll.unavailable
        .iter()
        .map(|entry| (entry.device.as_ref().map(GpuUuid::as_str), entry.code))
        .collect()
}

/// Polls one GPU with this list of processes once.
fn poll_processes(
    name: &str,
    namespace: Namespace,
    driver: &str,
    compute: &Value,
) -> GpuSample {
    let gpu = gpu_with("GPU-a", &json!({ "compute": compute }));
    let fake = Fake::new(name, &json!({ "driver_version": driver, "devices": [gpu] }));
    let mut poll = fake.poller(namespace, &[41, 42]).poll();
    assert_eq!(poll.unavailable, []);
    poll.samples.remove(0)
}

#[test]
fn device_is_read_with_memory_and_description() {
    let fake = Fake::new("device", &driver(&json!([gpu("GPU-a"), gpu("GPU-b")])));
    let poll = fake.host().poll();
    assert_eq!(sampled(&poll), ["GPU-a", "GPU-b"]);
    assert_eq!(poll.unavailable, []);
    let memory = poll.samples[1].memory.unwrap();
    assert_eq!(memory.total, bytes(80 * GIB));
    assert_eq!(memory.used, bytes(30 * GIB));
    assert_eq!(memory.free, Some(bytes(49 * GIB)));
    assert_eq!(memory.reserved, Some(bytes(GIB)));
    let info = &poll.samples[1].info;
    assert_eq!(info.index.as_deref(), Some("1"));
    assert_eq!(info.model.as_deref(), Some("NVIDIA H100 80GB HBM3"));
    assert_eq!(info.driver_version.as_deref(), Some("570.86.15"));
    assert_eq!(info.addressing.as_deref(), Some("hmm"));
    assert_eq!((&info.mig_profile, &info.parent), (&None, &None));
}

#[test]
fn change_of_memory_is_seen_by_the_next_poll() {
    let fake = Fake::new("change", &driver(&json!([gpu("GPU-a")])));
    let mut poller = fake.host();
    assert_eq!(poller.poll().samples[0].memory.unwrap().used, bytes(30 * GIB));
    let memory = json!({ "total": 80 * GIB, "used": 31 * GIB });
    fake.set(&driver(&json!([gpu_with("GPU-a", &json!({ "memory": memory }))])));
    assert_eq!(poller.poll().samples[0].memory.unwrap().used, bytes(31 * GIB));
}

#[test]
fn shared_namespace_sees_processes_and_their_memory() {
    let compute = json!([{ "pid": 42, "used": 7 * GIB }, { "pid": 41, "used": 5 * GIB }]);
    let sample = poll_processes("shared", Namespace::Shared, "570.86.15", &compute);
    assert_eq!(sample.attribution, Attribution::SharedPidNamespace);
    assert_eq!(processes(&sample), [(41, Some(5 * GIB)), (42, Some(7 * GIB))]);
}

#[test]
fn host_namespace_sees_processes_and_their_memory() {
    let compute = json!([{ "pid": 48_211, "used": 7 * GIB }]);
    let sample = poll_processes("host", Namespace::Host, "570.86.15", &compute);
    assert_eq!(sample.attribution, Attribution::Host);
    assert_eq!(processes(&sample), [(48_211, Some(7 * GIB))]);
}

#[test]
fn zero_of_a_memory_hiding_driver_in_a_container_is_unknown() {
    for version in ["535.113.01", "550.54.15", "560.35.03"] {
        let compute = json!([{ "pid": 41, "used": 0 }]);
        let sample = poll_processes("hidden", Namespace::Shared, version, &compute);
        assert_eq!(sample.attribution, Attribution::MemoryHidden, "{version}");
        assert_eq!(processes(&sample), [(41, None)], "{version}");
    }
}

#[test]
fn zero_of_a_memory_hiding_driver_beside_a_figure_is_unknown() {
    let compute = json!([{ "pid": 41, "used": 0 }, { "pid": 42, "used": GIB }]);
    let sample = poll_processes("mixed", Namespace::Shared, "560.35.03", &compute);
    assert_eq!(sample.attribution, Attribution::SharedPidNamespace);
    assert_eq!(processes(&sample), [(41, None), (42, Some(GIB))]);
}

#[test]
fn zero_beside_a_figure_is_a_figure_for_other_drivers() {
    let compute = json!([{ "pid": 41, "used": 0 }, { "pid": 42, "used": GIB }]);
    let sample = poll_processes("starting", Namespace::Shared, "570.86.15", &compute);
    assert_eq!(processes(&sample), [(41, Some(0)), (42, Some(GIB))]);
}

#[test]
fn zeros_alone_in_a_container_are_unknown_for_any_driver() {
    let compute = json!([{ "pid": 41, "used": 0 }, { "pid": 42, "used": 0 }]);
    let sample = poll_processes("zeros", Namespace::Shared, "", &compute);
    assert_eq!(sample.attribution, Attribution::MemoryHidden);
    assert_eq!(processes(&sample), [(41, None), (42, None)]);
}

#[test]
fn zero_on_the_host_is_a_figure() {
    let compute = json!([{ "pid": 41, "used": 0 }]);
    let sample = poll_processes("zero-host", Namespace::Host, "560.35.03", &compute);
    assert_eq!(sample.attribution, Attribution::Host);
    assert_eq!(processes(&sample), [(41, Some(0))]);
}

#[test]
fn empty_list_in_an_own_namespace_is_not_idleness() {
    let sample = poll_processes("own", Namespace::Own, "570.86.15", &json!([]));
    assert_eq!(sample.attribution, Attribution::OwnPidNamespace);
    assert_eq!(processes(&sample), []);
}

#[test]
fn empty_list_in_a_shared_or_host_namespace_is_idleness() {
    let sample = poll_processes("idle", Namespace::Shared, "570.86.15", &json!([]));
    assert_eq!(sample.attribution, Attribution::SharedPidNamespace);
    let sample = poll_processes("idle", Namespace::Host, "570.86.15", &json!([]));
    assert_eq!(sample.attribution, Attribution::Host);
}

#[test]
fn own_namespace_counts_as_shared_once_a_training_process_was_seen_in_it() {
    let busy = gpu_with("GPU-a", &json!({ "compute": [{ "pid": 41, "used": GIB }] }));
    let fake = Fake::new("same-container", &driver(&json!([busy])));
    let mut poller = fake.poller(Namespace::Own, &[1, 41]);
    assert_eq!(poller.poll().samples[0].attribution, Attribution::SharedPidNamespace);
    fake.set(&driver(&json!([gpu("GPU-a")])));
    assert_eq!(poller.poll().samples[0].attribution, Attribution::SharedPidNamespace);
}

#[test]
fn ids_that_do_not_exist_in_a_container_are_another_namespaces() {
    let compute = json!([{ "pid": 48_211, "used": GIB }]);
    for namespace in [Namespace::Own, Namespace::Shared] {
        let sample = poll_processes("old", namespace, "570.86.15", &compute);
        assert_eq!(sample.attribution, Attribution::ForeignPidNamespace);
        assert_eq!(processes(&sample), [(48_211, Some(GIB))]);
        assert_eq!(sample.processes[0].own_pid, None);
    }
}

#[test]
fn ids_of_a_driver_that_does_not_translate_are_never_taken_for_own_ones() {
    let compute = json!([{ "pid": 41, "used": GIB }]);
    let sample = poll_processes("untranslated", Namespace::Shared, "525.147.05", &compute);
    assert_eq!(sample.attribution, Attribution::ForeignPidNamespace);
    assert_eq!(sample.processes[0].own_pid, None);
}

#[test]
fn repeated_process_counts_once_by_its_maximum() {
    let lists = json!({
        "compute": [{ "pid": 41, "used": 3 }, { "pid": 41, "used": 5 }, { "pid": 42 }],
        "graphics": [{ "pid": 41, "used": 4 }, { "pid": 7, "used": 1 }],
        "mps": [{ "pid": 42, "used": 9 }],
    });
    let fake = Fake::new("repeated", &driver(&json!([gpu_with("GPU-a", &lists)])));
    let poll = fake.host().poll();
    assert_eq!(processes(&poll.samples[0]), [(7, Some(1)), (41, Some(5)), (42, Some(9))]);
}

#[test]
fn not_available_memory_is_unknown() {
    let compute = json!([{ "pid": 41 }, { "pid": 42, "used": GIB }]);
    let sample = poll_processes("not-available", Namespace::Host, "570.86.15", &compute);
    assert_eq!(sample.attribution, Attribution::Host);
    assert_eq!(processes(&sample), [(41, None), (42, Some(GIB))]);
    let sample = poll_processes("none", Namespace::Host, "570.86.15", &json!([{ "pid": 41 }]));
    assert_eq!(sample.attribution, Attribution::MemoryHidden);
}

#[test]
fn rows_of_32_bytes_are_unsupported() {
    for n_processes in [1_u32, 2, 16, 400] {
        let compute: Vec<Value> =
            (1..=n_processes).map(|pid| json!({ "pid": pid, "used": GIB })).collect();
        let mut scenario = driver(&json!([gpu_with("GPU-a", &json!({ "compute": compute }))]));
        scenario["process_stride"] = json!(32);
        let fake = Fake::new(&format!("stride-{n_processes}"), &scenario);
        let poll = fake.host().poll();
        assert_eq!(poll.samples[0].attribution, Attribution::Unsupported, "{n_processes}");
        assert_eq!(poll.samples[0].processes, [], "{n_processes}");
        assert_eq!(poll.samples[0].memory.unwrap().used, bytes(30 * GIB));
        scenario["process_stride"] = json!(24);
        fake.set(&scenario);
        let poll = fake.host().poll();
        assert_eq!(
            poll.samples[0].processes.len(),
            usize::try_from(n_processes).unwrap().min(64)
        );
    }
}

#[test]
fn impossible_ids_and_sizes_are_unsupported() {
    for row in [
        json!({ "pid": 0, "used": 1 }),
        json!({ "pid": u32::MAX, "used": 1 }),
        json!({ "pid": 41, "used": 81 * GIB }),
    ] {
        let compute = json!([{ "pid": 42, "used": GIB }, row]);
        let sample = poll_processes("impossible", Namespace::Host, "535.54.03", &compute);
        assert_eq!(sample.attribution, Attribution::Unsupported, "{row}");
        assert_eq!(processes(&sample), [], "{row}");
    }
}

#[test]
fn sum_of_the_processes_may_exceed_what_the_device_uses() {
    let compute = json!([{ "pid": 41, "used": 20 * GIB }, { "pid": 42, "used": 20 * GIB }]);
    let sample = poll_processes("sum", Namespace::Host, "570.86.15", &compute);
    assert_eq!(processes(&sample), [(41, Some(20 * GIB)), (42, Some(20 * GIB))]);
    assert_eq!(sample.memory.unwrap().used, bytes(30 * GIB));
}

#[test]
fn refused_compute_list_is_unsupported() {
    let calls = json!({ "nvmlDeviceGetComputeRunningProcesses_v3": { "code": 4 } });
    let fake =
        Fake::new("refused", &driver(&json!([gpu_with("GPU-a", &json!({ "calls": calls }))])));
    let poll = fake.host().poll();
    assert_eq!(poll.samples[0].attribution, Attribution::Unsupported);
    assert_eq!(poll.unavailable, []);
}

#[test]
fn compute_list_alone_is_enough() {
    let lists = json!({ "compute": [{ "pid": 41, "used": GIB }], "graphics": null });
    let fake = Fake::new("compute", &driver(&json!([gpu_with("GPU-a", &lists)])))
        .without("nvmlDeviceGetMPSComputeRunningProcesses_v3");
    let poll = fake.host().poll();
    assert_eq!(poll.samples[0].attribution, Attribution::Host);
    assert_eq!(processes(&poll.samples[0]), [(41, Some(GIB))]);
}

#[test]
fn library_without_process_lists_still_gives_memory() {
    let fake = Fake::new("no-lists", &driver(&json!([gpu("GPU-a")])))
        .without("nvmlDeviceGetComputeRunningProcesses_v3");
    let poll = fake.host().poll();
    assert_eq!(poll.samples[0].attribution, Attribution::Unsupported);
    assert!(poll.samples[0].memory.is_some());
}

#[test]
fn largest_processes_are_kept_and_the_others_counted() {
    let compute = json!([
        { "pid": 1, "used": 10 }, { "pid": 2, "used": 40 }, { "pid": 3 },
        { "pid": 4, "used": 20 }, { "pid": 5, "used": 30 },
    ]);
    let fake =
        Fake::new("cap", &driver(&json!([gpu_with("GPU-a", &json!({ "compute": compute }))])));
    let config = PollerConfig { processes_max: 3, ..fake.config(Namespace::Host, &[]) };
    let poll = Poller::new(config).poll();
    assert_eq!(processes(&poll.samples[0]), [(2, Some(40)), (4, Some(20)), (5, Some(30))]);
    assert_eq!(poll.processes_dropped, 2);
}

#[test]
fn memory_without_v2_is_read_by_v1() {
    let scenario = driver(&json!([gpu("GPU-a")]));
    let mut refusing = scenario.clone();
    refusing["calls"] = json!({ "nvmlDeviceGetMemoryInfo_v2": { "code": 25 } });
    let missing = Fake::new("v1-missing", &scenario).without("nvmlDeviceGetMemoryInfo_v2");
    let refused = Fake::new("v1-refused", &refusing);
    for (name, fake) in [("missing", missing), ("refused", refused)] {
        let memory = fake.host().poll().samples[0].memory.unwrap();
        assert_eq!(memory.total, bytes(80 * GIB), "{name}");
        assert_eq!(memory.used, bytes(31 * GIB), "{name}");
        assert_eq!(memory.free, Some(bytes(49 * GIB)), "{name}");
        assert_eq!(memory.reserved, None, "{name}");
    }
}

#[test]
fn memory_that_is_not_supported_is_absent_and_the_rest_is_there() {
    let spark =
        json!({ "memory": null, "addressing": 2, "compute": [{ "pid": 9, "used": 5 }] });
    let fake = Fake::new("no-memory", &driver(&json!([gpu_with("GPU-a", &spark)])));
    let poll = fake.host().poll();
    assert_eq!(poll.samples[0].memory, None);
    assert_eq!(poll.samples[0].info.addressing.as_deref(), Some("ats"));
    assert_eq!(processes(&poll.samples[0]), [(9, Some(5))]);
}

#[test]
fn memory_that_the_operating_system_manages_is_absent() {
    let grace = json!({ "numa_node": 4, "addressing": 2 });
    let other = json!({ "numa_node": 0, "addressing": 1 });
    let devices = json!([gpu_with("GPU-a", &grace), gpu_with("GPU-b", &other)]);
    let fake = Fake::new("numa", &driver(&devices));
    let poll = fake.host().poll();
    assert_eq!(poll.samples[0].memory, None);
    assert_eq!(poll.samples[0].info.addressing.as_deref(), Some("ats"));
    assert!(poll.samples[1].memory.is_some());
}

#[test]
fn mig_instance_is_reported_once_under_its_own_uuid() {
    let mig = json!([instance("MIG-x", 1, "1g.10gb"), null, instance("MIG-y", 2, "1g.10gb")]);
    let fake = Fake::new("mig", &driver(&json!([gpu_with("GPU-a", &json!({ "mig": mig }))])));
    let poll = fake.host().poll();
    assert_eq!(sampled(&poll), ["MIG-x", "MIG-y"]);
    let info = &poll.samples[1].info;
    assert_eq!(info.index.as_deref(), Some("0:2"));
    assert_eq!(info.parent.as_ref().map(GpuUuid::as_str), Some("GPU-a"));
    assert_eq!(info.model.as_deref(), Some("NVIDIA H100 80GB HBM3"));
    assert_eq!(info.mig_profile.as_deref(), Some("1g.10gb"));
    assert_eq!(info.addressing.as_deref(), Some("hmm"));
    assert_eq!(poll.samples[1].memory.unwrap().used, bytes(4 * GIB));
    assert_eq!(processes(&poll.samples[1]), [(102, Some(GIB))]);
}

#[test]
fn mig_devices_of_one_gpu_instance_say_whose_memory_it_is() {
    let mut second = instance("MIG-y", 1, "1c.2g.20gb");
    second["compute"] = json!([{ "pid": 300, "used": 2 * GIB }]);
    let mig =
        json!([instance("MIG-x", 1, "1c.2g.20gb"), second, instance("MIG-z", 2, "1g.10gb")]);
    let fake =
        Fake::new("mig-shared", &driver(&json!([gpu_with("GPU-a", &json!({ "mig": mig }))])));
    let poll = fake.host().poll();
    assert_eq!(sampled(&poll), ["MIG-x", "MIG-y", "MIG-z"]);
    let memory_of = |idx: usize| poll.samples[idx].info.memory_of.as_ref().map(GpuUuid::as_str);
    assert_eq!([memory_of(0), memory_of(1), memory_of(2)], [None, Some("MIG-x"), None]);
    assert_eq!(processes(&poll.samples[0]), [(101, Some(GIB))]);
    assert_eq!(processes(&poll.samples[1]), [(300, Some(2 * GIB))]);
}

#[test]
fn mig_capable_gpu_outside_mig_mode_is_read_itself() {
    let fake = Fake::new(
        "mig-off",
        &driver(&json!([gpu_with("GPU-a", &json!({ "mig_capable": true }))])),
    );
    assert_eq!(sampled(&fake.host().poll()), ["GPU-a"]);
}

#[test]
fn removed_mig_instance_is_reported_once() {
    let both = json!([instance("MIG-x", 1, "1g.10gb"), instance("MIG-y", 2, "1g.10gb")]);
    let fake =
        Fake::new("mig-gone", &driver(&json!([gpu_with("GPU-a", &json!({ "mig": both }))])));
    let mut poller = fake.host();
    poller.poll();
    let one = json!([instance("MIG-x", 1, "1g.10gb")]);
    fake.set(&driver(&json!([gpu_with("GPU-a", &json!({ "mig": one }))])));
    assert_eq!(unavailable(&poller.poll()), [(Some("MIG-y"), "not_found")]);
    assert_eq!(unavailable(&poller.poll()), []);
    fake.set(&driver(&json!([gpu("GPU-a")])));
    let poll = poller.poll();
    assert_eq!(sampled(&poll), ["GPU-a"]);
    assert_eq!(unavailable(&poll), [(Some("MIG-x"), "not_found")]);
    assert_eq!(fake.n_calls("nvmlInit_v2"), 1);
}

#[test]
fn lost_gpu_takes_its_mig_instances_along() {
    let mig = json!([instance("MIG-x", 1, "1g.10gb"), instance("MIG-y", 2, "1g.10gb")]);
    let split = json!({ "mig": mig });
    let fake =
        Fake::new("mig-lost", &driver(&json!([gpu_with("GPU-a", &split), gpu("GPU-b")])));
    let mut poller = fake.host();
    poller.poll();
    let lost = json!({ "code": 15 });
    fake.set(&driver(&json!([gpu_with("GPU-a", &lost), gpu("GPU-b")])));
    let expected = [(Some("MIG-x"), "gpu_is_lost"), (Some("MIG-y"), "gpu_is_lost")];
    for _ in 0..3 {
        let poll = poller.poll();
        assert_eq!(sampled(&poll), ["GPU-b"]);
        assert_eq!(unavailable(&poll), expected);
    }
}

#[test]
fn lost_gpu_does_not_hide_the_others_and_comes_back() {
    let fake = Fake::new("lost", &driver(&json!([gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c")])));
    let mut poller = fake.host();
    assert_eq!(sampled(&poller.poll()), ["GPU-a", "GPU-b", "GPU-c"]);
    let lost = gpu_with("GPU-b", &json!({ "code": 15 }));
    fake.set(&driver(&json!([gpu("GPU-a"), lost, gpu("GPU-c")])));
    for _ in 0..3 {
        let poll = poller.poll();
        assert_eq!(sampled(&poll), ["GPU-a", "GPU-c"]);
        assert_eq!(unavailable(&poll), [(Some("GPU-b"), "gpu_is_lost")]);
    }
    fake.set(&driver(&json!([gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c")])));
    let poll = poller.poll();
    assert_eq!(sampled(&poll), ["GPU-a", "GPU-b", "GPU-c"]);
    assert_eq!(poll.unavailable, []);
}

#[test]
fn gpu_that_is_lost_after_its_handle_was_given_is_named() {
    let fake = Fake::new("lost-late", &driver(&json!([gpu("GPU-a"), gpu("GPU-b")])));
    let calls = json!({ "nvmlDeviceGetMemoryInfo_v2": { "code": 15 } });
    fake.set(&driver(&json!([gpu_with("GPU-a", &json!({ "calls": calls })), gpu("GPU-b")])));
    let poll = fake.host().poll();
    assert_eq!(sampled(&poll), ["GPU-b"]);
    assert_eq!(unavailable(&poll), [(Some("GPU-a"), "gpu_is_lost")]);
}

#[test]
fn gpu_that_is_no_longer_counted_is_reported_until_it_is_back() {
    let fake = Fake::new("fewer", &driver(&json!([gpu("GPU-a"), gpu("GPU-b")])));
    let mut poller = fake.host();
    poller.poll();
    fake.set(&driver(&json!([gpu("GPU-b")])));
    for _ in 0..3 {
        let poll = poller.poll();
        assert_eq!(sampled(&poll), ["GPU-b"]);
        assert_eq!(unavailable(&poll), [(Some("GPU-a"), "gpu_not_found")]);
    }
    fake.set(&driver(&json!([gpu("GPU-a"), gpu("GPU-b")])));
    assert_eq!(poller.poll().unavailable, []);
}

#[test]
fn gpu_that_fell_off_the_bus_keeps_its_code_when_it_is_no_longer_counted() {
    let fake = Fake::new("fell", &driver(&json!([gpu("GPU-a"), gpu("GPU-b")])));
    let mut poller = fake.host();
    poller.poll();
    fake.set(&driver(&json!([gpu("GPU-a"), gpu_with("GPU-b", &json!({ "code": 15 }))])));
    poller.poll();
    fake.set(&driver(&json!([gpu("GPU-a")])));
    for _ in 0..3 {
        assert_eq!(unavailable(&poller.poll()), [(Some("GPU-b"), "gpu_is_lost")]);
    }
}

#[test]
fn gpu_that_never_told_its_uuid_is_reported_without_one() {
    let lost = gpu_with("GPU-b", &json!({ "code": 15 }));
    let fake = Fake::new("nameless", &driver(&json!([gpu("GPU-a"), lost])));
    let poll = fake.host().poll();
    assert_eq!(sampled(&poll), ["GPU-a"]);
    assert_eq!(unavailable(&poll), [(None, "gpu_is_lost")]);
}

#[test]
fn gpu_of_someone_else_is_no_failure() {
    let calls = json!({ "nvmlDeviceGetHandleByIndex_v2": { "code": 4 } });
    let other = gpu_with("GPU-b", &json!({ "calls": calls }));
    let fake = Fake::new("others", &driver(&json!([gpu("GPU-a"), other.clone()])));
    assert_eq!(unavailable(&fake.host().poll()), []);
    fake.set(&driver(&json!([other])));
    assert_eq!(unavailable(&fake.host().poll()), [(None, "no_permission")]);
}

#[test]
fn zero_devices_after_some_is_a_failure() {
    let fake = Fake::new("zero", &driver(&json!([gpu("GPU-a")])));
    let mut poller = fake.host();
    poller.poll();
    fake.set(&driver(&json!([])));
    let poll = poller.poll();
    assert_eq!(unavailable(&poll), [(None, "gpu_not_found")]);
    assert_eq!(poll.unavailable[0].message, "nvml counts 0 devices, 1 before");
    fake.set(&driver(&json!([gpu("GPU-a")])));
    assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
}

#[test]
fn zero_devices_from_the_start_is_no_failure() {
    let fake = Fake::new("empty", &driver(&json!([])));
    assert_eq!(fake.host().poll(), GpuPoll::default());
}

#[test]
fn missing_library_is_named() {
    let fake = Fake::new("no-library", &driver(&json!([])));
    let mut config = fake.config(Namespace::Host, &[]);
    config.library = Some(fake.dir.join("absent.so"));
    let poll = Poller::new(config).poll();
    assert_eq!(unavailable(&poll), [(None, "library_missing")]);
    assert!(poll.unavailable[0].message.contains("absent.so"));
}

#[test]
fn library_that_is_not_nvml_is_named() {
    let fake = Fake::new("not-nvml", &driver(&json!([]))).without("nvmlInit_v2");
    assert_eq!(unavailable(&fake.host().poll()), [(None, "symbol_missing")]);
}

#[test]
fn library_without_shutdown_does_not_panic() {
    let fake =
        Fake::new("no-shutdown", &driver(&json!([gpu("GPU-a")]))).without("nvmlShutdown");
    let mut poller = fake.host();
    assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    poller.release();
    assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    drop(poller);
}

#[test]
fn driver_that_refuses_to_initialise_is_asked_again_by_every_poll() {
    let fake = Fake::new("init", &json!({ "calls": { "nvmlInit_v2": { "code": 9 } } }));
    let mut poller = fake.host();
    assert_eq!(unavailable(&poller.poll()), [(None, "driver_not_loaded")]);
    assert_eq!(unavailable(&poller.poll()), [(None, "driver_not_loaded")]);
    fake.set(&driver(&json!([gpu("GPU-a")])));
    assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    assert_eq!(fake.n_calls("nvmlInit_v2"), 3);
}

#[test]
fn version_mismatch_says_that_a_restart_is_needed() {
    let fake = Fake::new("mismatch", &json!({ "calls": { "nvmlInit_v2": { "code": 18 } } }));
    let poll = fake.host().poll();
    assert_eq!(unavailable(&poll), [(None, "lib_rm_version_mismatch")]);
    assert!(poll.unavailable[0].message.contains("only a restart"));
}

#[test]
fn code_that_the_wrapper_does_not_know_has_its_name() {
    for (code, name) in [
        (25, "argument_version_mismatch"),
        (26, "deprecated"),
        (27, "not_ready"),
        (28, "gpu_not_found"),
        (29, "invalid_state"),
    ] {
        let calls = json!({ "nvmlDeviceGetCount_v2": { "code": code } });
        let fake = Fake::new(&format!("code-{code}"), &json!({ "calls": calls }));
        let poll = fake.host().poll();
        assert_eq!(unavailable(&poll), [(None, name)]);
        let reason = name.replace('_', " ");
        assert_eq!(poll.unavailable[0].message, format!("nvmlDeviceGetCount_v2: {reason}"));
    }
}

#[test]
fn nvml_is_initialised_anew_after_the_codes_that_ask_for_it() {
    for (code, n_inits) in
        [(1, 2), (9, 2), (15, 2), (16, 2), (28, 2), (999, 2), (4, 1), (10, 1), (18, 1)]
    {
        let healthy = driver(&json!([gpu("GPU-a")]));
        let mut failing = healthy.clone();
        failing["calls"] = json!({ "nvmlDeviceGetMemoryInfo_v2": { "code": code } });
        let fake = Fake::new(&format!("anew-{code}"), &failing);
        let mut poller = fake.host();
        assert_eq!(poller.poll().unavailable.len(), 1, "{code}");
        assert_eq!(fake.n_calls("nvmlShutdown"), n_inits - 1, "{code}");
        fake.set(&healthy);
        assert_eq!(sampled(&poller.poll()), ["GPU-a"], "{code}");
        assert_eq!(fake.n_calls("nvmlInit_v2"), n_inits, "{code}");
    }
}

#[test]
fn nvml_is_initialised_once_for_many_polls() {
    let fake = Fake::new("once", &driver(&json!([gpu("GPU-a")])));
    let mut poller = fake.host();
    for _ in 0..20 {
        assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    }
    assert_eq!(fake.n_calls("nvmlInit_v2"), 1);
    drop(poller);
    assert_eq!(fake.n_calls("nvmlShutdown"), 1);
}

#[test]
fn restarts_for_one_lost_gpu_become_rare_while_others_answer() {
    let lost = gpu_with("GPU-b", &json!({ "code": 15 }));
    let fake = Fake::new("rare", &driver(&json!([gpu("GPU-a"), lost])));
    let mut poller = fake.host();
    for _ in 0..40 {
        assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    }
    // At polls 1, 2, 4, 7, 12, 21 and 38: between two restarts lie 1, 2, 4, 8, 16 polls of waiting.
    assert_eq!(fake.n_calls("nvmlInit_v2"), 7);
}

#[test]
fn released_nvml_is_initialised_by_the_next_poll() {
    let fake = Fake::new("release", &driver(&json!([gpu("GPU-a")])));
    let mut poller = fake.host();
    poller.poll();
    poller.release();
    assert_eq!(fake.n_calls("nvmlShutdown"), 1);
    assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    assert_eq!(fake.n_calls("nvmlInit_v2"), 2);
}

#[test]
fn hanging_call_holds_the_poll_until_the_driver_answers() {
    let healthy = driver(&json!([gpu("GPU-a")]));
    let mut hanging = healthy.clone();
    hanging["calls"] = json!({ "nvmlDeviceGetMemoryInfo_v2": { "hang": true } });
    let fake = Fake::new("hang", &hanging);
    let mut poller = fake.host();
    let (sender, polls) = mpsc::channel();
    let thread = thread::spawn(move || sender.send(poller.poll()).unwrap());
    let early = polls.recv_timeout(Duration::from_millis(200));
    assert_eq!(early, Err(RecvTimeoutError::Timeout));
    fake.set(&healthy);
    assert_eq!(sampled(&polls.recv().unwrap()), ["GPU-a"]);
    thread.join().unwrap();
}

fn uuids(names: &[&str]) -> BTreeSet<GpuUuid> {
    names.iter().map(|name| GpuUuid::new(name).unwrap()).collect()
}

fn named(names: &[&str]) -> Devices {
    Devices::Listed(uuids(names).into_iter().map(DeviceName::Uuid).collect())
}

fn poller_of(fake: &Fake, devices: Devices) -> Poller {
    Poller::new(PollerConfig { devices, ..fake.config(Namespace::Host, &[]) })
}

#[test]
fn listed_devices_alone_are_looked_up() {
    let mig = json!([instance("MIG-x", 1, "1g.10gb"), null, instance("MIG-y", 2, "1g.10gb")]);
    let split = gpu_with("GPU-c", &json!({ "mig": mig }));
    let fake = Fake::new("listed", &driver(&json!([gpu("GPU-a"), gpu("GPU-b"), split])));
    let poll = poller_of(&fake, named(&["GPU-b", "MIG-y"])).poll();
    assert_eq!(sampled(&poll), ["GPU-b", "MIG-y"]);
    let [gpu, instance] = &poll.samples[..] else { panic!("{poll:?}") };
    assert_eq!(gpu.info.index.as_deref(), Some("1"));
    assert_eq!(instance.info.index.as_deref(), Some("2:2"));
    assert_eq!(instance.info.parent.as_ref().map(GpuUuid::as_str), Some("GPU-c"));
    assert_eq!(instance.info.mig_profile.as_deref(), Some("1g.10gb"));
    assert_eq!(processes(instance), [(102, Some(GIB))]);
    assert_eq!(fake.n_calls("nvmlDeviceGetCount_v2"), 0);
    assert_eq!(fake.n_calls("nvmlDeviceGetHandleByIndex_v2"), 0);
}

#[test]
fn listed_gpu_that_is_divided_gives_its_mig_devices() {
    let mig = json!([instance("MIG-x", 1, "1g.10gb"), instance("MIG-y", 2, "1g.10gb")]);
    let split = gpu_with("GPU-a", &json!({ "mig": mig }));
    let fake = Fake::new("listed-mig", &driver(&json!([split, gpu("GPU-b")])));
    assert_eq!(sampled(&poller_of(&fake, named(&["GPU-a"])).poll()), ["MIG-x", "MIG-y"]);
}

#[test]
fn listed_device_that_does_not_exist_is_named() {
    let fake = Fake::new("listed-none", &driver(&json!([gpu("GPU-a")])));
    let poll = poller_of(&fake, named(&["GPU-a", "GPU-x"])).poll();
    assert_eq!(sampled(&poll), ["GPU-a"]);
    assert_eq!(unavailable(&poll), [(Some("GPU-x"), "not_found")]);
}

#[test]
fn listed_index_is_that_of_nvml() {
    let fake = Fake::new("listed-index", &driver(&json!([gpu("GPU-a"), gpu("GPU-b")])));
    let devices = Devices::Listed(vec![DeviceName::Index(1)]);
    assert_eq!(sampled(&poller_of(&fake, devices).poll()), ["GPU-b"]);
}

#[test]
fn nvml_is_not_touched_before_a_device_is_pushed_from() {
    let fake = Fake::new("pushed", &driver(&json!([gpu("GPU-a"), gpu("GPU-b")])));
    let mut poller = poller_of(&fake, Devices::Pushed);
    assert_eq!(poller.poll(), RELEASED);
    poller.look_for(&uuids(&["cpu", "cuda:0"]));
    assert_eq!(poller.poll(), RELEASED);
    assert_eq!(fake.n_calls("nvmlInit_v2"), 0);
    poller.look_for(&uuids(&["GPU-b"]));
    assert_eq!(sampled(&poller.poll()), ["GPU-b"]);
    assert_eq!(fake.n_calls("nvmlDeviceGetHandleByIndex_v2"), 0);
}

#[test]
fn device_that_nobody_pushes_from_any_more_is_closed() {
    let fake = Fake::new("pushed-less", &driver(&json!([gpu("GPU-a"), gpu("GPU-b")])));
    let mut poller = poller_of(&fake, Devices::Pushed);
    poller.look_for(&uuids(&["GPU-a", "GPU-b"]));
    assert_eq!(sampled(&poller.poll()), ["GPU-a", "GPU-b"]);
    poller.look_for(&uuids(&["GPU-b"]));
    let poll = poller.poll();
    assert_eq!((sampled(&poll), unavailable(&poll)), (vec!["GPU-b"], Vec::new()));
    assert!(poll.is_shut_down);
    assert_eq!(fake.n_calls("closed"), 1);
    let poll = poller.poll();
    assert_eq!((sampled(&poll), poll.is_shut_down), (vec!["GPU-b"], false));
    assert_eq!((fake.n_calls("nvmlShutdown"), fake.n_calls("nvmlInit_v2")), (1, 2));
    poller.look_for(&BTreeSet::new());
    assert!(poller.poll().is_released);
    assert_eq!((fake.n_calls("nvmlShutdown"), fake.n_calls("nvmlInit_v2")), (2, 2));
}

#[test]
fn device_that_fails_for_long_is_closed_and_left_alone_but_still_reported() {
    for (code, label) in [(15, "gpu_is_lost"), (10, "timeout")] {
        let lost = gpu_with("GPU-b", &json!({ "code": code }));
        let fake =
            Fake::new(&format!("rest-{code}"), &driver(&json!([gpu("GPU-a"), gpu("GPU-b")])));
        let mut poller = fake.host();
        poller.poll();
        fake.set(&driver(&json!([gpu("GPU-a"), lost])));
        for _ in 0..FAILURES_MAX {
            poller.poll();
        }
        let asked = || fake.n_calls("nvmlDeviceGetHandleByIndex_v2");
        let mut n_left_alone = 0;
        for _ in 0..100 {
            let (before, n_inits) = (asked(), fake.n_calls("nvmlInit_v2"));
            let poll = poller.poll();
            assert_eq!(sampled(&poll), ["GPU-a"]);
            assert_eq!(unavailable(&poll), [(Some("GPU-b"), label)]);
            n_left_alone += usize::from(asked() == before + 1);
            // Who touched the lost device closes it in the same poll: the next one opens NVML anew.
            let has_closed =
                fake.n_calls("nvmlShutdown") == n_inits.max(fake.n_calls("nvmlInit_v2"));
            assert_eq!(has_closed, asked() == before + 2, "{code}");
        }
        assert!(n_left_alone > 90, "left alone in {n_left_alone} of 100 polls");
        fake.set(&driver(&json!([gpu("GPU-a"), gpu("GPU-b")])));
        let is_back = (0..=64).any(|_| sampled(&poller.poll()) == ["GPU-a", "GPU-b"]);
        assert!(is_back);
        assert_eq!(poller.poll().unavailable, []);
    }
}

#[test]
fn process_is_known_by_its_own_id_and_its_container() {
    let compute = json!([{ "pid": 48_211, "used": GIB }, { "pid": 48_212, "used": GIB }]);
    let fake = Fake::new(
        "own-id",
        &driver(&json!([gpu_with("GPU-a", &json!({ "compute": compute }))])),
    );
    let config = fake.config(Namespace::Host, &[48_211]);
    let process = config.procfs.join("48211");
    fs::write(process.join("status"), "Pid:\t48211\nNSpid:\t48211\t9\t1\n").unwrap();
    let id = "c".repeat(64);
    let pod = "8dbc5577-d0e2-4706-8787-57d52c03ddf2";
    let group = format!("0::/kubepods/burstable/pod{pod}/{id}\n");
    fs::write(process.join("cgroup"), group).unwrap();
    let poll = Poller::new(config).poll();
    let [in_pod, gone] = &poll.samples[0].processes[..] else { panic!("{poll:?}") };
    assert_eq!(in_pod.own_pid, Some(1));
    let container = in_pod.container.as_ref().unwrap();
    assert_eq!((&*container.id, container.pod_uid.as_deref()), (&*id, Some(pod)));
    assert_eq!((gone.own_pid, &gone.container), (None, &None));
}
