//! Diagnoses of pushes and recordings: which rank is in trouble, from which figure on, and which is not.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use stepmem_engine::COMPARABLE_STEPS_MIN;

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::Folder;
use crate::rig::http::Answer;
use crate::rig::job::Job;
use crate::rig::json::has;
use crate::rig::units::MIB;
use crate::rig::wait::await_true;

const GB: u64 = 1_000_000_000;

/// The severity (1 info, 2 warning, 3 critical) of a diagnosis that holds, by run.
fn severity(exporter: &Exporter, kind: &str, (run, rank): (&str, u32)) -> Option<f64> {
    let labels = format!("{{run=\"{run}\",rank=\"{rank}\",kind=\"{kind}\"}}");
    exporter.metric(&format!("stepmem_diagnosis_severity{labels}"))
}

fn await_severity(exporter: &Exporter, kind: &str, of: (&str, u32), level: Option<f64>) {
    let what = format!("{kind} {level:?} of {of:?}");
    await_true(&what, || severity(exporter, kind, of) == level);
}

#[test]
fn leak_is_rising_then_creep_on_its_own_rank_and_flat_noise_is_nothing() {
    let exporter = Exporter::start(&[]);
    exporter.push(&Job::leaking("flat", 1..2500, 0).records());
    exporter.push(&Job::leaking("leaky", 1..800, 4 * MIB).records());
    await_severity(&exporter, "CREEP_EARLY", ("leaky", 2), Some(1.0));
    assert_eq!(severity(&exporter, "CREEP_CONFIRMED", ("leaky", 2)), None);
    exporter.push(&Job::leaking("leaky", 800..1500, 4 * MIB).records());
    await_severity(&exporter, "CREEP_CONFIRMED", ("leaky", 2), Some(2.0));
    let status = exporter.status();
    let findings = status["findings"].as_array().unwrap();
    let found: Vec<_> = findings
        .iter()
        .map(|f| (f["run"].as_str(), f["rank"].as_u64(), f["kind"].as_str()))
        .collect();
    assert_eq!(found, [(Some("leaky"), Some(2), Some("CREEP_CONFIRMED"))]);
    assert_eq!(findings[0]["status"], "MEMORY CREEP");
    let evidence = &findings[0]["evidence"];
    let of = |key: &str| evidence[key].as_f64().unwrap();
    let leak = 4.0 * 1_048_576.0;
    assert!((of("slope_bytes_per_step") / leak - 1.0).abs() < 0.02, "{evidence}");
    assert!((of("slope_bytes_per_second") / leak * 10.0 - 1.0).abs() < 0.02, "{evidence}");
    assert!(
        of("slope_lower_bytes_per_step") <= leak && leak <= of("slope_upper_bytes_per_step")
    );
    assert!(of("onset_step") < 256.0, "{evidence}");
    assert!((0.0..=1.0).contains(&of("confidence_ratio")), "{evidence}");

    let metrics = exporter.scrape();
    let rank =
        |name: &str| metrics[&format!("stepmem_{name}{{run=\"leaky\",rank=\"2\",uuid=\"\"}}")];
    let signal = |name: &str| {
        let labels = "{run=\"leaky\",rank=\"2\",uuid=\"\",signal=\"allocated\"}";
        metrics[&format!("stepmem_creep_{name}{labels}")]
    };
    let (steps, seconds) = (rank("oom_eta_steps"), rank("oom_eta_seconds"));
    assert!((seconds / steps / 10.0 - 1.0).abs() < 0.01, "{seconds} s, {steps} steps");
    let left = 40_960.0 * 1_048_576.0 - signal("growth_bytes");
    let expected = left / signal("slope_bytes_per_step");
    assert!((steps / expected - 1.0).abs() < 0.3, "{steps} steps, about {expected} expected");
    let eta_of_others = metrics.keys().filter(|series| {
        series.starts_with("stepmem_oom_eta_steps") && !series.contains("leaky")
    });
    assert_eq!(eta_of_others.count(), 0);
}

#[test]
fn log_has_the_name_the_figures_and_the_level_of_a_finding() {
    let exporter = Exporter::start(&[]);
    exporter.push(&Job::leaking("leaky", 1..1500, 4 * MIB).records());
    await_severity(&exporter, "CREEP_CONFIRMED", ("leaky", 2), Some(2.0));
    let raised = |diagnosis: &str| {
        let is_it = |entry: &&Value| {
            let fields = &entry["fields"];
            fields["message"] == "raised" && fields["diagnosis"] == diagnosis
        };
        let log = exporter.log();
        log.iter().find(is_it).unwrap_or_else(|| panic!("{diagnosis}: {log:#?}")).clone()
    };
    let rising = raised("MEMORY RISING");
    has(&rising, &json!({"level": "INFO", "fields": {"severity": "info"}}));
    let creep = raised("MEMORY CREEP");
    assert_eq!(creep["level"], "WARN");
    let fields = &creep["fields"];
    has(fields, &json!({"run": "leaky", "rank": 2, "kind": "CREEP_CONFIRMED"}));
    for figure in ["slope_bytes_per_step", "growth_bytes", "headroom_bytes", "oom_eta_seconds"]
    {
        assert!(fields[figure].as_f64().is_some_and(|value| value > 0.0), "{figure}: {fields}");
    }
    assert_eq!(fields.get("pressure_ratio"), None, "unknown is absent");
    assert!(fields["sentence"].as_str().unwrap().starts_with("live memory grows by"));
}

/// A record whose figures are shares of a capacity.
fn pressed(run: &str, step: u64, figures: &[(&str, u64)], capacity: u64) -> Value {
    let mut record = json!({ "run": run, "rank": 0, "step": step, "allocated_bytes": GB, "total_bytes": capacity });
    for (field, bytes) in figures {
        record[*field] = json!(bytes);
    }
    record
}

#[test]
fn pressure_counts_from_exactly_its_limits_on_and_of_the_ranks_own_capacity() {
    let exporter = Exporter::start(&[]);
    let mut batch = Vec::new();
    for (basis, fields) in [
        ("allocated", &["peak_allocated_bytes"][..]),
        ("reserved", &["reserved_bytes"]),
        ("peak_reserved", &["reserved_bytes", "peak_reserved_bytes"]),
    ] {
        for (capacity, name) in [(100 * GB, "large"), (50 * GB, "small")] {
            for (percent, off, level) in
                [(92, 0, "warning"), (92, 1, "none"), (97, 0, "critical"), (97, 1, "high")]
            {
                let bytes = capacity / 100 * percent - off;
                let run = format!("{basis}-{name}-{level}");
                let figures: Vec<_> = fields.iter().map(|field| (*field, bytes)).collect();
                batch.push(pressed(&run, 1, &figures, capacity));
            }
        }
    }
    exporter.push(&batch);
    await_severity(&exporter, "HIGH_PRESSURE", ("allocated-large-critical", 0), Some(3.0));
    for record in &batch {
        let run = record["run"].as_str().unwrap();
        let expected = match run.rsplit_once('-').unwrap().1 {
            // A healthy cache fills the device.
            "critical" if run.starts_with("allocated") => Some(3.0),
            "critical" | "warning" | "high" => Some(2.0),
            _ => None,
        };
        assert_eq!(severity(&exporter, "HIGH_PRESSURE", (run, 0)), expected, "{run}");
    }
    let ratio = r#"stepmem_pressure_ratio{run="allocated-small-warning",rank="0",uuid="",basis="allocated"}"#;
    assert_eq!(exporter.metric(ratio), Some(0.92));
}

#[test]
fn full_cache_is_critical_only_once_the_allocator_had_to_give_some_up() {
    let exporter = Exporter::start(&[]);
    let record = |step: u64, retries: u64| {
        let figures = [("reserved_bytes", 99 * GB), ("alloc_retries", retries)];
        pressed("full", step, &figures, 100 * GB)
    };
    exporter.push(&[record(1, 4), record(2, 4)]);
    await_severity(&exporter, "HIGH_PRESSURE", ("full", 0), Some(2.0));
    exporter.push(&[record(3, 5)]);
    await_severity(&exporter, "HIGH_PRESSURE", ("full", 0), Some(3.0));
    let evidence = &exporter.status()["findings"][0]["evidence"];
    assert_eq!(evidence["basis"], "reserved");
}

#[test]
fn full_cache_does_not_make_a_creep_critical() {
    let severity_of = |reserved: u64, peak: u64| {
        let live = |step: u64| 20 * GB + 4 * MIB * step;
        let job = Job::new(1, 1500).capacity(80 * GB).seconds_per_step(20.0);
        let job = job.live(move |_, step| live(step)).peak(move |_, step| live(step) + peak);
        let job = job.reserved(move |_, _| reserved);
        let replayed = stepmem(&["replay", "-"], &[], job.recording().as_bytes());
        assert_eq!(replayed.code, Some(0), "{}", replayed.err);
        let is_page = |line: &&str| line.contains("CREEP_CONFIRMED") && line.contains("raised");
        let page =
            replayed.out.lines().find(is_page).unwrap_or_else(|| panic!("{}", replayed.out));
        let page: Value = serde_json::from_str(page).unwrap();
        page["severity"].as_str().unwrap().to_owned()
    };
    assert_eq!(severity_of(79 * GB, 0), "warning");
    assert_eq!(severity_of(79 * GB, 55 * GB), "critical", "live memory is near the capacity");
}

#[test]
fn time_left_that_is_not_known_within_a_factor_of_three_is_absent_and_its_least_is_told() {
    let exporter = Exporter::start(&[]);
    let push = |run: &str, reserved: u64| {
        let job = Job::new(1, 1500).capacity(80 * GB).seconds_per_step(20.0).run(run);
        let live = |step: u64| 20 * GB + 4 * MIB * step;
        let job = job.live(move |_, step| live(step)).peak(move |_, step| live(step));
        exporter.push(&job.reserved(move |_, step| reserved.max(live(step))).records());
    };
    // How much of 50 GB of cache the allocator can give back is not known; without a cache it is.
    push("cached", 75 * GB);
    push("bare", 0);
    for run in ["cached", "bare"] {
        await_severity(&exporter, "CREEP_CONFIRMED", (run, 0), Some(2.0));
    }
    let metrics = exporter.scrape();
    let of = |name: &str, run: &str| {
        let series = format!("stepmem_oom_eta_{name}{{run=\"{run}\",rank=\"0\",uuid=\"\"}}");
        metrics.get(&series).copied()
    };
    assert_eq!((of("seconds", "cached"), of("steps", "cached")), (None, None));
    let least = of("lower_seconds", "cached").unwrap();
    let likely = of("seconds", "bare").unwrap();
    let likely_steps = of("steps", "bare");
    assert!(0.0 < least && least < likely, "{least} {likely}");
    assert!(of("lower_seconds", "bare").is_some_and(|lower| lower < likely));

    let status = exporter.status();
    let of = |run: &str| {
        let of_run = |entry: &&Value| entry["run"] == run;
        let rank = status["ranks"].as_array().unwrap().iter().find(of_run).unwrap();
        let finding = status["findings"].as_array().unwrap().iter().find(of_run).unwrap();
        (rank["oom_eta_steps"].as_f64(), finding["sentence"].as_str().unwrap().to_owned())
    };
    let (steps, sentence) = of("cached");
    assert_eq!(steps, None);
    assert!(sentence.contains("; likely "), "{sentence}");
    assert!(sentence.contains(" left, out of memory in at least "), "{sentence}");
    let (steps, sentence) = of("bare");
    assert_eq!(steps, likely_steps);
    assert!(sentence.contains("left, out of memory in about "), "{sentence}");
    let table = stepmem(&["status", "--url", &format!("http://{}", exporter.web)], &[], b"");
    assert!(table.out.contains(" ≥ "), "{}", table.out);
}

#[test]
fn rank_that_creeps_is_not_out_of_balance_too() {
    // Rank 2 of the leaking job passes the others by a fifth long before the end.
    let recording = Job::leaking("leaky", 1..4000, 4 * MIB).recording();
    let replayed = stepmem(&["replay", "-"], &[], recording.as_bytes());
    assert_eq!(replayed.code, Some(0), "{}", replayed.err);
    let kinds: BTreeSet<&str> = replayed
        .out
        .lines()
        .filter_map(|line| line.split_once("\"kind\":\"")?.1.split('"').next())
        .collect();
    assert!(kinds.contains("CREEP_CONFIRMED"), "{kinds:?}");
    assert!(!kinds.contains("IMBALANCE"), "{kinds:?}");
}

#[test]
fn pressure_lets_go_two_percent_below_its_limits() {
    let exporter = Exporter::start(&[]);
    let mut step = 0;
    for (per_mille, level) in [
        (970, 3.0),
        (951, 3.0),
        (949, 2.0),
        (969, 2.0),
        (901, 2.0),
        (899, 0.0),
        (919, 0.0),
        (920, 2.0),
    ] {
        // Longer than the window of recent peaks.
        let records: Vec<Value> = (0..600)
            .map(|_| {
                step += 1;
                pressed("r", step, &[("peak_allocated_bytes", per_mille * GB / 10)], 100 * GB)
            })
            .collect();
        exporter.push(&records);
        let ratio = records[0]["peak_allocated_bytes"].as_f64().unwrap() / 100e9;
        if level > 0.0 {
            await_true("the judgment", || {
                exporter.status()["findings"][0]["evidence"]["pressure_ratio"] == ratio
            });
            assert_eq!(
                severity(&exporter, "HIGH_PRESSURE", ("r", 0)),
                Some(level),
                "{per_mille}"
            );
        } else {
            await_severity(&exporter, "HIGH_PRESSURE", ("r", 0), None);
        }
    }
}

/// Ranks with these peaks on devices of one capacity, for as many steps as make them comparable.
fn balanced(run: &str, peaks: &[u64], capacity: u64) -> Vec<Value> {
    let steps = 1..=COMPARABLE_STEPS_MIN;
    let of_step = |step: u32| {
        peaks.iter().enumerate().map(move |(rank, peak)| {
            json!({"run": run, "rank": rank, "step": step, "allocated_bytes": peak / 2, "peak_allocated_bytes": peak, "total_bytes": capacity})
        })
    };
    steps.flat_map(of_step).collect()
}

#[test]
fn ranks_that_restart_one_after_the_other_are_not_out_of_balance() {
    let record = |rank: u32, attempt: u32, step: u64, (time, allocated): (u64, u64)| {
        let time = 1_764_000_000 + time;
        json!({"run": "elastic", "rank": rank, "attempt": attempt, "step": step, "time": time,
               "allocated_bytes": allocated, "peak_allocated_bytes": allocated, "total_bytes": 80 * GB})
    };
    let mut records = Vec::new();
    for second in 0..200 {
        records.push(record(0, 0, second, (second, 60 * GB)));
        records.push(record(1, 0, second, (second, 60 * GB)));
    }
    // Rank 0 is back 60 s before rank 1, and both begin small.
    for second in 200..400 {
        records.push(record(
            0,
            1,
            second - 200,
            (second, if second < 210 { 20 } else { 60 } * GB),
        ));
        let since = second.saturating_sub(260);
        if second >= 260 {
            records.push(record(1, 1, since, (second, if since < 10 { 20 } else { 60 } * GB)));
        }
    }
    let recording = records.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
    let replayed = stepmem(&["replay", "-"], &[], recording.as_bytes());
    assert_eq!(replayed.code, Some(0), "{}", replayed.err);
    assert_eq!(replayed.out.lines().filter(|line| line.contains("IMBALANCE")).count(), 0);
}

#[test]
fn imbalance_counts_from_exactly_its_limits_on_and_for_two_ranks_as_well() {
    let exporter = Exporter::start(&[]);
    let cases = [
        ("warning", &[10 * GB, 10 * GB, 12 * GB][..], 40 * GB, Some(2.0)),
        ("skew below", &[10 * GB, 10 * GB, 12 * GB - 1], 40 * GB, None),
        ("pressure below", &[10 * GB, 10 * GB, 12 * GB], 40 * GB + 1, None),
        ("critical", &[10 * GB, 10 * GB, 13 * GB], 26 * GB, Some(3.0)),
        ("skew below critical", &[10 * GB, 10 * GB, 13 * GB - 1], 25 * GB, Some(2.0)),
        ("pressure below critical", &[10 * GB, 10 * GB, 13 * GB], 26 * GB + 1, Some(2.0)),
        ("two", &[8 * GB, 12 * GB], 40 * GB, Some(2.0)),
        ("two below", &[8 * GB + 2, 12 * GB], 40 * GB, None),
        ("two critical", &[7 * GB, 13 * GB], 26 * GB, Some(3.0)),
        ("eight", &[9, 9, 10, 10, 10, 10, 11, 12].map(|peak| peak * GB), 40 * GB, Some(2.0)),
        ("even", &[30 * GB, 30 * GB, 30 * GB], 40 * GB, None),
        ("one", &[39 * GB], 40 * GB, None),
    ];
    for (run, peaks, capacity, _) in &cases {
        exporter.push(&balanced(run, peaks, *capacity));
    }
    await_severity(&exporter, "HIGH_PRESSURE", ("one", 0), Some(3.0));
    let found: Vec<(String, u64)> = exporter.status()["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["kind"] == "IMBALANCE")
        .map(|finding| {
            (finding["run"].as_str().unwrap().to_owned(), finding["rank"].as_u64().unwrap())
        })
        .collect();
    for (run, peaks, _, level) in &cases {
        let last = u32::try_from(peaks.len() - 1).unwrap();
        assert_eq!(severity(&exporter, "IMBALANCE", (run, last)), *level, "{run}");
        let blamed: Vec<u64> = found.iter().filter(|of| of.0 == *run).map(|of| of.1).collect();
        let expected: Vec<u64> = level.iter().map(|_| u64::from(last)).collect();
        assert_eq!(blamed, expected, "{run}");
    }
    let metrics = exporter.scrape();
    assert_eq!(metrics[r#"stepmem_run_imbalance_ratio{run="two"}"#], 0.2);
    assert_eq!(metrics[r#"stepmem_run_worst_rank{run="two"}"#], 1.0);
}

#[test]
fn headroom_and_fragmentation_follow_from_the_figures() {
    let exporter = Exporter::start(&[]);
    let record = json!({
        "rank": 0, "step": 1, "allocated_bytes": 45 * GB, "peak_allocated_bytes": 50 * GB,
        "reserved_bytes": 60 * GB, "total_bytes": 100 * GB, "free_bytes": 30 * GB,
    });
    let bare = json!({ "rank": 1, "step": 1, "allocated_bytes": 45 * GB });
    exporter.push(&[record, bare]);
    let metrics = exporter.scrape();
    let of = |name: &str, rank: u32| {
        metrics
            .get(&format!("stepmem_{name}{{run=\"default\",rank=\"{rank}\",uuid=\"\"}}"))
            .copied()
    };
    assert_eq!(of("headroom_bytes", 0), Some(40e9));
    // 50 of the 60 GB were in use at the peak of the step.
    assert_eq!(of("fragmentation_ratio", 0), Some(1.0 / 6.0));
    assert_eq!((of("headroom_bytes", 1), of("fragmentation_ratio", 1)), (None, None));
    let basis = |basis: &str| {
        let labels = format!("{{run=\"default\",rank=\"0\",uuid=\"\",basis=\"{basis}\"}}");
        metrics.get(&format!("stepmem_pressure_ratio{labels}")).copied()
    };
    assert_eq!(basis("allocated"), Some(0.5));
    assert_eq!(basis("reserved"), Some(0.6));
    assert_eq!(basis("device"), None);
}

/// The job as a recording, with a reading of a device of its leaking rank among the records.
fn recording() -> String {
    let mut lines = Vec::new();
    for mut record in Job::leaking("leaky", 1..1500, 4 * MIB).records() {
        if record["rank"] == 2 {
            record["device"] = json!("GPU-2");
            record["pid"] = json!(42);
            let used = record["reserved_bytes"].as_u64().unwrap() + 1024 * MIB;
            let reading = json!({
                "nvml": true, "time": record["time"], "device": "GPU-2", "used_bytes": used,
                "total_bytes": 81_920 * MIB, "processes": [{ "pid": 42, "used_bytes": used }],
            });
            lines.push(reading.to_string());
        }
        lines.push(record.to_string());
    }
    lines.join("\n")
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn warmup_is_of_every_run_or_of_one() {
    let creeps = |arguments: &[&str]| {
        let arguments = [&["replay", "-"], arguments].concat();
        let replayed = stepmem(&arguments, &[], recording().as_bytes());
        assert_eq!(replayed.code, Some(0), "{}", replayed.err);
        replayed.out.contains("CREEP_CONFIRMED")
    };
    assert!(creeps(&[]));
    assert!(!creeps(&["--creep.warmup-steps", "20000"]));
    assert!(!creeps(&["--creep.warmup-steps", "leaky=20000"]));
    assert!(creeps(&["--creep.warmup-steps", "20000", "--creep.warmup-steps", "leaky=96"]));
    assert!(creeps(&["--creep.warmup-steps", "other=20000"]));
    let refused = stepmem(&["check", "--creep.warmup-steps", "leaky=many"], &[], b"");
    assert!(
        refused.err.contains("\"many\" is not an integer of 0 to 1000000"),
        "{}",
        refused.err
    );
}

#[test]
fn replay_gives_the_documented_lines_and_the_same_bytes_twice() {
    let folder = Folder::new("replay");
    let file = folder.write("job.jsonl", &recording());
    let replayed = stepmem(&["replay", &file], &[], b"");
    assert_eq!(replayed.code, Some(0), "{}", replayed.err);
    assert_eq!(stepmem(&["replay", &file], &[], b"").out, replayed.out);
    assert_eq!(stepmem(&["replay", "-"], &[], recording().as_bytes()).out, replayed.out);
    let lines: Vec<Value> =
        replayed.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (status, transitions) = lines.split_last().unwrap();
    let said: Vec<_> = transitions
        .iter()
        .map(|line| (line["kind"].as_str().unwrap(), line["state"].as_str().unwrap()))
        .collect();
    assert_eq!(
        said,
        [("CREEP_EARLY", "raised"), ("CREEP_EARLY", "cleared"), ("CREEP_CONFIRMED", "raised")]
    );
    for line in transitions {
        let expected = ["evidence", "kind", "rank", "run", "severity", "state", "step", "time"];
        assert_eq!(keys(line), BTreeSet::from(expected));
        let of_creep = [
            "confidence_ratio",
            "growth_bytes",
            "headroom_bytes",
            "onset_step",
            "onset_time",
            "oom_eta_lower_seconds",
            "oom_eta_lower_steps",
            "oom_eta_upper_seconds",
            "oom_eta_upper_steps",
            "signal",
            "slope_bytes_per_second",
            "slope_bytes_per_step",
            "slope_lower_bytes_per_second",
            "slope_lower_bytes_per_step",
            "slope_upper_bytes_per_second",
            "slope_upper_bytes_per_step",
        ];
        let of_known_time = ["oom_eta_seconds", "oom_eta_steps"];
        let bound = |name: &str| line["evidence"][name].as_f64().unwrap();
        let is_known = bound("oom_eta_upper_steps") <= 3.0 * bound("oom_eta_lower_steps");
        let expected =
            of_creep.into_iter().chain(of_known_time.into_iter().filter(|_| is_known));
        assert_eq!(keys(&line["evidence"]), expected.collect());
        assert_eq!((&line["run"], &line["rank"]), (&json!("leaky"), &json!(2)));
        let step = line["step"].as_f64().unwrap();
        assert_eq!(line["time"].as_f64().unwrap(), 1_764_000_000.0 + 10.0 * step);
    }
    assert_eq!(keys(status), BTreeSet::from(["status"]));
    let status = &status["status"];
    assert_eq!(status["time"], 1_764_014_990.0);
    assert_eq!(status["ranks"].as_array().unwrap().len(), 4);
    assert_eq!(status["findings"][0]["kind"], "CREEP_CONFIRMED");
    assert_eq!(status["devices"][0]["uuid"], "GPU-2");
    assert_eq!(status["ranks"][2]["outside_allocator_bytes"], 1_073_741_824.0);
}

#[test]
fn replay_stops_at_a_bad_line_and_names_it() {
    let folder = Folder::new("bad");
    let good = r#"{"rank":0,"step":1,"time":1,"allocated_bytes":1}"#;
    let long = format!("{}\n", " ".repeat(1_048_577));
    for (name, lines, problem) in [
        ("json", format!("{good}\n\nnot json\n"), "line 3: expected ident"),
        (
            "range",
            format!("{good}\n{{\"rank\":0,\"step\":2,\"allocated_bytes\":-1}}"),
            "line 2: allocated_bytes: -1 is outside",
        ),
        (
            "reading",
            "{\"nvml\":true,\"time\":1,\"device\":\"GPU-0\",\"used_bytes\":1}".to_owned(),
            "line 1: missing field `total_bytes`",
        ),
        ("long", long, "line 1: it exceeds 1048576 bytes"),
    ] {
        let file = folder.write(&format!("{name}.jsonl"), &lines);
        let ended = stepmem(&["replay", &file], &[], b"");
        assert_eq!(ended.code, Some(2), "{name}");
        let message = format!("error: {file}: ");
        assert!(ended.err.starts_with(&message), "{name}: {}", ended.err);
        assert!(ended.err.contains(problem), "{name}: {}", ended.err);
    }
    let absent = stepmem(&["replay", "/nowhere/job.jsonl"], &[], b"");
    absent.fails(2, "/nowhere/job.jsonl");
}

fn acknowledge(exporter: &Exporter, run: &str, body: &Value) -> Answer {
    let path = format!("/v1/runs/{run}/ack");
    exporter.post_to(&path, body.to_string())
}

#[test]
fn acknowledged_finding_is_info_until_it_expires() {
    let exporter = Exporter::start(&[]);
    exporter.push(&Job::leaking("leaky", 0..3000, 4 * MIB).records());
    let of = ("leaky", 2);
    await_severity(&exporter, "CREEP_CONFIRMED", of, Some(2.0));

    let reason = "a cache fills until step 40k";
    let ack = |for_seconds: u32| json!({"rank": 2, "kind": "CREEP_CONFIRMED", "for_seconds": for_seconds, "reason": reason});
    assert_eq!(acknowledge(&exporter, "leaky", &ack(3600)).status, 200);
    await_severity(&exporter, "CREEP_CONFIRMED", of, Some(1.0));
    let status = exporter.status();
    let [held] = &status["acks"].as_array().unwrap()[..] else { panic!("{}", status["acks"]) };
    has(held, &json!({"run": "leaky", "rank": 2, "reason": reason}));
    let lasts = held["until"].as_f64().unwrap() - held["since"].as_f64().unwrap();
    assert!((lasts - 3600.0).abs() < 1.0, "{lasts}");

    // A newer one takes its place, and expires by itself.
    assert_eq!(acknowledge(&exporter, "leaky", &ack(1)).status, 200);
    await_severity(&exporter, "CREEP_CONFIRMED", of, Some(2.0));
    assert_eq!(exporter.status()["acks"], json!([]));
}

#[test]
fn malformed_or_unknown_acknowledgment_is_refused() {
    let exporter = Exporter::start(&[]);
    exporter.push(&Job::leaking("calm", 0..2, 0).records());
    let good = json!({"rank": 2, "kind": "IMBALANCE", "for_seconds": 60, "reason": "known"});
    for (field, value, status, said) in [
        ("rank", json!(9), 404, "no rank 9 of that run"),
        (
            "kind",
            json!("CREEP"),
            400,
            "kind: \"CREEP\" is not one of GPU_LOST, OUT_OF_MEMORY, ",
        ),
        ("for_seconds", json!(0), 400, "for_seconds: 0 is outside 1..=2592000"),
        ("reason", json!(""), 400, "reason: a text of 0 bytes is outside 1..=512"),
        ("until", json!(1), 400, "unknown field `until`"),
    ] {
        let mut ack = good.clone();
        ack[field] = value;
        let answer = acknowledge(&exporter, "calm", &ack);
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(answer.json()["detail"].as_str().unwrap().contains(said), "{}", answer.body);
    }
    assert_eq!(acknowledge(&exporter, "elsewhere", &good).status, 404);
    assert_eq!(exporter.status()["acks"], json!([]));
    assert_eq!(acknowledge(&exporter, "calm", &good).status, 200);
}
