//! A sidecar that nobody pushes to: it opens the devices that its pod was given, where that is known, and says so where
//! it is not.

use std::process;

use serde_json::json;

use crate::rig::exporter::Exporter;
use crate::rig::folder::text;
use crate::rig::json::has;
use crate::rig::kubelet::Kubelet;
use crate::rig::nvml::{FakeNvml, driver, gpu, process};
use crate::rig::series::Metrics;
use crate::rig::units::GIB;
use crate::rig::wait::await_true;

const POD: (&str, &str) = ("KUBERNETES_SERVICE_HOST", "10.0.0.1");
const SOON: [&str; 2] = ["--nvml.open-given-after", "100ms"];

fn sidecar(fake: &FakeNvml, visible: Option<&str>, arguments: &[&str]) -> Exporter {
    let mut variables = vec![POD];
    variables.extend(visible.map(|value| ("NVIDIA_VISIBLE_DEVICES", value)));
    fake.serve_with(arguments, &variables)
}

fn is_read(metrics: &Metrics, uuid: &str) -> bool {
    metrics.contains_key(&format!("stepmem_device_memory_used_bytes{{uuid=\"{uuid}\"}}"))
}

#[test]
fn devices_that_the_pod_was_given_are_opened_once_nobody_pushes() {
    for (name, visible, expected) in [
        ("uuids", "GPU-b", [false, true]),
        ("both", "GPU-a,GPU-b", [true, true]),
        ("claim", "void", [true, true]),
    ] {
        let fake =
            FakeNvml::new(&format!("given-{name}"), &driver([gpu("GPU-a"), gpu("GPU-b")]));
        let exporter = sidecar(&fake, Some(visible), &SOON);
        exporter.await_metrics("the given device", |metrics| is_read(metrics, "GPU-b"));
        let metrics = exporter.scrape();
        assert_eq!(["GPU-a", "GPU-b"].map(|uuid| is_read(&metrics, uuid)), expected, "{name}");
        assert_eq!(exporter.status()["exporter"].get("devices_hint"), None, "{name}");

        // From the first push on, the devices of the ranks alone are open.
        let record = json!({"rank": 0, "step": 1, "device": "GPU-a", "allocated_bytes": GIB});
        exporter.push(&[record]);
        exporter.await_metrics("the pushed device alone", |metrics| {
            is_read(metrics, "GPU-a") && !is_read(metrics, "GPU-b")
        });
    }
}

#[test]
fn unknown_devices_are_not_opened_and_page_and_log_say_what_to_set() {
    for (name, visible) in [("all", Some("all")), ("unset", None), ("index", Some("0"))] {
        let fake = FakeNvml::new(&format!("given-{name}"), &driver([gpu("GPU-a")]));
        let exporter = sidecar(&fake, visible, &SOON);
        let hint = || exporter.status()["exporter"]["devices_hint"].clone();
        await_true("the hint", || hint().is_string());
        let said = hint().as_str().unwrap().to_owned();
        assert!(said.contains("set --nvml.devices"), "{said}");
        assert_eq!(said.contains("NVIDIA_VISIBLE_DEVICES=all"), name == "all", "{said}");
        let n_logged = || exporter.logged("INFO", "no device is opened: ");
        await_true("the log line", || n_logged() > 0);
        assert_eq!(n_logged(), 1, "{name}");
        assert_eq!(fake.n_calls("nvmlInit_v2"), 0, "{name}");

        exporter
            .push(&[json!({"rank": 0, "step": 1, "device": "GPU-a", "allocated_bytes": GIB})]);
        exporter.await_metrics("the pushed device", |metrics| is_read(metrics, "GPU-a"));
        await_true("the hint goes", || hint().is_null());
    }
}

/// The kubelet's answer: the devices of each pod.
fn assigned(pods: &[(&str, &str, &[&str])]) -> String {
    let pods = pods.iter().map(|(namespace, name, uuids)| {
        let devices = json!([{"resourceName": "nvidia.com/gpu", "deviceIds": uuids}]);
        let containers = json!([{"name": "pytorch", "devices": devices}]);
        json!({"namespace": namespace, "name": name, "containers": containers})
    });
    json!({"podResources": pods.collect::<Vec<_>>()}).to_string()
}

#[test]
fn kubelet_lists_the_devices_of_a_sidecars_own_pod() {
    let kubelet = Kubelet::start("given-kubelet");
    let fake = FakeNvml::new(
        "given-kubelet-nvml",
        &driver([gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c")]),
    );
    let socket = text(&kubelet.socket());
    let own = ["--kubelet.socket", &socket, "--kubelet.pod", "team/train-0"];
    let exporter = sidecar(&fake, Some("all"), &[&SOON[..], &own].concat());
    let says = |part: &str| {
        let hint = exporter.status()["exporter"]["devices_hint"].clone();
        hint.as_str().is_some_and(|hint| hint.contains(part))
    };
    await_true("the hint while the kubelet is starting", || says("has not answered"));
    kubelet
        .answer(&assigned(&[("team", "train-1", &["GPU-a"]), ("else", "train-0", &["GPU-c"])]));
    await_true("the hint while the pod has no device", || says("lists none for this pod"));
    assert_eq!(fake.n_calls("nvmlInit_v2"), 0);

    kubelet.answer(&assigned(&[
        ("team", "train-1", &["GPU-a"]),
        ("team", "train-0", &["GPU-b"]),
        ("else", "train-0", &["GPU-c"]),
    ]));
    exporter.await_metrics("the pod's device", |metrics| is_read(metrics, "GPU-b"));
    await_true("the hint goes", || exporter.status()["exporter"]["devices_hint"].is_null());
    let metrics = exporter.scrape();
    assert_eq!(["GPU-a", "GPU-c"].map(|uuid| is_read(&metrics, uuid)), [false, false]);
    let pods: Vec<&String> = metrics
        .keys()
        .filter(|series| series.starts_with("stepmem_device_pod_info{"))
        .collect();
    assert_eq!(pods.len(), 1, "other pods' devices are not this pod's business: {pods:?}");
    assert!(pods[0].contains("pod_name=\"train-0\"") && pods[0].contains("GPU-b"), "{pods:?}");

    // A container keeps its devices while the kubelet restarts.
    kubelet.fall_silent();
    exporter.await_metrics("the silence", |metrics| {
        metrics.get(r#"stepmem_collector_success{collector="kubelet"}"#) == Some(&0.0)
    });
    assert!(is_read(&exporter.scrape(), "GPU-b"));

    exporter.push(&[json!({"rank": 0, "step": 1, "device": "GPU-a", "allocated_bytes": GIB})]);
    exporter.await_metrics("the pushed device alone", |metrics| {
        is_read(metrics, "GPU-a") && !is_read(metrics, "GPU-b")
    });
}

#[test]
fn choice_of_devices_is_final() {
    let fake = FakeNvml::new("given-not", &driver([gpu("GPU-a")]));
    let chosen = [&SOON[..], &["--nvml.devices", "pushed"]].concat();
    let exporter = sidecar(&fake, Some("GPU-a"), &chosen);
    exporter.push(&[json!({"rank": 0, "step": 1, "device": "cpu", "allocated_bytes": GIB})]);
    exporter.await_metrics("rounds of polls", |metrics| {
        metrics.contains_key(r#"stepmem_collector_success{collector="nvml"}"#)
    });
    assert!(exporter.status()["exporter"].get("devices_hint").is_none());
    assert_eq!(fake.n_calls("nvmlInit_v2"), 0);
}

#[test]
fn names_stand_beside_process_ids_unless_they_are_hidden() {
    let pid = process::id();
    let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
    let scenario = driver([gpu("GPU-a").compute(&[process(pid, 10 * GIB)])]);
    for (name, arguments, expected) in [
        ("shown", &[][..], json!(comm.trim())),
        ("hidden", &["--nvml.no-process-names"][..], serde_json::Value::Null),
    ] {
        let fake = FakeNvml::new(&format!("names-{name}"), &scenario);
        let exporter = fake.serve(arguments);
        exporter.await_metrics("the device", |metrics| is_read(metrics, "GPU-a"));
        let process = &exporter.status()["devices"][0]["processes"][0];
        has(process, &json!({"pid": pid, "name": expected}));
        let named = format!("comm=\"{}\"", comm.trim());
        let is_named = |series: &String| {
            series.starts_with("stepmem_process_info{") && series.contains(&named)
        };
        assert_eq!(exporter.scrape().keys().any(is_named), name == "shown");
    }
}
