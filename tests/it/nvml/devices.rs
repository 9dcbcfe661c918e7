//! Devices in a poll: memory, description, MIG.

use stepmem::input::nvml::poller::DEVICES_MAX;
use stepmem_types::ids::GpuUuid;

use crate::rig::nvml::{FakeNvml, Order, driver, gpu, instance, process};
use crate::rig::poll::{bytes, processes, sampled, unavailable};
use crate::rig::units::GIB;

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
fn number_of_devices_is_bounded_before_any_is_opened() {
    let scenario = driver([gpu("GPU-a")]).device_count(u32::MAX);
    let fake = FakeNvml::new("device-count", &scenario);
    let poll = fake.host().poll();
    assert_eq!(sampled(&poll), ["GPU-a"]);
    assert_eq!(poll.devices_dropped, u64::from(u32::MAX - DEVICES_MAX));
    assert_eq!(fake.n_calls("nvmlDeviceGetHandleByIndex_v2"), 256);
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
fn mig_devices_of_one_gpu_instance_name_the_owner_of_their_memory() {
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
