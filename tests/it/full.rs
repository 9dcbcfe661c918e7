//! Memory that is full: growth that ends there, and pressure on the host.

use serde_json::Value;

use crate::rig::command::{replayed, stepmem};
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::noise::noise;
use crate::rig::units::{GIB, MIB, float};
use crate::rig::wait::await_true;

/// The sentence and the advice of a finding.
fn found(exporter: &Exporter, kind: &str) -> (String, String) {
    let status = exporter.status();
    let findings = status["findings"].as_array().unwrap();
    let found = findings.iter().find(|found| found["kind"] == kind);
    let found = found.unwrap_or_else(|| panic!("{status:#}"));
    let word = |name: &str| found[name].as_str().unwrap().to_owned();
    (word("sentence"), word("advice"))
}

#[test]
fn growth_that_is_level_where_the_memory_is_full_says_so_and_what_to_do() {
    let reserved = |limit: u64| {
        let live = |_, _| 35 * GIB;
        let cache = move |_, step: u64| (40 * GIB + step * 20 * MIB).min(limit);
        Job::new(1, 4000).capacity(80 * GIB).live(live).peak(live).reserved(cache)
    };
    let host = |limit: u64| {
        let live = move |_, step: u64| (4 * GIB + step * 8 * MIB).min(limit);
        Job::new(1, 4000).capacity(24 * GIB).device("cpu").live(live).peak(live).reserved(live)
    };
    for (job, kind, level, action) in [
        (
            reserved(78 * GIB),
            "FRAGMENTATION",
            "level since: the card is full",
            "The card is full: ",
        ),
        (reserved(60 * GIB), "FRAGMENTATION", "level since", "Nothing, unless it grows again."),
        (
            host(23 * GIB),
            "CREEP_CONFIRMED",
            "level since: the memory is full",
            "The memory is full",
        ),
        (host(18 * GIB), "CREEP_CONFIRMED", "level since", "Nothing, unless it grows again."),
    ] {
        let exporter = Exporter::start(&[]);
        let records = job.records();
        let is_level = || found(&exporter, kind).0.contains("level since");
        let mut parts = records.chunks(200);
        exporter.push(&parts.by_ref().take(5).flatten().cloned().collect::<Vec<_>>());
        while !is_level() {
            exporter.push(parts.next().unwrap());
        }
        let (sentence, advice) = found(&exporter, kind);
        assert!(sentence.ends_with(level), "{sentence}");
        assert!(advice.starts_with(action), "{sentence}: {advice}");
    }
}

#[test]
fn growth_that_has_ended_is_not_paged_by_a_window_that_reaches_further_back() {
    let live = |_, step: u64| {
        7 * GIB + noise(0, step, 24 * MIB) + 1_656_328 * (step.clamp(300, 700) - 300)
    };
    let job = Job::new(1, 1800).capacity(16 * GIB).live(live);
    let job = job.peak(move |rank, step| live(rank, step) + GIB).reserved(|_, _| 10 * GIB);
    let (transitions, _) = replayed(&job.recording());
    let told = |it: &Value| {
        let word = |name: &str| it[name].as_str().unwrap().to_owned();
        (word("kind"), word("state"))
    };
    let told: Vec<_> = transitions.iter().map(told).collect();
    let expected =
        ["raised", "cleared"].map(|state| ("CREEP_EARLY".to_owned(), state.to_owned()));
    assert_eq!(told, expected);
}

#[test]
fn growth_beyond_the_capacity_leaves_nothing_and_has_no_time_left() {
    let live = |_, step: u64| 20 * GIB + step * 8 * MIB;
    let job = Job::new(1, 800).capacity(24 * GIB).device("cpu").live(live).peak(live);
    let exporter = Exporter::start(&[]);
    exporter.push(&job.reserved(live).records());
    let says_so = || found(&exporter, "CREEP_CONFIRMED").0.ends_with("; nothing is left");
    await_true("the end of what is left", says_so);
    assert_eq!(exporter.status()["findings"][0]["evidence"]["headroom_bytes"], 0.0);
}

#[test]
fn pressure_on_the_host_is_of_host_memory_and_not_of_a_device() {
    let exporter = Exporter::start(&[]);
    let live = |_, step: u64| if step < 50 { 23 * GIB } else { 10 * GIB };
    let job =
        || Job::new(1, 0).capacity(24 * GIB).device("cpu").live(live).peak(live).reserved(live);
    exporter.push(&job().steps(1..20).records());
    await_true("the pressure", || {
        !exporter.status()["findings"].as_array().unwrap().is_empty()
    });
    let (sentence, advice) = found(&exporter, "HIGH_PRESSURE");
    assert!(sentence.starts_with("the peak of host memory is at 96% of "), "{sentence}");
    assert!(advice.starts_with("Reduce the host's memory load"), "{advice}");
    exporter.push(&job().steps(20..3000).records());
    let summary = exporter.get("/api/v1/runs/job/summary", &[]).body;
    let summary: Value = serde_json::from_str(&summary).unwrap();
    let issue = &summary["issues"][0];
    assert_eq!(issue["kind"], "HIGH_PRESSURE", "{summary:#}");
    let words = issue["summary"].as_str().unwrap();
    assert!(words.starts_with("the peak of host memory was at 96% of "), "{words}");
    assert!(issue["action"].as_str().unwrap().starts_with("Reduce the host's"), "{issue:#}");
}

/// A rank of 80 GiB that holds so much after a step, and so much more in one; its allocator holds nothing beside.
fn pressed(held: impl Fn(u64) -> u64 + Copy + 'static, of_step: u64) -> Job {
    let most = move |_, step| held(step) + of_step;
    let job = Job::new(1, 1000).capacity(80 * GIB).seconds_per_step(2.0);
    let job = job.live(move |_, step| held(step));
    job.peak(most).reserved(most)
}

/// The severities of HIGH PRESSURE, and by which steps they were told.
fn severities(job: &Job) -> Vec<(u64, String)> {
    let (transitions, _) = replayed(&job.recording());
    let of_pressure = transitions.iter().filter(|it| it["kind"] == "HIGH_PRESSURE");
    let told = |it: &Value| {
        (it["step"].as_u64().unwrap(), it["severity"].as_str().unwrap().to_owned())
    };
    of_pressure.map(told).collect()
}

/// Checks the severities, each of which is told within ten seconds.
#[track_caller]
fn check_severities(job: &Job, expected: &[(u64, &str)]) {
    let told = severities(job);
    let is_as = |((told, severity), (step, expected)): (&(u64, String), &(u64, &str))| {
        severity == expected && (*step..step + 5).contains(told)
    };
    let is_right = told.len() == expected.len() && told.iter().zip(expected).all(is_as);
    assert!(is_right, "{told:?} instead of {expected:?}");
}

#[test]
fn pressure_of_memory_that_was_taken_at_the_start_and_is_level_is_an_info() {
    let preallocated = pressed(|_| 75 * GIB, 600 * MIB);
    check_severities(&preallocated, &[(1, "info")]);
    let recording = preallocated.recording();
    let (_, status) = replayed(&recording);
    let found = &status["findings"][0];
    let sentence = found["sentence"].as_str().unwrap();
    let words =
        "at 94% of 80.0 GiB; 75.0 GiB of it was taken at the start, and next to nothing since";
    assert!(sentence.ends_with(words), "{sentence}");
    assert_eq!(found["evidence"]["taken_at_start_bytes"], 75 * GIB);
    assert!(
        found["advice"].as_str().unwrap().starts_with("Nothing, unless it grows"),
        "{found}"
    );
    let card = stepmem(&["summary", "-"], &[], recording.as_bytes()).done();
    assert!(card.starts_with("HIGH PRESSURE (info) on rank 0\n"), "{card}");
    assert!(!card.contains("batch"), "{card}");
    // Nearly all of the device, where steps take next to nothing.
    check_severities(&pressed(|_| 79 * GIB, 20 * MIB), &[(1, "info")]);
}

#[test]
fn pressure_that_grows_later_is_a_warning_at_once() {
    let jump = |step| if step < 400 { 75 * GIB } else { 75 * GIB + 512 * MIB };
    check_severities(&pressed(jump, 600 * MIB), &[(1, "info"), (400, "warning")]);
    let to_the_brim = |step| if step < 400 { 75 * GIB } else { 77 * GIB };
    check_severities(&pressed(to_the_brim, 700 * MIB), &[(1, "info"), (400, "critical")]);
    let leak = |step: u64| 75 * GIB + step.saturating_sub(300) * 2 * MIB;
    let severities = severities(&pressed(leak, 600 * MIB));
    let (step, severity) = &severities[1];
    assert_eq!(severity, "warning");
    // By then a twentieth of what was left is gone.
    let grown = float((step - 300) * 2 * MIB);
    assert!(grown <= 0.06 * float(5 * GIB), "{severities:?}");
}

#[test]
fn pressure_by_what_steps_take_or_by_a_late_start_is_a_warning() {
    check_severities(&pressed(|_| 40 * GIB, 35 * GIB), &[(1, "warning")]);
    check_severities(&pressed(|_| 40 * GIB, 38 * GIB), &[(1, "critical")]);
    // A step that is twice as large does not fit.
    check_severities(&pressed(|_| 75 * GIB, 2 * GIB + 600 * MIB), &[(1, "warning")]);
    let late = |step: u64| 40 * GIB + (step * GIB / 4).min(35 * GIB);
    let severities = severities(&pressed(late, 600 * MIB));
    assert_eq!(severities.first().map(|(_, severity)| severity.as_str()), Some("warning"));
    assert_eq!(severities.iter().filter(|(_, severity)| severity == "info").count(), 0);
}

#[test]
fn memory_that_was_taken_at_the_start_is_known_after_a_restart_and_by_two_clocks() {
    let folder = Folder::new("taken-at-start");
    let start = || Exporter::start(&["--state.file", &text(&folder.path("state"))]);
    let told = |exporter: &Exporter| {
        let found = exporter.finding("HIGH_PRESSURE").unwrap_or_else(|| panic!("no pressure"));
        (found["severity"].clone(), found["evidence"]["taken_at_start_bytes"].clone())
    };
    let taken = || pressed(|_| 75 * GIB, 600 * MIB);
    let expected = (Value::from("info"), Value::from(75 * GIB));
    // Another rank pushes with a clock that is two days fast.
    let of_another = taken().first_rank(1).starting_at(172_800.0);
    let records = taken().records().into_iter().zip(of_another.records());
    let records: Vec<Value> = records.flat_map(|(one, other)| [one, other]).collect();
    let exporter = start();
    exporter.push(&records[..600]);
    assert_eq!(told(&exporter), expected);
    exporter.stop();
    let exporter = start();
    assert_eq!(told(&exporter), expected);
    exporter.push(&records[600..1200]);
    assert_eq!(told(&exporter), expected);
    // The next process of the rank begins with half of it, and takes the rest late.
    let late = pressed(|step| 40 * GIB + (step * GIB / 4).min(35 * GIB), 600 * MIB);
    let pressure = |exporter: &Exporter| {
        let found = exporter.findings();
        let of_first = found.into_iter().find(|found| {
            found["kind"] == "HIGH_PRESSURE"
                && found["evidence"]["taken_at_start_bytes"].is_null()
        });
        of_first.map(|found| found["severity"].clone())
    };
    exporter.push(&late.attempt(1).starting_at(90_000.0).records()[..400]);
    assert_eq!(pressure(&exporter), Some(Value::from("warning")));
}
