//! TraceML's own answers, and that ours are right where its are not: a test each for the faults that were measured.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::rig::command::stepmem;
use crate::rig::folder::root;
use crate::rig::job::Job;
use crate::rig::json::has;
use crate::rig::noise::noise;
use crate::rig::skipped::skipped;
use crate::rig::summary::{issue, summary, traceml_export};
use crate::rig::units::{GIB, MIB};

/// The paths of TraceML's recorded answers, next to the repository; `None` without them.
fn vectors() -> Option<Vec<PathBuf>> {
    let folder = root().join("../shared/data/traceml");
    let Ok(entries) = fs::read_dir(&folder) else {
        skipped(format_args!("TraceML's answers are not at {}", folder.display()));
        return None;
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    Some(paths)
}

/// The pushes that bring about a vector's input.
fn recording(input: &Value) -> String {
    let has_gpu = input["gpu_available"] != json!(false);
    let totals = input["total_bytes"].as_object().unwrap();
    let mut lines = Vec::new();
    if input["ranks"].as_object().unwrap().is_empty() {
        for total in totals.values() {
            lines.push(json!({ "nvml": true, "time": 0, "device": "GPU-0", "used_bytes": 0, "total_bytes": total }));
        }
        if !has_gpu {
            lines.push(json!({ "rank": 0, "step": 0, "allocated_bytes": 0, "device": "cpu" }));
        }
    }
    for (rank, rows) in input["ranks"].as_object().unwrap() {
        for row in rows.as_array().unwrap() {
            let mut line = json!({
                "rank": rank.parse::<u32>().unwrap(),
                "step": row["step"],
                "allocated_bytes": row["allocated"].as_u64().unwrap_or(0),
                "peak_allocated_bytes": row["peak_allocated"],
                "reserved_bytes": row["reserved"],
                "peak_reserved_bytes": row["peak_reserved"],
                "total_bytes": totals.get(rank),
            });
            if !has_gpu {
                line["device"] = json!("cpu");
            }
            lines.push(line);
        }
    }
    lines.iter().fold(String::new(), |text, line| text + &line.to_string() + "\n")
}

/// Returns whether two values are the same, floats within a relative 1e-9.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| is_same(a, b)))
        }
        (a, b) => a == b,
    }
}

fn answer(input: &Value) -> Value {
    let window = input["window_size"].as_u64().map(|window| window.to_string());
    let mut arguments = vec!["summary", "--policy", "traceml", "--json"];
    arguments.extend(window.iter().flat_map(|window| ["--window", window.as_str()]));
    arguments.push("-");
    let ended = stepmem(&arguments, &[], recording(input).as_bytes());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    serde_json::from_str(&ended.out).unwrap()
}

#[test]
fn traceml_policy_answers_as_traceml_did() {
    let Some(paths) = vectors() else { return };
    for path in &paths {
        let vector: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let (answer, expected) = (answer(&vector["input"]), &vector["expected"]);
        for part in ["issues", "metrics"] {
            assert!(
                is_same(&answer[part], &expected[part]),
                "{} {part}: {:#} instead of {:#}",
                path.display(),
                answer[part],
                expected[part]
            );
        }
        for (key, value) in expected["primary"].as_object().unwrap() {
            assert_eq!(answer["diagnosis"][key], *value, "{} {key}", path.display());
        }
    }
    assert!(paths.len() >= 50, "{} answers", paths.len());
}

/// A rank with both peaks as given, step by step, on 80 GiB.
fn ranks(of: &[&dyn Fn(u64) -> u64], steps: u64) -> Value {
    let rows = |peak: &dyn Fn(u64) -> u64| -> Value {
        let row = |step| json!({ "step": step, "peak_allocated": peak(step), "peak_reserved": peak(step) });
        (1..=steps).map(row).collect()
    };
    let ranks: serde_json::Map<_, _> =
        of.iter().enumerate().map(|(rank, peak)| (rank.to_string(), rows(*peak))).collect();
    let totals: serde_json::Map<_, _> =
        ranks.keys().map(|rank| (rank.clone(), json!(80 * GIB))).collect();
    json!({ "ranks": ranks, "total_bytes": totals })
}

#[test]
fn traceml_policy_follows_its_rules() {
    let said = |input: &Value| answer(input)["diagnosis"]["kind"].as_str().unwrap().to_owned();
    assert_eq!(said(&ranks(&[&|_| 20 * GIB], 49)), "NO_DATA");
    assert_eq!(said(&ranks(&[&|_| 20 * GIB], 50)), "BALANCED");
    assert_eq!(said(&ranks(&[&|_| 74 * GIB], 50)), "HIGH_PRESSURE");
    assert_eq!(said(&ranks(&[&|_| 30 * GIB, &|_| 30 * GIB, &|_| 36 * GIB], 50)), "IMBALANCE");
    assert_eq!(said(&ranks(&[&|step| 20 * GIB + step], 100)), "CREEP_EARLY");
    assert_eq!(said(&ranks(&[&|step| 20 * GIB + step * 16 * MIB], 100)), "CREEP_CONFIRMED");
}

fn kinds(summary: &Value) -> Vec<&str> {
    summary["issues"]
        .as_array()
        .unwrap()
        .iter()
        .map(|issue| issue["kind"].as_str().unwrap())
        .collect()
}

/// The first step that creep detection judges: 23 of warm-up, and 12 blocks of 2.
const FIRST_JUDGED: u64 = 47;

/// The rank and the evidence of a confirmed creep.
fn creep(job: &Job) -> Value {
    let summary = summary(&job.recording());
    let text = summary["text"].as_str().unwrap();
    issue(&summary, "CREEP_CONFIRMED").unwrap_or_else(|| panic!("no creep: {text}"))
}

#[test]
fn what_varies_settles_or_comes_back_is_not_creep() {
    let noisy = |steps, sigma: u64| {
        Job::new(1, steps).live(move |rank, step| 30 * GIB + noise(rank, step, sigma))
    };
    let batches = |range: u64| {
        noisy(2000, 16 * MIB)
            .peak(move |rank, step| 36 * GIB + noise(rank + 7, step, range))
            .reserved(move |_, step| 37 * GIB + range - range / (1 + step / 20))
    };
    let sawtooth =
        |stop| Job::new(1, stop).live(|_, step| 30 * GIB + step % 400 * (3 * GIB / 400));
    let warm_up = |steps| {
        Job::new(1, steps).live(|rank, step| {
            30 * GIB + step.min(90) * (3 * GIB / 90) + noise(rank, step, 16 * MIB)
        })
    };
    let level = |steps| Job::new(1, steps).live(|_, _| 30 * GIB).peak(|_, _| 36 * GIB);
    let cache = |_, step: u64| 38 * GIB + (step / 500).min(6) * 256 * MIB;
    let of_live = |live: fn(u64) -> u64| Job::new(1, 1000).live(move |_, step| live(step));
    for (name, job) in [
        ("noise of 1 MiB", noisy(50, MIB)),
        ("noise of 64 MiB", noisy(400, 64 * MIB)),
        ("noise of 4 GiB", noisy(50, 4 * GIB)),
        ("noise of 2 GiB", noisy(2000, 2 * GIB)),
        ("batches that vary by 2 GiB", batches(2 * GIB)),
        ("batches that vary by 4 GiB", batches(4 * GIB)),
        ("a sawtooth that ends halfway", sawtooth(2150)),
        ("a sawtooth that ends high", sawtooth(2390)),
        ("a sawtooth that has just fallen", sawtooth(2410)),
        ("a warm-up of 120 steps", warm_up(120)),
        ("a warm-up of 250 steps", warm_up(250)),
        ("a warm-up of 700 steps", warm_up(700)),
        ("a cache that fills and stays", level(5000).reserved(cache)),
        ("a rise of two bytes", of_live(|step| 30 * GIB + step / 400)),
        ("two plateaus", of_live(|step| 30 * GIB + (step / 350) * GIB)),
    ] {
        let summary = summary(&job.recording());
        let is_judged = summary["ranks"][0]["steps"].as_u64().unwrap() >= FIRST_JUDGED;
        let expected = if is_judged { "BALANCED" } else { "TOO_FEW_STEPS" };
        assert_eq!(kinds(&summary), [expected], "{name}: {}", summary["text"]);
    }
}

#[test]
fn healthy_run_is_not_flagged_however_often_one_looks() {
    let job = Job::new(2, 5000).live(|rank, step| 30 * GIB + noise(rank, step, 512 * MIB));
    let ended = stepmem(&["replay", "-"], &[], job.recording().as_bytes());
    assert_eq!(ended.out.lines().count(), 1, "{}", ended.out.lines().next().unwrap());
}

#[test]
fn one_leaking_rank_of_eight_is_found_and_named() {
    let job = Job::new(8, 1600)
        .live(|rank, step| 40 * GIB + if rank == 5 { step * 16 * MIB } else { 0 });
    let creep = creep(&job);
    assert_eq!(creep["ranks"], json!([5]));
    let slope = creep["evidence"]["slope_bytes_per_step"].as_f64().unwrap();
    assert!((slope / (16.0 * 1_048_576.0) - 1.0).abs() < 0.02, "{creep}");
    assert!(creep["evidence"]["oom_eta_steps"].as_f64().unwrap() < 1500.0, "{creep}");
    assert!(creep["evidence"]["onset_step"].as_f64().unwrap() < 256.0, "{creep}");
}

#[test]
fn leaking_ranks_are_found_whatever_else_varies() {
    let leak = |n_ranks, steps, live: fn(u64, u64) -> u64| Job::new(n_ranks, steps).live(live);
    let under_flat = |rank, step| if rank == 2 { 60 * GIB } else { 30 * GIB + step * 8 * MIB };
    let slow = |rank, step| 40 * GIB + step * 2 * MIB + noise(rank, step, 4 * MIB);
    let slower = |_, step| 40 * GIB + step * MIB / 10;
    let stairs = |_, step| 40 * GIB + step / 1000 * 512 * MIB;
    let steady = |_, step| 40 * GIB + step * 4 * MIB;
    let noisy = |rank, step| 44 * GIB + step * 4 * MIB + noise(rank, step, 4 * GIB);
    let of_third = |rank, step| 30 * GIB + if rank == 2 { step * 8 * MIB } else { 0 };
    let spike = |rank, step| if (rank, step) == (0, 700) { 60 * GIB } else { 44 * GIB };
    for (name, job, ranks) in [
        ("two under a larger flat one", leak(3, 1500, under_flat), &[0, 1][..]),
        ("a slow one in a long run", leak(1, 8000, slow), &[0]),
        ("one of which every hundredth step is pushed", leak(1, 3000, slower).every(100), &[0]),
        ("a staircase", leak(1, 14_000, stairs), &[0]),
        ("one under noisy activations", leak(1, 2500, steady).peak(noisy), &[0]),
        ("one next to a rank with a spike", leak(4, 1500, of_third).peak(spike), &[2]),
    ] {
        assert_eq!(creep(&job)["ranks"], json!(ranks), "{name}");
    }
}

#[test]
fn leak_on_a_slice_of_ten_gibibytes_is_found_before_pressure() {
    let job =
        Job::new(1, 2000).capacity(10 * GIB).live(|_, step| 8 * GIB - GIB / 2 + step * MIB / 2);
    let summary = summary(&job.recording());
    assert_eq!(kinds(&summary), ["CREEP_CONFIRMED"], "{}", summary["text"]);
}

#[test]
fn pressure_is_of_each_ranks_own_device() {
    let records = [Job::new(1, 60).live(|_, _| 39 * GIB).capacity(40 * GIB).recording()]
        .into_iter()
        .chain([Job::new(1, 60).first_rank(1).live(|_, _| 39 * GIB).recording()]);
    let summary = summary(&records.collect::<String>());
    assert_eq!(issue(&summary, "HIGH_PRESSURE").unwrap()["ranks"], json!([0]));
}

#[test]
fn heavy_majority_and_low_outliers_are_seen() {
    let heavy = Job::new(8, 60).live(|rank, _| if rank < 5 { 60 * GIB } else { 30 * GIB });
    assert_eq!(
        issue(&summary(&heavy.recording()), "IMBALANCE").unwrap()["ranks"],
        json!([5, 6, 7])
    );
    let low = Job::new(8, 60).live(|rank, _| if rank == 3 { 20 * GIB } else { 50 * GIB });
    assert_eq!(issue(&summary(&low.recording()), "IMBALANCE").unwrap()["ranks"], json!([3]));
}

#[test]
fn rank_near_its_capacity_is_pressure_and_imbalance() {
    let job = Job::new(8, 400)
        .live(|rank, _| if rank == 5 { 70 * GIB } else { 32 * GIB })
        .peak(|rank, _| if rank == 5 { 77 * GIB } else { 39 * GIB });
    let summary = summary(&job.recording());
    let pressure = issue(&summary, "HIGH_PRESSURE").unwrap();
    assert_eq!((&pressure["severity"], &pressure["ranks"]), (&json!("warn"), &json!([5])));
    let imbalance = issue(&summary, "IMBALANCE").unwrap();
    assert_eq!((&imbalance["severity"], &imbalance["ranks"]), (&json!("crit"), &json!([5])));
}

#[test]
fn attempts_are_not_spliced() {
    let attempts = [50, 40, 30].iter().zip(0_u64..).map(|(level, attempt)| {
        let level = *level * GIB;
        Job::new(2, 900).attempt(attempt).live(move |_, _| level).recording()
    });
    let summary = summary(&attempts.collect::<String>());
    assert_eq!(kinds(&summary), ["BALANCED"]);
    assert_eq!(summary["attempt"], 2);
    assert_eq!(summary["ranks"][0]["peak_allocated"]["max_bytes"], json!(30 * GIB));
}

#[test]
fn fixed_attempt_does_not_inherit_a_leak() {
    let leaking = Job::new(2, 1500).live(|_, step| 40 * GIB + step * 16 * MIB).recording();
    let fixed = Job::new(2, 500).attempt(1).live(|_, _| 40 * GIB).recording();
    let summary = summary(&(leaking + &fixed));
    assert_eq!(kinds(&summary), ["BALANCED"]);
    assert_eq!(summary["ranks"][1]["steps"], 500);
}

#[test]
fn restart_without_a_new_attempt_starts_over() {
    let before = Job::new(1, 900).live(|_, _| 60 * GIB).recording();
    let after = Job::new(1, 900).starting_at(2000.0).live(|_, _| 30 * GIB).recording();
    let summary = summary(&(before + &after));
    assert_eq!(kinds(&summary), ["BALANCED"]);
    assert_eq!(summary["coverage"]["restarts"], 1);
    assert_eq!(summary["ranks"][0]["peak_allocated"]["max_bytes"], json!(30 * GIB));
}

#[test]
fn rank_that_dies_early_hides_nothing_of_the_others() {
    for last in [49, 100] {
        let dead = Job::new(1, last).first_rank(3).live(|_, _| 40 * GIB).recording();
        let others = Job::new(3, 2000).live(|_, _| 78 * GIB).recording();
        let summary = summary(&(dead + &others));
        assert_eq!(issue(&summary, "HIGH_PRESSURE").unwrap()["ranks"], json!([0, 1, 2]));
        let lost = &summary["coverage"]["ranks_lost"];
        assert_eq!((&lost[0]["rank"], &lost[0]["last"]["step"]), (&json!(3), &json!(last)));
        assert!(
            summary["text"].as_str().unwrap().contains(&format!("rank 3 after step {last}"))
        );
    }
}

#[test]
fn expected_ranks_that_never_push_are_named() {
    let job = Job::new(2, 60).world(4).live(|_, _| 30 * GIB);
    let coverage = summary(&job.recording())["coverage"].clone();
    has(&coverage, &json!({"ranks_missing": [2, 3], "ranks_expected": 4, "ranks_seen": 2}));
}

#[test]
fn pressure_is_found_before_fifty_steps() {
    let summary =
        summary(&Job::new(1, 3).live(|_, _| 70 * GIB).peak(|_, _| 79 * GIB).recording());
    has(&summary, &json!({"diagnosis": {"kind": "HIGH_PRESSURE", "severity": "crit"}}));
}

#[test]
fn slope_is_not_of_two_endpoints() {
    let job = Job::new(1, 4000)
        .live(|rank, step| 40 * GIB + step * 4 * MIB + noise(rank, step, 512 * MIB));
    let evidence = creep(&job)["evidence"].clone();
    let of = |key: &str| evidence[key].as_f64().unwrap() / 1_048_576.0;
    assert!((of("slope_bytes_per_step") - 4.0).abs() < 0.4, "{evidence}");
    assert!(of("slope_lower_bytes_per_step") <= 4.0 && of("slope_upper_bytes_per_step") >= 4.0);
}

#[test]
fn memory_that_torch_does_not_see_counts() {
    let mut records = Job::new(1, 200).device("GPU-0").live(|_, _| 40 * GIB).recording();
    let reading = json!({
        "nvml": true, "time": 1_764_000_190, "device": "GPU-0", "used_bytes": 79 * GIB,
        "total_bytes": 80 * GIB, "processes": [],
    });
    records.push_str(&format!("{reading}\n"));
    let pressure = issue(&summary(&records), "HIGH_PRESSURE").unwrap();
    assert_eq!(pressure["evidence"]["basis"], "device");
}

#[test]
fn old_spike_does_not_hold_forever() {
    let job = Job::new(1, 3000)
        .live(|_, _| 30 * GIB)
        .peak(|_, step| if step == 40 { 79 * GIB } else { 36 * GIB });
    let pressure = issue(&summary(&job.recording()), "HIGH_PRESSURE").unwrap();
    has(&pressure, &json!({"severity": "warn", "evidence": {"step": 40}}));
    let ended = stepmem(&["replay", "-"], &[], job.recording().as_bytes());
    assert!(ended.out.contains(r#""kind":"HIGH_PRESSURE","state":"cleared""#), "{}", ended.out);
}

#[test]
fn means_are_not_called_peaks() {
    let job = Job::new(1, 400)
        .live(|_, _| 30 * GIB)
        .peak(|_, step| if step == 200 { 60 * GIB } else { 40 * GIB });
    let summary = summary(&job.recording());
    let peak = &summary["ranks"][0]["peak_allocated"];
    assert_eq!((&peak["max_bytes"], &peak["max_step"]), (&json!(60 * GIB), &json!(200)));
    let mean = peak["mean_bytes"].as_f64().unwrap();
    assert!(mean < 41.0 * 1_073_741_824.0, "{mean}");
    let worst = summary["metrics"]["peak_allocated"]["worst_peak_bytes"].as_f64();
    assert_eq!(worst, Some(60.0 * 1_073_741_824.0));
    // Where TraceML has means, there are means.
    let shared = &traceml_export(&job.recording())["step_memory"]["global"]["worst"]["peak_allocated_bytes"];
    assert_eq!(shared["value"].as_f64().unwrap(), mean);
}

#[test]
fn figures_are_there_without_a_finding() {
    let summary = summary(&Job::new(2, 1000).live(|_, _| 30 * GIB).recording());
    let rank = &summary["ranks"][0];
    for key in ["capacity_bytes", "pressure_ratio", "headroom_bytes", "peak_imbalance_ratio"] {
        assert!(rank[key].is_number(), "{key}: {rank}");
    }
    for key in
        ["slope_bytes_per_step", "slope_lower_bytes_per_step", "slope_upper_bytes_per_step"]
    {
        assert!(rank["trend"][key].is_number(), "{key}: {rank}");
    }
    assert!(rank["trend"]["bands"]["recent_bytes"].is_number(), "{rank}");
}

#[test]
fn same_recording_gives_the_same_bytes() {
    let records = Job::new(4, 300).live(|_, _| 30 * GIB).recording();
    let ended = || stepmem(&["summary", "--json", "-"], &[], records.as_bytes()).out;
    assert_eq!(ended(), ended());
}
