//! Devices whose memory is not their own alone: integrated ones use the machine's memory (GB10, Jetson), and a Grace
//! machine's operating system manages that of its GPU.

use std::fs;

use serde_json::{Value, json};

use crate::rig::exporter::Exporter;
use crate::rig::job::Job;
use crate::rig::noise::noise;
use crate::rig::nvml::{FakeNvml, driver, gpu, process};
use crate::rig::units::{GIB, MIB, gib};

const RANK: &str = r#"{run="job",rank="0",uuid="GPU-a"}"#;

/// An integrated device: no memory of its own, as of GB10.
fn integrated() -> crate::rig::nvml::Gpu {
    gpu("GPU-a").without("memory").addressing(2)
}

/// A job on a machine of 128 GiB that a control group limits to 100 GiB, with so many MiB more live on the device and on
/// the host per step. The page cache takes what is free.
fn job(on_device: u64, on_host: u64, kind: Value) -> Job {
    let live =
        move |rank, step| 20 * GIB + noise(rank, step, 16 * MIB) + on_device * step * MIB;
    let job = Job::new(1, 800).device("GPU-a").capacity(128 * GIB).seconds_per_step(10.0);
    job.live(live).peak(|_, _| 54 * GIB).reserved(|_, _| 55 * GIB).more(move |rank, step| {
        let host = 8 * GIB + noise(rank, step + 7, 16 * MIB) + on_host * step * MIB;
        json!({"device_memory": kind, "free_bytes": 60 * GIB - step * 70 * MIB,
            "host_allocated_bytes": host, "host_total_bytes": 100 * GIB})
    })
}

fn kinds(exporter: &Exporter) -> Vec<String> {
    let status = exporter.status();
    let findings = status["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["kind"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn unified_memory_is_one_capacity_of_which_the_process_uses_what_it_holds_on_both_sides() {
    let exporter = Exporter::start(&[]);
    let held = |device: u64, host: u64, step: u64| {
        json!({"run": "job", "rank": 0, "step": step, "device": "GPU-a",
            "device_memory": "unified", "allocated_bytes": device, "reserved_bytes": device,
            "peak_allocated_bytes": device, "total_bytes": 128 * GIB, "free_bytes": GIB,
            "host_allocated_bytes": host, "host_total_bytes": 100 * GIB})
    };
    exporter.push(&[held(40 * GIB, 30 * GIB, 1)]);
    let metrics = exporter.scrape();
    assert_eq!(metrics[&format!("stepmem_headroom_bytes{RANK}")], gib(30.0));
    let status = exporter.status();
    assert_eq!(status["ranks"][0]["capacity_bytes"], json!(100 * GIB));
    assert_eq!(status["ranks"][0]["device_memory"], "unified");
    assert_eq!(status["ranks"][0]["pressures"]["device"], json!(0.7));
    assert_eq!(status["ranks"][0]["pressures"].get("host"), None);
    assert_eq!(kinds(&exporter), Vec::<String>::new());
    exporter.push(&[held(40 * GIB, 55 * GIB, 2)]);
    exporter.await_metrics("the finding", |metrics| {
        metrics.keys().any(|series| series.contains("HIGH_PRESSURE"))
    });
    assert_eq!(kinds(&exporter), ["HIGH_PRESSURE"]);
    let words =
        "what the process holds of the memory that device and host share is at 95% of 100 GiB";
    assert_eq!(exporter.status()["findings"][0]["sentence"], words);
}

#[test]
fn growth_in_unified_memory_is_found_once_on_the_side_where_it_is() {
    // 100 GiB, less 55 that the allocator holds, 8 on the host, and 31 that have grown there.
    for (device, host, expected, left) in [
        (0, 0, vec![], 0.0..0.0),
        (40, 0, vec!["CREEP_CONFIRMED"], 36.0..39.0),
        // Both sides together are then at 94 % of what they share.
        (0, 40, vec!["HIGH_PRESSURE", "HOST_CREEP_CONFIRMED"], 5.0..7.0),
    ] {
        let exporter = Exporter::start(&[]);
        // The peak rises with live memory, below what is reserved.
        let peak = move |_, step| 22 * GIB + device * step * MIB;
        let job = job(device, host, json!("unified"));
        let job = if device > 0 { job.peak(peak) } else { job };
        exporter.push(&job.records());
        assert_eq!(kinds(&exporter), expected, "{device} {host}");
        let status = exporter.status();
        let grows = |finding: &&Value| finding["evidence"]["signal"].is_string();
        let mut findings = status["findings"].as_array().unwrap().iter();
        let Some(finding) = findings.find(grows) else { continue };
        let headroom = finding["evidence"]["headroom_bytes"].as_f64().unwrap();
        assert!(left.contains(&(headroom / gib(1.0))), "{finding}");
    }
}

#[test]
fn what_is_in_use_of_memory_that_the_operating_system_manages_takes_no_headroom() {
    for (kind, headroom) in [(json!(null), 5.0..10.0), (json!("numa_node"), 73.0..75.0)] {
        let exporter = Exporter::start(&[]);
        exporter.push(&job(0, 0, kind).records());
        let left = exporter.metric(&format!("stepmem_headroom_bytes{RANK}")).unwrap();
        assert!(headroom.contains(&(left / gib(1.0))), "{left}");
        assert_eq!(kinds(&exporter), Vec::<String>::new());
    }
}

#[test]
fn kind_of_memory_that_nobody_knows_is_refused() {
    let exporter = Exporter::start(&[]);
    let record = json!({"rank": 0, "step": 1, "allocated_bytes": 1, "device_memory": "slow"});
    let refused = exporter.post(record.to_string());
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("unified, numa_node"), "{}", refused.body);
}

fn machine_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    total.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn driver_without_memory_of_a_device_makes_the_machine_its_capacity() {
    let fake = FakeNvml::new("unified", &driver([integrated().compute(&[process(9, GIB)])]));
    let exporter = fake.serve(&["--nvml.interval", "20ms"]);
    let used = r#"stepmem_process_memory_used_bytes{uuid="GPU-a",pid="9",rank="",run=""}"#;
    exporter.await_metrics("the device", |metrics| metrics.contains_key(used));
    let is_of_kind = |series: &String| {
        series.starts_with("stepmem_device_info{")
            && series.contains(r#"memory_kind="unified""#)
    };
    let metrics = exporter.scrape();
    assert!(metrics.keys().any(is_of_kind), "{metrics:?}");
    assert!(!metrics.contains_key(r#"stepmem_device_memory_used_bytes{uuid="GPU-a"}"#));
    let unmanaged = &exporter.status()["processes"][0];
    assert_eq!(unmanaged["capacity_bytes"], json!(machine_bytes()), "{unmanaged}");
    // A client that does not name the kind.
    exporter.push(&job(0, 0, json!(null)).capacity(0).records()[..1]);
    let limit = json!(machine_bytes().min(100 * GIB));
    exporter.await_metrics("its capacity", |_| {
        let rank = &exporter.status()["ranks"][0];
        rank["device_memory"] == "unified" && rank["capacity_bytes"] == limit
    });
}

#[test]
fn driver_that_leaves_memory_to_the_operating_system_gives_no_figure_of_it() {
    let grace = gpu("GPU-a").addressing(2).numa_node(4);
    let fake = FakeNvml::new("grace", &driver([grace]));
    let exporter = fake.serve(&["--nvml.interval", "20ms"]);
    exporter.push(&job(0, 0, json!(null)).records()[..1]);
    exporter.await_metrics("the kind", |_| {
        exporter.status()["ranks"][0]["device_memory"] == "numa_node"
    });
    assert_eq!(exporter.status()["devices"][0]["memory_kind"], "numa_node");
    assert_eq!(exporter.status()["ranks"][0]["pressures"].get("device"), None);
}
