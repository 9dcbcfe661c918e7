//! Xid errors: counted once each, without disturbing the polls.

use crate::rig::device_metrics::{logged, up, used};
use crate::rig::nvml::{FakeNvml, Order, driver, gpu, instance};
use crate::rig::series::Metrics;
use crate::rig::wait::await_true;

fn xids(metrics: &Metrics, uuid: &str, xid: u64) -> Option<f64> {
    let series = format!("stepmem_device_xid_errors_total{{uuid=\"{uuid}\",xid=\"{xid}\"}}");
    metrics.get(&series).copied()
}

#[test]
fn xid_errors_are_counted_by_device_and_number() {
    let mig = [instance("MIG-x", 1, "1g.10gb")];
    let healthy = driver([gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c").mig(mig)]);
    let fake = FakeNvml::new("it-xid", &healthy);
    let exporter = fake.serve(&[]);
    exporter.await_metrics("the device", |metrics| used(metrics, "GPU-a").is_some());
    assert_eq!(xids(&exporter.scrape(), "GPU-b", 79), None);
    let mut events = vec![(1, 79), (1, 79), (0, 31)];
    fake.set(&healthy.clone().events(&events));
    exporter.await_metrics("the events", |metrics| {
        xids(metrics, "GPU-b", 79) == Some(2.0) && xids(metrics, "GPU-a", 31) == Some(1.0)
    });
    // The GPU that was lost leaves the watch; the others stay in it, those in MIG mode as a whole.
    let lost = healthy.clone().replace(1, gpu("GPU-b").code(15));
    fake.set(&lost.clone().events(&events));
    exporter.await_metrics("the loss", |metrics| used(metrics, "GPU-b").is_none());
    events.extend([(0, 31), (2, 13)]);
    fake.set(&lost.clone().events(&events));
    exporter.await_metrics("further events", |metrics| {
        xids(metrics, "GPU-a", 31) == Some(2.0) && xids(metrics, "GPU-c", 13) == Some(1.0)
    });
    assert_eq!(xids(&exporter.scrape(), "GPU-b", 79), Some(2.0));
    await_true("the log line", || exporter.logged("WARN", "xid error") == 5);
}

#[test]
fn lost_device_is_closed_although_events_are_waited_for() {
    let healthy = driver([gpu("GPU-a"), gpu("GPU-b")]);
    let fake = FakeNvml::new("it-closed", &healthy);
    let exporter = fake.serve(&[]);
    let both = |metrics: &Metrics| {
        used(metrics, "GPU-a").is_some() && used(metrics, "GPU-b").is_some()
    };
    exporter.await_metrics("both devices", both);
    await_true("the watch", || fake.n_calls("nvmlEventSetWait_v2") > 0);
    assert_eq!(fake.n_calls("closed"), 0);
    fake.set(&driver([gpu("GPU-a"), gpu("GPU-b").code(15)]));
    await_true("the end of every session", || fake.n_calls("closed") >= 2);
    fake.set(&healthy);
    exporter.await_metrics("both devices", both);
}

#[test]
fn driver_without_events_is_asked_for_them_once() {
    let silent = driver([gpu("GPU-a")]).without_events();
    let fake = FakeNvml::new("it-no-xid", &silent);
    let exporter = fake.serve(&[]);
    exporter.await_metrics("the device", |metrics| used(metrics, "GPU-a").is_some());
    let polls = || fake.n_calls("nvmlDeviceGetMemoryInfo_v2");
    await_true("the question", || fake.n_calls("nvmlDeviceRegisterEvents") == 1);
    let before = polls();
    await_true("further rounds", || polls() > before + 10);
    assert_eq!(fake.n_calls("nvmlDeviceRegisterEvents"), 1);
    assert_eq!(fake.n_calls("nvmlEventSetWait_v2"), 0);
    assert_eq!(logged(&exporter), (0, 0));
}

#[test]
fn hanging_events_do_not_delay_polls() {
    let healthy = driver([gpu("GPU-a")]);
    let hanging = healthy.clone().call("nvmlEventSetWait_v2", Order::Hang);
    let fake = FakeNvml::new("it-xid-hang", &hanging);
    let exporter = fake.serve(&[]);
    await_true("the wait", || fake.n_calls("nvmlEventSetWait_v2") == 1);
    let polls = || fake.n_calls("nvmlDeviceGetMemoryInfo_v2");
    let before = polls();
    await_true("further rounds", || polls() > before + 10);
    assert_eq!(up(&exporter.scrape()), Some(1.0));
    assert_eq!(fake.n_calls("nvmlEventSetWait_v2"), 1);
    assert_eq!(exporter.post_to("/v1/nvml/release", r#"{"for_seconds": 60}"#).status, 503);
}
