//! The GPU poller against a library with NVML's C ABI: loaded by `dlopen` as the driver's is, a copy for every test,
//! told by a file beside it what to answer.

use std::collections::BTreeSet;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use std::{fs, thread};

use stepmem::input::nvml::{
    Config, DeviceName, Devices, FAILURES_MAX, GpuPoll, Poller, RELEASED,
};
use stepmem::model::device::{Attribution, GpuSample, ProcessMemory};
use stepmem::model::ids::GpuUuid;
use stepmem::model::units::Bytes;

use crate::rig::nvml::{
    FakeNvml, Namespace, Order, ProcessRow, driver, gpu, hidden, instance, process, uuids,
};
use crate::rig::units::GIB;

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
    version: &str,
    compute: &[ProcessRow],
) -> GpuSample {
    let scenario = driver([gpu("GPU-a").compute(compute)]).version(version);
    let fake = FakeNvml::new(name, &scenario);
    let mut poll = fake.poller(namespace, &[41, 42]).poll();
    assert_eq!(poll.unavailable, []);
    poll.samples.remove(0)
}

#[test]
fn device_is_read_with_memory_and_description() {
    let fake = FakeNvml::new("device", &driver([gpu("GPU-a"), gpu("GPU-b")]));
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
    let fake = FakeNvml::new("change", &driver([gpu("GPU-a")]));
    let mut poller = fake.host();
    assert_eq!(poller.poll().samples[0].memory.unwrap().used, bytes(30 * GIB));
    fake.set(&driver([gpu("GPU-a").memory(80 * GIB, 0, 31 * GIB)]));
    assert_eq!(poller.poll().samples[0].memory.unwrap().used, bytes(31 * GIB));
}

#[test]
fn shared_namespace_sees_processes_and_their_memory() {
    let compute = [process(42, 7 * GIB), process(41, 5 * GIB)];
    let sample = poll_processes("shared", Namespace::Shared, "570.86.15", &compute);
    assert_eq!(sample.attribution, Attribution::SharedPidNamespace);
    assert_eq!(processes(&sample), [(41, Some(5 * GIB)), (42, Some(7 * GIB))]);
}

#[test]
fn host_namespace_sees_processes_and_their_memory() {
    let compute = [process(48_211, 7 * GIB)];
    let sample = poll_processes("host", Namespace::Host, "570.86.15", &compute);
    assert_eq!(sample.attribution, Attribution::Host);
    assert_eq!(processes(&sample), [(48_211, Some(7 * GIB))]);
}

#[test]
fn zero_of_a_memory_hiding_driver_in_a_container_is_unknown() {
    for version in ["535.113.01", "550.54.15", "560.35.03"] {
        let compute = [process(41, 0)];
        let sample = poll_processes("hidden", Namespace::Shared, version, &compute);
        assert_eq!(sample.attribution, Attribution::MemoryHidden, "{version}");
        assert_eq!(processes(&sample), [(41, None)], "{version}");
    }
}

#[test]
fn zero_of_a_memory_hiding_driver_beside_a_figure_is_unknown() {
    let compute = [process(41, 0), process(42, GIB)];
    let sample = poll_processes("mixed", Namespace::Shared, "560.35.03", &compute);
    assert_eq!(sample.attribution, Attribution::SharedPidNamespace);
    assert_eq!(processes(&sample), [(41, None), (42, Some(GIB))]);
}

#[test]
fn zero_beside_a_figure_is_a_figure_for_other_drivers() {
    let compute = [process(41, 0), process(42, GIB)];
    let sample = poll_processes("starting", Namespace::Shared, "570.86.15", &compute);
    assert_eq!(processes(&sample), [(41, Some(0)), (42, Some(GIB))]);
}

#[test]
fn zeros_alone_in_a_container_are_unknown_for_any_driver() {
    let compute = [process(41, 0), process(42, 0)];
    let sample = poll_processes("zeros", Namespace::Shared, "", &compute);
    assert_eq!(sample.attribution, Attribution::MemoryHidden);
    assert_eq!(processes(&sample), [(41, None), (42, None)]);
}

#[test]
fn zero_on_the_host_is_a_figure() {
    let compute = [process(41, 0)];
    let sample = poll_processes("zero-host", Namespace::Host, "560.35.03", &compute);
    assert_eq!(sample.attribution, Attribution::Host);
    assert_eq!(processes(&sample), [(41, Some(0))]);
}

#[test]
fn empty_list_in_an_own_namespace_is_not_idleness() {
    let sample = poll_processes("own", Namespace::Own, "570.86.15", &[]);
    assert_eq!(sample.attribution, Attribution::OwnPidNamespace);
    assert_eq!(processes(&sample), []);
}

#[test]
fn empty_list_in_a_shared_or_host_namespace_is_idleness() {
    let sample = poll_processes("idle", Namespace::Shared, "570.86.15", &[]);
    assert_eq!(sample.attribution, Attribution::SharedPidNamespace);
    let sample = poll_processes("idle", Namespace::Host, "570.86.15", &[]);
    assert_eq!(sample.attribution, Attribution::Host);
}

#[test]
fn own_namespace_counts_as_shared_once_a_training_process_was_seen_in_it() {
    let busy = gpu("GPU-a").compute(&[process(41, GIB)]);
    let fake = FakeNvml::new("same-container", &driver([busy]));
    let mut poller = fake.poller(Namespace::Own, &[1, 41]);
    assert_eq!(poller.poll().samples[0].attribution, Attribution::SharedPidNamespace);
    fake.set(&driver([gpu("GPU-a")]));
    assert_eq!(poller.poll().samples[0].attribution, Attribution::SharedPidNamespace);
}

#[test]
fn ids_that_do_not_exist_in_a_container_are_another_namespaces() {
    let compute = [process(48_211, GIB)];
    for namespace in [Namespace::Own, Namespace::Shared] {
        let sample = poll_processes("old", namespace, "570.86.15", &compute);
        assert_eq!(sample.attribution, Attribution::ForeignPidNamespace);
        assert_eq!(processes(&sample), [(48_211, Some(GIB))]);
        assert_eq!(sample.processes[0].own_pid, None);
    }
}

#[test]
fn ids_of_a_driver_that_does_not_translate_are_never_taken_for_own_ones() {
    let compute = [process(41, GIB)];
    let sample = poll_processes("untranslated", Namespace::Shared, "525.147.05", &compute);
    assert_eq!(sample.attribution, Attribution::ForeignPidNamespace);
    assert_eq!(sample.processes[0].own_pid, None);
}

#[test]
fn repeated_process_counts_once_by_its_maximum() {
    let busy = gpu("GPU-a")
        .compute(&[process(41, 3), process(41, 5), hidden(42)])
        .graphics(&[process(41, 4), process(7, 1)])
        .mps(&[process(42, 9)]);
    let fake = FakeNvml::new("repeated", &driver([busy]));
    let poll = fake.host().poll();
    assert_eq!(processes(&poll.samples[0]), [(7, Some(1)), (41, Some(5)), (42, Some(9))]);
}

#[test]
fn not_available_memory_is_unknown() {
    let compute = [hidden(41), process(42, GIB)];
    let sample = poll_processes("not-available", Namespace::Host, "570.86.15", &compute);
    assert_eq!(sample.attribution, Attribution::Host);
    assert_eq!(processes(&sample), [(41, None), (42, Some(GIB))]);
    let sample = poll_processes("none", Namespace::Host, "570.86.15", &[hidden(41)]);
    assert_eq!(sample.attribution, Attribution::MemoryHidden);
}

#[test]
fn rows_of_32_bytes_are_unsupported() {
    for n_processes in [1_u32, 2, 16, 400] {
        let compute: Vec<ProcessRow> = (1..=n_processes).map(|pid| process(pid, GIB)).collect();
        let scenario = driver([gpu("GPU-a").compute(&compute)]);
        let wide = scenario.clone().process_stride(32);
        let fake = FakeNvml::new(&format!("stride-{n_processes}"), &wide);
        let poll = fake.host().poll();
        assert_eq!(poll.samples[0].attribution, Attribution::Unsupported, "{n_processes}");
        assert_eq!(poll.samples[0].processes, [], "{n_processes}");
        assert_eq!(poll.samples[0].memory.unwrap().used, bytes(30 * GIB));
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
    for row in [process(0, 1), process(u32::MAX, 1), process(41, 81 * GIB)] {
        let compute = [process(42, GIB), row];
        let sample = poll_processes("impossible", Namespace::Host, "535.54.03", &compute);
        assert_eq!(sample.attribution, Attribution::Unsupported, "{row:?}");
        assert_eq!(processes(&sample), [], "{row:?}");
    }
}

#[test]
fn sum_of_the_processes_may_exceed_what_the_device_uses() {
    let compute = [process(41, 20 * GIB), process(42, 20 * GIB)];
    let sample = poll_processes("sum", Namespace::Host, "570.86.15", &compute);
    assert_eq!(processes(&sample), [(41, Some(20 * GIB)), (42, Some(20 * GIB))]);
    assert_eq!(sample.memory.unwrap().used, bytes(30 * GIB));
}

#[test]
fn refused_compute_list_is_unsupported() {
    let refusing = gpu("GPU-a").call("nvmlDeviceGetComputeRunningProcesses_v3", Order::Code(4));
    let fake = FakeNvml::new("refused", &driver([refusing]));
    let poll = fake.host().poll();
    assert_eq!(poll.samples[0].attribution, Attribution::Unsupported);
    assert_eq!(poll.unavailable, []);
}

#[test]
fn compute_list_alone_is_enough() {
    let listing = gpu("GPU-a").compute(&[process(41, GIB)]).without("graphics");
    let fake = FakeNvml::new("compute", &driver([listing]))
        .without("nvmlDeviceGetMPSComputeRunningProcesses_v3");
    let poll = fake.host().poll();
    assert_eq!(poll.samples[0].attribution, Attribution::Host);
    assert_eq!(processes(&poll.samples[0]), [(41, Some(GIB))]);
}

#[test]
fn library_without_process_lists_still_gives_memory() {
    let fake = FakeNvml::new("no-lists", &driver([gpu("GPU-a")]))
        .without("nvmlDeviceGetComputeRunningProcesses_v3");
    let poll = fake.host().poll();
    assert_eq!(poll.samples[0].attribution, Attribution::Unsupported);
    assert!(poll.samples[0].memory.is_some());
}

#[test]
fn largest_processes_are_kept_and_the_others_counted() {
    let compute = [process(1, 10), process(2, 40), hidden(3), process(4, 20), process(5, 30)];
    let fake = FakeNvml::new("cap", &driver([gpu("GPU-a").compute(&compute)]));
    let config = Config { processes_max: 3, ..fake.config(Namespace::Host, &[]) };
    let poll = Poller::new(config).poll();
    assert_eq!(processes(&poll.samples[0]), [(2, Some(40)), (4, Some(20)), (5, Some(30))]);
    assert_eq!(poll.processes_dropped, 2);
}

#[test]
fn memory_without_v2_is_read_by_v1() {
    let scenario = driver([gpu("GPU-a")]);
    let refusing = scenario.clone().call("nvmlDeviceGetMemoryInfo_v2", Order::Code(25));
    let missing = FakeNvml::new("v1-missing", &scenario).without("nvmlDeviceGetMemoryInfo_v2");
    let refused = FakeNvml::new("v1-refused", &refusing);
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
    let spark = gpu("GPU-a").without("memory").addressing(2).compute(&[process(9, 5)]);
    let fake = FakeNvml::new("no-memory", &driver([spark]));
    let poll = fake.host().poll();
    assert_eq!(poll.samples[0].memory, None);
    assert_eq!(poll.samples[0].info.addressing.as_deref(), Some("ats"));
    assert_eq!(processes(&poll.samples[0]), [(9, Some(5))]);
}

#[test]
fn memory_that_the_operating_system_manages_is_absent() {
    let grace = gpu("GPU-a").numa_node(4).addressing(2);
    let other = gpu("GPU-b").numa_node(0).addressing(1);
    let fake = FakeNvml::new("numa", &driver([grace, other]));
    let poll = fake.host().poll();
    assert_eq!(poll.samples[0].memory, None);
    assert_eq!(poll.samples[0].info.addressing.as_deref(), Some("ats"));
    assert!(poll.samples[1].memory.is_some());
}

#[test]
fn mig_instance_is_reported_once_under_its_own_uuid() {
    let mig =
        [Some(instance("MIG-x", 1, "1g.10gb")), None, Some(instance("MIG-y", 2, "1g.10gb"))];
    let fake = FakeNvml::new("mig", &driver([gpu("GPU-a").mig(mig)]));
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
    let second = instance("MIG-y", 1, "1c.2g.20gb").compute(&[process(300, 2 * GIB)]);
    let mig = [instance("MIG-x", 1, "1c.2g.20gb"), second, instance("MIG-z", 2, "1g.10gb")];
    let fake = FakeNvml::new("mig-shared", &driver([gpu("GPU-a").mig(mig)]));
    let poll = fake.host().poll();
    assert_eq!(sampled(&poll), ["MIG-x", "MIG-y", "MIG-z"]);
    let memory_of = |idx: usize| poll.samples[idx].info.memory_of.as_ref().map(GpuUuid::as_str);
    assert_eq!([memory_of(0), memory_of(1), memory_of(2)], [None, Some("MIG-x"), None]);
    assert_eq!(processes(&poll.samples[0]), [(101, Some(GIB))]);
    assert_eq!(processes(&poll.samples[1]), [(300, Some(2 * GIB))]);
}

#[test]
fn mig_capable_gpu_outside_mig_mode_is_read_itself() {
    let fake = FakeNvml::new("mig-off", &driver([gpu("GPU-a").mig_capable()]));
    assert_eq!(sampled(&fake.host().poll()), ["GPU-a"]);
}

#[test]
fn removed_mig_instance_is_reported_once() {
    let both = [instance("MIG-x", 1, "1g.10gb"), instance("MIG-y", 2, "1g.10gb")];
    let fake = FakeNvml::new("mig-gone", &driver([gpu("GPU-a").mig(both)]));
    let mut poller = fake.host();
    poller.poll();
    let one = [instance("MIG-x", 1, "1g.10gb")];
    fake.set(&driver([gpu("GPU-a").mig(one)]));
    assert_eq!(unavailable(&poller.poll()), [(Some("MIG-y"), "not_found")]);
    assert_eq!(unavailable(&poller.poll()), []);
    fake.set(&driver([gpu("GPU-a")]));
    let poll = poller.poll();
    assert_eq!(sampled(&poll), ["GPU-a"]);
    assert_eq!(unavailable(&poll), [(Some("MIG-x"), "not_found")]);
    assert_eq!(fake.n_calls("nvmlInit_v2"), 1);
}

#[test]
fn lost_gpu_takes_its_mig_instances_along() {
    let mig = [instance("MIG-x", 1, "1g.10gb"), instance("MIG-y", 2, "1g.10gb")];
    let split = gpu("GPU-a").mig(mig);
    let fake = FakeNvml::new("mig-lost", &driver([split, gpu("GPU-b")]));
    let mut poller = fake.host();
    poller.poll();
    fake.set(&driver([gpu("GPU-a").code(15), gpu("GPU-b")]));
    let expected = [(Some("MIG-x"), "gpu_is_lost"), (Some("MIG-y"), "gpu_is_lost")];
    for _ in 0..3 {
        let poll = poller.poll();
        assert_eq!(sampled(&poll), ["GPU-b"]);
        assert_eq!(unavailable(&poll), expected);
    }
}

#[test]
fn lost_gpu_does_not_hide_the_others_and_comes_back() {
    let fake = FakeNvml::new("lost", &driver([gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c")]));
    let mut poller = fake.host();
    assert_eq!(sampled(&poller.poll()), ["GPU-a", "GPU-b", "GPU-c"]);
    let lost = gpu("GPU-b").code(15);
    fake.set(&driver([gpu("GPU-a"), lost, gpu("GPU-c")]));
    for _ in 0..3 {
        let poll = poller.poll();
        assert_eq!(sampled(&poll), ["GPU-a", "GPU-c"]);
        assert_eq!(unavailable(&poll), [(Some("GPU-b"), "gpu_is_lost")]);
    }
    fake.set(&driver([gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c")]));
    let poll = poller.poll();
    assert_eq!(sampled(&poll), ["GPU-a", "GPU-b", "GPU-c"]);
    assert_eq!(poll.unavailable, []);
}

#[test]
fn gpu_that_is_lost_after_its_handle_was_given_is_named() {
    let fake = FakeNvml::new("lost-late", &driver([gpu("GPU-a"), gpu("GPU-b")]));
    let lost = gpu("GPU-a").call("nvmlDeviceGetMemoryInfo_v2", Order::Code(15));
    fake.set(&driver([lost, gpu("GPU-b")]));
    let poll = fake.host().poll();
    assert_eq!(sampled(&poll), ["GPU-b"]);
    assert_eq!(unavailable(&poll), [(Some("GPU-a"), "gpu_is_lost")]);
}

#[test]
fn gpu_that_is_no_longer_counted_is_reported_until_it_is_back() {
    let fake = FakeNvml::new("fewer", &driver([gpu("GPU-a"), gpu("GPU-b")]));
    let mut poller = fake.host();
    poller.poll();
    fake.set(&driver([gpu("GPU-b")]));
    for _ in 0..3 {
        let poll = poller.poll();
        assert_eq!(sampled(&poll), ["GPU-b"]);
        assert_eq!(unavailable(&poll), [(Some("GPU-a"), "gpu_not_found")]);
    }
    fake.set(&driver([gpu("GPU-a"), gpu("GPU-b")]));
    assert_eq!(poller.poll().unavailable, []);
}

#[test]
fn gpu_that_fell_off_the_bus_keeps_its_code_when_it_is_no_longer_counted() {
    let fake = FakeNvml::new("fell", &driver([gpu("GPU-a"), gpu("GPU-b")]));
    let mut poller = fake.host();
    poller.poll();
    fake.set(&driver([gpu("GPU-a"), gpu("GPU-b").code(15)]));
    poller.poll();
    fake.set(&driver([gpu("GPU-a")]));
    for _ in 0..3 {
        assert_eq!(unavailable(&poller.poll()), [(Some("GPU-b"), "gpu_is_lost")]);
    }
}

#[test]
fn gpu_that_never_told_its_uuid_is_reported_without_one() {
    let lost = gpu("GPU-b").code(15);
    let fake = FakeNvml::new("nameless", &driver([gpu("GPU-a"), lost]));
    let poll = fake.host().poll();
    assert_eq!(sampled(&poll), ["GPU-a"]);
    assert_eq!(unavailable(&poll), [(None, "gpu_is_lost")]);
}

#[test]
fn gpu_of_someone_else_is_no_failure() {
    let other = gpu("GPU-b").call("nvmlDeviceGetHandleByIndex_v2", Order::Code(4));
    let fake = FakeNvml::new("others", &driver([gpu("GPU-a"), other.clone()]));
    assert_eq!(unavailable(&fake.host().poll()), []);
    fake.set(&driver([other]));
    assert_eq!(unavailable(&fake.host().poll()), [(None, "no_permission")]);
}

#[test]
fn zero_devices_after_some_is_a_failure() {
    let fake = FakeNvml::new("zero", &driver([gpu("GPU-a")]));
    let mut poller = fake.host();
    poller.poll();
    fake.set(&driver([]));
    let poll = poller.poll();
    assert_eq!(unavailable(&poll), [(None, "gpu_not_found")]);
    assert_eq!(poll.unavailable[0].message, "nvml counts 0 devices, 1 before");
    fake.set(&driver([gpu("GPU-a")]));
    assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
}

#[test]
fn zero_devices_from_the_start_is_no_failure() {
    let fake = FakeNvml::new("empty", &driver([]));
    assert_eq!(fake.host().poll(), GpuPoll::default());
}

#[test]
fn missing_library_is_named() {
    let fake = FakeNvml::new("no-library", &driver([]));
    let mut config = fake.config(Namespace::Host, &[]);
    config.library = Some(fake.missing_library());
    let poll = Poller::new(config).poll();
    assert_eq!(unavailable(&poll), [(None, "library_missing")]);
    assert!(poll.unavailable[0].message.contains("absent.so"));
}

#[test]
fn library_that_is_not_nvml_is_named() {
    let fake = FakeNvml::new("not-nvml", &driver([])).without("nvmlInit_v2");
    assert_eq!(unavailable(&fake.host().poll()), [(None, "symbol_missing")]);
}

#[test]
fn library_without_shutdown_does_not_panic() {
    let fake = FakeNvml::new("no-shutdown", &driver([gpu("GPU-a")])).without("nvmlShutdown");
    let mut poller = fake.host();
    assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    poller.release();
    assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    drop(poller);
}

#[test]
fn driver_that_refuses_to_initialise_is_asked_again_by_every_poll() {
    let fake = FakeNvml::new("init", &driver([]).call("nvmlInit_v2", Order::Code(9)));
    let mut poller = fake.host();
    assert_eq!(unavailable(&poller.poll()), [(None, "driver_not_loaded")]);
    assert_eq!(unavailable(&poller.poll()), [(None, "driver_not_loaded")]);
    fake.set(&driver([gpu("GPU-a")]));
    assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    assert_eq!(fake.n_calls("nvmlInit_v2"), 3);
}

#[test]
fn version_mismatch_says_that_a_restart_is_needed() {
    let fake = FakeNvml::new("mismatch", &driver([]).call("nvmlInit_v2", Order::Code(18)));
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
        let failing = driver([]).call("nvmlDeviceGetCount_v2", Order::Code(code));
        let fake = FakeNvml::new(&format!("code-{code}"), &failing);
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
        let healthy = driver([gpu("GPU-a")]);
        let failing = healthy.clone().call("nvmlDeviceGetMemoryInfo_v2", Order::Code(code));
        let fake = FakeNvml::new(&format!("anew-{code}"), &failing);
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
    let fake = FakeNvml::new("once", &driver([gpu("GPU-a")]));
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
    let lost = gpu("GPU-b").code(15);
    let fake = FakeNvml::new("rare", &driver([gpu("GPU-a"), lost]));
    let mut poller = fake.host();
    for _ in 0..40 {
        assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    }
    // At polls 1, 2, 4, 7, 12, 21 and 38: between two restarts lie 1, 2, 4, 8, 16 polls of waiting.
    assert_eq!(fake.n_calls("nvmlInit_v2"), 7);
}

#[test]
fn released_nvml_is_initialised_by_the_next_poll() {
    let fake = FakeNvml::new("release", &driver([gpu("GPU-a")]));
    let mut poller = fake.host();
    poller.poll();
    poller.release();
    assert_eq!(fake.n_calls("nvmlShutdown"), 1);
    assert_eq!(sampled(&poller.poll()), ["GPU-a"]);
    assert_eq!(fake.n_calls("nvmlInit_v2"), 2);
}

#[test]
fn hanging_call_holds_the_poll_until_the_driver_answers() {
    let healthy = driver([gpu("GPU-a")]);
    let hanging = healthy.clone().call("nvmlDeviceGetMemoryInfo_v2", Order::Hang);
    let fake = FakeNvml::new("hang", &hanging);
    let mut poller = fake.host();
    let (sender, polls) = mpsc::channel();
    let thread = thread::spawn(move || sender.send(poller.poll()).unwrap());
    let early = polls.recv_timeout(Duration::from_millis(200));
    assert_eq!(early, Err(RecvTimeoutError::Timeout));
    fake.set(&healthy);
    assert_eq!(sampled(&polls.recv().unwrap()), ["GPU-a"]);
    thread.join().unwrap();
}

fn named(names: &[&str]) -> Devices {
    Devices::Listed(uuids(names).into_iter().map(DeviceName::Uuid).collect())
}

#[test]
fn listed_devices_alone_are_looked_up() {
    let mig =
        [Some(instance("MIG-x", 1, "1g.10gb")), None, Some(instance("MIG-y", 2, "1g.10gb"))];
    let split = gpu("GPU-c").mig(mig);
    let fake = FakeNvml::new("listed", &driver([gpu("GPU-a"), gpu("GPU-b"), split]));
    let poll = fake.poller_of(named(&["GPU-b", "MIG-y"])).poll();
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
    let mig = [instance("MIG-x", 1, "1g.10gb"), instance("MIG-y", 2, "1g.10gb")];
    let split = gpu("GPU-a").mig(mig);
    let fake = FakeNvml::new("listed-mig", &driver([split, gpu("GPU-b")]));
    assert_eq!(sampled(&fake.poller_of(named(&["GPU-a"])).poll()), ["MIG-x", "MIG-y"]);
}

#[test]
fn listed_device_that_does_not_exist_is_named() {
    let fake = FakeNvml::new("listed-none", &driver([gpu("GPU-a")]));
    let poll = fake.poller_of(named(&["GPU-a", "GPU-x"])).poll();
    assert_eq!(sampled(&poll), ["GPU-a"]);
    assert_eq!(unavailable(&poll), [(Some("GPU-x"), "not_found")]);
}

#[test]
fn listed_index_is_that_of_nvml() {
    let fake = FakeNvml::new("listed-index", &driver([gpu("GPU-a"), gpu("GPU-b")]));
    let devices = Devices::Listed(vec![DeviceName::Index(1)]);
    assert_eq!(sampled(&fake.poller_of(devices).poll()), ["GPU-b"]);
}

#[test]
fn nvml_is_not_touched_before_a_device_is_pushed_from() {
    let fake = FakeNvml::new("pushed", &driver([gpu("GPU-a"), gpu("GPU-b")]));
    let mut poller = fake.poller_of(Devices::Pushed);
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
    let fake = FakeNvml::new("pushed-less", &driver([gpu("GPU-a"), gpu("GPU-b")]));
    let mut poller = fake.poller_of(Devices::Pushed);
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
        let lost = gpu("GPU-b").code(code);
        let fake =
            FakeNvml::new(&format!("rest-{code}"), &driver([gpu("GPU-a"), gpu("GPU-b")]));
        let mut poller = fake.host();
        poller.poll();
        fake.set(&driver([gpu("GPU-a"), lost]));
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
        fake.set(&driver([gpu("GPU-a"), gpu("GPU-b")]));
        let is_back = (0..=64).any(|_| sampled(&poller.poll()) == ["GPU-a", "GPU-b"]);
        assert!(is_back);
        assert_eq!(poller.poll().unavailable, []);
    }
}

#[test]
fn process_is_known_by_its_own_id_and_its_container() {
    let compute = [process(48_211, GIB), process(48_212, GIB)];
    let fake = FakeNvml::new("own-id", &driver([gpu("GPU-a").compute(&compute)]));
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
