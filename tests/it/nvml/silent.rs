//! Training processes that do not push: what NVML says of them is judged in their place, and not beside a rank that
//! pushes about the same device.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::process;

use serde_json::{Value, json};

use crate::rig::command::{replayed, stepmem};
use crate::rig::json::has;
use crate::rig::nvml::{FakeNvml, driver, gpu, process};
use crate::rig::schema::holds_definition;
use crate::rig::units::{GIB, MIB, float, gib};
use crate::rig::wait::await_agreement;

const START: u64 = 1_764_000_000;
/// 20 MiB in 15 seconds.
const LEAK_BYTES_PER_SECOND: f64 = 20.0 * 1_048_576.0 / 15.0;

/// A recording of these records.
fn lines(records: impl Iterator<Item = Value>) -> String {
    records.map(|record| record.to_string() + "\n").collect()
}

/// One reading of an 80 GiB device every 15 seconds, 1 GiB of it not the process's.
fn readings(n_readings: u64, used_bytes: impl Fn(u64) -> u64) -> String {
    lines((0..n_readings).map(|i| {
        let used = used_bytes(i);
        json!({
            "nvml": true,
            "time": START + 15 * i,
            "device": "GPU-7",
            "used_bytes": used + GIB,
            "total_bytes": 80 * GIB,
            "processes": [{"pid": 4711, "used_bytes": used}],
        })
    }))
}

/// A push every 30 seconds about a device, if one is named.
fn pushes(device: Option<&str>) -> String {
    lines((0..600).map(|i| {
        json!({
            "rank": 0,
            "step": i,
            "time": START + 30 * i,
            "allocated_bytes": GIB,
            "device": device,
        })
    }))
}

#[test]
fn process_that_leaks_is_diagnosed_without_a_push() {
    // 20 MiB every 15 seconds on 30 GiB: 49 GiB are left, for ten and a half hours.
    let (transitions, status) = replayed(&readings(1200, |i| 30 * GIB + 20 * MIB * i));
    let kinds: Vec<_> = transitions.iter().map(|it| it["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["CREEP_EARLY", "CREEP_EARLY"], "raised, and cleared for the page");
    let page = &transitions[2];
    has(
        page,
        &json!({"kind": "CREEP_CONFIRMED", "state": "raised", "uuid": "GPU-7", "pid": 4711,
                      "step": null, "evidence": {"signal": "process"}}),
    );
    assert_eq!((page.get("run"), page.get("rank")), (None, None), "it is not a rank");
    let evidence = &page["evidence"];
    let slope = LEAK_BYTES_PER_SECOND;
    let figure =
        |name: &str| evidence[name].as_f64().unwrap_or_else(|| panic!("{name}: {page}"));
    assert!((figure("slope_bytes_per_second") / slope - 1.0).abs() < 0.01);
    assert!(figure("slope_lower_bytes_per_second") < slope);
    assert!(figure("slope_upper_bytes_per_second") > slope);
    let since = page["time"].as_f64().unwrap() - 1_764_000_000.0;
    assert!(since < 3.0 * 3600.0, "{since} s");
    let left = gib(49.0) / slope - since;
    assert!((figure("oom_eta_seconds") / left - 1.0).abs() < 0.02, "{page}");
    assert!(figure("oom_eta_lower_seconds") < left && figure("oom_eta_upper_seconds") > left);
    assert!((0.0..since).contains(&(figure("onset_time") - 1_764_000_000.0)));
    for name in ["slope_bytes_per_step", "onset_step", "oom_eta_steps", "oom_eta_lower_steps"] {
        assert_eq!(evidence[name], Value::Null, "a process has no steps");
    }
    // A process is neither a run of ranks that push nor a rank.
    has(&status, &json!({"runs": [], "ranks": []}));
    let process = &status["processes"][0];
    has(process, &json!({"uuid": "GPU-7", "pid": 4711, "creep": {"signal": "process"}}));
    assert!(process["oom_eta_seconds"].is_number(), "{process}");
    assert_eq!(status["devices"][0]["processes"][0]["owner"], Value::Null);
}

#[test]
fn process_whose_allocator_settles_is_not_diagnosed() {
    // Segments of 256 MiB come ever more rarely and stay; evaluation takes 2 GiB and gives them back.
    let (transitions, _) = replayed(&readings(5000, |i| {
        let n_segments = (i + 1).ilog2() * 2;
        let evaluation = if i % 240 < 12 { 2 * GIB } else { 0 };
        30 * GIB + 256 * MIB * u64::from(n_segments) + evaluation
    }));
    assert!(transitions.is_empty(), "{transitions:?}");
}

#[test]
fn process_that_loads_its_model_is_not_diagnosed() {
    let (transitions, _) = replayed(&readings(2000, |i| GIB + 1500 * MIB * i.min(36)));
    assert!(transitions.is_empty(), "{transitions:?}");
}

#[test]
fn process_beside_a_rank_that_pushes_is_not_judged() {
    let leak = readings(1200, |i| 30 * GIB + 20 * MIB * i);
    for device in [Some("GPU-7"), None, Some("cuda:0")] {
        let (transitions, status) = replayed(&in_order(&[&pushes(device), &leak]));
        let creeps = |it: &&Value| it["kind"].as_str().unwrap().starts_with("CREEP");
        assert_eq!(transitions.iter().find(creeps), None, "{device:?}");
        assert_eq!(status["ranks"].as_array().unwrap().len(), 1);
    }
    // Host memory is not a GPU, and another GPU is not this one.
    for device in ["cpu", "GPU-8"] {
        let (transitions, _) = replayed(&in_order(&[&pushes(Some(device)), &leak]));
        assert!(transitions.iter().any(|it| it["kind"] == "CREEP_CONFIRMED"), "{device}");
    }
}

/// The lines of some recordings in the order of their times.
fn in_order(recordings: &[&str]) -> String {
    let mut lines: Vec<(f64, &str)> = recordings
        .iter()
        .flat_map(|recording| recording.split_inclusive('\n'))
        .map(|line| {
            (serde_json::from_str::<Value>(line).unwrap()["time"].as_f64().unwrap(), line)
        })
        .collect();
    lines.sort_by(|a, b| a.0.total_cmp(&b.0));
    lines.into_iter().map(|(_, line)| line).collect()
}

#[test]
fn pressure_of_a_process_rests_on_its_recent_peak_and_does_not_flap() {
    // It fills 93 % of the device every other minute, and in between so little that its growth is judged anew.
    let (transitions, status) = replayed(&readings(600, |i| {
        let per_mille = if i / 4 % 2 == 0 { 930 } else { 90 };
        80 * GIB / 1000 * per_mille
    }));
    let pressure: Vec<_> = transitions
        .iter()
        .filter(|it| it["kind"] == "HIGH_PRESSURE")
        .map(|it| (it["state"].as_str().unwrap(), it["severity"].as_str().unwrap()))
        .collect();
    assert_eq!(pressure, [("raised", "warning")]);
    let ratio = status["processes"][0]["pressure_ratio"].as_f64().unwrap();
    assert!((ratio - 0.93).abs() < 1e-6, "{status}");
}

#[test]
fn process_that_fills_its_device_is_a_warning_and_lets_go_ten_minutes_after() {
    let per_mille = |i: u64| if i < 100 { 990 } else { 500 };
    let (transitions, _) = replayed(&readings(200, |i| 80 * GIB / 1000 * per_mille(i)));
    let of = |state: &str| {
        let is_it = |it: &&Value| it["kind"] == "HIGH_PRESSURE" && it["state"] == state;
        let all: Vec<&Value> = transitions.iter().filter(is_it).collect();
        assert_eq!(all.len(), 1, "{transitions:?}");
        assert_eq!(all[0]["severity"], "warning");
        all[0]["time"].as_f64().unwrap() - 1_764_000_000.0
    };
    assert!(of("raised") < 60.0);
    let held = of("cleared") - 1500.0;
    assert!((500.0..=700.0).contains(&held), "{held} s");
}

#[test]
fn restarted_process_is_judged_without_its_past() {
    let twice = |i: u64| 10 * GIB + 40 * MIB * (i % 900);
    let (transitions, _) = replayed(&readings(900, twice));
    assert!(transitions.iter().any(|it| it["kind"] == "CREEP_CONFIRMED"));
    let again = |i: u64| if i < 900 { twice(i) } else { 2 * GIB + 40 * MIB * (i - 900) };
    let (transitions, _) = replayed(&readings(1800, again));
    let states: Vec<_> = transitions
        .iter()
        .filter(|it| it["kind"] == "CREEP_CONFIRMED")
        .map(|it| it["state"].as_str().unwrap())
        .collect();
    assert!(
        states.starts_with(&["raised", "cleared", "raised"]) || states.len() > 3,
        "{states:?}"
    );
}

#[test]
fn explain_shows_the_life_of_a_process() {
    let leak = readings(1200, |i| 30 * GIB + 20 * MIB * i);
    let text = stepmem(&["explain", "-", "--pid", "4711"], &[], leak.as_bytes()).done();
    for part in [
        "Process 4711 on GPU-7 (80.0 GiB)",
        "1,200 readings, unmanaged; 2025-11-24 16:00:00 to",
        "Memory of the process, the least of each",
        "MEMORY CREEP, critical",
        "/h, ",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    assert!(!text.contains("step"), "{text}");
}

#[test]
fn explain_has_the_life_of_a_process_as_json() {
    let leak = readings(1200, |i| 30 * GIB + 20 * MIB * i);
    let ended = stepmem(&["explain", "-", "--pid", "4711", "--json"], &[], leak.as_bytes());
    let story: Value = serde_json::from_str(&ended.quiet()).unwrap();
    holds_definition("explain", "recorded", &story);
    let subject = ["uuid", "pid", "readings", "capacity_bytes"].map(|key| story[key].clone());
    assert_eq!(json!(subject), json!(["GPU-7", 4711, 1200, 80 * GIB]));
    assert_eq!(story["last"], json!({"time": float(START + 15 * 1199)}));
    assert!(story.get("steps").is_none() && story.get("run").is_none(), "{story:#}");
    assert_eq!(story["held"][0]["kind"], "CREEP_CONFIRMED");
    let [signal] = story["signals"].as_array().unwrap().as_slice() else { panic!("{story:#}") };
    assert_eq!(signal["signal"], "process");
    let floor = &signal["floor"]["points_bytes"];
    assert_eq!(floor[0], json!(float(30 * GIB)));
    let shown = story["events"].as_array().unwrap().iter().find_map(|event| {
        let slope = &event["window"]["trend"]["slope_bytes_per_second"];
        slope.as_f64()
    });
    let slope = shown.unwrap();
    let is_near = (slope - LEAK_BYTES_PER_SECOND).abs() < 0.1 * LEAK_BYTES_PER_SECOND;
    assert!(is_near, "{slope}");
}

#[test]
fn leaking_process_of_a_real_driver_call_is_diagnosed_until_its_rank_pushes() {
    let pid = process::id();
    let scenario = |used: u64| {
        driver([gpu("GPU-a").memory(80 * GIB, GIB, used + GIB).compute(&[process(pid, used)])])
    };
    let fake = FakeNvml::new("silent", &scenario(10 * GIB));
    let quick = ["--creep.process-warmup", "0s", "--creep.process-interval", "10ms"];
    let exporter = fake.serve(&[&["--nvml.interval", "10ms"], &quick[..]].concat());
    // Growth of a few seconds may come and go: only where the machine is slow it lasts long enough for creep.
    let kinds = ["CREEP_EARLY", "CREEP_CONFIRMED"].map(|kind| {
        format!("stepmem_diagnosis_severity{{uuid=\"GPU-a\",pid=\"{pid}\",kind=\"{kind}\"}}")
    });
    let is_found = |metrics: &BTreeMap<String, f64>| {
        kinds.iter().any(|series| metrics.contains_key(series))
    };
    let labels = format!("{{uuid=\"GPU-a\",pid=\"{pid}\"}}");
    let figures = [
        "creep_slope_bytes_per_second",
        "creep_growth_bytes",
        "creep_onset_timestamp_seconds",
        "creep_confidence_ratio",
        "pressure_ratio",
        "oom_eta_lower_seconds",
        "headroom_bytes",
    ];
    let figures = figures.map(|name| format!("stepmem_process_{name}{labels}"));
    // In parts of 32 MiB: 10 GiB, and one more as soon as the last one was read. On a busy machine the pace is uneven, and
    // only the least time left is known.
    let used = Cell::new(320_u32);
    await_agreement("the leak is found, with its figures", || {
        let metrics = exporter.scrape();
        let held = format!(
            "stepmem_process_memory_used_bytes{{uuid=\"GPU-a\",pid=\"{pid}\",rank=\"\",run=\"\"}}"
        );
        let is_read = metrics.get(&held).copied() == Some(f64::from(used.get()) * 33_554_432.0);
        if is_read && used.get() < 2_400 {
            used.set(used.get() + 1);
            fake.set(&scenario(u64::from(used.get()) * 32 * MIB));
        }
        let missing: Vec<&String> =
            figures.iter().filter(|series| !metrics.contains_key(*series)).collect();
        let is_there = is_found(&metrics) && missing.is_empty();
        if is_there { Ok(()) } else { Err(format!("{missing:?}")) }
    });
    let metrics = exporter.scrape();
    // A process is neither a rank nor a run, and has no steps.
    let is_of_a_rank = |series: &&String| {
        let families = ["stepmem_rank_", "stepmem_run_", "stepmem_creep_", "stepmem_oom_"];
        families.iter().any(|family| series.starts_with(family))
    };
    assert_eq!(metrics.keys().find(is_of_a_rank), None);

    let record =
        json!({"rank": 3, "step": 1, "allocated_bytes": GIB, "device": "GPU-a", "pid": pid});
    assert_eq!(exporter.post(record.to_string()).status, 200);
    exporter.await_metrics("the process gives way to its rank", |metrics| {
        let owned = format!("stepmem_process_memory_used_bytes{{uuid=\"GPU-a\",pid=\"{pid}\",rank=\"3\",run=\"default\"}}");
        metrics.contains_key(&owned) && !is_found(metrics)
    });
}
