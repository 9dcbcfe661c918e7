//! Host memory beyond that of a rank's process: shared memory, `DataLoader` workers, other child processes.

use std::cell::RefCell;

use serde_json::{Value, json};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::Folder;
use crate::rig::job::Job;
use crate::rig::noise::noise;
use crate::rig::summary::summary;
use crate::rig::units::{GIB, MIB, float};
use crate::rig::wait::await_true;

/// A rank whose workers grow by 201 KiB a step, as read at every 20th step.
fn with_workers() -> Job {
    Job::new(1, 400).live(|_, _| GIB).more(|_, step| {
        if step % 20 == 0 {
            json!({"workers": 2, "workers_bytes": 580 * MIB + step * 201 * 1024,
                // As a helper that does nothing: a page more now and then.
                "child_processes": 1, "child_processes_bytes": 9 * MIB + step * 46})
        } else {
            json!({})
        }
    })
}

fn card(recording: &str) -> String {
    let ended = stepmem(&["summary", "-"], &[], recording.as_bytes());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    ended.out
}

#[test]
fn memory_of_workers_is_a_part_of_its_own_in_every_output() {
    let exporter = Exporter::start(&[]);
    exporter.push(&with_workers().run("cow").records());
    let labels = |kind: &str| format!("{{run=\"cow\",rank=\"0\",uuid=\"\",kind=\"{kind}\"}}");
    exporter.await_metrics("the pushes are judged", |metrics| {
        metrics.contains_key(&format!("stepmem_rank_child_processes{}", labels("worker")))
    });
    let metrics = exporter.scrape();
    let of = |name: &str, kind: &str| metrics.get(&format!("{name}{}", labels(kind))).copied();
    let held = 580.0 + 400.0 * 201.0 / 1024.0;
    assert_eq!(of("stepmem_rank_child_processes", "worker"), Some(2.0));
    assert_eq!(of("stepmem_rank_child_memory_bytes", "worker"), Some(held * 1_048_576.0));
    let slope = of("stepmem_rank_child_memory_slope_bytes_per_step", "worker");
    assert!(slope.is_some_and(|slope| (slope - 201.0 * 1024.0).abs() < 0.001), "{slope:?}");
    assert_eq!(of("stepmem_rank_child_processes", "other"), Some(1.0));
    assert_eq!(
        of("stepmem_rank_child_memory_bytes", "other"),
        Some(9.0 * 1_048_576.0 + 400.0 * 46.0)
    );
    assert_eq!(
        metrics.get("stepmem_rank_memory_shared_bytes{run=\"cow\",rank=\"0\",uuid=\"\"}"),
        None
    );
    let words = "2 workers hold 659 MiB, +201 KiB/step; 1 other child process holds 9.02 MiB";
    let status = exporter.status();
    assert_eq!(status["ranks"][0]["host"]["sentence"], words);
    assert_eq!(status["ranks"][0]["allocated_bytes"], json!(GIB), "the rank's own memory");
    assert_eq!(status["findings"], json!([]));
    let recording = with_workers().recording();
    assert!(
        card(&recording).contains(&format!("\n  Rank 0: {words}.\n")),
        "{}",
        card(&recording)
    );
    assert_eq!(summary(&recording)["ranks"][0]["host"]["workers"]["count"], 2);
}

#[test]
fn workers_that_ended_are_told_as_past_and_leave_the_metrics() {
    let exporter = Exporter::start(&[]);
    let mut records = with_workers().run("cow").records();
    records.last_mut().unwrap()["workers"] = json!(0);
    records.last_mut().unwrap()["workers_bytes"] = json!(0);
    exporter.push(&records);
    let other = r#"stepmem_rank_child_processes{run="cow",rank="0",uuid="",kind="other"}"#;
    exporter.await_metrics("the pushes are judged", |metrics| metrics.contains_key(other));
    let worker = other.replace("other", "worker");
    assert_eq!(exporter.metric(&worker), None);
    let host = exporter.status()["ranks"][0]["host"].take();
    let sentence = host["sentence"].as_str().unwrap();
    assert!(
        sentence.starts_with("2 workers held 655 MiB at step 380, +201 KiB/step"),
        "{sentence}"
    );
}

#[test]
fn rate_of_workers_begins_again_with_other_workers() {
    let job = Job::new(1, 400).live(|_, _| GIB).more(|_, step| {
        let of_epoch = (step % 200) * MIB;
        json!({"workers": 2, "workers_bytes": 100 * MIB + of_epoch})
    });
    let host = summary(&job.recording())["ranks"][0]["host"].take();
    let rate = host["workers"]["bytes_per_step"].as_f64();
    assert!(rate.is_none_or(|rate| (rate - 1_048_576.0).abs() < 1.0), "{host}");
}

/// Steps at which a client read two workers, and the MiB that they held, in runs of which the truth is known.
type Readings = [(u64, u64)];

/// Workers that touch the pages of a dataset: copy-on-write, which fades to nothing.
const FADING: &Readings = &[
    (55, 140),
    (102, 213),
    (164, 296),
    (233, 371),
    (297, 427),
    (361, 474),
    (479, 544),
    (602, 585),
    (822, 629),
    (1034, 647),
    (1288, 655),
];

/// The same program once more.
const FADING_AGAIN: &Readings = &[
    (86, 190),
    (152, 284),
    (223, 363),
    (300, 428),
    (369, 484),
    (500, 548),
    (644, 595),
    (733, 622),
    (945, 642),
    (1165, 652),
    (1398, 657),
];

/// Workers whose dataset keeps what it decodes.
const LEAKING: &Readings = &[
    (81, 70),
    (150, 102),
    (225, 135),
    (293, 167),
    (356, 211),
    (445, 263),
    (568, 359),
    (712, 440),
    (911, 512),
    (1076, 573),
];

/// A rank whose host memory is level, with workers that were read so.
fn with_readings(readings: &'static Readings, n_steps: u64) -> Job {
    let job = Job::new(1, n_steps).live(|_, _| 376 * MIB).capacity(2 * GIB).device("cpu");
    job.seconds_per_step(0.02).more(|_, step| {
        let held = readings.iter().find(|(at, _)| *at == step);
        held.map_or(json!({}), |(_, held)| json!({"workers": 2, "workers_bytes": held * MIB}))
    })
}

#[test]
fn rate_of_workers_does_not_depend_on_how_densely_they_were_read() {
    let rate = |readings, n_steps| {
        let summary = summary(&with_readings(readings, n_steps).recording());
        summary["ranks"][0]["host"]["workers"]["bytes_per_step"].as_f64().unwrap() / 1024.0
    };
    // A line through the truth, at every 25th step of the last four fifths, in KiB.
    for (readings, n_steps, truth) in
        [(FADING, 1400, 179.0), (FADING_AGAIN, 1400, 179.0), (LEAKING, 1200, 514.0)]
    {
        let rate = rate(readings, n_steps);
        assert!((rate / truth - 1.0).abs() < 0.2, "{rate} KiB/step, really {truth}");
    }
}

#[test]
fn workers_whose_memory_rises_straight_are_a_rise_with_its_end() {
    let summary = summary(&with_readings(LEAKING, 1200).recording());
    let verdict = &summary["diagnosis"];
    assert_eq!(
        (&verdict["status"], &verdict["ranks"]),
        (&json!("BALANCED SO FAR"), &json!([0]))
    );
    let words = verdict["summary"].as_str().unwrap();
    let begin = "no creep, pressure or imbalance; the memory of 2 workers rises straight, by 5";
    assert!(words.starts_with(begin), "{words}");
    // 1,099 MiB by some 530 KiB/step, at 0.02 s a step.
    let end = words.split("KiB/step: at this rate out of memory in about 4").nth(1);
    assert!(end.is_some_and(|end| end.starts_with("2 s (2,1")), "{words}");
    let action = verdict["action"].as_str().unwrap();
    assert!(
        action.contains("each worker keeps") && action.contains("copy-on-write"),
        "{action}"
    );
    assert_eq!(summary["ranks"][0]["host"]["workers"]["is_straight"], json!(true));
}

#[test]
fn workers_that_fade_or_swing_or_grow_by_next_to_nothing_are_no_rise() {
    const SWINGING: &Readings = &[
        (50, 300),
        (150, 340),
        (250, 290),
        (350, 335),
        (450, 300),
        (600, 338),
        (800, 310),
        (1000, 341),
    ];
    const SMALL: &Readings = &[
        (50, 300),
        (150, 300),
        (250, 301),
        (350, 301),
        (450, 302),
        (600, 302),
        (800, 303),
        (1000, 303),
    ];
    for readings in [FADING, FADING_AGAIN, SWINGING, SMALL] {
        let summary = summary(&with_readings(readings, 1400).recording());
        let verdict = &summary["diagnosis"];
        assert_eq!(
            (&verdict["status"], &verdict["action"]),
            (&json!("BALANCED"), &json!("Nothing to do.")),
            "{summary}"
        );
        assert_eq!(summary["ranks"][0]["host"]["workers"]["is_straight"], json!(false));
    }
}

#[test]
fn headroom_of_host_memory_is_less_by_what_child_processes_hold() {
    let exporter = Exporter::start(&[]);
    exporter.push(&with_readings(LEAKING, 1200).records());
    let left = float((2048 - 376 - 573) * MIB);
    exporter.await_metrics("the pushes are judged", |metrics| {
        metrics.keys().any(|series| series.starts_with("stepmem_rank_child_processes{"))
    });
    let metrics = exporter.scrape();
    let headroom =
        metrics.iter().find(|(series, _)| series.starts_with("stepmem_headroom_bytes{"));
    assert_eq!(headroom.map(|(_, bytes)| *bytes), Some(left));
    assert_eq!(exporter.status()["ranks"][0]["headroom_bytes"], json!(left));
    let summary = exporter.get("/api/v1/runs/job/summary", &[]).json();
    assert_eq!(summary["ranks"][0]["headroom_bytes"], json!(left));
    let card = summary["text"].as_str().unwrap();
    assert!(card.contains(" 2.00 GiB 1.07 GiB "), "{card}");
    // They free their memory when they end.
    exporter.push(&[json!({"run": "job", "rank": 0, "step": 1201, "device": "cpu",
        "allocated_bytes": 376 * MIB, "total_bytes": 2 * GIB, "workers": 0})]);
    let status = exporter.status();
    assert_eq!(status["ranks"][0]["headroom_bytes"], json!(float((2048 - 376) * MIB)));
    // Those of a rank on a GPU hold no memory of the GPU.
    exporter.push(&with_readings(LEAKING, 1200).device("GPU-1").run("gpu").records());
    let status = exporter.status();
    let gpu = status["ranks"].as_array().unwrap().iter().find(|rank| rank["run"] == "gpu");
    assert_eq!(gpu.unwrap()["headroom_bytes"], json!(float((2048 - 376) * MIB)));
}

/// Figures of such a rank may or may not be about the host's memory: what its children hold is
/// shown, and taken from nothing.
#[test]
fn memory_of_children_of_a_rank_without_a_device_is_shown_and_takes_no_headroom() {
    let mut records = with_readings(LEAKING, 1200).records();
    for record in &mut records {
        record.as_object_mut().unwrap().remove("device");
    }
    let exporter = Exporter::start(&[]);
    exporter.push(&records);
    let status = exporter.status();
    let rank = &status["ranks"][0];
    assert_eq!(rank["device"], Value::Null);
    assert_eq!(rank["headroom_bytes"], json!(float((2048 - 376) * MIB)));
    let sentence = rank["host"]["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("2 workers hold 573 MiB, +"), "{sentence}");
    let summary = exporter.get("/api/v1/runs/job/summary", &[]).json();
    assert_eq!(summary["ranks"][0]["headroom_bytes"], rank["headroom_bytes"]);
    let card = summary["text"].as_str().unwrap();
    assert!(card.contains(&format!("Rank 0: {sentence}")), "{card}");
}

#[test]
fn memory_that_cannot_be_read_is_absent() {
    let job = Job::new(1, 20)
        .live(|_, _| GIB)
        .more(|_, _| json!({"workers": 4, "host_shared_bytes": 300 * MIB, "host_split_bytes": 40 * MIB}));
    let host = summary(&job.recording())["ranks"][0]["host"].take();
    assert_eq!(host["workers"]["bytes"], Value::Null);
    assert_eq!(
        host["sentence"],
        "the memory of 4 workers cannot be read; 300 MiB is shared memory, 40.0 MiB of it its share of segments that several ranks use"
    );
}

#[test]
fn shared_memory_is_named_only_where_there_is_much_of_it() {
    let sentence = |shared: u64| {
        let job = Job::new(1, 20).live(|_, _| GIB);
        let job = job.more(move |_, _| json!({"host_shared_bytes": shared}));
        summary(&job.recording())["ranks"][0]["host"]["sentence"].take()
    };
    assert_eq!(sentence(18 * MIB), "");
    assert_eq!(sentence(256 * MIB), "256 MiB is shared memory");
}

#[test]
fn pinned_memory_is_named_where_there_is_much_of_it_and_stays_known() {
    let host = |pinned: u64| {
        let job = Job::new(1, 40).live(|_, _| GIB);
        let job = job.more(move |_, step| match step {
            0..20 => json!({"host_pinned_bytes": pinned}),
            _ => json!({}),
        });
        summary(&job.recording())["ranks"][0]["host"].take()
    };
    let much = host(12 * GIB);
    assert_eq!(much["pinned_bytes"], 12 * GIB);
    assert_eq!(much["sentence"], "PyTorch holds 12.0 GiB of pinned memory");
    let little = host(18 * MIB);
    assert_eq!((&little["pinned_bytes"], &little["sentence"]), (&json!(18 * MIB), &json!("")));
}

#[test]
fn rank_without_such_memory_has_no_part_and_figures_out_of_range_are_refused() {
    let plain = summary(&Job::new(1, 20).live(|_, _| GIB).recording());
    assert_eq!(plain["ranks"][0]["host"], Value::Null);
    let exporter = Exporter::start(&[]);
    let body = r#"{"rank":0,"step":1,"allocated_bytes":1,"workers":4194305}"#;
    let answer = exporter.post(body);
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("workers: 4194305 is outside 0..=4194304"), "{}", answer.body);
}

/// A rank on a GPU with 20 GiB live and 8 GiB of 64 GiB on the host; each grows by so many bytes a step.
fn on_gpu(device: u64, host: u64) -> Job {
    let live = move |rank, step| 20 * GIB + noise(rank, step, 16 * MIB) + device * step;
    let of_host = move |rank, step| 8 * GIB + noise(rank, step + 7, 16 * MIB) + host * step;
    let job = Job::new(1, 800).device("GPU-1").live(live);
    job.seconds_per_step(10.0).more(move |rank, step| {
        json!({"host_allocated_bytes": of_host(rank, step), "host_total_bytes": 64 * GIB})
    })
}

fn kinds(status: &Value) -> Vec<&str> {
    let findings = status["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["kind"].as_str().unwrap()).collect()
}

#[test]
fn growth_on_the_host_and_on_the_device_are_told_apart() {
    for (device, host, expected) in [
        (0, 0, vec![]),
        (40 * MIB, 0, vec!["CREEP_CONFIRMED"]),
        (0, 40 * MIB, vec!["HOST_CREEP_CONFIRMED"]),
        (40 * MIB, 40 * MIB, vec!["CREEP_CONFIRMED", "HOST_CREEP_CONFIRMED"]),
    ] {
        let exporter = Exporter::start(&[]);
        exporter.push(&on_gpu(device, host).records());
        let status = exporter.status();
        assert_eq!(kinds(&status), expected, "{device} {host}");
    }
}

#[test]
fn growth_on_the_host_next_to_a_device_is_in_every_output() {
    let exporter = Exporter::start(&[]);
    exporter.push(&on_gpu(0, 40 * MIB).records());
    let status = exporter.status();
    let finding = &status["findings"][0];
    assert_eq!(finding["status"], "MEMORY CREEP (host)", "{finding}");
    assert_eq!(finding["evidence"]["signal"], "host", "{finding}");
    let words = finding["sentence"].as_str().unwrap();
    assert!(words.starts_with("host memory grows by 40."), "{words}");
    let host = &status["ranks"][0]["host"];
    assert_eq!(host["total_bytes"], json!(64 * GIB));
    let metrics = exporter.scrape();
    let labels = r#"{run="job",rank="0",uuid="GPU-1"}"#;
    let held = metrics[&format!("stepmem_rank_host_memory_allocated_bytes{labels}")];
    assert_eq!(json!(held), json!(float(host["allocated_bytes"].as_u64().unwrap())));
    let slope =
        r#"stepmem_creep_slope_bytes_per_step{run="job",rank="0",uuid="GPU-1",signal="host"}"#;
    let slope = metrics.get(slope).copied();
    assert!(slope.is_some_and(|of| (of / float(40 * MIB) - 1.0).abs() < 0.05), "{slope:?}");
    let card = card(&on_gpu(0, 40 * MIB).recording());
    assert!(card.contains("MEMORY CREEP (host)"), "{card}");
    let explained = stepmem(&["explain", "-"], &[], on_gpu(0, 40 * MIB).recording().as_bytes());
    assert!(explained.out.contains("Host memory"), "{}", explained.out);
    let without = stepmem(&["explain", "-"], &[], Job::new(1, 100).recording().as_bytes());
    assert!(!without.out.contains("Host memory"), "{}", without.out);
}

#[test]
fn host_memory_next_to_a_device_that_is_nearly_full_is_high_pressure_of_the_host() {
    let job = Job::new(1, 100)
        .device("GPU-1")
        .more(|_, _| json!({"host_allocated_bytes": 63 * GIB, "host_total_bytes": 64 * GIB}));
    let exporter = Exporter::start(&[]);
    exporter.push(&job.records());
    exporter.await_metrics("the pushes are judged", |metrics| {
        metrics.keys().any(|series| series.contains("kind=\"HOST_HIGH_PRESSURE\""))
    });
    let status = exporter.status();
    assert_eq!(kinds(&status), ["HOST_HIGH_PRESSURE"], "{status}");
    let finding = &status["findings"][0];
    assert_eq!(
        (&finding["severity"], &finding["sentence"]),
        (&json!("warning"), &json!("host memory is at 98% of 64.0 GiB"))
    );
    let metrics = exporter.scrape();
    let ratio = metrics.iter().find(|(series, _)| series.contains(r#"basis="host""#));
    assert_eq!(ratio.map(|(_, ratio)| *ratio), Some(63.0 / 64.0));
}

#[test]
fn growth_on_the_host_outlasts_a_restart_of_the_exporter_and_ends_with_the_incarnation() {
    let folder = Folder::new("host-memory-restart");
    let path = folder.path("state");
    let arguments = ["--state.file", path.to_str().unwrap()];
    let mut records = on_gpu(0, 40 * MIB).records();
    let first = Exporter::start(&arguments);
    first.push(&records);
    let before = first.status()["findings"].clone();
    first.stop();
    let second = Exporter::start(&arguments);
    let after = second.status()["findings"].clone();
    assert_eq!(after[0]["kind"], "HOST_CREEP_CONFIRMED");
    let onset = |findings: &Value| findings[0]["evidence"]["onset_step"].clone();
    assert_eq!(onset(&after), onset(&before));
    let last = records.last_mut().unwrap();
    last["step"] = json!(1);
    last["attempt"] = json!(1);
    second.push(std::slice::from_ref(last));
    assert_eq!(kinds(&second.status()), Vec::<&str>::new());
}

/// The findings of a job as they begin, change and clear.
fn transitions(job: &Job) -> Vec<Value> {
    let ended = stepmem(&["replay", "-"], &[], job.recording().as_bytes());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let lines = ended.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["kind"].is_string()).collect()
}

/// Host memory by step, and what else its records have.
type Course = (&'static str, fn(u64) -> u64, fn(u64) -> Value);

const COURSES: &[Course] = &[
    ("level", |_| 0, |_| json!({})),
    ("line", |step| step * 12 * MIB, |_| json!({})),
    ("by time", |step| step * 12 * MIB, |_| json!({"phase": "sample"})),
    ("cache that is full", |step| step.min(150) * 40 * MIB, |_| json!({})),
    ("nearly full", |_| 54 * GIB, |_| json!({})),
    ("full", |_| 56 * GIB - 64 * MIB, |_| json!({})),
    ("line to its limit", |step| 46 * GIB + step * 12 * MIB, |_| json!({})),
    (
        "workers take the rest",
        |_| 40 * GIB,
        |_| json!({"workers": 8, "workers_bytes": 14 * GIB}),
    ),
    (
        "line next to workers",
        |step| step * 30 * MIB,
        |_| json!({"workers": 8, "workers_bytes": 20 * GIB}),
    ),
    (
        "by checkpoint",
        |step| step / 50 * 500 * MIB,
        |step| if step % 50 == 0 { json!({"marks": ["checkpoint"]}) } else { json!({}) },
    ),
];

#[test]
fn host_memory_next_to_a_device_is_judged_as_that_of_a_rank_without_one() {
    for (name, grown, fields) in COURSES {
        let (grown, fields) = (*grown, *fields);
        let held = move |rank, step| 8 * GIB + noise(rank, step, 16 * MIB) + grown(step);
        let with = move |step: u64, more: Value| {
            let mut record = fields(step);
            record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            record
        };
        let job = || Job::new(1, 800).seconds_per_step(10.0).capacity(64 * GIB);
        let alone = job().device("cpu").live(held).more(move |rank, step| {
            with(
                step,
                json!({"peak_allocated_bytes": null, "reserved_bytes": held(rank, step)}),
            )
        });
        let next_to = job().device("GPU-1").more(move |rank, step| {
            let (held, limit) = (held(rank, step), 64 * GIB);
            with(step, json!({"host_allocated_bytes": held, "host_total_bytes": limit}))
        });
        let found = |job: &Job| {
            let of = |found: &Value| {
                let kind = found["kind"].as_str().unwrap().replace("HOST_", "");
                let growth = found["evidence"]["growth_bytes"].clone();
                (kind, found["severity"].clone(), found["state"].clone(), growth)
            };
            transitions(job).iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(found(&next_to), found(&alone), "{name}");
    }
}

#[test]
fn findings_of_a_device_are_the_same_whatever_the_host_does() {
    let level = |_| 0;
    let leak = |step: u64| step * 40 * MIB;
    let full = |_| 67 * GIB;
    let late_leak = |step: u64| step.saturating_sub(600) * 80 * MIB;
    let courses: [fn(u64) -> u64; 5] = [level, leak, full, late_leak, late_leak];
    for (course, grown) in courses.into_iter().enumerate() {
        let by_time_from = if course == 4 { 600 } else { u64::MAX };
        let live = move |rank, step| 8 * GIB + noise(rank, step, 16 * MIB) + grown(step);
        let found = |of_host: fn(u64) -> Value| -> (Vec<Value>, Vec<Value>) {
            let job = Job::new(1, 1200).device("GPU-1").seconds_per_step(10.0).live(live);
            let job = job.more(move |_, step| {
                let mut fields = of_host(step);
                if step > by_time_from {
                    fields["phase"] = json!("sample");
                }
                fields
            });
            let is_of_host = |of: &Value| of["kind"].as_str().unwrap().starts_with("HOST_");
            transitions(&job).into_iter().partition(is_of_host)
        };
        let (_, without) = found(|_| json!({}));
        let (of_host, with) = found(|step| {
            let held = 8 * GIB + step * 30 * MIB;
            json!({"host_allocated_bytes": held, "host_total_bytes": 64 * GIB})
        });
        assert_eq!(with, without, "{course}");
        assert_eq!(without.is_empty(), course == 0, "{course}: {without:?}");
        assert!(!of_host.is_empty(), "{course}");
    }
}

/// The heap scans and snapshots that pushes are answered with, in batches of 100 records.
fn actions(exporter: &Exporter, records: &[Value]) -> Vec<Value> {
    let mut actions: Vec<Value> = Vec::new();
    for batch in records.chunks(100) {
        let answer = exporter.post(json!(batch).to_string());
        assert_eq!(answer.status, 200, "{}", answer.body);
        actions.extend(answer.json()["actions"].as_array().unwrap().iter().cloned());
    }
    // A request to read the allocator has no id, and comes again while host memory grows.
    actions.retain(|of| of["type"] != "malloc");
    actions.dedup();
    actions
}

/// Reports what a rank's search found.
fn report(exporter: &Exporter, id: &Value, name: &str) {
    let holder = json!({"name": name, "kind": "list", "tensors": 0, "bytes": 30 * GIB,
        "tensors_per_step": 0.0, "bytes_per_step": 40 * MIB});
    let body = json!({"run": "job", "rank": 0, "id": id, "outcome": "named", "last_step": 800,
        "holders": [holder]});
    let answer = exporter.post_to("/v1/holders", body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
}

fn sentence(status: &Value, kind: &str) -> String {
    let findings = status["findings"].as_array().unwrap();
    let found = findings.iter().find(|found| found["kind"] == kind).expect(kind);
    found["sentence"].as_str().unwrap().to_owned()
}

#[test]
fn growth_on_the_host_next_to_a_device_asks_what_holds_host_memory_and_for_no_snapshot() {
    let exporter = Exporter::start(&["--holders.on-creep", "--snapshot.on-creep"]);
    let asked = actions(&exporter, &on_gpu(0, 40 * MIB).records());
    let last = asked.last().unwrap();
    assert!(asked.iter().all(|of| of["id"] == last["id"]), "{asked:?}");
    assert_eq!((&last["type"], &last["is_on_host"]), (&json!("holders"), &json!(true)));
    let growth = last["bytes_per_step"].as_f64().unwrap();
    assert!((growth / float(40 * MIB) - 1.0).abs() < 0.05, "{last}");
    report(&exporter, &last["id"], "`Memory.frames`");
    let words = sentence(&exporter.status(), "HOST_CREEP_CONFIRMED");
    assert!(words.contains("; held by `Memory.frames` (list, "), "{words}");
}

#[test]
fn what_holds_one_memory_of_a_rank_is_not_named_for_the_other() {
    let exporter = Exporter::start(&["--holders.on-creep"]);
    let mut records = on_gpu(40 * MIB, 40 * MIB).records();
    let rest = records.split_off(799);
    let asked = actions(&exporter, &records);
    let (first, is_on_host) = (asked[0]["id"].clone(), asked[0]["is_on_host"] == true);
    report(&exporter, &first, if is_on_host { "`host`" } else { "`device`" });
    let named = |kind| sentence(&exporter.status(), kind).contains("held by");
    assert_eq!(
        (named("CREEP_CONFIRMED"), named("HOST_CREEP_CONFIRMED")),
        (!is_on_host, is_on_host)
    );
    let second = RefCell::new(Value::Null);
    await_true("the rank is asked about its other memory", || {
        let mut asked = actions(&exporter, &rest).into_iter();
        let of_other = asked.find(|of| of["id"] != first);
        let is_asked = of_other.is_some();
        second.replace(of_other.unwrap_or_default());
        is_asked
    });
    let second = second.take();
    assert_eq!(second["is_on_host"], !is_on_host);
    report(&exporter, &second["id"], if is_on_host { "`device`" } else { "`host`" });
    let status = exporter.status();
    let (device, host) =
        (sentence(&status, "CREEP_CONFIRMED"), sentence(&status, "HOST_CREEP_CONFIRMED"));
    assert!(device.contains("held by `device`") && host.contains("held by `host`"), "{status}");
    assert_eq!(status["ranks"][0]["holder"]["name"], "`device`");
    let metrics = exporter.scrape();
    for (family, name) in [("creep", "`device`"), ("host_creep", "`host`")] {
        let beginning = format!("stepmem_{family}_holder_info{{");
        let series: Vec<_> =
            metrics.keys().filter(|series| series.starts_with(&beginning)).collect();
        assert_eq!(series.len(), 1, "{series:?}");
        assert!(series[0].contains(&format!("holder=\"{name}\",kind=\"list\"")), "{series:?}");
    }
}

/// The finding of a buffer whose items take so many MiB, on a host that takes 40 MiB for each.
fn of_buffer(item_mib: u64) -> (Value, Value) {
    let instance = "00c0ffee00c0ffee";
    let exporter = Exporter::start(&["--holders.on-creep"]);
    let mut records = on_gpu(0, 40 * MIB).records();
    for record in &mut records {
        record["instance"] = json!(instance);
    }
    let asked = actions(&exporter, &records);
    let holder = json!({"name": "`replay`", "kind": "deque", "tensors": 0, "bytes": 800 * item_mib * MIB,
        "tensors_per_step": 0.0, "bytes_per_step": item_mib * MIB,
        "items": 800, "items_max": 1200, "items_per_step": 1.0});
    let body = json!({"run": "job", "rank": 0, "instance": instance, "id": asked[0]["id"],
        "outcome": "named", "last_step": 800, "holders": [holder]});
    assert_eq!(exporter.post_to("/v1/holders", body.to_string()).status, 200);
    let status = exporter.status();
    (status["findings"][0].clone(), status)
}

#[test]
fn a_buffer_on_the_host_that_will_fit_is_told_and_not_paged() {
    // The C library takes up to 1.3 times what is asked for.
    for item_mib in [40, 36, 33, 31] {
        let (found, status) = of_buffer(item_mib);
        assert_eq!(found["severity"], "info", "{item_mib}: {status}");
        let words = sentence(&status, "HOST_CREEP_CONFIRMED");
        assert!(words.contains("`replay` (deque, 800 of 1,200): full in 400 steps"), "{words}");
        assert!(words.contains(" at 46.9 GiB"), "{words}");
        assert_eq!(status["ranks"][0].get("host_oom_eta_seconds"), None, "{status}");
    }
    let (found, status) = of_buffer(28);
    assert_eq!(found["evidence"]["filling"]["doubt"], "part_of_growth", "{status}");
}
