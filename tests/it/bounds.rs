//! Growth that knows its own end: what holds the memory has a bound, and a page is withheld until it is full.

use std::collections::BTreeSet;
use std::thread;

use serde_json::{Value, json};

use crate::rig::command::{stepmem, words};
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::http::JSON;
use crate::rig::job::{Job, START};
use crate::rig::json::{has, items};
use crate::rig::noise::noise;
use crate::rig::units::{GIB, MIB, float};
use crate::rig::wait::await_true;

const INSTANCE: &str = "00c0ffee00c0ffee";
const ITEM: u64 = 8 * MIB;
/// The step at which most tests report: the rank creeps since 695.
const REPORTED: u64 = 700;
/// The items that the buffer holds at most, one a step.
const ITEMS_MAX: u64 = 2000;
/// Levels of `stepmem_diagnosis_severity`: less than six hours are left, or the end is known.
const PAGES: Option<f64> = Some(3.0);
const TOLD: Option<f64> = Some(1.0);

/// A rank with 38 GiB live and 2 GiB more within a step, on a device of 80 GiB, and what it keeps by step.
fn job(steps: std::ops::Range<u64>, kept: fn(u64) -> u64) -> Job {
    let live = move |step| 38 * GIB + noise(0, step, MIB) + kept(step);
    let job = Job::new(1, 0).steps(steps).seconds_per_step(0.5);
    job.live(move |_, step| live(step))
        .peak(move |_, step| live(step) + 2 * GIB)
        .reserved(move |_, step| live(step) + 2 * GIB + GIB / 4)
        .more(|_, _| json!({ "instance": INSTANCE }))
}

fn buffer(step: u64) -> u64 {
    step.min(ITEMS_MAX) * ITEM
}

/// The rank's report of the buffer after a step.
fn report(step: u64) -> Value {
    json!({ "run": "job", "rank": 0, "instance": INSTANCE, "outcome": "named", "last_step": step,
        "holders": [{ "name": "`replay`", "kind": "deque", "tensors": step, "bytes": step * ITEM,
            "tensors_per_step": 1.0, "bytes_per_step": ITEM,
            "items": step, "items_max": ITEMS_MAX, "items_per_step": 1.0 }] })
}

/// The report with other fields of the holder.
fn report_with(fields: &Value) -> Value {
    let mut report = report(REPORTED);
    for (name, value) in fields.as_object().unwrap() {
        report["holders"][0][name] = value.clone();
    }
    report
}

fn creep(exporter: &Exporter) -> Value {
    exporter.finding("CREEP_CONFIRMED").unwrap_or_else(|| panic!("{:#}", exporter.status()))
}

fn says(finding: &Value, said: &str) -> bool {
    finding["sentence"].as_str().unwrap().contains(said)
}

fn severity(exporter: &Exporter) -> Option<f64> {
    let metrics = exporter.scrape();
    let mut series = metrics.iter().filter(|(series, _)| {
        series.starts_with("stepmem_diagnosis_severity{") && series.contains("CREEP_CONFIRMED")
    });
    series.next().map(|(_, level)| *level)
}

/// An exporter whose rank creeps while it fills a buffer.
fn filling(arguments: &[&str]) -> Exporter {
    let exporter = Exporter::start(arguments);
    exporter.push(&job(1..REPORTED + 1, buffer).records());
    assert_eq!(severity(&exporter), PAGES);
    exporter
}

#[test]
fn a_buffer_that_will_fit_is_told_and_pages_once_it_should_be_full() {
    let exporter = filling(&[]);
    assert!(
        exporter.scrape().keys().any(|series| series.starts_with("stepmem_oom_eta_seconds"))
    );
    exporter.take("/v1/holders", &report(REPORTED));
    let found = creep(&exporter);
    assert_eq!((&found["severity"], severity(&exporter)), (&json!("info"), TOLD));
    let sentence = found["sentence"].as_str().unwrap();
    let said = "held by `replay` (deque, 700 of 2,000): full in 1,300 steps at 15.6 GiB, 24.";
    assert!(sentence.contains(said) && sentence.ends_with(" GiB will be left"), "{sentence}");
    assert!(found["advice"].as_str().unwrap().contains("it fits"), "{found}");
    let evidence = &found["evidence"];
    assert_eq!(evidence["filling"]["full_in_steps"], 1300.0, "{evidence:#}");
    assert_eq!(evidence["filling"].get("doubt"), None, "{evidence:#}");
    assert_eq!(evidence.get("oom_eta_seconds"), None, "{evidence:#}");
    let etas = exporter.scrape().into_keys().filter(|it| it.starts_with("stepmem_oom_eta"));
    assert_eq!(etas.collect::<Vec<_>>(), [""; 0]);

    // A leak that a report calls a buffer grows on. It is dated once it is not of the last step.
    let leak = |step| step * ITEM;
    exporter.push(&job(REPORTED + 1..ITEMS_MAX, leak).records());
    let said = "(deque, 700 of 2,000 at step 700): full in 1 step at 15.6 GiB, ";
    await_true("the last step before it", || says(&creep(&exporter), said));
    assert_eq!(severity(&exporter), TOLD);
    exporter.push(&job(ITEMS_MAX..ITEMS_MAX + 50, leak).records());
    await_true("the page", || severity(&exporter) == PAGES);
    let found = creep(&exporter);
    assert_eq!(found["evidence"]["filling"]["doubt"], "past_its_end", "{found:#}");
    assert!(says(
        &found,
        "of the growth; 700 tensors, 5.47 GiB at step 700), which should be full by now"
    ));
}

#[test]
fn growth_that_only_rises_has_no_time_left_either_while_it_fills_a_buffer_that_fits() {
    let exporter = Exporter::start(&[]);
    exporter.push(&job(1..201, buffer).records());
    let rising = || exporter.finding("CREEP_EARLY").unwrap_or_else(|| panic!("it rises"));
    let has_time_left = |of: &Value| {
        ["steps", "lower_steps", "upper_steps", "seconds", "lower_seconds", "upper_seconds"]
            .iter()
            .any(|end| of.get(format!("oom_eta_{end}")).is_some_and(Value::is_number))
    };
    assert!(has_time_left(&rising()["evidence"]));
    exporter.take("/v1/holders", &report(200));
    let found = rising();
    assert!(says(&found, "full in 1,800 steps at 15.6 GiB, "), "{found:#}");
    assert!(
        !says(&found, "out of memory in") && !has_time_left(&found["evidence"]),
        "{found:#}"
    );
    assert!(!has_time_left(&exporter.status()["ranks"][0]));
}

#[test]
fn a_bound_that_does_not_show_the_end_of_the_growth_withholds_no_page() {
    let exporter = filling(&[]);
    let cases = [
        ("part_of_growth", json!({ "bytes": 700 * ITEM / 2, "bytes_per_step": ITEM / 2 })),
        ("part_of_growth", json!({ "bytes": 700 * ITEM * 2, "bytes_per_step": ITEM * 2 })),
        ("items_vary", json!({ "bytes": 700 * ITEM / 2 })),
        ("past_its_end", json!({ "items_max": 700 })),
        ("does_not_fit", json!({ "items_max": 1_u64 << 53 })),
        ("items_vary", json!({ "items": 1, "items_max": 1_u64 << 53 })),
    ];
    for (doubt, fields) in cases {
        exporter.take("/v1/holders", &report_with(&fields));
        let found = creep(&exporter);
        assert_eq!(found["evidence"]["filling"]["doubt"], doubt, "{found:#}");
        assert_eq!(severity(&exporter), PAGES, "{fields}");
        exporter.take("/v1/holders", &report(REPORTED));
        assert_eq!(severity(&exporter), TOLD, "{fields}");
    }
    let never = [json!(0), json!(1e-310)].map(|rate| json!({ "items_per_step": rate }));
    for fields in [json!({ "items": 0 })].iter().chain(&never) {
        exporter.take("/v1/holders", &report_with(fields));
        let found = creep(&exporter);
        assert_eq!((found["evidence"].get("filling"), severity(&exporter)), (None, PAGES));
    }
    exporter.take("/v1/holders", &report(REPORTED));
    // A later search that names nothing leaves the figures, but not what they withhold.
    let mut nothing = report(REPORTED);
    nothing["outcome"] = json!("none");
    nothing.as_object_mut().unwrap().remove("holders");
    exporter.take("/v1/holders", &nothing);
    assert_eq!(creep(&exporter)["evidence"]["filling"]["doubt"], "outdated");
    assert_eq!(severity(&exporter), PAGES);
}

#[test]
fn advice_fits_what_holds_the_memory() {
    let exporter = filling(&[]);
    let unbounded = |fields: Value| {
        let mut report = report_with(&fields);
        let holder = report["holders"][0].as_object_mut().unwrap();
        holder.retain(|key, _| !key.starts_with("items"));
        report
    };
    let half = |kind| json!({ "kind": kind, "bytes": 350 * ITEM, "bytes_per_step": ITEM / 2 });
    let cases = [
        (unbounded(json!({ "kind": "list" })), "Bound it, or empty it"),
        (unbounded(json!({ "kind": "cycle" })), "Break the cycle"),
        (report_with(&half("deque")), "lower that bound"),
        (report_with(&half("optimizer state in elements")), "train fewer parameters"),
    ];
    for (report, words) in cases {
        exporter.take("/v1/holders", &report);
        let found = creep(&exporter);
        let advice = found["advice"].as_str().unwrap();
        assert!(advice.contains("`replay`") && advice.contains(words), "{advice}");
        assert_eq!(advice.contains("Bound it"), words.starts_with("Bound"), "{advice}");
        let is_bounded = report["holders"][0].get("items").is_some();
        assert_eq!(says(&found, "full in 1,300 steps"), is_bounded, "{found:#}");
    }
}

#[test]
fn a_bound_that_hovers_around_what_it_has_to_explain_does_not_page_again_and_again() {
    let exporter = filling(&[]);
    let after = |share: u64| {
        let of = |bytes: u64| bytes * share / 100;
        let fields = json!({ "bytes": of(700 * ITEM), "bytes_per_step": of(ITEM) });
        exporter.take("/v1/holders", &report_with(&fields));
        severity(&exporter)
    };
    // It pages until it explains 90 % of the growth, and from then on unless it explains less than 85 %.
    for (share, expected) in [
        (88, PAGES),
        (92, TOLD),
        (88, TOLD),
        (91, TOLD),
        (87, TOLD),
        (82, PAGES),
        (88, PAGES),
        (92, TOLD),
    ] {
        assert_eq!(after(share), expected, "{share} %: {:#}", creep(&exporter));
    }
    let varying = |bytes: u64| {
        exporter.take("/v1/holders", &report_with(&json!({ "bytes": 700 * bytes })));
        severity(&exporter)
    };
    // Its items are as large as its new ones, to within 10 % at first and then 15 %.
    for (share, expected) in [(87, TOLD), (85, PAGES), (87, PAGES), (93, TOLD)] {
        assert_eq!(varying(ITEM * share / 100), expected, "{share} %: {:#}", creep(&exporter));
    }
}

#[test]
fn a_bound_that_is_reported_twice_counts_once() {
    let exporter = filling(&[]);
    exporter.take("/v1/holders", &report(REPORTED));
    let once = creep(&exporter)["evidence"]["filling"].clone();
    exporter.take("/v1/holders", &report(REPORTED));
    assert_eq!(creep(&exporter)["evidence"]["filling"], once);
    // An answer that overtook it is of the same buffer, earlier.
    exporter.take("/v1/holders", &report(REPORTED - 50));
    let earlier = &creep(&exporter)["evidence"]["filling"];
    assert_eq!((earlier["full_in_steps"].as_f64(), severity(&exporter)), (Some(1300.0), TOLD));
    // Two processes that take themselves for the rank, at once: that of the rank's steps counts.
    let mut of_other = report_with(&json!({ "items_max": 1_u64 << 53 }));
    of_other["instance"] = json!("00000000000000bb");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| exporter.take("/v1/holders", &report(REPORTED)));
            scope.spawn(|| {
                let answer = exporter.post_to("/v1/holders", of_other.to_string());
                assert_eq!(answer.status, 409, "{}", answer.body);
            });
        }
    });
    assert_eq!((&creep(&exporter)["evidence"]["filling"], severity(&exporter)), (&once, TOLD));
}

#[test]
fn a_buffer_that_will_not_fit_is_high_pressure_ahead_of_time() {
    let exporter = filling(&[]);
    assert_eq!(exporter.finding("HIGH_PRESSURE"), None);
    exporter.take("/v1/holders", &report_with(&json!({ "items_max": 10_000 })));
    assert_eq!(severity(&exporter), PAGES);
    let pressure = exporter.finding("HIGH_PRESSURE").unwrap();
    assert_eq!(pressure["severity"], "warning");
    let sentence = pressure["sentence"].as_str().unwrap();
    let said =
        "`replay` (deque, 700 of 10,000) will not fit: full in 9,300 steps at 78.1 GiB, 34.";
    assert!(sentence.contains(said) && sentence.contains(" GiB are left; "), "{sentence}");
    assert!(pressure["evidence"]["too_large"]["filling"]["left_bytes"].as_f64() < Some(0.0));
    assert!(pressure["advice"].as_str().unwrap().contains("lower bound"), "{pressure}");
    exporter.take("/v1/holders", &report(REPORTED));
    assert_eq!(exporter.finding("HIGH_PRESSURE"), None);
}

#[test]
fn what_a_buffer_does_not_hold_is_judged_alone() {
    let exporter = filling(&[]);
    exporter.take("/v1/holders", &report(REPORTED));
    // A leak of a quarter of the buffer's rate begins next to it.
    let both = |step: u64| step * ITEM + step.saturating_sub(REPORTED) * ITEM / 4;
    exporter.push(&job(REPORTED + 1..1400, both).records());
    await_true("the page", || severity(&exporter) == PAGES);
    let found = creep(&exporter);
    let doubt = found["evidence"]["filling"]["doubt"].as_str().unwrap();
    assert!(["part_of_growth", "rest_grows"].contains(&doubt), "{found:#}");
}

#[test]
fn only_the_ranks_own_process_withholds_a_page() {
    // It does not name itself.
    let exporter = Exporter::start(&[]);
    let nameless = job(1..REPORTED + 1, buffer).more(|_, _| json!({}));
    exporter.push(&nameless.records());
    exporter.take("/v1/holders", &report(REPORTED));
    assert_eq!(creep(&exporter)["evidence"]["filling"]["doubt"], "not_own");
    assert_eq!(severity(&exporter), PAGES);
    // It names itself, and another speaks of it, or nobody known.
    let exporter = filling(&[]);
    for instance in [json!("00000000000000bb"), Value::Null] {
        let mut body = report(REPORTED);
        body["instance"] = instance;
        let refused = exporter.post_to("/v1/holders", body.to_string());
        assert!([403, 409].contains(&refused.status), "{}", refused.body);
    }
    assert_eq!(severity(&exporter), PAGES);
    // A later process of the rank is not bound by the report of the one before.
    exporter.take("/v1/holders", &report(REPORTED));
    assert_eq!(severity(&exporter), TOLD);
    let later = job(1..REPORTED + 1, buffer).starting_at(3600.0);
    let later = later.more(|_, _| json!({ "instance": "00000000000000bb", "attempt": 1 }));
    exporter.push(&later.records());
    let found = creep(&exporter);
    assert_eq!((found["evidence"].get("holder"), severity(&exporter)), (None, PAGES));
}

#[test]
fn in_a_pod_an_address_needs_the_token_to_withhold_a_page() {
    let folder = Folder::new("bounds-token");
    let token = folder.write("token", "the push token of a pod");
    let with_token = ["--push.listen-address", "127.0.0.1:0", "--push.token-file", &token];
    for (arguments, level) in [(&with_token[..2], PAGES), (&with_token[..], TOLD)] {
        let exporter = Exporter::start_sidecar(arguments, &[]);
        let headers = [JSON, ("authorization", "Bearer the push token of a pod")];
        for batch in job(1..REPORTED + 1, buffer).records().chunks(400) {
            let body = json!(batch).to_string();
            let answer = exporter.request("POST", "/v1/steps", &headers, body.as_bytes());
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
        let body = report(REPORTED).to_string();
        let answer = exporter.request("POST", "/v1/holders", &headers, body.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(severity(&exporter), level, "{arguments:?}");
    }
}

#[test]
fn a_withheld_page_outlasts_a_restart_and_is_replayed() {
    let folder = Folder::new("bounds-restart");
    let (state, recorded) = (text(&folder.path("state")), text(&folder.path("recorded")));
    let arguments = ["--state.file", &state, "--record.directory", &recorded];
    let first = filling(&arguments);
    first.take("/v1/holders", &report(REPORTED));
    let before = creep(&first);
    assert_eq!(before["severity"], "info");
    first.stop();
    let second = Exporter::start(&["--state.file", &state]);
    let after = creep(&second);
    has(&after, &json!({"evidence": before["evidence"], "severity": "info"}));

    let replayed = stepmem(&["replay", &recorded], &[], b"").quiet();
    let last: Value = serde_json::from_str(replayed.lines().last().unwrap()).unwrap();
    let findings = &last["status"]["findings"];
    let again = items(findings).find(|finding| finding["kind"] == "CREEP_CONFIRMED").unwrap();
    assert_eq!(again["evidence"]["filling"], before["evidence"]["filling"], "{again:#}");
    assert_eq!(again["severity"], "info");
    let explained = stepmem(&["explain", "--run", "job", "--rank", "0", &recorded], &[], b"");
    let said = "MEMORY CREEP (info; critical until a bound that fits was known)";
    assert!(explained.out.contains(said), "{}", explained.out);
}

#[test]
fn a_run_that_ends_while_it_fills_is_told_so_by_its_summary() {
    let folder = Folder::new("bounds-summary");
    let summaries = folder.path("summaries");
    let exporter = filling(&["--summary.dir", &text(&summaries)]);
    exporter.take("/v1/holders", &report(REPORTED));
    let end = json!({ "outcome": "completed", "time": float(START) + 400.0 });
    exporter.end("job", &end);
    let path = summaries.join("job/latest/final_summary.json");
    await_true("the summary", || path.exists());
    let summary: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let text = summary["text"].as_str().unwrap();
    assert!(words(text).contains("full in 1,300 steps at 15.6 GiB"), "{text}");
    assert!(!text.contains("out of memory in"), "{text}");
}

/// A line of a recording, of something that happened at a second.
fn event(number: usize, seconds: f64, what: &str, of: &Value) -> String {
    format!("{{\"event\":{number},\"uptime\":{seconds},\"{what}\":{of}}}\n")
}

/// The steps at which MEMORY CREEP changed its severity, with that, for records of half a second that a report of step
/// [`REPORTED`] is among.
fn replayed(name: &str, job: &Job) -> Vec<(u64, String)> {
    let mut lines = format!(
        "{{\"recording\":1,\"life\":\"{name}\",\"run\":\"job\",\"part\":1,\"started\":{START},\"device_ttl_seconds\":15}}\n"
    );
    let mut holder = report(REPORTED)["holders"][0].clone();
    let fill = json!({ "items": REPORTED, "items_max": ITEMS_MAX, "items_per_step": 1.0, "is_own": true });
    let fields = holder.as_object_mut().unwrap();
    fields.retain(|name, _| !name.starts_with("items"));
    fields.extend([
        ("at".into(), Value::Null),
        ("step".into(), REPORTED.into()),
        ("fill".into(), fill),
    ]);
    for (idx, record) in job.records().into_iter().enumerate() {
        let seconds = record["time"].as_f64().unwrap() - float(START);
        if record["step"] == REPORTED {
            let of = json!({ "rank": { "run": "job", "rank": 0 }, "since_uptime": seconds, "of": holder });
            lines += &event(2 * idx, seconds, "holder", &of);
        }
        lines += &event(2 * idx + 1, seconds, "step", &record);
    }
    let folder = Folder::new(&format!("bounds-{name}"));
    let out = stepmem(&["replay", &folder.write("job.jsonl", &lines)], &[], b"").quiet();
    let lines = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let creeps = lines.filter(|line| line["kind"] == "CREEP_CONFIRMED");
    creeps
        .map(|line| {
            let word = if line["state"] == "cleared" { "state" } else { "severity" };
            (line["step"].as_u64().unwrap(), line[word].as_str().unwrap().to_owned())
        })
        .collect()
}

#[test]
fn a_buffer_that_is_full_as_it_said_never_pages_and_one_that_is_not_pages_within_a_few_steps() {
    let said = replayed("ends", &job(1..3000, buffer));
    let [(_, critical), (told, info), (_, cleared)] = &said[..] else { panic!("{said:?}") };
    assert_eq!([critical, info, cleared], ["critical", "info", "cleared"], "{said:?}");
    assert!((REPORTED - 1..REPORTED + 12).contains(told), "{said:?}");

    let said = replayed("goes-on", &job(1..2200, |step| step * ITEM));
    let [.., (_, info), (step, critical)] = &said[..] else { panic!("{said:?}") };
    assert_eq!([info, critical], ["info", "critical"], "{said:?}");
    // It is known to two in a hundred when it is full, and judged every five seconds.
    assert!((ITEMS_MAX + 26..ITEMS_MAX + 50).contains(step), "{said:?}");
}

#[test]
fn a_report_that_two_searches_should_have_renewed_withholds_a_page_no_more() {
    // A step every two seconds: two searches are 600 steps.
    let slow = job(1..1900, buffer).seconds_per_step(2.0);
    let said = replayed("outdated", &slow);
    let [.., (told, info), (step, paged)] = &said[..] else { panic!("{said:?}") };
    assert_eq!([info, paged], ["info", "critical"], "{said:?}");
    assert!((told + 595..told + 605).contains(step), "{said:?}");
}

/// Four ranks that fill a buffer each: what one reports withholds the page of no other, so that each is asked.
#[test]
fn each_rank_that_fills_a_buffer_is_asked_and_is_judged_by_its_own_report() {
    let exporter = Exporter::start(&["--holders.on-creep"]);
    let live = |rank, step| 38 * GIB + noise(rank, step, MIB) + buffer(step);
    let instance = |rank| format!("00000000000000a{rank}");
    let job = |steps| {
        Job::new(4, 0)
            .steps(steps)
            .seconds_per_step(0.5)
            .live(live)
            .more(move |rank, _| json!({ "instance": instance(rank) }))
    };
    let mut asked = Vec::new();
    for first in (1..=REPORTED).step_by(50) {
        let steps = first..(first + 50).min(REPORTED + 1);
        for ask in exporter.actions(&job(steps.clone()).records()) {
            let rank = ask["rank"].as_u64().unwrap();
            if rank != 3 {
                let mut report = report(steps.end - 1);
                (report["rank"], report["id"]) = (rank.into(), ask["id"].clone());
                report["instance"] = instance(rank).into();
                exporter.take("/v1/holders", &report);
            }
            asked.push(rank);
        }
    }
    assert_eq!(asked.into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([0, 1, 2, 3]));
    let mut paged = exporter.findings();
    paged.retain(|of| of["kind"] == "CREEP_CONFIRMED" && of["severity"] != "info");
    assert_eq!(paged.iter().map(|of| &of["rank"]).collect::<Vec<_>>(), [3]);
}
