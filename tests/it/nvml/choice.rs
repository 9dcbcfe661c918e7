//! Which devices are opened: the listed ones, or those that ranks push from.

use std::collections::BTreeSet;

use stepmem::input::nvml::config::{DeviceName, Devices};
use stepmem::input::nvml::cycle::RELEASED;
use stepmem_types::ids::GpuUuid;

use crate::rig::nvml::{FakeNvml, driver, gpu, instance, uuids};
use crate::rig::poll::{processes, sampled, unavailable};
use crate::rig::units::GIB;

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
fn device_is_closed_once_no_rank_pushes_from_it() {
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
