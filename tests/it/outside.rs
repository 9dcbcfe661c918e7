//! Memory of a process on its device outside its allocator: growth that fills the device within an hour is found within
//! half a minute, and a process that starts is not mistaken for it.

use serde_json::{Value, json};

use crate::rig::command::{replayed, stepmem};
use crate::rig::job::{Job, START};
use crate::rig::units::{GIB, MIB, float};

const STEPS_PER_SECOND: u64 = 4;
const RESERVED: u64 = 2 * GIB;

/// The memory of a process outside its allocator on an H200, by the seconds since its first
/// step, in MiB: a native library that took 4 MiB a step. Its driver was read every five
/// seconds.
const H200_ALONE: [(u64, u64); 20] = [
    (0, 754),
    (1, 910),
    (6, 1442),
    (11, 1986),
    (16, 2526),
    (21, 3070),
    (26, 3618),
    (31, 4162),
    (36, 4710),
    (41, 5262),
    (46, 5810),
    (51, 6354),
    (56, 6902),
    (61, 7442),
    (66, 7990),
    (71, 8538),
    (76, 9086),
    (81, 9626),
    (86, 10_158),
    (91, 10_706),
];
/// The same next to 21 other programs.
const H200_SHARED: [(u64, u64); 6] =
    [(0, 754), (4, 1114), (9, 1514), (14, 1954), (19, 2398), (24, 2814)];
/// Healthy programs there: varying lengths, compilation, an actor and a learner, a server.
const H200_HEALTHY: [&[u64]; 4] = [
    &[1430, 744, 744, 744, 744, 744, 744, 744, 744, 744],
    &[762, 1062, 1002, 962, 742, 742, 742, 742, 742, 742],
    &[742, 998, 1766, 806, 806, 806, 806, 806, 806, 806],
    &[696, 796, 796, 816, 796, 816, 796, 776, 796, 816],
];

/// A rank of 140 GiB, whose process holds so many MiB outside its allocator at a second, for so long; its client reads
/// that every five seconds.
fn held(seconds: u64, capacity: u64, outside: impl Fn(u64) -> u64 + 'static) -> Job {
    let job = Job::new(1, seconds * STEPS_PER_SECOND);
    let job = job.seconds_per_step(1.0 / float(STEPS_PER_SECOND)).device("GPU-a");
    job.capacity(capacity).reserved(|_, _| RESERVED).more(move |_, step| {
        let read_at = step - (step - 1) % (5 * STEPS_PER_SECOND);
        let used = RESERVED + outside(read_at / STEPS_PER_SECOND) * MIB;
        if read_at == step {
            json!({"process_used_bytes": used, "free_bytes": capacity.saturating_sub(used)})
        } else {
            json!({"free_bytes": capacity.saturating_sub(used)})
        }
    })
}

/// The last figure at a second or before it, and a straight line to the next.
fn between(points: &'static [(u64, u64)]) -> impl Fn(u64) -> u64 {
    move |second| {
        let (at, held) = points.iter().rev().find(|(at, _)| *at <= second).copied().unwrap();
        let next = points.iter().find(|(at, _)| *at > second);
        next.map_or(held, |(next, more)| held + (more - held) * (second - at) / (next - at))
    }
}

/// The findings of memory outside the allocator, as they were raised: after how many seconds, how severe, on what evidence.
fn raised(job: &Job) -> Vec<(f64, String, Value)> {
    let (transitions, _) = replayed(&job.recording());
    let of_outside = transitions
        .into_iter()
        .filter(|it| it["kind"] == "OUTSIDE_ALLOCATOR" && it["state"] == "raised");
    let told = |it: Value| {
        let time = it["time"].as_f64().unwrap() - float(START);
        (time, it["severity"].as_str().unwrap().to_owned(), it["evidence"].clone())
    };
    of_outside.map(told).collect()
}

#[track_caller]
fn check_found(job: &Job, mib_per_second: f64) {
    let raised = raised(job);
    let (time, severity, evidence) = raised.first().expect("a finding");
    assert!(*time <= 30.0, "{raised:?}");
    assert_eq!(severity, "info");
    assert_eq!(evidence["signal"], "outside_allocator");
    let slope = evidence["slope_bytes_per_second"].as_f64().unwrap() / float(MIB);
    assert!((slope / mib_per_second - 1.0).abs() < 0.1, "{slope} MiB/s");
    let (_, status) = replayed(&job.recording());
    let last = &status["findings"][0]["evidence"];
    let held = status["ranks"][0]["outside_allocator_bytes"].as_f64().unwrap();
    let seconds = (float(140 * GIB - RESERVED) - held) / float(MIB) / mib_per_second;
    // Of few readings, the least is known.
    let soonest = last["oom_eta_lower_seconds"].as_f64().expect("the soonest");
    assert!((0.1 * seconds..seconds).contains(&soonest), "{soonest} s of {seconds} s");
    if let Some(likely) = last["oom_eta_seconds"].as_f64() {
        assert!((likely / seconds - 1.0).abs() < 0.1, "{likely} s for {seconds} s");
    }
}

#[test]
fn growth_that_fills_the_device_within_an_hour_is_found_within_half_a_minute() {
    check_found(&held(91, 140 * GIB, between(&H200_ALONE)), 109.0);
    check_found(&held(24, 140 * GIB, between(&H200_SHARED)), 86.0);
    // Twice as fast: 12 GiB in 57 s.
    check_found(&held(57, 140 * GIB, |second| 754 + 215 * second), 215.0);
    // Fills the device in 57 minutes.
    check_found(&held(60, 140 * GIB, |second| 754 + 40 * second), 40.0);
}

#[test]
fn card_and_headroom_of_growth_outside_the_allocator_are_as_of_the_newest_reading() {
    let recording = held(91, 140 * GIB, between(&H200_ALONE)).recording();
    let card = stepmem(&["summary", "-"], &[], recording.as_bytes()).done();
    assert!(card.starts_with("OUTSIDE ALLOCATOR (info) on rank 0\n"), "{card}");
    assert!(card.contains("Outside the allocator: 10.3 GiB on rank 0."), "{card}");
    let (_, status) = replayed(&recording);
    let rank = &status["ranks"][0];
    let newest = float(10_706 - 114) * float(MIB);
    let outside = rank["outside_allocator_bytes"].as_f64().unwrap();
    assert!((outside / newest - 1.0).abs() < 0.02, "{outside}");
    let left = rank["headroom_bytes"].as_f64().unwrap();
    let truth = float(140 * GIB - GIB) - newest;
    assert!((left - truth).abs() < 0.2 * float(GIB), "{left} where {truth} are left");
}

#[test]
fn ordinary_memory_outside_the_allocator_is_no_line_of_the_card() {
    for (outside, capacity, is_told) in
        [(1000, 80 * GIB, false), (1100, 80 * GIB, true), (600, 8 * GIB, true)]
    {
        let recording = held(30, capacity, move |_| outside).recording();
        let card = stepmem(&["summary", "-"], &[], recording.as_bytes()).done();
        assert_eq!(card.contains("Outside the allocator: "), is_told, "{outside}: {card}");
    }
}

#[test]
fn growth_that_outlasts_the_start_of_its_process_pages_and_none_does_before() {
    let raised = raised(&held(240, 48 * GIB, |second| 754 + 109 * second));
    let paged = raised.iter().find(|(_, severity, _)| severity != "info").expect("a page");
    assert!((120.0..180.0).contains(&paged.0), "{raised:?}");
    assert_eq!(paged.1, "critical");
}

#[test]
fn growth_that_fills_the_device_while_its_process_starts_pages_before_that() {
    let raised = raised(&held(98, 24 * GIB, |second| 754 + 200 * second));
    let paged = raised.iter().find(|(_, severity, _)| severity != "info").expect("a page");
    assert!((60.0..90.0).contains(&paged.0), "{raised:?}");
}

/// A start that takes so many MiB within two minutes: in a straight line, ever more slowly, in a few large pieces, or as
/// a line that begins late.
fn start(shape: u64, mib: u64) -> impl Fn(u64) -> u64 {
    move |second| {
        let second = second.min(120);
        let taken = match shape {
            0 => mib * second / 120,
            1 => mib * (240 - second) * second / (120 * 120),
            2 => mib * (second / 30) / 4,
            _ => mib * second.saturating_sub(60) / 60,
        };
        754 + taken
    }
}

#[test]
fn twelve_healthy_starts_get_no_warning() {
    for mib in [1024, 3072, 8192] {
        for shape in 0..4 {
            let job = held(400, 80 * GIB, start(shape, mib));
            let (transitions, status) = replayed(&job.recording());
            let warned = transitions.iter().find(|it| it["severity"] != "info");
            assert_eq!(warned, None, "{mib} MiB, shape {shape}");
            assert_eq!(status["findings"], json!([]), "{mib} MiB, shape {shape}");
        }
    }
}

#[test]
fn healthy_memory_outside_the_allocator_is_not_told() {
    for readings in H200_HEALTHY {
        let outside = move |second: u64| {
            readings[usize::try_from(second / 5).unwrap().min(readings.len() - 1)]
        };
        assert_eq!(raised(&held(120, 140 * GIB, outside)), [], "{readings:?}");
    }
}

#[test]
fn growth_that_ends_is_not_told_for_longer_than_it_lasted() {
    let job = held(400, 80 * GIB, |second| 754 + 100 * (second.clamp(200, 240) - 200));
    let (transitions, status) = replayed(&job.recording());
    let last = transitions.last().expect("a finding");
    assert_eq!(
        (&last["kind"], &last["state"]),
        (&json!("OUTSIDE_ALLOCATOR"), &json!("cleared"))
    );
    assert!(last["time"].as_f64().unwrap() < float(START) + 290.0, "{last}");
    assert_eq!(status["findings"], json!([]));
}
