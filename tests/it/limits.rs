//! What a process may take is the limit that leaves it the least: of its device, of its program, of the kernel. Each is compared
//! with its own figure, and the one that binds is named.

use std::fs::File;
use std::process::Command;

use serde_json::{Value, json};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::root;
use crate::rig::job::{self as of_job, Job};
use crate::rig::snapshot::{answer, data, page};
use crate::rig::summary::{issue, summary};
use crate::rig::units::{GIB, MIB, float};

/// The last step of a program with a memory fraction of 0.08 on an NVIDIA H200, and its limit.
const LAST_STEP: u64 = 1366;
const LIMIT: u64 = 12_008_790_425;

/// A recording of that program, by a client that did not read the fraction.
fn recording() -> String {
    let packed =
        File::open(root().join("tests/data/recordings/h200_memory_fraction.jsonl.gz")).unwrap();
    let unpacked = Command::new("gzip").arg("-dc").stdin(packed).output().unwrap();
    assert!(unpacked.status.success(), "{unpacked:?}");
    String::from_utf8(unpacked.stdout).unwrap()
}

/// The same by one that does.
fn with_limit() -> String {
    let of_device = r#""total_bytes":150109880320,"#;
    recording().replace(of_device, &format!(r#"{of_device}"reserved_limit_bytes":{LIMIT},"#))
}

/// The first time that a diagnosis holds, and its severity then.
fn first(recording: &str, kind: &str) -> Value {
    let replayed = stepmem(&["replay", "-"], &[], recording.as_bytes()).done();
    let transitions = replayed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    transitions.into_iter().find(|of| of["kind"] == kind).unwrap_or_default()
}

/// The status at the end.
fn last_status(recording: &str) -> Value {
    let replayed = stepmem(&["replay", "-"], &[], recording.as_bytes()).done();
    let last = replayed.lines().find(|line| line.starts_with(r#"{"status""#)).unwrap();
    serde_json::from_str::<Value>(last).unwrap()["status"].take()
}

fn steps(recording: &str) -> Vec<Value> {
    let events = recording.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter_map(|mut event| event.get_mut("step").map(Value::take)).collect()
}

#[test]
fn leak_below_a_memory_fraction_is_a_page_long_before_the_end() {
    let creep = first(&with_limit(), "CREEP_CONFIRMED");
    let is_early = |step| step <= LAST_STEP / 5;
    assert!(creep["step"].as_u64().is_some_and(is_early), "{creep}");
    // Of the device there is so much that it took most of the way.
    let late = first(&recording(), "CREEP_CONFIRMED");
    assert!(late["step"].as_u64().is_none_or(|step| step > 1000), "{late}");
}

#[test]
fn time_left_is_that_to_the_memory_fraction() {
    let exporter = Exporter::start(&[]);
    let half = usize::try_from(LAST_STEP / 2).unwrap();
    exporter.push(&steps(&with_limit())[..half]);
    let status = exporter.status();
    let rank = &status["ranks"][0];
    assert_eq!(rank["capacity_bytes"], LIMIT);
    assert_eq!(
        (&rank["capacity_set_by"], &rank["total_bytes"]),
        (&json!("program"), &json!(150_109_880_320_u64))
    );
    let left = rank["oom_eta_steps"].as_f64().unwrap();
    let truth = float(LAST_STEP / 2);
    assert!((left - truth).abs() <= 0.2 * truth, "{left} of {truth}");
    let headroom = rank["headroom_bytes"].as_f64().unwrap();
    assert!((headroom - truth * 8.0 * float(MIB)).abs() < 0.1 * headroom, "{headroom}");
    let metrics = exporter.scrape();
    let limits: Vec<_> = metrics
        .iter()
        .filter(|(name, _)| name.starts_with("stepmem_rank_limit_bytes"))
        .collect();
    let [(name, value)] = limits[..] else { panic!("{limits:?}") };
    assert!(name.contains(r#"origin="program""#) && *value == float(LIMIT), "{name} {value}");
    let explained = exporter.asked(&["explain", "--run", "g03_oom", "--rank", "0"]).done();
    let explained = explained.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(explained.contains("(11.2 GiB, set by the program, of 140 GiB)"), "{explained}");
    let table = exporter.asked(&["status"]).done();
    assert!(table.contains("11.2 GiB (program)"), "{table}");
}

#[test]
fn error_names_a_limit_that_was_unknown_until_then() {
    let whole = recording();
    let until_error: String =
        whole.split_inclusive('\n').take_while(|line| !line.contains(r#""end":{"#)).collect();
    let before = summary(&until_error);
    assert_eq!(before["ranks"][0]["capacity_bytes"], 150_109_880_320_u64);
    assert_eq!(before["ranks"][0]["capacity_set_by"], Value::Null);
    let after = summary(&whole);
    let rank = &after["ranks"][0];
    let capacity = rank["capacity_bytes"].as_f64().unwrap();
    assert!((capacity / float(GIB) - 11.18).abs() < 0.005, "{capacity}");
    assert_eq!(rank["capacity_set_by"], "program");
    let failure = issue(&after, "OUT_OF_MEMORY").unwrap();
    assert_eq!(failure["evidence"]["limit"]["origin"], "program");
    let headroom = failure["evidence"]["headroom_bytes"].as_f64().unwrap();
    assert!(headroom < 64.0 * float(MIB), "{headroom}");
    let card = stepmem(&["summary", "-"], &[], whole.as_bytes()).done();
    let card = card.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(card.contains("11.2 GiB (program)"), "{card}");
    assert!(card.contains("at its own limit of 11.2 GiB set by the program"), "{card}");
    let exact = summary(&with_limit());
    assert_eq!(
        exact["ranks"][0]["capacity_bytes"], LIMIT,
        "the error gives it to two decimals"
    );
}

#[test]
fn limit_above_what_the_device_has_left_does_not_bind() {
    let job = |limit: u64| {
        let job = Job::new(1, 200).device("GPU-1").reserved(|_, _| 30 * GIB);
        job.live(|_, _| 30 * GIB).more(move |_, _| json!({"reserved_limit_bytes": limit}))
    };
    for (limit, capacity, set_by) in [
        (40 * GIB, 40 * GIB, json!("program")),
        (79 * GIB, 79 * GIB, json!("program")),
        (80 * GIB, 80 * GIB, Value::Null),
        (1 << 53, 80 * GIB, Value::Null),
        (0, 80 * GIB, Value::Null),
    ] {
        let exporter = Exporter::start(&[]);
        exporter.push(&job(limit).records());
        let rank = exporter.status()["ranks"][0].clone();
        assert_eq!(
            (&rank["capacity_bytes"], &rank["capacity_set_by"]),
            (&json!(capacity), &set_by)
        );
        assert_eq!(rank["headroom_bytes"], float(capacity - 30 * GIB));
        assert_eq!(rank["pressures"]["reserved"], float(30 * GIB) / float(capacity));
    }
}

#[test]
fn peak_near_the_programs_limit_is_high_pressure_and_a_new_process_has_none() {
    let job = |attempt| Job::new(1, 100).attempt(attempt).device("GPU-1").peak(|_, _| 39 * GIB);
    let limited = job(0).more(|_, _| json!({"reserved_limit_bytes": 40 * GIB}));
    let mut records = limited.records();
    let pressure = first(&of_job::recording(&records), "HIGH_PRESSURE");
    assert_eq!(pressure["severity"], "critical");
    assert_eq!(pressure["evidence"]["capacity_set_by"], "program");
    let found = issue(&summary(&of_job::recording(&records)), "HIGH_PRESSURE").unwrap();
    let sentence = found["summary"].as_str().unwrap();
    assert!(sentence.contains("% of 40.0 GiB, set by the program"), "{sentence}");
    records.extend(job(1).records());
    let after = last_status(&of_job::recording(&records));
    assert_eq!(after["findings"], json!([]));
    assert_eq!(after["ranks"][0]["capacity_bytes"], 80 * GIB);
}

#[test]
fn limits_of_the_kernel_are_compared_with_what_they_limit() {
    let own = |name: &str, limit: u64, used: u64| json!({format!("{name}_limit_bytes"): limit, format!("{name}_used_bytes"): used});
    for (more, capacity, set_by, left) in [
        // 60 GiB of address space are no memory: 4 GiB more fit.
        (own("address_space", 64 * GIB, 60 * GIB), 64, json!("address_space"), 4),
        // A limit below what is resident does not bind what may be shared.
        (own("data", GIB / 2, GIB / 4), 0, json!("data"), 0),
        (own("data", 50 * GIB, 20 * GIB), 50, json!("data"), 30),
        (own("address_space", 1 << 53, 60 * GIB), 80, Value::Null, 79),
        (own("address_space", 500 * GIB, 60 * GIB), 80, Value::Null, 79),
    ] {
        let exporter = Exporter::start(&[]);
        let more = move |_, _| more.clone();
        exporter
            .push(&Job::new(1, 200).device("cpu").reserved(|_, _| GIB).more(more).records());
        let rank = exporter.status()["ranks"][0].clone();
        assert_eq!(rank["capacity_set_by"], set_by, "{rank}");
        let headroom = rank["headroom_bytes"].as_f64().unwrap();
        if capacity == 0 {
            assert_eq!(headroom, float(GIB / 4));
            continue;
        }
        assert_eq!(rank["capacity_bytes"], capacity * GIB);
        assert_eq!(headroom, float(left * GIB));
    }
}

#[test]
fn growth_on_the_host_ends_at_the_limit_of_the_kernel() {
    // 1 MiB a step, of 600 MiB that `ulimit -d` leaves at step 400.
    let job = |more: fn(u64) -> Value| {
        let job = Job::new(1, 400).device("GPU-1").reserved(|_, _| GIB);
        job.more(move |_, step| {
            let mut record =
                json!({"host_allocated_bytes": GIB + step * MIB, "host_total_bytes": 64 * GIB});
            record.as_object_mut().unwrap().extend(more(step).as_object().unwrap().clone());
            record
        })
    };
    let limited = job(
        |step| json!({"data_limit_bytes": 11 * GIB, "data_used_bytes": 11 * GIB - (1000 - step) * MIB}),
    );
    let exporter = Exporter::start(&[]);
    exporter.push(&limited.records());
    let rank = exporter.status()["ranks"][0].clone();
    let seconds = rank["host_oom_eta_seconds"].as_f64().unwrap();
    assert!((seconds - 600.0).abs() < 60.0, "{seconds}");
    assert_eq!(rank["host"]["kernel_limit"]["origin"], "data");
    let pressure = first(&limited.recording(), "HOST_HIGH_PRESSURE");
    assert_eq!(pressure["evidence"]["capacity_set_by"], "data");
    let free = job(|_| json!({}));
    assert_eq!(first(&free.recording(), "HOST_HIGH_PRESSURE"), Value::Null);
    let free = last_status(&free.recording());
    assert_eq!(free["ranks"][0]["host"]["kernel_limit"], Value::Null);
}

#[test]
fn snapshot_names_the_processs_own_limit() {
    let file = data("h200/long_batch.oom.pickle.gz");
    let failure = answer(&["show", &file, "--json"])["devices"][0]["oom"][0].clone();
    // A fraction of 0.06 of an H200.
    let truth = 9_006_592_819;
    let bound = |name: &str| failure["own_limit"][name].as_u64().unwrap();
    assert!((bound("at_least_bytes")..bound("less_than_bytes")).contains(&truth), "{failure}");
    assert!(bound("less_than_bytes") - bound("at_least_bytes") <= 512 * MIB, "{failure}");
    assert_eq!(failure["root_cause"]["cause"], "own_limit");
    assert_eq!(failure["cause"], "shortage");
    assert_eq!(failure["within_reach_bytes"], failure["reserved_bytes"]);
    let shown = page(&["show", &file]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        shown.contains(
            "Own limit: this process may reserve between 8.16 GiB and 8.53 GiB at most"
        ),
        "{shown}"
    );
    for said in ["Fragmentation:", "expandable_segments", "all that this process could have"] {
        assert!(!shown.contains(said), "{said}: {shown}");
    }
}

#[test]
fn leak_stays_the_cause_of_an_error_at_the_processs_own_limit() {
    let file = data("h100/oomloop.pickle.gz");
    let failure = answer(&["show", &file, "--json"])["devices"][0]["oom"][0].clone();
    assert_eq!(failure["root_cause"]["cause"], "leak");
    let words = failure["root_cause"]["text"].as_str().unwrap();
    assert!(words.contains("The limit is the process's own: it may reserve between 1.58 GiB and 1.60 GiB at most."), "{words}");
    assert_eq!(
        failure["root_cause"]["free_bytes"].as_u64().unwrap() >> 30,
        1,
        "not what the driver has"
    );
    // The device itself was full.
    let full = answer(&["show", &data("vectors/oom_fragmentation.oom.pickle.gz"), "--json"]);
    assert_eq!(full["devices"][0]["oom"][0]["own_limit"], Value::Null);
}
