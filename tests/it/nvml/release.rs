//! When devices are open: while ranks push from them, and not while an operator wants them released.

use std::process;

use serde_json::json;

use crate::rig::device_metrics::{errors, has_device, up, used};
use crate::rig::exporter::Exporter;
use crate::rig::folder::Folder;
use crate::rig::nvml::{FakeNvml, HANGS_AFTER, Order, driver, gpu, process};
use crate::rig::series::Metrics;
use crate::rig::units::GIB;
use crate::rig::wait::await_true;

fn device_info(metrics: &Metrics) -> Vec<String> {
    let uuid = |series: &String| {
        let rest = series.strip_prefix("stepmem_device_info{uuid=\"")?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    metrics.keys().filter_map(uuid).collect()
}

fn push_from(exporter: &Exporter, rank: u32, device: &str) {
    let push = json!({ "rank": rank, "step": 1, "device": device, "allocated_bytes": GIB });
    assert_eq!(exporter.post(push.to_string()).status, 200);
}

#[test]
fn only_devices_that_ranks_push_from_are_opened() {
    // A process that does not push does not keep a device open.
    let compute = [process(process::id(), 5 * GIB)];
    let busy = gpu("GPU-b").compute(&compute);
    let fake = FakeNvml::new("it-pushed", &driver([gpu("GPU-a"), busy, gpu("GPU-c")]));
    let exporter = fake.serve_with(&[], &[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]);
    let collected = "stepmem_collector_success{collector=\"nvml\"}";
    exporter.await_metrics("a round", |metrics| metrics.get(collected) == Some(&1.0));
    assert_eq!(fake.n_calls("nvmlInit_v2"), 0);
    assert_eq!(up(&exporter.scrape()), None);
    push_from(&exporter, 0, "GPU-b");
    push_from(&exporter, 1, "cpu");
    exporter.await_metrics("the device", |metrics| up(metrics) == Some(1.0));
    assert_eq!(device_info(&exporter.scrape()), ["GPU-b"]);
    push_from(&exporter, 2, "GPU-c");
    exporter.await_metrics("both", |metrics| device_info(metrics) == ["GPU-b", "GPU-c"]);
    assert_eq!(fake.n_calls("nvmlDeviceGetHandleByIndex_v2"), 0);
    for rank in 0..3 {
        let end = format!(r#"{{"rank":{rank},"outcome":"completed"}}"#);
        assert_eq!(exporter.post_to("/v1/runs/default/end", end).status, 200);
    }
    exporter.await_metrics("the end", |metrics| up(metrics).is_none());
    assert!(!has_device(&exporter.scrape()));
    await_true("everything closed", || {
        fake.n_calls("nvmlShutdown") == fake.n_calls("nvmlInit_v2")
    });
}

#[test]
fn devices_are_released_for_a_time_on_request() {
    let healthy = driver([gpu("GPU-a")]);
    let fake = FakeNvml::new("it-release", &healthy);
    let exporter = fake.serve(&HANGS_AFTER);
    let is_there = |metrics: &Metrics| used(metrics, "GPU-a").is_some();
    exporter.await_metrics("the device", is_there);
    await_true("the watch", || fake.n_calls("nvmlEventSetWait_v2") > 0);
    for body in ["", "{}", r#"{"for_seconds": -1}"#, r#"{"for_seconds": 86401}"#] {
        assert_eq!(exporter.post_to("/v1/nvml/release", body).status, 400, "{body}");
    }
    assert_eq!(exporter.post_to("/v1/nvml/release", r#"{"for_seconds": 3600}"#).status, 200);
    // It was answered when nothing was open any more: neither for polls nor for events.
    assert_eq!(fake.n_calls("nvmlShutdown"), fake.n_calls("nvmlInit_v2"));
    let metrics = exporter.scrape();
    assert_eq!(up(&metrics), None);
    assert!(!has_device(&metrics), "{metrics:#?}");
    let n_inits = fake.n_calls("nvmlInit_v2");
    assert_eq!(exporter.post_to("/v1/nvml/release", r#"{"for_seconds": 60}"#).status, 200);
    assert_eq!(fake.n_calls("nvmlInit_v2"), n_inits);
    assert_eq!(exporter.post_to("/v1/nvml/release", r#"{"for_seconds": 0}"#).status, 200);
    exporter.await_metrics("the device", is_there);
    assert_eq!(exporter.post_to("/v1/nvml/release", r#"{"for_seconds": 1}"#).status, 200);
    exporter.await_metrics("the device by itself", is_there);

    // A call that hangs cannot be ended, and the answer names it.
    fake.set(&healthy.clone().call("nvmlDeviceGetMemoryInfo_v2", Order::Hang));
    exporter.await_metrics("the hang", |metrics| errors(metrics, "timeout") >= 1.0);
    let answer = exporter.post_to("/v1/nvml/release", r#"{"for_seconds": 3600}"#);
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert!(answer.body.contains("hangs"), "{}", answer.body);
    fake.set(&healthy);
    exporter.await_metrics("the device", is_there);
}

#[test]
fn release_needs_the_token_and_no_nvml() {
    let folder = Folder::new("release-token");
    let token = folder.write("token", "secret");
    let exporter = Exporter::start(&["--push.token-file", &token]);
    let body = r#"{"for_seconds": 60}"#;
    assert_eq!(exporter.post_to("/v1/nvml/release", body).status, 401);
    let headers = [("content-type", "application/json"), ("authorization", "Bearer secret")];
    let answer = exporter.request("POST", "/v1/nvml/release", &headers, body.as_bytes());
    assert_eq!(answer.status, 200);
}
