//! Two programs under one run name: who is refused, what it is told, and which name it is offered.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::http::Answer;
use crate::rig::json::has;
use crate::rig::units::{GIB, float};
use crate::rig::wait::await_true;

const FIRST: &str = "00000000000000aa";
const SECOND: &str = "00000000000000bb";
const THIRD: &str = "00000000000000cc";

/// A record of a rank at this second of the process' own clock.
fn record(instance: &str, launch: &str, rank: u64, step: u64) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let pid = u64::from_str_radix(instance, 16).unwrap();
    json!({
        "run": "train.py", "rank": rank, "step": step, "time": now - 3000.0 + float(step),
        "allocated_bytes": GIB, "instance": instance, "launch": launch, "pid": pid,
    })
}

fn push(exporter: &Exporter, record: &Value) -> Answer {
    exporter.post(record.to_string())
}

#[test]
fn second_live_process_is_refused_and_told_by_whom() {
    let exporter = Exporter::start(&[]);
    exporter.push(&[record(FIRST, "l1", 0, 100)]);
    let answer = push(&exporter, &record(SECOND, "l2", 0, 1));
    assert_eq!(answer.status, 409, "{}", answer.body);
    assert_eq!(answer.header("content-type"), "application/problem+json");
    let seconds: u32 = answer.header("retry-after").parse().unwrap();
    assert!((1..=10).contains(&seconds), "{seconds}");
    let said = answer.json();
    assert_eq!((&said["run"], &said["rank"]), (&json!("train.py"), &json!(0)));
    assert_eq!((&said["status"], &said["type"]), (&json!(409), &json!("about:blank")));
    assert_eq!((&said["holder"]["pid"], &said["yours"]["pid"]), (&json!(0xaa), &json!(0xbb)));
    assert!(said["holder"]["started"].as_f64() < said["yours"]["started"].as_f64(), "{said}");
    assert!(said.get("offer").is_none(), "{said}");
    assert!(!answer.body.contains(FIRST) && !answer.body.contains(SECOND), "{}", answer.body);
    let metrics = exporter.scrape();
    assert_eq!(metrics[r#"stepmem_pushes_total{result="name_taken"}"#], 1.0);
    assert_eq!(metrics[r#"stepmem_push_records_total{result="restarted"}"#], 0.0);
    assert_eq!(exporter.status()["ranks"][0]["step"], 100);
}

#[test]
fn name_is_offered_once_the_first_has_pushed_again_and_is_one_for_the_launch() {
    let exporter = Exporter::start(&[]);
    let both =
        |step| Value::from(vec![record(FIRST, "l1", 0, step), record(FIRST, "l1", 1, step)]);
    assert_eq!(push(&exporter, &both(100)).status, 200);
    let offer = |instance: &str, launch: &str, rank: u64| {
        push(&exporter, &record(instance, launch, rank, 1)).json().get("offer").cloned()
    };
    assert_eq!(offer(SECOND, "l2", 0), None);
    assert_eq!(offer(THIRD, "l2", 1), None);
    assert_eq!(push(&exporter, &both(101)).status, 200);
    assert_eq!(offer(SECOND, "l2", 0), Some(json!("train.py~2")));
    assert_eq!(offer(THIRD, "l2", 1), Some(json!("train.py~2")));
    let mut renamed = record(SECOND, "l2", 0, 1);
    renamed["run"] = json!("train.py~2");
    assert_eq!(push(&exporter, &renamed).status, 200);
    // A third launch gets a name of its own.
    assert_eq!(offer("00000000000000dd", "l3", 0), None);
    assert_eq!(push(&exporter, &both(102)).status, 200);
    assert_eq!(offer("00000000000000dd", "l3", 0), Some(json!("train.py~3")));
    let runs = exporter.status()["runs"].clone();
    assert_eq!((&runs[0]["run"], &runs[0]["challengers"]), (&json!("train.py"), &json!(2)));
    has(&runs[1], &json!({"run": "train.py~2", "asked_for": "train.py"}));
    assert_eq!(runs[0].get("asked_for"), None);
    let table =
        stepmem(&["status", "--url", &format!("http://{}", exporter.web)], &[], b"").out;
    let table = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        table.contains("Two programs push under the name train.py; refused lately: 2."),
        "{table}"
    );
    assert!(
        table.contains(
            "train.py~2 requested the name train.py, under which another program pushes."
        ),
        "{table}"
    );
    assert_eq!(exporter.metric(r#"stepmem_run_challengers{run="train.py"}"#), Some(2.0));
    // Each is logged when it is first refused, and when it is first offered a name.
    assert_eq!(exporter.logged("WARN", "two programs use one run name"), 6);
    assert_eq!(exporter.metric(r#"stepmem_push_records_total{result="restarted"}"#), Some(0.0));
}

#[test]
fn process_that_was_killed_and_relaunched_at_once_becomes_the_new_life() {
    let exporter = Exporter::start(&[]);
    exporter.push(&[record(FIRST, "l1", 0, 100)]);
    await_true("the new life", || {
        let answer = push(&exporter, &record(SECOND, "l2", 0, 1));
        let is_accepted = answer.status == 200;
        assert!(is_accepted || answer.json().get("offer").is_none(), "{}", answer.body);
        is_accepted
    });
    assert_eq!(exporter.metric(r#"stepmem_push_records_total{result="restarted"}"#), Some(1.0));
    assert_eq!(exporter.status()["ranks"][0]["step"], 1);
}

#[test]
fn refused_batch_changes_nothing_as_a_whole() {
    let exporter = Exporter::start(&[]);
    exporter.push(&[record(FIRST, "l1", 0, 100)]);
    let batch = Value::from(vec![record(SECOND, "l2", 1, 1), record(SECOND, "l2", 0, 1)]);
    assert_eq!(push(&exporter, &batch).status, 409);
    assert_eq!(exporter.status()["ranks"].as_array().unwrap().len(), 1);
}
