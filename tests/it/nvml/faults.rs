//! The exporter while NVML fails: scrapes and pushes go on, an unknown value is absent, and the reason is a metric and one
//! line of the log.

use std::process;
use std::time::Instant;

use serde_json::json;

use crate::rig::device_metrics::{attributed, errors, has_device, logged, up, used};
use crate::rig::exporter::Exporter;
use crate::rig::folder::Folder;
use crate::rig::job::record;
use crate::rig::nvml::{FakeNvml, HANGS_AFTER, Order, driver, gpu, process};
use crate::rig::series::Metrics;
use crate::rig::units::GIB;
use crate::rig::wait::{DEADLINE, await_true};

/// Awaits that NVML fails with this code and goes on failing, scraping and pushing at least 50 times; checks that each
/// is answered, that the devices are gone, and that the log says it once.
fn check_down(exporter: &Exporter, code: &str, times: f64) {
    let began = Instant::now();
    let mut n_scrapes = 0_u32;
    loop {
        let metrics = exporter.scrape();
        n_scrapes += 1;
        let answer = exporter.post(record(0, n_scrapes.into(), 1));
        assert_eq!(answer.status, 200, "{}", answer.body);
        let is_down = errors(&metrics, code) >= times && up(&metrics) == Some(0.0);
        if is_down && !has_device(&metrics) && n_scrapes >= 50 {
            break;
        }
        assert!(began.elapsed() < DEADLINE, "{code} did not come: {metrics:#?}");
    }
    assert_eq!(exporter.metric("stepmem_collector_success{collector=\"nvml\"}"), Some(0.0));
    let level = if code == "library_missing" { "INFO" } else { "WARN" };
    await_true("the log line", || exporter.logged(level, "NVML: ") == 1);
    assert_eq!(logged(exporter).1, 0);
    let steps = r#"stepmem_rank_step{run="default",rank="0",uuid=""}"#;
    assert_eq!(exporter.metric(steps), Some(f64::from(n_scrapes)));
}

fn check_recovered(exporter: &Exporter, uuid: &str) {
    exporter.await_metrics("the device", |metrics| {
        up(metrics) == Some(1.0) && used(metrics, uuid).is_some()
    });
    await_true("the log line", || logged(exporter).1 == 1);
    assert_eq!(logged(exporter), (1, 1), "{:?}", exporter.log());
}

/// Stops the exporter, and checks that all it ever warned of was this one thing.
fn check_warned_once(exporter: Exporter) {
    exporter.signal("TERM");
    let (status, log) = exporter.wait();
    assert!(status.success());
    assert_eq!(log.iter().filter(|entry| entry["level"] == "WARN").count(), 1, "{log:?}");
}

#[test]
fn missing_library_is_a_normal_state() {
    let folder = Folder::new("no-library");
    let library = folder.write("libnvidia-ml.so.1", "");
    let exporter = Exporter::start_command(
        "serve",
        &["--nvml.library", &library, "--nvml.interval", "50ms"],
        &[],
    );
    check_down(&exporter, "library_missing", 2.0);
    let log = exporter.log();
    let logged = log.iter().find(|entry| entry["fields"]["code"] == "library_missing").unwrap();
    assert!(logged["fields"]["message"].as_str().unwrap().contains(&library));
    exporter.signal("TERM");
    let (status, log) = exporter.wait();
    assert!(status.success());
    assert_eq!(log.iter().filter(|entry| entry["level"] == "WARN").count(), 0, "{log:?}");
}

#[test]
fn failing_init_is_logged_once_and_retried() {
    let healthy = driver([gpu("GPU-a")]);
    let fake = FakeNvml::new("it-init", &healthy.clone().call("nvmlInit_v2", Order::Code(9)));
    let exporter = fake.serve(&[]);
    check_down(&exporter, "driver_not_loaded", 2.0);
    fake.set(&healthy);
    check_recovered(&exporter, "GPU-a");
}

#[test]
fn version_mismatch_is_logged_with_the_restart_it_needs() {
    let healthy = driver([gpu("GPU-a")]);
    let fake = FakeNvml::new("it-18", &healthy.clone().call("nvmlInit_v2", Order::Code(18)));
    let exporter = fake.serve(&[]);
    check_down(&exporter, "lib_rm_version_mismatch", 2.0);
    assert_eq!(exporter.logged("WARN", "restart the container"), 1);
    check_warned_once(exporter);
}

#[test]
fn hanging_call_delays_neither_scrapes_nor_pushes() {
    let healthy = driver([gpu("GPU-a")]);
    let fake = FakeNvml::new("it-hang", &healthy);
    let exporter = fake.serve(&HANGS_AFTER);
    exporter.await_metrics("the device", |metrics| used(metrics, "GPU-a").is_some());
    assert_eq!(exporter.metric("stepmem_collector_success{collector=\"nvml\"}"), Some(1.0));
    fake.set(&healthy.clone().call("nvmlDeviceGetMemoryInfo_v2", Order::Hang));
    check_down(&exporter, "timeout", 1.0);
    let before = exporter.metric("stepmem_nvml_last_success_timestamp_seconds").unwrap();
    fake.set(&healthy);
    check_recovered(&exporter, "GPU-a");
    let after = exporter.metric("stepmem_nvml_last_success_timestamp_seconds").unwrap();
    assert!(after > before, "{after} is not after {before}");
}

#[test]
fn exporter_starts_and_stops_while_the_first_call_hangs() {
    let healthy = driver([gpu("GPU-a")]);
    let fake = FakeNvml::new("it-stuck", &healthy.clone().call("nvmlInit_v2", Order::Hang));
    let exporter = fake.serve(&HANGS_AFTER);
    check_down(&exporter, "timeout", 1.0);
    // The call still hangs when it has ended.
    exporter.signal("TERM");
    assert!(exporter.wait().0.success());
}

#[test]
fn loss_of_the_only_device_takes_nvml_down_until_it_is_back() {
    let healthy = driver([gpu("GPU-a")]);
    let fake = FakeNvml::new("it-only", &healthy);
    let exporter = fake.serve(&[]);
    exporter.await_metrics("the device", |metrics| used(metrics, "GPU-a").is_some());
    fake.set(&driver([gpu("GPU-a").code(15)]));
    check_down(&exporter, "gpu_is_lost", 2.0);
    assert!(exporter.status()["gpu"].get("failure").is_none(), "NVML answers, with an error");
    fake.set(&healthy);
    check_recovered(&exporter, "GPU-a");
}

#[test]
fn lost_device_leaves_and_the_others_stay() {
    let healthy = driver([gpu("GPU-a"), gpu("GPU-b")]);
    let fake = FakeNvml::new("it-lost", &healthy);
    let exporter = fake.serve(&[]);
    let both = |metrics: &Metrics| {
        used(metrics, "GPU-a").is_some() && used(metrics, "GPU-b").is_some()
    };
    exporter.await_metrics("both devices", both);
    let push = json!({
        "rank": 0, "step": 1, "device": "GPU-b", "allocated_bytes": 40 * GIB,
        "peak_allocated_bytes": 40 * GIB,
    });
    assert_eq!(exporter.post(push.to_string()).status, 200);
    let rank = |name: &str, more: &str| {
        format!("stepmem_{name}{{run=\"default\",rank=\"0\",uuid=\"GPU-b\"{more}}}")
    };
    let allocated = rank("rank_memory_allocated_bytes", "");
    let (pressure, headroom) =
        (rank("pressure_ratio", ",basis=\"device\""), rank("headroom_bytes", ""));
    assert_eq!(exporter.metric(&pressure), Some(30.0 / 80.0));
    assert!(exporter.metric(&headroom).is_some());
    fake.set(&driver([gpu("GPU-a"), gpu("GPU-b").code(15)]));
    exporter.await_metrics("the loss", |metrics| errors(metrics, "gpu_is_lost") >= 3.0);
    let metrics = exporter.scrape();
    assert_eq!(
        (up(&metrics), used(&metrics, "GPU-a")),
        (Some(1.0), Some(30.0 * 1024_f64.powi(3)))
    );
    let left: Vec<&String> = metrics
        .keys()
        .filter(|series| series.starts_with("stepmem_device_") && series.contains("GPU-b"))
        .collect();
    assert_eq!(left, [""; 0]);
    assert_eq!((metrics.get(&pressure), metrics.get(&headroom)), (None, None));
    assert_eq!(metrics.get(&allocated), Some(&(40.0 * 1024_f64.powi(3))));
    await_true("the log line", || logged(&exporter) == (1, 0));
    fake.set(&healthy);
    exporter.await_metrics("both devices", both);
    await_true("the log line", || logged(&exporter).1 == 1);
    assert_eq!(logged(&exporter), (1, 1), "{:?}", exporter.log());
}

#[test]
fn wrong_struct_version_falls_back_to_the_older_query() {
    let healthy = driver([gpu("GPU-a")]);
    let refusing = healthy.clone().call("nvmlDeviceGetMemoryInfo_v2", Order::Code(25));
    let fake = FakeNvml::new("it-v1", &refusing);
    let exporter = fake.serve(&[]);
    exporter.await_metrics("the device", |metrics| used(metrics, "GPU-a").is_some());
    let metrics = exporter.scrape();
    let of = |name: &str| {
        metrics.get(&format!("stepmem_device_memory_{name}_bytes{{uuid=\"GPU-a\"}}")).copied()
    };
    let gib = 1024_f64.powi(3);
    assert_eq!(of("total"), Some(80.0 * gib));
    assert_eq!(of("used"), Some(31.0 * gib));
    assert_eq!(of("free"), Some(49.0 * gib));
    assert_eq!(of("reserved"), None);
    assert_eq!(up(&metrics), Some(1.0));
    assert_eq!(logged(&exporter), (0, 0));
}

#[test]
fn memory_of_a_pushing_process_is_attributed_and_judged() {
    let pid = process::id();
    let at = |per_mille: u64| {
        let compute = [process(pid, 60 * GIB), process(1, 5 * GIB)];
        driver([gpu("GPU-a").memory(1000 * GIB, 0, per_mille * GIB).compute(&compute)])
    };
    let fake = FakeNvml::new("it-process", &at(919));
    let exporter = fake.serve(&[]);
    let push = |step: u64| {
        let record = json!({
            "run": "llm", "rank": 3, "step": step, "device": "GPU-a", "pid": pid,
            "allocated_bytes": 40 * GIB, "peak_allocated_bytes": 40 * GIB,
            "reserved_bytes": 50 * GIB,
        });
        assert_eq!(exporter.post(record.to_string()).status, 200);
    };
    exporter.await_metrics("the device", |metrics| used(metrics, "GPU-a").is_some());
    push(1);
    let rank = |name: &str, more: &str| {
        format!("stepmem_{name}{{run=\"llm\",rank=\"3\",uuid=\"GPU-a\"{more}}}")
    };
    let gib = 1024_f64.powi(3);
    let outside = rank("memory_outside_allocator_bytes", "");
    exporter
        .await_metrics("a reading after the push", |metrics| metrics.contains_key(&outside));
    let metrics = exporter.scrape();
    assert_eq!(metrics[&outside], 10.0 * gib);
    assert_eq!(metrics[&rank("pressure_ratio", ",basis=\"device\"")], 0.919);
    assert_eq!(metrics[&rank("pressure_ratio", ",basis=\"allocated\"")], 0.04);
    let process = format!("{{uuid=\"GPU-a\",pid=\"{pid}\",rank=\"3\",run=\"llm\"}}");
    assert_eq!(metrics[&format!("stepmem_process_memory_used_bytes{process}")], 60.0 * gib);
    assert_eq!(attributed(&metrics, "GPU-a"), Some(65.0 * gib));
    assert_eq!(
        metrics[r#"stepmem_device_memory_unattributed_bytes{uuid="GPU-a"}"#],
        854.0 * gib
    );
    let of = "{run=\"llm\",rank=\"3\",kind=\"HIGH_PRESSURE\"}";
    let severity = format!("stepmem_diagnosis_severity{of}");
    assert_eq!(metrics.get(&severity), None);
    let pressure = rank("pressure_ratio", ",basis=\"device\"");
    for (per_mille, ratio) in [(920, 0.92), (970, 0.97)] {
        fake.set(&at(per_mille));
        // A healthy cache may fill the device: it is never critical by that alone.
        exporter.await_metrics("pressure", |metrics| {
            metrics.get(&pressure) == Some(&ratio) && metrics.get(&severity) == Some(&2.0)
        });
    }
    fake.set(&at(300));
    exporter.await_metrics("relief", |metrics| !metrics.contains_key(&severity));
}

#[test]
fn without_nvml_no_metric_mentions_it() {
    let exporter = Exporter::start(&[]);
    let metrics = exporter.scrape();
    assert!(!metrics.keys().any(|series| series.contains("nvml")), "{metrics:#?}");
    assert!(!has_device(&metrics));
}
