//! Processes in a poll: whose ids they are, and which memory is unknown.

use std::fs;

use stepmem::input::nvml::config::PollerConfig;
use stepmem::input::nvml::poller::Poller;
use stepmem_types::device::{Attribution, GpuSample};

use crate::rig::nvml::{FakeNvml, Namespace, Order, ProcessRow, driver, gpu, hidden, process};
use crate::rig::poll::{bytes, processes};
use crate::rig::units::GIB;

/// Polls one GPU with this list of processes once.
fn poll_processes(
    name: &str,
    (namespace, version): (Namespace, &str),
    compute: &[ProcessRow],
) -> GpuSample {
    let scenario = driver([gpu("GPU-a").compute(compute)]).version(version);
    let fake = FakeNvml::new(name, &scenario);
    let mut poll = fake.poller(namespace, &[41, 42]).poll();
    assert_eq!(poll.unavailable, []);
    poll.samples.remove(0)
}

/// A name, where, the driver's version, the rows, and what comes of them: whose the ids are
/// and what is used in GiB, by ascending id.
type Case<'a> = (&'a str, Namespace, &'a str, &'a [ProcessRow], Attribution, &'a [Option<u64>]);

/// A driver that translates ids, and says what it knows of memory.
const CURRENT: &str = "570.86.15";
/// A driver that hides memory from a container: it writes 0.
const HIDING: &str = "560.35.03";

#[test]
fn namespace_and_driver_decide_whose_ids_they_are_and_what_a_zero_means() {
    use Attribution::{
        ForeignPidNamespace, Host, MemoryHidden, OwnPidNamespace, SharedPidNamespace,
        Unsupported,
    };
    let (host, shared, own) = (Namespace::Host, Namespace::Shared, Namespace::Own);
    let (seven, five) = (process(42, 7 * GIB), process(41, 5 * GIB));
    let (zero, one, other_zero) = (process(41, 0), process(42, GIB), process(42, 0));
    let large = process(48_211, 7 * GIB);
    let table: [Case<'_>; 19] = [
        ("shared", shared, CURRENT, &[seven, five], SharedPidNamespace, &[Some(5), Some(7)]),
        ("host", host, CURRENT, &[large], Host, &[Some(7)]),
        ("hidden-535", shared, "535.113.01", &[zero], MemoryHidden, &[None]),
        ("hidden-550", shared, "550.54.15", &[zero], MemoryHidden, &[None]),
        ("hidden-560", shared, HIDING, &[zero], MemoryHidden, &[None]),
        ("zero-and-figure", shared, HIDING, &[zero, one], SharedPidNamespace, &[None, Some(1)]),
        ("starting", shared, CURRENT, &[zero, one], SharedPidNamespace, &[Some(0), Some(1)]),
        ("zeros-alone", shared, "", &[zero, other_zero], MemoryHidden, &[None, None]),
        ("zero-on-the-host", host, HIDING, &[zero], Host, &[Some(0)]),
        ("own-empty", own, CURRENT, &[], OwnPidNamespace, &[]),
        ("shared-idle", shared, CURRENT, &[], SharedPidNamespace, &[]),
        ("host-idle", host, CURRENT, &[], Host, &[]),
        ("not-available", host, CURRENT, &[hidden(41), one], Host, &[None, Some(1)]),
        ("none-available", host, CURRENT, &[hidden(41)], MemoryHidden, &[None]),
        ("own-foreign-id", own, CURRENT, &[large], ForeignPidNamespace, &[Some(7)]),
        ("shared-foreign-id", shared, CURRENT, &[large], ForeignPidNamespace, &[Some(7)]),
        ("id-zero", host, "535.54.03", &[one, process(0, 1)], Unsupported, &[]),
        ("id-beyond", host, "535.54.03", &[one, process(u32::MAX, 1)], Unsupported, &[]),
        ("size-beyond", host, "535.54.03", &[one, process(41, 81 * GIB)], Unsupported, &[]),
    ];
    for (name, namespace, version, compute, attribution, expected) in table {
        let sample = poll_processes(name, (namespace, version), compute);
        assert_eq!(sample.attribution, attribution, "{name}");
        let mut pids: Vec<u32> = compute.iter().map(|row| row.pid).collect();
        pids.sort_unstable();
        let used = expected.iter().map(|gib| gib.map(|gib| gib * GIB));
        let expected: Vec<_> = pids.into_iter().zip(used).collect();
        assert_eq!(processes(&sample), expected, "{name}");
        let is_foreign = attribution == ForeignPidNamespace;
        assert!(!is_foreign || sample.processes[0].own_pid.is_none(), "{name}");
    }
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
fn ids_of_a_driver_that_does_not_translate_are_never_taken_for_own_ones() {
    let compute = [process(41, GIB)];
    let old = (Namespace::Shared, "525.147.05");
    let sample = poll_processes("untranslated", old, &compute);
    assert_eq!(sample.attribution, Attribution::ForeignPidNamespace);
    assert_eq!(sample.processes[0].own_pid, None);
}

#[test]
fn process_that_no_longer_exists_is_told_where_the_machines_are_seen() {
    // No process of a machine has the greatest id.
    let compute = [process(41, GIB), process(1 << 22, 32 * GIB)];
    let gone = |name, namespace| {
        let sample = poll_processes(name, (namespace, CURRENT), &compute);
        sample.processes.iter().map(|process| process.is_gone).collect::<Vec<_>>()
    };
    assert_eq!(gone("gone", Namespace::Host), [false, true]);
    assert_eq!(gone("gone-elsewhere", Namespace::Shared), [false, false]);
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
fn sum_of_the_processes_may_exceed_what_the_device_uses() {
    let compute = [process(41, 20 * GIB), process(42, 20 * GIB)];
    let sample = poll_processes("sum", (Namespace::Host, CURRENT), &compute);
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
    let config = PollerConfig { processes_max: 3, ..fake.config(Namespace::Host, &[]) };
    let poll = Poller::new(config).poll();
    assert_eq!(processes(&poll.samples[0]), [(2, Some(40)), (4, Some(20)), (5, Some(30))]);
    assert_eq!(poll.processes_dropped, 2);
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
