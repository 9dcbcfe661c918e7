//! Growth of what the child processes of a rank hold: a finding of the rank, unless it has an end.

use serde_json::{Value, json};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::job::{Job, recording};
use crate::rig::noise::noise;
use crate::rig::summary::summary;
use crate::rig::units::{GIB, MIB, float};

const KIB: u64 = 1024;

/// The memory that the children of a rank hold of their own at a reading, by its number.
type Course = fn(u64) -> u64;

/// A rank of 376 MiB on a machine of 4 GiB that takes 20 steps a second. Its three workers are read each second.
fn with_workers(course: Course) -> Job {
    let job = Job::new(1, 6000).live(|_, _| 376 * MIB).capacity(4 * GIB).device("cpu");
    job.seconds_per_step(0.05).more(move |_, step| reading(step, course, 0))
}

/// A reading at every 20th step; `unshared`: pages that stopped being shared since the workers were first read.
fn reading(step: u64, course: Course, unshared: u64) -> Value {
    if !step.is_multiple_of(20) {
        return json!({});
    }
    let own = course(step / 20) + noise(3, step, MIB);
    json!({"workers": 3, "workers_bytes": own + unshared, "workers_own_bytes": own})
}

/// 590 KiB a step, of which there are 20 between two readings.
const LEAKING: Course = |n| 300 * MIB + n * 20 * 590 * KIB;

/// The same by a fifth of the rate, beside workers that are replaced at each epoch of 40 seconds: they hold 90 MiB three seconds later.
const LEAKING_BESIDE_EPOCHS: Course = |n| EPOCHS(n) + n * 4 * 590 * KIB;

/// Workers that are replaced at each epoch of 40 seconds.
const EPOCHS: Course = |n| 300 * MIB + 90 * MIB * (n % 40).min(3);

/// Workers whose prefetched batches fill their queues within a minute and a half.
const FILLING: Course = |n| 300 * MIB + 3 * MIB * n.min(90);

/// The findings of a job as they begin, change and clear.
fn transitions(job: &Job) -> Vec<Value> {
    let ended = stepmem(&["replay", "-"], &[], job.recording().as_bytes());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let lines = ended.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["kind"].is_string()).collect()
}

#[test]
fn workers_that_leak_are_a_finding_of_their_rank_in_every_output() {
    let job = || with_workers(LEAKING).steps(1..4000);
    let exporter = Exporter::start(&[]);
    exporter.push(&job().records());
    let status = exporter.status();
    let [finding] = status["findings"].as_array().unwrap().as_slice() else {
        panic!("{}", status["findings"])
    };
    assert_eq!(
        (&finding["kind"], &finding["severity"], &finding["rank"]),
        (&json!("HOST_CREEP_CONFIRMED"), &json!("critical"), &json!(0))
    );
    let words = finding["sentence"].as_str().unwrap();
    assert!(words.starts_with("the memory of 3 workers grows by 59"), "{words}");
    assert!(words.contains(" KiB/step, ") && words.contains("; they hold 2.5"), "{words}");
    assert!(words.contains(" left, out of memory in about 1 min"), "{words}");
    let advice = finding["advice"].as_str().unwrap();
    assert!(advice.starts_with("Look at what each worker keeps"), "{advice}");
    let evidence = &finding["evidence"];
    assert_eq!(evidence["signal"], "children");
    let slope = evidence["slope_bytes_per_step"].as_f64().unwrap() / float(590 * KIB);
    assert!((slope - 1.0).abs() < 0.05, "{slope}");
    // What is left of the machine: neither the rank's own memory nor what they hold already.
    let held = status["ranks"][0]["host"]["workers"]["bytes"].as_u64().unwrap();
    let left = float(4 * GIB - 376 * MIB - held);
    let headroom = evidence["headroom_bytes"].as_f64().unwrap() / left;
    assert!((headroom - 1.0).abs() < 0.02, "{headroom}");
    let eta = status["ranks"][0]["host_oom_eta_seconds"].as_f64().unwrap();
    assert!((eta / (left / float(20 * 590 * KIB)) - 1.0).abs() < 0.1, "{eta}");
    let metrics = exporter.scrape();
    let labels = r#"{run="job",rank="0",uuid="cpu",signal="children"}"#;
    let slope = metrics.get(&format!("stepmem_creep_slope_bytes_per_step{labels}"));
    assert!(slope.is_some(), "{:?}", metrics.keys());
    let summary = summary(&job().recording());
    let verdict = &summary["diagnosis"];
    assert_eq!(verdict["status"], "MEMORY CREEP (host)", "{verdict}");
    let explained = stepmem(&["explain", "-"], &[], job().recording().as_bytes());
    assert!(explained.out.contains("Memory of child processes"), "{}", explained.out);
}

#[test]
fn workers_that_leak_are_told_long_before_the_end() {
    let found = transitions(&with_workers(LEAKING));
    let first = &found[0];
    // 3.3 GiB by 590 KiB a step last for 5,900 steps; 32 readings are needed.
    assert!(first["step"].as_u64().unwrap() < 1500, "{first}");
}

#[test]
fn growth_beside_workers_that_are_replaced_is_found() {
    // The client marks the epochs of a DataLoader.
    let job = || {
        with_workers(LEAKING_BESIDE_EPOCHS).steps(1..9001).more(|_, step| {
            let mut record = reading(step, LEAKING_BESIDE_EPOCHS, 0);
            if step.is_multiple_of(800) {
                record["marks"] = json!(["epoch"]);
            }
            record
        })
    };
    let found = transitions(&job());
    let kinds: Vec<&str> = found.iter().map(|of| of["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"HOST_CREEP_CONFIRMED"), "{kinds:?}");
    let summary = summary(&job().recording());
    assert_eq!(summary["diagnosis"]["status"], "MEMORY CREEP (host)", "{summary}");
}

#[test]
fn workers_that_are_replaced_and_queues_that_fill_are_healthy() {
    assert_eq!(transitions(&with_workers(EPOCHS)), Vec::<Value>::new());
    let exporter = Exporter::start(&[]);
    exporter.push(&with_workers(EPOCHS).records());
    let of_children = |series: &&String| series.contains(r#"signal="children""#);
    assert_eq!(exporter.scrape().keys().find(of_children), None, "they are healthy");
    let pages = |found: &Value| found["severity"] != "info";
    let of_filling: Vec<Value> =
        transitions(&with_workers(FILLING)).into_iter().filter(pages).collect();
    assert_eq!(of_filling, Vec::<Value>::new());
    let summary = summary(&with_workers(FILLING).recording());
    assert_eq!(summary["diagnosis"]["status"], "BALANCED", "{summary}");
}

#[test]
fn pages_that_stop_being_shared_are_told_with_their_end_and_are_no_growth() {
    let course: Course = |_| 300 * MIB;
    // 512 MiB are copied within three minutes; each step that is left is told with the most that can come.
    let job = with_workers(course).steps(1..2001).more(move |_, step| {
        let unshared = (step * 150 * 1024).min(512 * MIB);
        let mut record = reading(step, course, unshared);
        if step.is_multiple_of(20) {
            record["host_children_shared_bytes"] = json!(512 * MIB - unshared);
        }
        record
    });
    assert_eq!(transitions(&job), Vec::<Value>::new());
    let summary = summary(&job.recording());
    assert_eq!(summary["diagnosis"]["status"], "BALANCED", "{summary}");
    let sentence = summary["ranks"][0]["host"]["sentence"].as_str().unwrap();
    let words = "; 293 MiB of that are pages that stopped being shared, at most 219 MiB more";
    assert!(
        sentence.starts_with("3 workers hold 59") && sentence.ends_with(words),
        "{sentence}"
    );
}

#[test]
fn growth_of_children_that_have_ended_counts_down_no_more_and_clears() {
    let mut records = with_workers(LEAKING).steps(1..4000).records();
    let over = |step: u64| {
        let mut record = with_workers(LEAKING).steps(step..step + 1).records().remove(0);
        for key in ["workers", "workers_bytes", "workers_own_bytes"] {
            record[key] = json!(0);
        }
        record
    };
    let exporter = Exporter::start(&[]);
    records.push(over(4000));
    exporter.push(&records);
    let finding = exporter.status()["findings"][0].take();
    assert_eq!(finding["severity"], "warning", "{finding}");
    let words = finding["sentence"].as_str().unwrap();
    let (begin, end) = ("the memory of 3 workers grew by 59", "; they held 2.53 GiB");
    assert!(words.starts_with(begin) && words.ends_with(end), "{words}");
    assert_eq!(exporter.status()["ranks"][0]["host_oom_eta_seconds"], Value::Null);
    // A gate fails on it if the run ends now.
    let told = summary(&recording(&records));
    assert_eq!(told["diagnosis"]["status"], "MEMORY CREEP (host)", "{told}");
    records.extend((4001..8000).map(over));
    let found = summary(&recording(&records));
    assert_eq!(found["diagnosis"]["status"], "BALANCED", "{found}");
}

/// A rank of 376 MiB on a machine of 4 GiB that takes 20 steps a second. What is in `/dev/shm`, of which 1 GiB fits, is read each
/// second.
fn with_files(used: Course) -> Job {
    let job = Job::new(1, 2000).live(|_, _| 376 * MIB).capacity(4 * GIB).device("cpu");
    job.seconds_per_step(0.05).more(move |_, step| {
        if !step.is_multiple_of(20) {
            return json!({});
        }
        json!({"host_shm_used_bytes": used(step), "host_shm_limit_bytes": GIB})
    })
}

/// 768 KiB a step that nobody unlinks.
const KEPT: Course = |step| 40 * MIB + step * 768 * KIB;

#[test]
fn files_that_stay_in_shared_memory_are_a_finding_of_their_rank_in_every_output() {
    let job = || with_files(KEPT).steps(1..1001);
    let exporter = Exporter::start(&[]);
    exporter.push(&job().records());
    let status = exporter.status();
    let [finding] = status["findings"].as_array().unwrap().as_slice() else {
        panic!("{}", status["findings"])
    };
    assert_eq!(
        (&finding["kind"], &finding["severity"]),
        (&json!("HOST_CREEP_CONFIRMED"), &json!("critical"))
    );
    let words = finding["sentence"].as_str().unwrap();
    assert!(words.starts_with("what is in /dev/shm grows by 768 KiB/step, "), "{words}");
    // 234 MiB by 15 MiB a second.
    let end = "; it holds 790 MiB of 1.00 GiB; 234 MiB left, out of memory in about 15 s";
    assert!(words.contains(end), "{words}");
    assert!(finding["advice"].as_str().unwrap().contains("never unlinked"), "{finding}");
    assert_eq!(finding["evidence"]["signal"], "shm");
    let eta = status["ranks"][0]["host_oom_eta_seconds"].as_f64().unwrap();
    assert!((eta / 15.6 - 1.0).abs() < 0.1, "{eta}");
    let labels = r#"{run="job",rank="0",uuid="cpu",signal="shm"}"#;
    let slope = format!("stepmem_creep_slope_bytes_per_step{labels}");
    assert!(exporter.scrape().contains_key(&slope));
    let told = summary(&job().recording());
    assert_eq!(told["diagnosis"]["status"], "MEMORY CREEP (host)", "{}", told["diagnosis"]);
    let sentence = &told["ranks"][0]["host"]["sentence"];
    assert_eq!(sentence, "/dev/shm holds 790 MiB of 1.00 GiB, +768 KiB/step");
    let explained = stepmem(&["explain", "-"], &[], job().recording().as_bytes());
    assert!(explained.out.contains("Files in /dev/shm"), "{}", explained.out);
}

#[test]
fn files_are_told_as_a_rise_before_they_are_judged() {
    let told = summary(&with_files(KEPT).steps(1..301).recording());
    let verdict = &told["diagnosis"];
    assert_eq!(verdict["status"], "BALANCED SO FAR", "{verdict}");
    let words = verdict["summary"].as_str().unwrap();
    // 759 MiB by 15 MiB a second.
    let rise = "what is in /dev/shm (265 MiB of 1.00 GiB) rises straight, by 768 KiB/step: at this rate out of memory in about 50 s";
    assert!(words.contains(rise), "{words}");
    assert!(verdict["action"].as_str().unwrap().contains("never unlinked"), "{verdict}");
}

#[test]
fn files_that_are_replaced_or_fill_up_are_healthy() {
    let replaced: Course = |step| 100 * MIB + 8 * MIB * (step / 20 % 12);
    let filling: Course = |step| 100 * MIB + 4 * MIB * (step / 20).min(40);
    for course in [replaced, filling] {
        let pages: Vec<Value> = transitions(&with_files(course))
            .into_iter()
            .filter(|found| found["severity"] != "info")
            .collect();
        assert_eq!(pages, Vec::<Value>::new());
        let told = summary(&with_files(course).recording());
        assert_eq!(told["diagnosis"]["status"], "BALANCED", "{}", told["diagnosis"]);
    }
}

#[test]
fn of_files_that_the_process_maps_only_what_fills_first_is_judged() {
    // The process maps what it keeps: its own memory grows as much, and has 3.6 GiB more.
    let mapped = |limit: u64| {
        let job = Job::new(1, 1000).live(|_, step| 376 * MIB + step * 768 * KIB);
        let job = job.capacity(4 * GIB).device("cpu").seconds_per_step(0.05);
        job.more(move |_, step| {
            let used = KEPT(step);
            if step.is_multiple_of(20) {
                json!({"host_shm_used_bytes": used, "host_shm_limit_bytes": limit})
            } else {
                json!({})
            }
        })
    };
    let signals = |limit: u64| {
        let exporter = Exporter::start(&[]);
        exporter.push(&mapped(limit).records());
        let found = exporter.status()["findings"].take();
        let signal = |of: &Value| of["evidence"]["signal"].as_str().unwrap().to_owned();
        found.as_array().unwrap().iter().map(signal).collect::<Vec<String>>()
    };
    assert!(signals(GIB).contains(&"shm".to_owned()), "{:?}", signals(GIB));
    assert_eq!(signals(64 * GIB), ["allocated"]);
}

#[test]
fn child_processes_that_are_not_read_are_counted() {
    let record = |step: u64, unread: u64| {
        let job = Job::new(1, step + 1).live(|_, _| 376 * MIB).device("cpu");
        let job = job
            .more(move |_, _| json!({"child_processes": 256, "host_children_unread": unread}));
        job.steps(step..step + 1).records()
    };
    let exporter = Exporter::start(&[]);
    let series = r#"stepmem_rank_child_processes_unread{run="job",rank="0",uuid="cpu"}"#;
    exporter.push(&record(1, 44));
    assert_eq!(exporter.scrape().get(series), Some(&44.0));
    exporter.push(&record(2, 0));
    assert_eq!(exporter.scrape().get(series), None);
}

#[test]
fn child_processes_that_hardly_move_have_no_rate() {
    let course: Course = |_| 300 * MIB;
    let exporter = Exporter::start(&[]);
    exporter.push(&with_workers(course).steps(1..1000).records());
    let workers = exporter.status()["ranks"][0]["host"]["workers"].take();
    assert_eq!(workers["bytes_per_step"], Value::Null, "{workers}");
}
