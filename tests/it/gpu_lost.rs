//! GPU LOST: a finding about a device, which is neither a run nor a rank.

use serde_json::{Value, json};

use crate::rig::exporter::Exporter;
use crate::rig::job::Job;
use crate::rig::json::has;
use crate::rig::nvml::{FakeNvml, Order, driver, gpu};
use crate::rig::units::GIB;
use crate::rig::wait::await_true;

const LOST: &str = "stepmem_diagnosis_severity{uuid=\"GPU-b\",kind=\"GPU_LOST\"}";

/// A driver whose second GPU has a state of its own, and an exporter that has seen both.
fn start(name: &str) -> (FakeNvml, Exporter) {
    let fake = FakeNvml::new(name, &driver([gpu("GPU-a"), gpu("GPU-b")]));
    let exporter = fake.serve(&["--nvml.interval", "20ms", "--nvml.timeout", "1s"]);
    exporter.await_metrics("both", |metrics| {
        metrics.keys().filter(|series| series.starts_with("stepmem_device_info")).count() == 2
    });
    (fake, exporter)
}

#[test]
fn lost_device_is_a_finding_until_it_answers_again() {
    let (fake, exporter) = start("gpu-lost");
    assert_eq!(exporter.findings(), [json!(null); 0]);
    fake.set(&driver([gpu("GPU-a"), gpu("GPU-b").code(15)]));
    exporter.await_metrics("the loss", |metrics| metrics.get(LOST) == Some(&3.0));
    let found = exporter.findings();
    let [found] = &found[..] else { panic!("{found:?}") };
    has(
        found,
        &json!({"kind": "GPU_LOST", "status": "GPU LOST", "severity": "critical",
                       "uuid": "GPU-b"}),
    );
    for key in ["run", "rank", "pid"] {
        assert_eq!(found.get(key), None, "a device has no {key}: {found}");
    }
    fake.set(&driver([gpu("GPU-a"), gpu("GPU-b")]));
    exporter.await_metrics("the end of it", |metrics| !metrics.contains_key(LOST));
    assert_eq!(exporter.findings(), [json!(null); 0]);
}

#[test]
fn device_that_was_lost_before_the_exporter_began_is_a_finding_by_its_index() {
    let fake = FakeNvml::new("gpu-lost-before", &driver([gpu("GPU-a"), gpu("GPU-b").code(15)]));
    let exporter = fake.serve(&["--nvml.interval", "20ms"]);
    let lost = LOST.replace("GPU-b", "index-1");
    exporter.await_metrics("the loss", |metrics| metrics.get(&lost) == Some(&3.0));
    let found = exporter.findings();
    let [found] = &found[..] else { panic!("{found:?}") };
    has(found, &json!({"kind": "GPU_LOST", "severity": "critical", "uuid": "index-1"}));
    assert_eq!(
        exporter.status()["gpu"]["failing"],
        json!([{"uuid": "index-1", "code": "gpu_is_lost"}])
    );
    let shown = exporter.asked(&["status"]).out;
    assert!(shown.contains("GPU LOST (critical), device index-1"), "{shown}");
}

#[test]
fn status_tells_that_a_device_or_nvml_does_not_answer() {
    let (fake, exporter) = start("gpu-silent");
    fake.set(&driver([gpu("GPU-a"), gpu("GPU-b").code(999)]));
    let told =
        |words: &str| await_true(words, || exporter.asked(&["status"]).out.contains(words));
    told("Device GPU-b answers only with an error (unknown): what it holds is unknown.");
    let both = driver([gpu("GPU-a"), gpu("GPU-b")]);
    fake.set(&both.clone().call("nvmlDeviceGetMemoryInfo_v2", Order::Hang));
    told("NVML does not answer (timeout); it last did ");
    fake.set(&both);
    await_true("an answer", || !exporter.asked(&["status"]).out.contains("answer"));
}

#[test]
fn error_that_passes_is_not_a_lost_device() {
    let (fake, exporter) = start("gpu-busy");
    // 999 is an unknown error.
    fake.set(&driver([gpu("GPU-a"), gpu("GPU-b").code(999)]));
    exporter.await_metrics("the error", |metrics| {
        let is_error = |series: &str| series.starts_with("stepmem_nvml_errors_total");
        metrics.iter().any(|(series, count)| is_error(series) && *count > 0.0)
    });
    // What alerts read is counted from 0.
    for code in ["gpu_is_lost", "gpu_not_found", "reset_required"] {
        let series = format!("stepmem_nvml_errors_total{{code=\"{code}\"}}");
        assert_eq!(exporter.metric(&series), Some(0.0), "{code}");
    }
    assert_eq!(exporter.findings(), [json!(null); 0]);
}

#[test]
fn finding_about_a_device_is_lowered_by_an_acknowledgment() {
    let (fake, exporter) = start("gpu-ack");
    fake.set(&driver([gpu("GPU-a"), gpu("GPU-b").code(15)]));
    exporter.await_metrics("the loss", |metrics| metrics.contains_key(LOST));
    let words = json!({"kind": "GPU_LOST", "for_seconds": 60, "reason": "being replaced"});
    let mut of_process = words.clone();
    of_process["pid"] = json!(7);
    for (uuid, body, expected) in
        [("GPU-z", &words, 404), ("GPU-b", &of_process, 404), ("GPU-b", &words, 200)]
    {
        let answer = exporter.post_to(&format!("/v1/devices/{uuid}/ack"), body.to_string());
        assert_eq!(answer.status, expected, "{uuid}: {}", answer.body);
    }
    exporter.await_metrics("info", |metrics| metrics.get(LOST) == Some(&1.0));
    let status = exporter.status();
    let [held] = &status["acks"].as_array().unwrap()[..] else { panic!("{status}") };
    has(held, &json!({"uuid": "GPU-b", "kind": "GPU_LOST"}));
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
    let shown = exporter.asked(&["status"]).out;
    assert!(shown.contains("GPU-a") && !shown.contains(" 0 B"), "{shown}");
}
