//! The memory of a training process on its device, as its own client reads it from NVML and pushes it: for exporters
//! whose NVML does not list that process.

use serde_json::{Value, json};

use crate::rig::exporter::Exporter;
use crate::rig::folder::text;
use crate::rig::kubelet::Kubelet;
use crate::rig::nvml::{FakeNvml, Order, driver, gpu, process};
use crate::rig::units::{GIB, MIB, gib};

const LISTED: &str =
    r#"stepmem_process_memory_used_bytes{uuid="GPU-a",pid="1",rank="3",run="llm"}"#;
const OUTSIDE: &str =
    r#"stepmem_memory_outside_allocator_bytes{run="llm",rank="3",uuid="GPU-a"}"#;

/// A record of a process that knows itself as process 1.
fn record(step: u64, more: &Value) -> Value {
    let mut record = json!({
        "run": "llm", "rank": 3, "step": step, "device": "GPU-a", "pid": 1,
        "allocated_bytes": GIB, "reserved_bytes": 2 * GIB,
        "total_bytes": 80 * GIB, "free_bytes": 50 * GIB,
    });
    record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    record
}

fn without_nvml() -> Exporter {
    Exporter::start(&[])
}

fn unknown(state: &str) -> String {
    format!(
        r#"stepmem_process_memory_unknown{{run="llm",rank="3",uuid="GPU-a",state="{state}"}}"#
    )
}

#[test]
fn pushed_memory_of_a_process_is_shown_and_judged_without_nvml() {
    let exporter = without_nvml();
    exporter.push(&[record(1, &json!({"process_used_bytes": 20 * GIB}))]);
    // The records between two readings leave the last one as it is.
    exporter.push(&[record(2, &json!({"reserved_bytes": 3 * GIB}))]);
    let metrics = exporter.scrape();
    assert_eq!(metrics[LISTED], gib(20.0));
    assert_eq!(metrics[OUTSIDE], gib(18.0));
    let is_found = |series: &String| {
        series.starts_with("stepmem_diagnosis_severity{")
            && series.contains("OUTSIDE_ALLOCATOR")
    };
    exporter.await_metrics("the finding", |metrics| metrics.keys().any(is_found));
}

#[test]
fn memory_that_grows_outside_the_allocator_is_found_from_pushes_alone() {
    let exporter = without_nvml();
    let began = f64::from(1_764_000_000);
    let grown = |idx: u64| {
        let used = 6 * GIB + idx / 15 * 100 * MIB;
        let reading = json!({"process_used_bytes": used});
        let more = if idx.is_multiple_of(15) { reading } else { json!({}) };
        let mut record = record(idx + 1, &more);
        record["time"] = json!(began + f64::from(u32::try_from(idx).unwrap()));
        record["free_bytes"] = json!(80 * GIB - used);
        record
    };
    exporter.push(&(0..6000).map(grown).collect::<Vec<_>>());
    let findings = exporter.status()["findings"].clone();
    let of_growth = |finding: &&Value| finding["evidence"]["signal"] == "outside_allocator";
    let finding = findings.as_array().unwrap().iter().find(of_growth);
    assert_eq!(finding.map(|it| &it["kind"]), Some(&json!("OUTSIDE_ALLOCATOR")), "{findings}");
}

#[test]
fn reason_for_which_a_process_does_not_know_its_memory_is_shown() {
    let exporter = without_nvml();
    exporter.push(&[record(1, &json!({"process_used_bytes": 20 * GIB}))]);
    for (step, state) in [
        (2, "foreign_pid_namespace"),
        (3, "memory_hidden"),
        (4, "unsupported"),
        (5, "no_answer"),
    ] {
        exporter.push(&[record(step, &json!({"process_used_state": state}))]);
        let metrics = exporter.scrape();
        assert_eq!(metrics[&unknown(state)], 1.0);
        assert!(!metrics.contains_key(LISTED) && !metrics.contains_key(OUTSIDE), "{state}");
        let shown = exporter.asked(&["status"]).out;
        assert!(shown.contains("process is unknown: NVML "), "{shown}");
        assert!(shown.contains(&format!("({state})")), "{shown}");
    }
    // A process that uses the device holds some of it: 0 is what a driver writes that hides it.
    exporter.push(&[record(6, &json!({"process_used_bytes": 0}))]);
    let metrics = exporter.scrape();
    assert_eq!(metrics[&unknown("memory_hidden")], 1.0);
    assert!(!metrics.contains_key(LISTED));
    let refused = exporter.post(record(7, &json!({"process_used_state": "shy"})).to_string());
    assert_eq!(refused.status, 400);
    assert!(
        refused.body.contains("process_used_state: \\\"shy\\\" is not one of"),
        "{}",
        refused.body
    );
}

#[test]
fn new_process_of_a_rank_does_not_inherit_the_memory_of_the_last() {
    let exporter = without_nvml();
    exporter.push(&[record(9, &json!({"process_used_bytes": 20 * GIB}))]);
    exporter.push(&[record(1, &json!({"attempt": 1}))]);
    let metrics = exporter.scrape();
    assert!(!metrics.contains_key(LISTED) && !metrics.contains_key(OUTSIDE), "{metrics:?}");
}

#[test]
fn process_that_has_ended_holds_no_memory() {
    let exporter = without_nvml();
    exporter.push(&[record(1, &json!({"process_used_bytes": 20 * GIB}))]);
    assert_eq!(exporter.scrape()[LISTED], gib(20.0));
    let end = exporter.post_to("/v1/runs/llm/end", r#"{"rank": 3, "outcome": "completed"}"#);
    assert_eq!(end.status, 200);
    assert!(!exporter.scrape().contains_key(LISTED));
}

#[test]
fn newer_reading_of_a_process_counts_whether_the_exporter_made_it_or_the_client() {
    let pid = std::process::id();
    let listing = |used| driver([gpu("GPU-a").compute(&[process(pid, used)])]);
    let fake = FakeNvml::new("own-listed", &listing(12 * GIB));
    let exporter = fake.serve(&["--nvml.interval", "1h"]);
    let listed = format!(
        r#"stepmem_process_memory_used_bytes{{uuid="GPU-a",pid="{pid}",rank="3",run="llm"}}"#
    );
    let push = |step, more: Value| {
        let mut record = record(step, &more);
        record["pid"] = json!(pid);
        exporter.push(&[record]);
    };
    push(1, json!({}));
    exporter.await_metrics("the match", |metrics| metrics.get(&listed) == Some(&gib(12.0)));
    // It was read before the process had taken all that it needs.
    push(2, json!({"process_used_bytes": 20 * GIB}));
    assert_eq!(exporter.metric(&listed), Some(gib(20.0)));
    push(3, json!({"process_used_bytes": 20 * GIB}));
    let metrics = exporter.scrape();
    assert_eq!((metrics[&listed], metrics[OUTSIDE]), (gib(20.0), gib(18.0)));
    let is_listed = |series: &&String| series.starts_with("stepmem_process_memory_used_bytes{");
    assert_eq!(metrics.keys().filter(is_listed).count(), 1);
    // The exporter's own readings go on where the client has none.
    let fake = FakeNvml::new("own-listed-again", &listing(12 * GIB));
    let exporter = fake.serve(&["--nvml.interval", "20ms"]);
    let mut record = record(1, &json!({"process_used_bytes": 20 * GIB}));
    record["pid"] = json!(pid);
    exporter.push(&[record]);
    exporter.await_metrics("a reading", |metrics| metrics.get(&listed) == Some(&gib(12.0)));
    exporter.await_metrics("its median", |metrics| metrics.get(OUTSIDE) == Some(&gib(10.0)));
}

#[test]
fn exporter_whose_nvml_lists_nothing_judges_by_the_pushed_memory() {
    let fake = FakeNvml::new("own-hidden", &driver([gpu("GPU-a").compute(&[])]));
    let exporter = fake.serve(&[]);
    exporter.push(&[record(1, &json!({"process_used_bytes": 20 * GIB}))]);
    let used = r#"stepmem_device_memory_used_bytes{uuid="GPU-a"}"#;
    exporter.await_metrics("the device", |metrics| metrics.contains_key(used));
    exporter.push(&[record(2, &json!({"process_used_bytes": 20 * GIB}))]);
    let metrics = exporter.scrape();
    assert_eq!((metrics[LISTED], metrics[OUTSIDE]), (gib(20.0), gib(18.0)));
    let other = r#"stepmem_process_memory_other_bytes{uuid="GPU-a"}"#;
    assert!(!metrics.contains_key(other));
}

const ESTIMATED: &str =
    r#"stepmem_process_memory_estimated_bytes{run="llm",rank="3",uuid="GPU-a"}"#;

/// A kubelet that gave these devices, each to a container of its own.
fn kubelet(name: &str, devices: &[&str]) -> Kubelet {
    let kubelet = Kubelet::start(name);
    let given = devices.iter().enumerate().map(|(idx, device)| {
        let devices = json!([{"resource_name": "nvidia.com/gpu", "device_ids": [device]}]);
        let container = json!({"name": "trainer", "devices": devices});
        json!({"name": format!("llm-{idx}"), "namespace": "ml", "containers": [container]})
    });
    kubelet.answer(&json!({"pod_resources": given.collect::<Vec<_>>()}).to_string());
    kubelet
}

#[test]
fn memory_of_a_device_that_one_container_has_alone_is_an_estimate_of_its_process() {
    let kubelet = kubelet("own-estimate", &["GPU-a"]);
    let fake = FakeNvml::new("own-estimate", &driver([gpu("GPU-a").compute(&[])]));
    let socket = text(&kubelet.socket());
    let exporter = fake.serve(&["--kubelet.socket", &socket, "--nvml.interval", "20ms"]);
    exporter.push(&[record(1, &json!({"process_used_state": "foreign_pid_namespace"}))]);
    exporter.await_metrics("the estimate", |metrics| metrics.contains_key(ESTIMATED));
    let finding = |status: &Value| status["findings"][0].clone();
    exporter.await_metrics("the finding", |_| finding(&exporter.status()).is_object());
    let metrics = exporter.scrape();
    assert_eq!(metrics[ESTIMATED], gib(30.0));
    assert!(!metrics.contains_key(LISTED) && !metrics.contains_key(OUTSIDE), "{metrics:?}");
    let finding = finding(&exporter.status());
    assert_eq!(
        (&finding["kind"], &finding["severity"], &finding["evidence"]["is_estimated"]),
        (&json!("OUTSIDE_ALLOCATOR"), &json!("info"), &json!(true))
    );
    let words = finding["sentence"].as_str().unwrap();
    assert!(words.ends_with("(estimated from all that is in use there)"), "{words}");
    // What the client knows is no estimate.
    exporter.push(&[record(2, &json!({"process_used_bytes": 20 * GIB}))]);
    exporter.await_metrics("the reading", |metrics| metrics.contains_key(OUTSIDE));
    assert_eq!(exporter.metric(ESTIMATED), None);
}

#[test]
fn memory_of_a_device_that_may_have_other_users_is_no_estimate() {
    let whole = || gpu("GPU-a").compute(&[]);
    let without_v2 = Order::Code(25);
    let other_rank = record(1, &json!({"rank": 4}));
    for (name, devices, gpu, others) in [
        ("a share", vec!["GPU-a::0"], whole(), vec![]),
        ("two containers", vec!["GPU-a", "GPU-a"], whole(), vec![]),
        ("another device", vec!["GPU-b"], whole(), vec![]),
        ("two ranks", vec!["GPU-a"], whole(), vec![other_rank]),
        ("v1", vec!["GPU-a"], whole().call("nvmlDeviceGetMemoryInfo_v2", without_v2), vec![]),
    ] {
        let kubelet = kubelet(&format!("own-not-{name}").replace(' ', "-"), &devices);
        let fake = FakeNvml::new("own-not", &driver([gpu]));
        let socket = text(&kubelet.socket());
        let exporter = fake.serve(&["--kubelet.socket", &socket, "--nvml.interval", "20ms"]);
        exporter.push(&others);
        exporter.push(&[record(1, &json!({"process_used_state": "memory_hidden"}))]);
        exporter.await_metrics("device and pods", |metrics| {
            let has = |name: &str| metrics.keys().any(|series| series.starts_with(name));
            has("stepmem_device_pod_info{") && has("stepmem_device_memory_used_bytes{")
        });
        assert_eq!(exporter.metric(ESTIMATED), None, "{name}");
        assert_eq!(exporter.status()["findings"], json!([]), "{name}");
    }
}
