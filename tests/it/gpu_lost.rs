//! GPU LOST: a finding about a device, which is neither a run nor a rank.

use serde_json::{Value, json};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::job::Job;
use crate::rig::nvml::{FakeNvml, driver, gpu};
use crate::rig::units::GIB;

const LOST: &str = "stepmem_diagnosis{uuid=\"GPU-b\",kind=\"GPU_LOST\"}";

fn findings(exporter: &Exporter) -> Vec<Value> {
    exporter.status()["findings"].as_array().unwrap().clone()
}

#[test]
fn lost_device_is_a_finding_until_it_answers_again() {
    let whole = driver([gpu("GPU-a"), gpu("GPU-b")]);
    let fake = FakeNvml::new("gpu-lost", &whole);
    let exporter = fake.serve(&["--nvml.interval", "20ms"]);
    exporter.await_metrics("both", |metrics| {
        metrics.keys().filter(|series| series.starts_with("stepmem_device_info")).count() == 2
    });
    assert_eq!(findings(&exporter), [json!(null); 0]);
    fake.set(&driver([gpu("GPU-a"), gpu("GPU-b").code(15)]));
    exporter.await_metrics("the loss", |metrics| metrics.get(LOST) == Some(&1.0));
    let [found] = &findings(&exporter)[..] else { panic!("{:?}", findings(&exporter)) };
    assert_eq!((&found["kind"], &found["status"]), (&json!("GPU_LOST"), &json!("GPU LOST")));
    assert_eq!((&found["severity"], &found["uuid"]), (&json!("critical"), &json!("GPU-b")));
    for key in ["run", "rank", "pid"] {
        assert_eq!(found.get(key), None, "a device has no {key}: {found}");
    }
    fake.set(&whole);
    exporter.await_metrics("the end of it", |metrics| !metrics.contains_key(LOST));
    assert_eq!(findings(&exporter), [json!(null); 0]);
}

#[test]
fn error_that_passes_is_not_a_lost_device() {
    let fake = FakeNvml::new("gpu-busy", &driver([gpu("GPU-a"), gpu("GPU-b")]));
    let exporter = fake.serve(&["--nvml.interval", "20ms"]);
    exporter.await_metrics("both", |metrics| {
        metrics.keys().filter(|series| series.starts_with("stepmem_device_info")).count() == 2
    });
    // 999 is an unknown error.
    fake.set(&driver([gpu("GPU-a"), gpu("GPU-b").code(999)]));
    exporter.await_metrics("the error", |metrics| {
        metrics.keys().any(|series| series.starts_with("stepmem_nvml_errors_total"))
    });
    assert_eq!(findings(&exporter), [json!(null); 0]);
}

#[test]
fn finding_about_a_device_is_lowered_by_an_acknowledgement() {
    let fake = FakeNvml::new("gpu-ack", &driver([gpu("GPU-a"), gpu("GPU-b")]));
    let exporter = fake.serve(&["--nvml.interval", "20ms"]);
    exporter.await_metrics("a device", |metrics| {
        metrics.keys().any(|series| series.starts_with("stepmem_device_info"))
    });
    fake.set(&driver([gpu("GPU-a"), gpu("GPU-b").code(15)]));
    exporter.await_metrics("the loss", |metrics| metrics.contains_key(LOST));
    let json = [("content-type", "application/json")];
    let ack = |uuid: &str, body: Value| {
        let path = format!("/v1/devices/{uuid}/ack");
        exporter.request("POST", &path, &json, body.to_string().as_bytes())
    };
    let words = |pid: Option<u32>| {
        let mut body =
            json!({"kind": "GPU_LOST", "for_seconds": 60, "reason": "being replaced"});
        if let Some(pid) = pid {
            body["pid"] = json!(pid);
        }
        body
    };
    let unknown = ack("GPU-z", words(None));
    assert_eq!(unknown.status, 404, "{}", unknown.body);
    let no_process = ack("GPU-b", words(Some(7)));
    assert_eq!(no_process.status, 404, "{}", no_process.body);
    assert_eq!(ack("GPU-b", words(None)).status, 200);
    let severity = LOST.replace("stepmem_diagnosis{", "stepmem_diagnosis_severity{");
    exporter.await_metrics("info", |metrics| metrics.get(&severity) == Some(&1.0));
    let status = exporter.status();
    let [held] = &status["acks"].as_array().unwrap()[..] else { panic!("{status}") };
    assert_eq!((&held["uuid"], &held["kind"]), (&json!("GPU-b"), &json!("GPU_LOST")));
    assert_eq!((held.get("run"), held.get("rank")), (None, None));
}

#[test]
fn device_without_memory_of_its_own_has_no_figure_of_it_rather_than_0() {
    let spark = gpu("GPU-a").without("memory").addressing(2);
    let fake = FakeNvml::new("gpu-unified", &driver([spark]));
    let exporter = fake.serve(&["--nvml.interval", "20ms"]);
    // The process sees no size of the device either.
    let job = Job::new(1, 3).device("GPU-a").capacity(0).live(|_, _| GIB);
    exporter.push(&job.records());
    exporter.await_metrics("the device", |metrics| {
        metrics.keys().any(|series| series.starts_with("stepmem_device_info"))
    });
    let metrics = exporter.scrape();
    let of_memory = |series: &&String| series.starts_with("stepmem_device_memory");
    assert_eq!(metrics.keys().find(of_memory), None);
    let status = exporter.status();
    assert_eq!(status["devices"][0]["memory"], Value::Null);
    let shown = stepmem(&["status", "--url", &format!("http://{}", exporter.web)], &[], b"");
    assert!(shown.out.contains("GPU-a") && !shown.out.contains(" 0 B"), "{}", shown.out);
}
