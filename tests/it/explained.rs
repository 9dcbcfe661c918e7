//! `explain --json`: what the text says, for programs; of recordings and of a running exporter.

use serde_json::{Value, json};
use stepmem_engine::DiagnosisKind;

use crate::rig::command::{Ended, stepmem};
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::json::has;
use crate::rig::schema::holds_definition;
use crate::rig::units::{GIB, MIB, float};

/// The beginning of the line above the table with the windows of live memory.
const RECORDED_TITLE: &str = "Live memory: of ";
const LIVE_TITLE: &str = "Live memory: its windows";
const WINDOWS: &str = "/api/v1/runs/llm%2F7b/ranks/2/windows";

fn text_of(ended: &Ended) -> &str {
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    &ended.out
}

fn json_of(ended: &Ended) -> Value {
    serde_json::from_str(text_of(ended)).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn word<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("no {key} in {value:#}"))
}

/// The name of a diagnosis for people.
fn title(label: &str) -> &'static str {
    DiagnosisKind::from_label(label).unwrap().about().title
}

/// The length of each window that a table lists, and its last outcome without value and limit.
fn rows(text: &str, title: &str) -> Vec<(u64, String)> {
    let row = |line: &str| {
        let (length, outcomes) = line.trim_start().split_once("  ")?;
        let last = outcomes.trim().rsplit("  ").next().unwrap_or_default();
        let name = last.split(':').next().unwrap_or_default().trim();
        Some((length.replace(',', "").parse().ok()?, name.to_owned()))
    };
    let below = text.lines().skip_while(|line| !line.starts_with(title));
    below.skip_while(|line| row(line).is_none()).map_while(row).collect()
}

/// The same of a window as JSON.
fn row(window: &Value) -> (u64, String) {
    let name = match word(window, "outcome") {
        _ if window["is_asked"] == false => "a longer one creeps".to_owned(),
        "stopped" => word(window, "test").to_owned(),
        "rises" => format!("rises ({})", word(window, "test")),
        other => other.to_owned(),
    };
    (window["records"].as_u64().unwrap(), name)
}

/// The words of the glossary of a text.
fn glossary(text: &str) -> usize {
    let title = "These outcomes, in the order in which a window is tested";
    let lines = text.lines().skip_while(|line| *line != title).skip(1);
    lines.filter(|line| line.starts_with("  ") && !line.starts_with("   ")).count()
}

fn explain(arguments: &[&str], rank: &str) -> Ended {
    let about = ["explain", "--run", "llm/7b", "--rank", rank];
    stepmem(&[&about[..], arguments].concat(), &[], b"")
}

#[test]
fn straight_growth_is_never_said_to_be_of_stairs() {
    let folder = Folder::new("straight");
    for leak in (7..=24).map(|eighths| eighths * MIB / 8 * 3) {
        let job = Job::leaking("llm/7b", 0..1600, leak);
        let file = folder.write("steps.jsonl", &job.recording());
        let explained = explain(&[&file], "2");
        let text = text_of(&explained);
        assert!(text.contains("MEMORY RISING") && text.contains("seen in "), "{text}");
        assert!(!text.contains("stairs"), "{leak} bytes a step: {text}");
    }
}

#[test]
fn window_spans_the_steps_of_its_pushes() {
    let folder = Folder::new("spans");
    // A push a step, and one for four: a window ends at the last step that it has.
    for every in [1, 4] {
        let job = Job::leaking("llm/7b", 0..1600, 24 * MIB).every(every);
        let file = folder.write("steps.jsonl", &job.recording());
        let explained = explain(&[&file, "--json"], "2");
        let story = json_of(&explained);
        let mut n_windows = 0;
        for window in list(&story["events"]).iter().filter_map(|event| event.get("window")) {
            let of = |key: &str| window[key].as_u64().unwrap();
            let (first, last, records) = (of("first_step"), of("last_step"), of("records"));
            assert_eq!(last % every, 0, "{window:#}");
            assert_eq!((last - first) / every + 1, records, "{window:#}");
            n_windows += 1;
        }
        assert!(n_windows > 0, "{story:#}");
    }
}

#[test]
fn recorded_story_is_the_same_as_text_and_as_json() {
    let folder = Folder::new("explained");
    let file =
        folder.write("steps.jsonl", &Job::leaking("llm/7b", 0..900, 24 * MIB).recording());
    for rank in ["1", "2"] {
        let explained = explain(&[&file], rank);
        let text = text_of(&explained);
        let story = json_of(&explain(&[&file, "--json"], rank));
        holds_definition("explain", "recorded", &story);
        let subject = ["run", "rank", "steps", "capacity_bytes"].map(|key| &story[key]);
        let number: u64 = rank.parse().unwrap();
        assert_eq!(json!(subject), json!(["llm/7b", number, 900, 80 * GIB]));
        assert_eq!((&story["first"]["step"], &story["last"]["step"]), (&json!(0), &json!(899)));
        for event in list(&story["events"]) {
            let transition = &event["transition"];
            let words = format!(
                "{}, {}: ",
                title(word(transition, "kind")),
                word(transition, "severity")
            );
            assert!(transition["state"] == "cleared" || text.contains(&words), "{words}{text}");
        }
        let held: Vec<String> = list(&story["held"])
            .iter()
            .map(|held| format!("{} ({})", title(word(held, "kind")), word(held, "severity")))
            .collect();
        let held = if held.is_empty() { "no finding".to_owned() } else { held.join(", ") };
        assert!(text.contains(&format!("At the end: {held}\n")), "{text}");
        let live = &story["signals"][0];
        assert_eq!(live["signal"], "allocated");
        let told: Vec<_> = list(&live["windows"]).iter().map(|it| row(&it["last"])).collect();
        assert!(told.len() > 1, "{story:#}");
        let n_tests: u64 =
            list(&live["windows"]).iter().map(|it| it["judged"].as_u64().unwrap()).sum();
        let all = format!("Live memory: in each of {n_tests} windows of up to ");
        // One outcome for all is a sentence instead of a table.
        if text.contains(&all) {
            assert!(told.iter().all(|(_, last)| *last == told[0].1), "{told:?}");
        } else {
            // Windows of two levels that are equally long share a row.
            let mut in_rows = told.clone();
            in_rows.reverse();
            in_rows.dedup_by_key(|(records, _)| *records);
            in_rows.reverse();
            assert_eq!(in_rows, rows(text, RECORDED_TITLE), "{text}");
            assert!(glossary(text) > 0, "{text}");
        }
        // Only the words of a table are explained.
        assert!(glossary(text) <= list(&story["tests"]).len(), "{text}");
        for window in list(&live["windows"]) {
            let counts =
                list(&window["outcomes"]).iter().map(|it| it["count"].as_u64().unwrap());
            assert_eq!(counts.sum::<u64>(), window["judged"].as_u64().unwrap(), "{window:#}");
        }
    }
}

#[test]
fn finding_of_a_story_has_what_shows_it_and_what_it_became() {
    let folder = Folder::new("explained-events");
    let file =
        folder.write("steps.jsonl", &Job::leaking("llm/7b", 0..2000, 8 * MIB).recording());
    let story = json_of(&explain(&[&file, "--json"], "2"));
    holds_definition("explain", "recorded", &story);
    let events = list(&story["events"]);
    let shown = |kind: &str| {
        let is_it = |event: &&Value| {
            event["transition"]["kind"] == kind && event["transition"]["state"] == "raised"
        };
        let event = events.iter().find(is_it).unwrap_or_else(|| panic!("{story:#}"));
        event["window"].clone()
    };
    let early = shown("CREEP_EARLY");
    assert_eq!(early["trend"]["stage"], "rising", "{early:#}");
    assert!(!word(&early, "test").is_empty() && !word(&early, "reason").is_empty());
    let creep = shown("CREEP_CONFIRMED");
    let trend = &creep["trend"];
    let slope = trend["slope_bytes_per_step"].as_f64().unwrap();
    assert!((slope / 1_048_576.0 - 8.0).abs() < 1.0, "{creep:#}");
    let became = events.iter().find(|event| event["cause"] == "became");
    let became = became.unwrap_or_else(|| panic!("{story:#}"));
    assert_eq!(word(&became["transition"], "kind"), "CREEP_EARLY");
    assert_eq!(word(became, "became"), "CREEP_CONFIRMED");
}

#[test]
fn unknown_figure_is_absent_and_what_stands_in_is_named() {
    let folder = Folder::new("explained-capacity");
    let job = Job::leaking("llm/7b", 0..900, 24 * MIB).more(|_, step| {
        let reserved = if step < 400 { Value::Null } else { (48 * GIB).into() };
        json!({"total_bytes": null, "reserved_bytes": reserved})
    });
    let file = folder.write("steps.jsonl", &job.recording());
    let story = json_of(&explain(&[&file, "--json"], "2"));
    holds_definition("explain", "recorded", &story);
    assert!(story.get("capacity_bytes").is_none(), "{story:#}");
    let windows = list(&story["signals"][0]["windows"]);
    let has =
        |key: &str| windows.iter().any(|window| window["last"]["trend"].get(key).is_some());
    assert_eq!((has("headroom_bytes"), has("stand_in_headroom_bytes")), (false, true));
    let floor = |of: &str| {
        let signal = list(&story["signals"]).iter().find(|it| it["signal"] == of).unwrap();
        signal["floor"]["points_bytes"].clone()
    };
    assert_eq!(floor("outside_allocator"), Value::Null);
    let reserved = floor("reserved");
    let (first, last) = (list(&reserved).first().unwrap(), list(&reserved).last().unwrap());
    assert_eq!((first.is_null(), last.as_f64()), (true, Some(float(48 * GIB))));
}

#[test]
fn memory_without_figures_is_unknown_and_not_a_matter_of_short_windows() {
    let outside = "Memory outside the allocator: ";
    let folder = Folder::new("explain-unknown");
    let of = |n_steps: u64| {
        let job = Job::leaking("llm/7b", 0..n_steps, 2 * MIB);
        let file = folder.write(&format!("{n_steps}.jsonl"), &job.recording());
        text_of(&explain(&[&file], "2")).to_owned()
    };
    let long = of(300);
    assert!(
        long.contains(&format!("{outside}unknown, as the figures for it did not come")),
        "{long}"
    );
    let short = of(8);
    assert!(short.contains("Live memory: no window was long enough to be tested"), "{short}");
}

#[test]
fn live_rank_is_the_same_as_text_as_json_and_over_http() {
    let exporter = Exporter::start(&[]);
    for batch in Job::leaking("llm/7b", 0..900, 24 * MIB).records().chunks(300) {
        exporter.push(batch);
    }
    let ack =
        json!({"rank": 2, "kind": "CREEP_EARLY", "for_seconds": 3600, "reason": "a cache"});
    assert_eq!(exporter.post_to("/v1/runs/llm%2F7b/ack", ack.to_string()).status, 200);
    let url = format!("http://{}", exporter.web);
    let told = json_of(&explain(&["--url", &url, "--json"], "2"));
    holds_definition("explain", "live", &told);
    let status = exporter.status();
    let of_rank = |name: &str| -> Vec<Value> {
        let of = list(&status[name]).iter();
        of.filter(|it| it["rank"] == 2).map(|it| it["kind"].clone()).collect()
    };
    let kinds = |name: &str| -> Vec<Value> {
        list(&told[name]).iter().map(|it| it["kind"].clone()).collect()
    };
    assert!(kinds("findings").contains(&json!("CREEP_CONFIRMED")), "{told:#}");
    assert_eq!((kinds("findings"), kinds("acks")), (of_rank("findings"), of_rank("acks")));
    let rank = list(&status["ranks"]).iter().find(|rank| rank["rank"] == 2).unwrap();
    assert_eq!(
        (&told["rank"]["creep"], &told["rank"]["last_train"]),
        (&rank["creep"], &rank["last_train"])
    );

    let text = explain(&["--url", &url], "2");
    let live = list(&told["windows"]).iter().filter(|window| window["signal"] == "allocated");
    // The text leaves out the long windows that have no more records than a shorter one, and too few blocks.
    let mut longest = 0;
    let mut says_more = |of: &(u64, String)| {
        let is_more = of.0 > longest || of.1 != "too short";
        longest = longest.max(of.0);
        is_more
    };
    let live: Vec<_> = live.map(row).filter(|of| says_more(of)).collect();
    assert!(!live.is_empty());
    assert_eq!(live, rows(text_of(&text), LIVE_TITLE), "{}", text.out);
    assert!((1..=list(&told["tests"]).len()).contains(&glossary(&text.out)), "{}", text.out);

    let answer = exporter.get(&format!("{WINDOWS}?format=json"), &[]);
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    let windows = answer.json();
    holds_definition("explain", "windows", &windows);
    assert_eq!((&windows["windows"], &windows["tests"]), (&told["windows"], &told["tests"]));
    let plain = exporter.get(WINDOWS, &[]);
    assert_eq!(plain.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(exporter.get(&format!("{WINDOWS}?format=text"), &[]).body, plain.body);
    let refused = exporter.get(&format!("{WINDOWS}?format=xml"), &[]);
    assert_eq!((refused.status, refused.body.contains("format=xml")), (400, true));

    let end = json!({"rank": 2, "outcome": "completed"}).to_string();
    assert_eq!(exporter.post_to("/v1/runs/llm%2F7b/end", end).status, 200);
    let ended = json_of(&explain(&["--url", &url, "--json"], "2"));
    holds_definition("explain", "live", &ended);
    has(&ended, &json!({"rank": {"end": {"outcome": "completed"}}, "windows": []}));
}

#[test]
fn live_rank_is_explained_alike_before_and_after_a_restart() {
    let folder = Folder::new("explain-restart");
    let state = text(&folder.path("state"));
    let start = || Exporter::start(&["--state.file", &state]);
    let told = |exporter: &Exporter| {
        let url = format!("http://{}", exporter.web);
        json_of(&explain(&["--url", &url, "--json"], "2"))
    };
    let first = start();
    for batch in Job::leaking("llm/7b", 0..900, 24 * MIB).records().chunks(300) {
        first.push(batch);
    }
    let before = told(&first);
    assert!(!list(&before["windows"]).is_empty(), "{before:#}");
    first.stop();

    let after = told(&start());
    for key in ["windows", "tests", "acks"] {
        assert_eq!(after[key], before[key], "{key}");
    }
    let of = |told: &Value| -> Vec<Value> {
        let findings = list(&told["findings"]).iter();
        let onset = |it: &Value| it["evidence"]["onset_step"].clone();
        findings.map(|it| json!([it["kind"], it["severity"], onset(it)])).collect()
    };
    assert!(!of(&before).is_empty(), "{before:#}");
    assert_eq!(of(&after), of(&before));
}

#[test]
fn subject_that_is_not_there_is_an_error_without_json() {
    let folder = Folder::new("explained-none");
    let file = folder.write("steps.jsonl", &Job::new(1, 20).run("llm/7b").recording());
    let exporter = Exporter::start(&[]);
    exporter.push(&Job::new(1, 20).run("llm/7b").records());
    let url = format!("http://{}", exporter.web);
    let of_process = stepmem(&["explain", "--json", "--pid", "7", &file], &[], b"");
    for (ended, code, why) in [
        (explain(&["--json", &file], "7"), 2, "no train step of rank 7 of run llm/7b"),
        (explain(&["--json", "--url", &url], "7"), 2, "has no rank 7 of run llm/7b"),
        (of_process, 2, "no reading of an unmanaged process 7"),
    ] {
        assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""));
        assert!(ended.err.contains(why), "{}", ended.err);
    }
}
