//! The number of the allocator's live blocks, beside their bytes: what it shows, and what every surface says of it.

use std::fs;

use serde_json::{Value, json};

use crate::rig::command::{Ended, stepmem};
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, root, text};
use crate::rig::job::{Job, START};
use crate::rig::noise::noise;
use crate::rig::schema::holds_definition;
use crate::rig::units::{GIB, MIB, float};

const KIB: u64 = 1 << 10;
const BASE_BLOCKS: u64 = 700;

/// A rank that keeps one block of 64 KiB in each step, and whose bytes vary by 20 MiB.
fn small_leak(n_steps: u64) -> Job {
    Job::new(1, n_steps)
        .capacity(12 * GIB)
        .live(|_, step| GIB + 64 * KIB * step + noise(0, step, 20 * MIB))
        .more(|_, step| json!({"live_blocks": BASE_BLOCKS + step}))
}

fn explained(arguments: &[&str]) -> Ended {
    let about = ["explain", "--run", "job", "--rank", "0"];
    stepmem(&[&about, arguments].concat(), &[], b"")
}

fn kept(exporter: &Exporter) -> Value {
    exporter.status()["ranks"][0]["kept_blocks"].clone()
}

/// The sentence of MEMORY RISING or MEMORY CREEP.
#[track_caller]
fn sentence(exporter: &Exporter) -> String {
    let status = exporter.status();
    let findings = status["findings"].as_array().unwrap();
    let of_growth =
        findings.iter().find(|it| it["kind"].as_str().unwrap().starts_with("CREEP"));
    of_growth.unwrap_or_else(|| panic!("{findings:#?}"))["sentence"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn block_a_step_is_known_by_step_60_and_rises_once_32_mebibytes_have_grown_in_larger_noise() {
    let exporter = Exporter::start(&[]);
    let records = small_leak(700).records();
    exporter.push(&records[..60]);
    let known = kept(&exporter);
    assert_eq!((&known["state"], &known["certain_step"]), (&json!("accumulates"), &json!(47)));
    assert!((known["blocks_per_step"].as_f64().unwrap() - 1.0).abs() < 0.01, "{known}");
    assert!(known["since_step"].as_u64().unwrap() <= 26, "{known}");
    let url = format!("http://{}", exporter.web);
    let shown = explained(&["--url", &url]).quiet();
    let said = exporter.status()["ranks"][0]["kept_blocks_sentence"].clone();
    let said = format!("Live blocks of the allocator: {}", said.as_str().unwrap());
    assert!(said.contains(": each step keeps 1 block more, since step 2"), "{said}");
    assert!(said.ends_with(", certain at step 47"), "{said}");
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&said), "{shown}");
    assert!(exporter.status()["findings"].as_array().unwrap().is_empty());

    exporter.push(&records[60..]);
    let sentence = sentence(&exporter);
    assert!(sentence.contains("each step keeps 1 block more"), "{sentence}");
    let told: Value =
        serde_json::from_str(&explained(&["--url", &url, "--json"]).quiet()).unwrap();
    holds_definition("explain", "live", &told);
    holds_definition("status", "kept_blocks", &told["rank"]["kept_blocks"]);
    assert_eq!(told["rank"]["kept_blocks"]["certain_step"], 47);
}

#[test]
fn story_of_a_recording_says_that_the_number_shows_it_where_the_bytes_alone_do_not() {
    let folder = Folder::new("live-blocks");
    let file = folder.write("steps.jsonl", &small_leak(700).recording());
    let shown = explained(&[&file]).quiet();
    assert!(shown.contains("MEMORY RISING, info"), "{shown}");
    assert!(shown.contains("seen in the number of live blocks"), "{shown}");
    let story: Value = serde_json::from_str(&explained(&[&file, "--json"]).quiet()).unwrap();
    holds_definition("explain", "recorded", &story);
    let raised = &story["events"][0];
    assert_eq!(raised["transition"]["kind"], "CREEP_EARLY", "{story:#}");
    assert_eq!(raised["by_blocks"]["state"], "accumulates");
    assert!(raised["window"].is_null());

    let without = small_leak(700).more(|_, _| json!({}));
    let file = folder.write("without.jsonl", &without.recording());
    let shown = explained(&[&file]).quiet();
    assert!(!shown.contains("MEMORY RISING") && !shown.contains("ive blocks"), "{shown}");
}

#[test]
fn finding_says_how_many_blocks_each_step_keeps_and_how_large_they_are() {
    let exporter = Exporter::start(&[]);
    let job = Job::new(1, 300).capacity(12 * GIB).live(|_, step| GIB + 8 * MIB * step);
    exporter
        .push(&job.more(|_, step| json!({"live_blocks": BASE_BLOCKS + 32 * step})).records());
    let sentence = sentence(&exporter);
    assert!(sentence.contains("; each step keeps 32 blocks more, 256 KiB each"), "{sentence}");
}

#[test]
fn run_that_is_over_is_told_by_both_witnesses_too() {
    let exporter = Exporter::start(&[]);
    let job = Job::new(1, 300).capacity(12 * GIB).live(|_, step| GIB + 8 * MIB * step);
    let job = job.more(|_, step| json!({"live_blocks": BASE_BLOCKS + 32 * step}));
    exporter.push(&job.records());
    exporter.end("job", &json!({"rank": 0, "outcome": "completed"}));
    let kept = "; each step kept 32 blocks more, 256 KiB each";
    let sentence = sentence(&exporter);
    assert!(sentence.contains(kept), "{sentence}");
    let summary = exporter.summary("job");
    let card = summary["text"].as_str().unwrap().split_whitespace().collect::<Vec<_>>();
    assert!(card.join(" ").contains(kept), "{summary:#}");
}

#[test]
fn level_number_beside_bytes_that_rise_says_that_the_same_tensors_get_larger() {
    let exporter = Exporter::start(&[]);
    let job = || Job::new(1, 300).capacity(12 * GIB).live(|_, step| GIB + 8 * MIB * step);
    exporter.push(&job().more(|_, _| json!({"live_blocks": BASE_BLOCKS})).records());
    let told = sentence(&exporter);
    assert!(
        told.contains("the number of blocks is level: the same tensors get larger"),
        "{told}"
    );
    for number in [json!({}), json!({"live_blocks": 0})] {
        let exporter = Exporter::start(&[]);
        let number = number.clone();
        exporter.push(&job().more(move |_, _| number.clone()).records());
        assert!(kept(&exporter).is_null());
        assert!(!sentence(&exporter).contains("block"), "unknown is not level");
    }
}

#[test]
fn what_the_number_said_outlives_a_restart_of_the_exporter() {
    let folder = Folder::new("live-blocks-state");
    let state = folder.path("state");
    let arguments = ["--state.file", &text(&state)];
    let exporter = Exporter::start(&arguments);
    let records = small_leak(400).records();
    exporter.push(&records[..200]);
    let before = kept(&exporter);
    exporter.stop();
    let exporter = Exporter::start(&arguments);
    assert_eq!(kept(&exporter), before);
    exporter.push(&records[200..]);
    let after = kept(&exporter);
    assert_eq!(
        (&after["certain_step"], &after["state"]),
        (&before["certain_step"], &before["state"])
    );
}

#[test]
fn records_that_come_twice_late_or_from_two_pushers_change_nothing() {
    let (exporter, other) = (Exporter::start(&[]), Exporter::start(&[]));
    let records = small_leak(700).records();
    exporter.push(&records);
    for (batch, before) in
        records.chunks(50).zip([&[][..]].into_iter().chain(records.chunks(50)))
    {
        other.push(batch);
        other.push(batch);
        other.push(before);
    }
    assert_eq!(kept(&other), kept(&exporter));
    assert_eq!(sentence(&other), sentence(&exporter));
}

#[test]
fn restarted_rank_is_asked_anew() {
    let exporter = Exporter::start(&[]);
    let records = small_leak(100).records();
    exporter.push(&records);
    assert_eq!(kept(&exporter)["state"], "accumulates");
    let again = |records: &[Value]| {
        let mut records = records.to_vec();
        for record in &mut records {
            record["attempt"] = json!(1);
            record["time"] = json!(record["time"].as_f64().unwrap() + 3600.0);
        }
        exporter.push(&records);
    };
    again(&records[..40]);
    assert!(kept(&exporter).is_null(), "{}", kept(&exporter));
    again(&records[40..]);
    let kept = kept(&exporter);
    assert_eq!((&kept["state"], &kept["certain_step"]), (&json!("accumulates"), &json!(47)));
}

#[test]
fn number_that_grows_ever_more_slowly_is_told_as_that_of_a_cache_that_fills() {
    let exporter = Exporter::start(&[]);
    let job = Job::new(1, 400).capacity(12 * GIB).live(|_, step| GIB + 8 * MIB * step);
    // Of 2,000 entries each step asks for 8, all as likely: a thousandth of those that a cache has by then.
    let number = |_, step: u64| {
        let entries = (0..step).fold(0, |held, _| held + 8 * (2_000_000 - held) / 2000);
        json!({"live_blocks": BASE_BLOCKS + entries / 1000})
    };
    exporter.push(&job.more(number).records());
    assert_eq!(kept(&exporter)["state"], "fades", "{}", kept(&exporter));
    let told = sentence(&exporter);
    assert!(
        told.contains("new blocks come ever more rarely, as in a cache that fills"),
        "{told}"
    );
    assert!(!told.contains("keeps"), "{told}");
}

#[test]
fn number_between_figures_that_lack_it_is_no_evidence() {
    let exporter = Exporter::start(&[]);
    let job = Job::new(1, 300).capacity(12 * GIB).live(|_, step| GIB + 8 * MIB * step);
    let once = |_, step: u64| {
        if step == 150 { json!({"live_blocks": BASE_BLOCKS}) } else { json!({}) }
    };
    exporter.push(&job.more(once).records());
    assert!(kept(&exporter).is_null(), "{}", kept(&exporter));
    assert!(!sentence(&exporter).contains("block"));
}

/// The records of a program that ran on a real H200, as if its device had 12 GiB.
fn recorded(name: &str) -> Vec<Value> {
    let path = root().join("tests/data/live_blocks").join(format!("{name}.csv"));
    let text = fs::read_to_string(path).unwrap();
    let record = |line: &str| {
        let figures: Vec<&str> = line.split(',').collect();
        let whole = |idx: usize| figures[idx].parse::<u64>().unwrap();
        let seconds: f64 = figures[1].parse().unwrap();
        json!({
            "run": "job", "rank": 0, "step": whole(0), "time": float(START) + seconds, "device": "GPU-1",
            "total_bytes": 12 * GIB, "allocated_bytes": whole(2), "reserved_bytes": whole(3),
            "live_blocks": whole(4),
        })
    };
    text.lines().skip(1).map(record).collect()
}

#[test]
fn programs_that_ran_on_a_gpu_keep_as_many_blocks_as_they_did() {
    // Blocks that each step keeps, the step by which that is certain, and by which it is MEMORY RISING; `None` for never.
    let cases = [
        ("g01_leak", Some((62.0, 46)), Some(47)),
        ("g14_rl", Some((1.0 / 16.0, 279)), Some(210)),
        ("g22_small", Some((1.0, 46)), Some(599)),
        ("g19_gan", None, None),
        ("g20_cache", None, None),
    ];
    for (name, wanted, rising) in cases {
        let exporter = Exporter::start(&[]);
        let records = recorded(name);
        let by = rising.unwrap_or(599);
        exporter.push(&records[..=by]);
        let status = exporter.status();
        let is_rising = !status["findings"].as_array().unwrap().is_empty();
        assert_eq!(is_rising, rising.is_some(), "{name}: {:#}", status["findings"]);
        exporter.push(&records[by + 1..]);
        let kept = kept(&exporter);
        match wanted {
            Some((rate, certain)) => {
                let told = kept["blocks_per_step"].as_f64().unwrap();
                assert!((told / rate - 1.0).abs() < 0.1, "{name}: {kept}");
                assert!(kept["certain_step"].as_u64().unwrap() <= certain, "{name}: {kept}");
            }
            None => assert_ne!(kept["state"], "accumulates", "{name}: {kept}"),
        }
    }
}

/// A rank that takes no steps: two samples a second, each of which keeps four blocks of 2 MiB.
fn by_time(samples: std::ops::Range<u64>) -> Job {
    let fields = |number| json!({"phase": "sample", "step": 0, "instance": "1111111111111111", "live_blocks": BASE_BLOCKS + 4 * number});
    Job::new(1, 0)
        .steps(samples)
        .seconds_per_step(0.5)
        .capacity(12 * GIB)
        .live(|_, number| GIB + 8 * MIB * number)
        .more(move |_, number| fields(number))
}

/// Holds what is said of [`by_time`].
#[track_caller]
fn keeps_eight_blocks_a_second(kept: &Value) {
    assert_eq!(kept["state"], "accumulates", "{kept}");
    let per_second = kept["blocks_per_second"].as_f64().unwrap();
    assert!((per_second / 8.0 - 1.0).abs() < 0.02, "{kept}");
    let each = kept["bytes_per_block"].as_f64().unwrap();
    assert!((each / float(2 * MIB) - 1.0).abs() < 0.02, "{kept}");
    for field in ["blocks_per_step", "since_step", "certain_step"] {
        assert!(kept[field].is_null(), "{kept}");
    }
}

#[test]
fn number_of_a_rank_without_steps_is_told_by_time() {
    let exporter = Exporter::start(&[]);
    exporter.push(&by_time(1..201).records());
    keeps_eight_blocks_a_second(&kept(&exporter));
    let sentence = sentence(&exporter);
    assert!(
        sentence.contains("each hour keeps 28,800 blocks more, 2.00 MiB each"),
        "{sentence}"
    );
}

#[test]
fn samples_by_time_that_come_twice_or_late_change_nothing() {
    let (exporter, other) = (Exporter::start(&[]), Exporter::start(&[]));
    let records = by_time(1..201).records();
    exporter.push(&records);
    for batch in records.chunks(20) {
        other.push(batch);
        other.push(batch);
        other.push(&records[..10]);
    }
    assert_eq!(kept(&other), kept(&exporter));
}

#[test]
fn another_process_of_the_same_name_says_nothing_of_the_number() {
    let exporter = Exporter::start(&[]);
    exporter.push(&by_time(1..101).records());
    let before = kept(&exporter);
    let mut other = by_time(101..131).records();
    for record in &mut other {
        record["instance"] = json!("2222222222222222");
        record["live_blocks"] = json!(5);
        assert_eq!(exporter.post(json!([record]).to_string()).status, 409);
    }
    assert_eq!(kept(&exporter), before);
    exporter.push(&by_time(101..201).records());
    keeps_eight_blocks_a_second(&kept(&exporter));
}

#[test]
fn clock_that_is_set_back_changes_nothing_of_what_steps_show() {
    let (exporter, other) = (Exporter::start(&[]), Exporter::start(&[]));
    let records = small_leak(700).records();
    exporter.push(&records);
    let mut wrong = records.clone();
    for (idx, record) in wrong.iter_mut().enumerate().skip(30) {
        let off = if idx < 200 { -3600.0 } else { 1800.0 };
        record["time"] = json!(record["time"].as_f64().unwrap() + off);
    }
    other.push(&wrong);
    let steps_of = |kept: Value| {
        let figures = ["state", "blocks_per_step", "since_step", "certain_step"];
        figures.map(|name| kept[name].clone())
    };
    assert_eq!(steps_of(kept(&other)), steps_of(kept(&exporter)));
}

#[test]
fn clock_that_is_set_back_or_jumps_makes_no_rate_up_of_samples_by_time() {
    let exporter = Exporter::start(&[]);
    exporter.push(&by_time(1..101).records());
    let before = kept(&exporter);
    keeps_eight_blocks_a_second(&before);
    // Until the clock is where it was, its samples have no place.
    let shifted = |samples: std::ops::Range<u64>, seconds: f64| {
        exporter.push(&by_time(samples).starting_at(seconds).records());
        kept(&exporter)
    };
    assert_eq!(shifted(101..121, -60.0), before);
    keeps_eight_blocks_a_second(&shifted(121..201, 0.0));
    // A jump ahead is time in which nothing was kept: the rate becomes less, and never more.
    let after = shifted(201..301, 600.0);
    let per_second = after["blocks_per_second"].as_f64();
    assert!(after["state"] != "level" && per_second.is_none_or(|rate| rate < 8.2), "{after}");
    let later = shifted(301..1301, 600.0);
    assert_eq!(later["state"], "accumulates", "{later}");
    assert!(later["blocks_per_second"].as_f64().unwrap() < 8.2, "{later}");
}

#[test]
fn number_that_goes_absent_and_comes_back_is_told_as_before() {
    let exporter = Exporter::start(&[]);
    let is_absent = |step: &u64| (100..180).contains(step) || (300..301).contains(step);
    let records = small_leak(1400)
        .more(move |_, step| {
            let known = Some(step).filter(|step| !is_absent(step));
            known.map_or(json!({}), |step| json!({"live_blocks": BASE_BLOCKS + step}))
        })
        .records();
    exporter.push(&records[..99]);
    let before = kept(&exporter);
    assert_eq!(
        (&before["state"], &before["certain_step"]),
        (&json!("accumulates"), &json!(47))
    );
    exporter.push(&records[99..179]);
    assert_eq!(kept(&exporter), before, "what it said stays while it is unknown");
    exporter.push(&records[179..700]);
    exporter.push(&records[179..700]);
    let after = kept(&exporter);
    assert_eq!((&after["state"], &after["certain_step"]), (&json!("accumulates"), &json!(47)));
    assert!((after["blocks_per_step"].as_f64().unwrap() - 1.0).abs() < 0.01, "{after}");
    // A window with an unknown number shows nothing: 32 MiB must grow after it.
    exporter.push(&records[700..]);
    assert!(sentence(&exporter).contains("each step keeps 1 block more"));
}

#[test]
fn number_that_comes_back_level_no_longer_accumulates() {
    let exporter = Exporter::start(&[]);
    let job = small_leak(700).more(|_, step| match step {
        0..100 => json!({"live_blocks": BASE_BLOCKS + step}),
        100..180 => json!({}),
        _ => json!({"live_blocks": BASE_BLOCKS + 100}),
    });
    let records = job.records();
    exporter.push(&records[..179]);
    assert_eq!(kept(&exporter)["state"], "accumulates");
    exporter.push(&records[179..]);
    assert_ne!(kept(&exporter)["state"], "accumulates", "{}", kept(&exporter));
}
