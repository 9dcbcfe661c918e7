//! Memory snapshots: who is asked for one in the answer to a push, and what is shown of what comes back.

use serde_json::{Value, json};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::http::Answer;
use crate::rig::job::{Job, record};
use crate::rig::json::{has, text_of};
use crate::rig::units::{GIB, MIB};

const NOTHING: [Value; 0] = [];

fn report(exporter: &Exporter, body: &Value) -> Answer {
    exporter.post_to("/v1/snapshots", body.to_string())
}

fn result(exporter: &Exporter, name: &str) -> f64 {
    exporter.metric(&format!("stepmem_snapshots_total{{result=\"{name}\"}}")).unwrap()
}

#[test]
fn creeping_rank_is_asked_until_it_reports_and_its_file_is_shown() {
    let exporter = Exporter::start(&["--snapshot.on-creep"]);
    assert_eq!(exporter.actions(&Job::leaking("flat", 1..1500, 0).records()), NOTHING);
    let asked = exporter.actions(&Job::leaking("leaky", 1..1500, 4 * MIB).records());
    let first = asked.first().unwrap();
    assert!(asked.iter().all(|action| action == first), "{asked:?}");
    assert_eq!(
        first,
        &json!({"type": "snapshot", "id": first["id"], "run": "leaky", "rank": 2, "steps": 20,
                "reason": "creep", "entries_max": 1_000_000})
    );
    assert_eq!(exporter.status()["snapshots"][0]["outcome"], "waiting");

    let began = json!({"run": "leaky", "rank": 2, "id": first["id"], "outcome": "began",
                       "events_per_step": 1000});
    exporter.take("/v1/snapshots", &began);
    assert_eq!(
        exporter.actions(&Job::leaking("leaky", 1500..1510, 4 * MIB).records()),
        NOTHING
    );
    assert_eq!(exporter.status()["snapshots"][0]["outcome"], "recording");

    let path = "/snapshots/leaky_creep_rank2_step1502.pickle";
    let written = json!({"run": "leaky", "rank": 2, "id": first["id"], "reason": "creep",
                         "step": 1502, "outcome": "written", "path": path, "bytes": 12345});
    exporter.take("/v1/snapshots", &written);
    assert_eq!(
        exporter.actions(&Job::leaking("leaky", 1510..1600, 4 * MIB).records()),
        NOTHING
    );
    let shown = exporter.status()["snapshots"].clone();
    assert!(shown[0]["since"].is_number(), "{shown}");
    let expected = json!([{"run": "leaky", "rank": 2, "id": first["id"], "reason": "creep",
        "outcome": "written", "step": 1502, "path": path, "bytes": 12345, "error": null,
        "since": shown[0]["since"]}]);
    assert_eq!(shown, expected);
    assert_eq!(result(&exporter, "written"), 1.0);
    assert_eq!(result(&exporter, "failed"), 0.0);
}

#[test]
fn no_rank_is_asked_by_default() {
    let exporter = Exporter::start(&[]);
    assert_eq!(exporter.actions(&Job::leaking("leaky", 1..1500, 4 * MIB).records()), NOTHING);
    assert_eq!(exporter.status()["snapshots"], json!([]));
}

#[test]
fn unsolicited_snapshot_is_listed_and_a_failed_one_is_counted() {
    let exporter = Exporter::start(&[]);
    assert_eq!(exporter.post(record(1, 1, 1)).status, 200);
    let failed = json!({"rank": 1, "reason": "oom", "outcome": "failed", "error": "disk full"});
    exporter.take("/v1/snapshots", &failed);
    let shown = &exporter.status()["snapshots"][0];
    let expected =
        json!({"reason": "oom", "error": "disk full", "run": "default", "path": null});
    has(shown, &expected);
    assert_eq!(result(&exporter, "failed"), 1.0);
}

#[test]
fn malformed_report_is_refused_by_name() {
    let exporter = Exporter::start(&[]);
    for (body, said) in [
        (json!({"rank": 1, "outcome": "written"}), "missing field `path`"),
        (json!({"rank": 1, "outcome": "failed"}), "missing field `error`"),
        (json!({"rank": 1, "outcome": "lost"}), "lost"),
        (json!({"rank": 1, "outcome": "written", "path": ""}), "path: a text of 0 bytes"),
        (json!({"rank": 1, "outcome": "written", "path": "/a", "size": 1}), "size"),
        (json!({"rank": 1, "outcome": "written", "path": "/a", "bytes": -1}), "bytes: -1"),
    ] {
        let answer = report(&exporter, &body);
        assert_eq!(answer.status, 400, "{}", answer.body);
        assert!(answer.body.contains(said), "{} does not say {said}", answer.body);
    }
    assert_eq!(exporter.status()["snapshots"], json!([]));
}

#[test]
fn directory_of_snapshots_is_an_absolute_path() {
    let relative = ["check", "--no-nvml", "--snapshot.read-directory", "snapshots"];
    stepmem(&relative, &[], b"").fails(1, "\"snapshots\" is not an absolute path");
}

#[test]
fn growing_rank_is_asked_what_holds_its_tensors_and_the_finding_says_it() {
    let exporter = Exporter::start(&["--holders.on-creep"]);
    let asked = exporter.actions(&Job::leaking("leaky", 1..1500, 4 * MIB).records());
    let first = asked.first().unwrap();
    let growth = first["bytes_per_step"].as_f64().unwrap();
    assert!((growth / 4_194_304.0 - 1.0).abs() < 0.05, "{first}");
    assert_eq!(
        first,
        &json!({"type": "holders", "id": first["id"], "run": "leaky", "rank": 2, "steps": 20,
            "bytes_per_step": growth, "is_on_host": false})
    );
    let of = |outcome: &str| json!({"run": "leaky", "rank": 2, "id": first["id"], "outcome": outcome});
    let post = |body: &Value| exporter.post_to("/v1/holders", body.to_string());
    assert_eq!(post(&of("began")).status, 200);
    let more = Job::leaking("leaky", 1500..1510, 4 * MIB).records();
    assert_eq!(exporter.actions(&more), NOTHING);

    let holder = json!({"name": "`Trainer.history`", "kind": "list", "file": "/app/job/train.py",
        "line": 42, "function": "__init__", "tensors": 12_480, "bytes": 3 * GIB,
        "tensors_per_step": 1.0, "bytes_per_step": 4_194_304.0});
    let mut named = of("named");
    named["holders"] = json!([holder]);
    named["last_step"] = json!(460);
    assert_eq!(post(&named).status, 200);
    let finding = exporter.findings().remove(0);
    let expected = json!({"name": holder["name"], "bytes": holder["bytes"],
                          "at": {"file": holder["file"]}});
    has(&finding["evidence"]["holder"], &expected);
    let said = "held by `Trainer.history` (list, 4.00 MiB more/step, all of the growth; 12,480 tensors, 3.00 GiB \
                at step 460) of job/train.py:42 in __init__";
    assert!(text_of(&finding, "sentence").contains(said), "{finding}");
    // It may hold losses with their graphs, or batches.
    let advice = text_of(&finding, "advice");
    assert!(advice.contains("detach()") && advice.contains("clone()"), "{advice}");
    let series = "stepmem_holders_total{result=\"named\"}";
    assert_eq!(exporter.metric(series), Some(1.0));

    // It is measured over fewer steps than the growth, and never shown as more than that.
    named["holders"][0]["bytes_per_step"] = json!(3.0 * 4_194_304.0);
    assert_eq!(post(&named).status, 200);
    let sentence = || text_of(&exporter.findings()[0], "sentence").to_owned();
    assert!(sentence().contains(said), "{}", sentence());
    named["holders"][0]["bytes_per_step"] = json!(1_048_576.0);
    assert_eq!(post(&named).status, 200);
    let said = "(list, 1.00 MiB more/step, 25% of the growth; 12,480 tensors";
    assert!(sentence().contains(said), "{}", sentence());

    named["holders"][0]["name"] = json!("a\u{202e}b");
    let refused = post(&named);
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("name: "), "{}", refused.body);
}

#[test]
fn growth_that_is_suspected_is_searched_for_its_holder_before_it_is_a_finding() {
    let exporter = Exporter::start(&["--holders.on-creep"]);
    let small = Job::new(1, 200).live(|_, step| GIB + step * MIB / 8);
    let asked = exporter.actions(&small.records());
    assert_eq!(exporter.status()["findings"], json!([]));
    let [asked] = &asked[..] else { panic!("{asked:?}") };
    has(asked, &json!({"type": "holders", "rank": 0}));
}

#[test]
fn a_search_of_host_memory_that_named_no_holder_names_what_takes_host_memory() {
    let exporter = Exporter::start(&["--holders.on-creep"]);
    let job = Job::leaking("leaky", 1..1500, 4 * MIB).device("cpu");
    let asked = exporter.actions(&job.records());
    let id = &asked.first().unwrap()["id"];
    let none =
        json!({"run": "leaky", "rank": 2, "id": id, "last_step": 900, "outcome": "none"});
    exporter.take("/v1/holders", &none);
    let finding = exporter.findings().remove(0);
    let nothing = "no growing tensor was found by step 900: look at texts, arrays, figures, profiler, native code";
    assert!(text_of(&finding, "sentence").contains(nothing), "{finding}");
    let advice = text_of(&finding, "advice");
    assert!(advice.contains("look at texts") && !advice.contains("CUDA"), "{advice}");
}

#[test]
fn a_search_of_host_memory_that_did_not_read_all_leaves_open_what_holds_it() {
    let exporter = Exporter::start(&["--holders.on-creep"]);
    let job = Job::leaking("leaky", 1..1500, 4 * MIB).device("cpu");
    let id = exporter.actions(&job.records())[0]["id"].clone();
    let partly = json!({"outcome": "gave_up", "error": "too many objects",
        "objects_read": 30_000, "objects_met": 100_000});
    let mut traced = partly.clone();
    traced["lines"] = json!({"outcome": "unsafe"});
    for (fields, sentence) in [
        (&partly, "(30% of those met) by step 900; the rest of them was not read"),
        (
            &traced,
            "by step 900; the rest of them was not read; no line is known: tracemalloc is not safe",
        ),
    ] {
        let finding = searched(&exporter, &id, fields);
        assert!(text_of(&finding, "sentence").contains(sentence), "{finding}");
        let advice = text_of(&finding, "advice");
        assert!(advice.starts_with("The search for the holder could not read all"), "{advice}");
        assert!(!advice.contains("native code") && !advice.contains("snapshot"), "{advice}");
    }
}

/// Reports what a search by step 900 came to, and returns the finding.
fn searched(exporter: &Exporter, id: &Value, fields: &Value) -> Value {
    let mut body = json!({"run": "leaky", "rank": 2, "id": id, "last_step": 900});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    exporter.take("/v1/holders", &body);
    exporter.findings().remove(0)
}

#[test]
fn search_for_lines_of_host_memory_is_told_with_what_it_came_to() {
    let exporter = Exporter::start(&["--holders.on-creep"]);
    let job = Job::leaking("leaky", 1..1500, 4 * MIB).device("cpu");
    let id = exporter.actions(&job.records())[0]["id"].clone();
    let post = |fields: Value| searched(&exporter, &id, &fields);
    let none = |lines: Value| post(json!({"outcome": "none", "lines": lines}));
    let silent = post(json!({"outcome": "none"}));
    assert!(text_of(&silent, "advice").contains("--host-lines"));
    for (lines, sentence, advice) in [
        (
            json!({"outcome": "native", "steps": 40, "pause_seconds": 0.0124}),
            "by step 900, and Python does not allocate what grows; 40 steps traced, longest pause 12 ms",
            "look at native code",
        ),
        (
            json!({"outcome": "arenas", "malloc_free_bytes_per_step": 4_194_304.0}),
            "by step 900; 4.00 MiB/step were freed and stay in glibc's arenas",
            "MALLOC_MMAP_THRESHOLD_=131072",
        ),
        (json!({"outcome": "spread"}), "Python allocates it at many lines", "look at texts"),
        (
            json!({"outcome": "slow", "slowdown_ratio": 10.2}),
            "native code; no line is known: a traced step took too long (1020% of the usual)",
            "look at texts",
        ),
        (json!({"outcome": "level"}), "did not grow while it was traced", "look at texts"),
        (json!({"outcome": "bound"}), "tracing came to its bound", "look at texts"),
        (json!({"outcome": "apart"}), "not looked for", "look at texts"),
        (json!({"outcome": "own"}), "the program uses tracemalloc itself", "look at texts"),
        (json!({"outcome": "unsafe"}), "not safe in this Python", "look at texts"),
        (json!({"outcome": "failed"}), "tracing failed", "look at texts"),
    ] {
        let finding = none(lines.clone());
        assert!(text_of(&finding, "sentence").contains(sentence), "{finding}");
        assert!(text_of(&finding, "advice").contains(advice), "{finding}");
        assert!(!text_of(&finding, "advice").contains("--host-lines"), "{finding}");
        assert_eq!(finding["evidence"]["searched"]["lines"]["outcome"], lines["outcome"]);
    }
    let line = json!({"name": "what one line allocates", "kind": "allocating line", "file": "/app/train.py",
        "line": 12, "tensors": 0, "bytes": 40 * 4 * MIB, "tensors_per_step": 0, "bytes_per_step": 4_194_304.0});
    let lines = json!({"outcome": "named", "steps": 40, "pause_seconds": 0.003, "slowdown_ratio": 1.01,
        "malloc_free_bytes_per_step": 1_048_576});
    let finding = post(json!({"outcome": "named", "holders": [line], "lines": lines}));
    let said = "; allocated at app/train.py:12 (4.00 MiB more/step, all of the growth; 40 steps traced, longest pause 3 ms, 1.00 MiB/step freed and kept by glibc)";
    assert!(text_of(&finding, "sentence").contains(said), "{finding}");
    let advice = "Look at app/train.py:12: what it allocates is kept across steps.";
    assert!(text_of(&finding, "advice").starts_with(advice), "{finding}");
    let label = r#"holder="what one line allocates",kind="allocating line",file="/app/train.py",line="12""#;
    assert!(exporter.scrape().keys().any(|series| series.contains(label)));
}

#[test]
fn operator_requests_the_line_of_a_rank_that_pushes_until_it_begins() {
    let exporter = Exporter::start(&[]);
    let want =
        |rank: u32| exporter.post_to("/v1/runs/flat/lines", json!({"rank": rank}).to_string());
    assert_eq!(want(2).status, 404);
    assert_eq!(
        exporter.actions(&Job::leaking("flat", 1..50, 0).device("cpu").records()),
        NOTHING
    );
    let id = want(2).json()["id"].clone();
    assert_eq!((want(2).json()["id"].clone(), want(9).status), (id.clone(), 404));
    let steps = json!({"rank": 2, "steps": 9}).to_string();
    assert_eq!(exporter.post_to("/v1/runs/flat/lines", steps).status, 400);
    let asked = exporter.actions(&Job::leaking("flat", 50..60, 0).device("cpu").records());
    let expected = json!({"type": "holders", "id": id, "run": "flat", "rank": 2, "steps": 20,
                          "is_on_host": true, "lines": true});
    assert_eq!(asked, [expected]);
    let began = json!({"run": "flat", "rank": 2, "id": id, "outcome": "began"});
    assert_eq!(exporter.post_to("/v1/holders", began.to_string()).status, 200);
    let more = Job::leaking("flat", 60..70, 0).device("cpu").records();
    assert_eq!(exporter.actions(&more), NOTHING);
}

#[test]
fn hooks_that_hold_memory_are_removed_by_their_handles() {
    let exporter = Exporter::start(&["--holders.on-creep"]);
    let asked = exporter.actions(&Job::leaking("leaky", 1..1500, 4 * MIB).records());
    let hooks = json!({"name": "`net[…]._forward_hooks`", "kind": "hooks", "tensors": 900,
        "file": "train.py", "line": 12, "function": "watch", "bytes": 3 * GIB,
        "tensors_per_step": 1, "bytes_per_step": 4_194_304.0});
    let named = json!({"outcome": "named", "holders": [hooks]});
    let finding = searched(&exporter, &asked.first().unwrap()["id"], &named);
    let advice = text_of(&finding, "advice");
    assert!(advice.contains("train.py:12 in watch"), "{advice}");
    assert!(advice.contains("handle.remove()") && !advice.contains("detach"), "{advice}");
}

#[test]
fn a_search_that_named_no_holder_is_told_until_one_does() {
    let exporter = Exporter::start(&["--holders.on-creep"]);
    let asked = exporter.actions(&Job::leaking("leaky", 1..1500, 4 * MIB).records());
    let id = asked.first().unwrap()["id"].clone();
    let post = |fields: Value| searched(&exporter, &id, &fields);
    let nothing = "no growing tensor was found by step 900: look at native code, other libraries, CUDA graphs, private \
                   pools, graph cycles";
    let finding = post(json!({"outcome": "none"}));
    assert!(text_of(&finding, "sentence").contains(nothing), "{finding}");
    let advice = text_of(&finding, "advice");
    assert!(advice.contains("CUDA graph") && !advice.contains("arrays"), "{advice}");
    let searched = json!({"step": 900, "is_complete": true, "objects_read": null,
                          "objects_met": null, "saw_growth": null, "lines": null});
    assert_eq!(finding["evidence"]["searched"], searched);
    let finding = post(json!({"outcome": "gave_up", "error": "too many objects"}));
    let partly = "no growing tensor was found among the objects scanned by step 900; the rest of them was not read";
    assert!(text_of(&finding, "sentence").contains(partly), "{finding}");
    let seen = json!({"outcome": "none", "objects_read": 5_190, "objects_met": 5_242});
    let finding = post(seen);
    let of_all = "was found in 99% of the objects that Python reaches by step 900: look at";
    assert!(text_of(&finding, "sentence").contains(of_all), "{finding}");
    let cut = json!({"outcome": "gave_up", "error": "too many objects",
                     "objects_read": 4_810, "objects_met": 90_363});
    let finding = post(cut);
    let partly = "was found among the objects scanned (5.3% of those met) by step 900; the rest of them was not read";
    assert!(text_of(&finding, "sentence").contains(partly), "{finding}");

    // Growth that comes in level shifts, none of which lay in the search.
    let finding = post(json!({"outcome": "none", "saw_growth": false}));
    let level = "it hardly grew while objects were scanned by step 900";
    assert!(text_of(&finding, "sentence").contains(level), "{finding}");
    assert!(!text_of(&finding, "sentence").contains("no growing tensor"), "{finding}");
    assert!(!text_of(&finding, "advice").contains("CUDA graph"), "{finding}");

    let array = json!({"name": "`Memory.frames`", "kind": "list", "tensors": 0, "bytes": 3 * GIB,
        "tensors_per_step": 0, "bytes_per_step": 4_194_304.0});
    let held = "held by `Memory.frames` (list, 4.00 MiB more/step, all of the growth; 3.00 GiB at step 900)";
    let finding = post(json!({"outcome": "named", "holders": [array]}));
    assert!(text_of(&finding, "sentence").contains(held), "{finding}");
    // What is known stays: its figures are dated.
    let finding = post(json!({"outcome": "none"}));
    assert!(text_of(&finding, "sentence").contains(held), "{finding}");
    assert_eq!(finding["evidence"].get("searched"), None);
}
