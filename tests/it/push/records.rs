//! Records: every field, its range, and how a wrong one is named.

use crate::rig::exporter::Exporter;
use crate::rig::http::NDJSON;
use crate::rig::job::record;
use crate::rig::refusals::{check_refused, send};

#[test]
fn a_bare_push_is_taken_and_shown_at_once() {
    let exporter = Exporter::start(&[]);
    let answer = exporter.post(record(0, 1, 1));
    assert_eq!((answer.status, answer.body.as_str()), (200, r#"{"accepted":1,"actions":[]}"#));
    assert_eq!(answer.header("content-type"), "application/json");
    let series = r#"stepmem_rank_memory_allocated_bytes{run="default",rank="0",uuid=""}"#;
    assert_eq!(exporter.metric(series), Some(1.0));
}

#[test]
fn every_field_of_the_protocol_is_taken_and_null_is_absent() {
    let exporter = Exporter::start(&[]);
    let full = r#"{"run":"llm","attempt":2,"rank":5,"local_rank":1,"world_size":8,"node_rank":0,
        "step":40,"steps":4,"time":1700000000.5,"step_seconds":0.25,"phase":"train","device":"GPU-a","pid":77,
        "instance":"00c0ffee00c0ffee","launch":"job-1",
        "allocated_bytes":10,"requested_bytes":9,"live_blocks":3,"peak_allocated_bytes":20,"reserved_bytes":30,"peak_reserved_bytes":40,
        "high_water_allocated_bytes":25,"high_water_reserved_bytes":45,
        "inactive_split_bytes":5,"private_pools_bytes":6,"alloc_retries":2,"ooms":1,"dropped_records":7,"total_bytes":100,"free_bytes":50}"#;
    assert_eq!(exporter.post(full).status, 200);
    let sparse = r#"{"run":null,"attempt":null,"rank":0,"local_rank":null,"world_size":null,
        "node_rank":null,"step":0,"steps":null,"time":null,"step_seconds":null,"phase":null,"device":null,
        "pid":null,"instance":null,"launch":null,"allocated_bytes":9007199254740992,"requested_bytes":null,"live_blocks":null,"peak_allocated_bytes":null,
        "reserved_bytes":null,"peak_reserved_bytes":null,"high_water_allocated_bytes":null,
        "high_water_reserved_bytes":null,"inactive_split_bytes":null,"private_pools_bytes":null,
        "alloc_retries":null,"ooms":null,"dropped_records":null,"total_bytes":null,"free_bytes":null}"#;
    assert_eq!(exporter.post(sparse).status, 200);
    let metrics = exporter.scrape();
    for (name, value) in [
        ("rank_step", 40.0),
        ("rank_steps_total", 4.0),
        ("rank_unread_steps_total", 3.0),
        ("rank_memory_allocated_bytes", 10.0),
        ("rank_memory_peak_allocated_bytes", 20.0),
        ("rank_memory_reserved_bytes", 30.0),
        ("rank_memory_inactive_split_bytes", 5.0),
        ("rank_memory_private_pools_bytes", 6.0),
        ("rank_interval_peak_allocated_bytes", 20.0),
        ("rank_alloc_retries_total", 2.0),
        ("rank_dropped_records_total", 7.0),
    ] {
        let series = format!("stepmem_{name}{{run=\"llm\",rank=\"5\",uuid=\"GPU-a\"}}");
        assert_eq!(metrics.get(&series), Some(&value), "{series}");
    }
    let info = r#"stepmem_rank_info{run="llm",rank="5",uuid="GPU-a",local_rank="1",node_rank="0",world_size="8",attempt="2",pid="77",cgroup="",launch="job-1",unit="steps"}"#;
    assert_eq!(metrics.get(info), Some(&1.0));
    let mut of_sparse: Vec<&str> = metrics
        .keys()
        .filter(|series| series.contains("run=\"default\",rank=\"0\""))
        .map(|series| series.split_once('{').unwrap().0)
        .collect();
    of_sparse.sort_unstable();
    assert_eq!(
        of_sparse,
        [
            "stepmem_rank_info",
            "stepmem_rank_last_push_timestamp_seconds",
            "stepmem_rank_late_records_total",
            "stepmem_rank_memory_allocated_bytes",
            "stepmem_rank_oom_events_total",
            "stepmem_rank_step",
            "stepmem_rank_steps_total",
            "stepmem_rank_unjudged",
            "stepmem_rank_unread_steps_total",
        ]
    );
}

#[test]
fn malformed_bodies_are_refused_where_they_break() {
    let exporter = Exporter::start(&[]);
    let nested = "[".repeat(200_000);
    let deep = format!("{{\"rank\":{nested}");
    for (body, detail) in [
        (&b""[..], "the body is empty: expected JSON"),
        (b" \n", "the body is empty: expected JSON"),
        (br#"[{"rank":7,"step":1,"allocated_bytes":1}"#, "EOF"),
        (br#"{"rank":7,"step":1,"allocated_bytes":"#, "allocated_bytes: EOF"),
        (br#"{"rank":7,"step":1,"allocated_bytes":1} x"#, "trailing characters"),
        (br#"{"rank":7,"step":1,"allocated_bytes":NaN}"#, "allocated_bytes: expected value"),
        (
            br#"{"rank":7,"step":1,"allocated_bytes":1e400}"#,
            "allocated_bytes: number out of range",
        ),
        (
            b"{\"run\":\"\xff\",\"rank\":7,\"step\":1,\"allocated_bytes\":1}",
            "run: invalid unicode",
        ),
        (b"\xff\xfe", "expected value"),
        (b"nothing", "expected ident"),
        (nested.as_bytes(), "record 0: invalid type: sequence, expected an object"),
        (deep.as_bytes(), "rank: invalid type: sequence, expected a number"),
        (b"7", "record 0: invalid type: integer `7`, expected an object"),
        (br#"{"rank":"7","step":1,"allocated_bytes":1}"#, r#"rank: invalid type: string "7""#),
        (
            br#"{"rank":7,"step":true,"allocated_bytes":1}"#,
            "step: invalid type: boolean `true`",
        ),
        (br#"{"rank":7,"step":null,"allocated_bytes":1}"#, "step: invalid type: null"),
        (br#"{"rank":7,"step":1,"allocated_bytes":{}}"#, "allocated_bytes: invalid type: map"),
        (
            br#"{"run":7,"rank":7,"step":1,"allocated_bytes":1}"#,
            "run: invalid type: integer `7`",
        ),
        (br#"{"rank":7,"step":1,"alocated_bytes":1}"#, "unknown field `alocated_bytes`"),
        (br#"{"rank":7,"rank":7,"step":1,"allocated_bytes":1}"#, "duplicate field `rank`"),
        (br#"{"rank":7,"allocated_bytes":1}"#, "missing field `step`"),
    ] {
        let expected = (400, "malformed", detail);
        check_refused(&exporter, expected, |exporter| exporter.post(body));
    }
}

#[test]
fn records_are_objects_and_never_bare_lists_of_values() {
    let exporter = Exporter::start(&[]);
    let list = b"[null,null,7,null,null,null,1,null,null,null,null,null,1,null,null,null,null,null,null,null,null]";
    let expected = (400, "malformed", "record 0: invalid type: sequence, expected an object");
    check_refused(&exporter, expected, |exporter| send(list, &[NDJSON], exporter));
    let batch = [b"[", &list[..], b"]"].concat();
    check_refused(&exporter, expected, |exporter| exporter.post(batch));
}

#[test]
fn figures_out_of_range_are_refused_with_field_value_and_limit() {
    let exporter = Exporter::start(&[]);
    let long = format!("\"{}\"", "r".repeat(129));
    for (field, value, problem) in [
        ("allocated_bytes", "-1", "-1 is outside 0..=9007199254740992"),
        (
            "allocated_bytes",
            "9007199254740993",
            "9007199254740993 is outside 0..=9007199254740992",
        ),
        ("allocated_bytes", "1.5", "1.5 is not an integer of 0..=9007199254740992"),
        (
            "step",
            "-9223372036854775808",
            "-9223372036854775808 is outside 0..=9007199254740992",
        ),
        ("steps", "0", "0 is outside 1..=1000000"),
        ("steps", "1000001", "1000001 is outside 1..=1000000"),
        ("peak_allocated_bytes", "-2", "-2 is outside 0..=9007199254740992"),
        ("total_bytes", "18446744073709551615", "18446744073709551615 is outside"),
        ("free_bytes", "1e30", "1e30 is not an integer of 0..=9007199254740992"),
        ("step", "1e300", "1e300 is not an integer of 0..=9007199254740992"),
        ("step", "1e-300", "1e-300 is not an integer of 0..=9007199254740992"),
        ("time", "1e300", "1e300 is outside 0..=253402300799"),
        ("rank", "1048576", "1048576 is outside 0..=1048575"),
        ("local_rank", "1048576", "1048576 is outside 0..=1048575"),
        ("world_size", "0", "0 is outside 1..=1048576"),
        ("attempt", "-1", "-1 is outside 0..=9007199254740992"),
        ("time", "-0.5", "-0.5 is outside 0..=253402300799"),
        ("step_seconds", "1e12", "1000000000000 is outside 0..=253402300799"),
        ("pid", "4194305", "4194305 is outside 0..=4194304"),
        (
            "phase",
            r#""warm up""#,
            "\"warm up\" is not made of letters, digits, '.', '_' and '-'",
        ),
        ("phase", r#""""#, "a text of 0 bytes is outside 1..=32 bytes"),
        ("launch", r#""a b""#, "\"a b\" is not made of letters, digits, '.', '_', ':' and '-'"),
        // The number of a process is never repeated.
        (
            "instance",
            r#""c0ffee""#,
            "a text of 6 bytes is not made of 16 lower-case hexadecimal digits",
        ),
        ("run", r#""""#, "a text of 0 bytes is outside 1..=128 bytes"),
        ("run", &long, "a text of 129 bytes is outside 1..=128 bytes"),
        ("run", r#""a\nb""#, r#""a\nb" contains a control character"#),
        ("device", r#""""#, "a text of 0 bytes is outside 1..=96 bytes"),
    ] {
        let mut body = String::from("{");
        for (key, usual) in [("rank", "7"), ("step", "1"), ("allocated_bytes", "1")] {
            if key != field {
                body.push_str(&format!("\"{key}\":{usual},"));
            }
        }
        body.push_str(&format!("\"{field}\":{value}}}"));
        let detail = format!("record 0: {field}: {problem}");
        check_refused(&exporter, (400, "out_of_range", &detail), |exporter| {
            exporter.post(body)
        });
    }
}

#[test]
fn batch_that_fails_in_its_last_record_takes_nothing() {
    let exporter = Exporter::start(&[]);
    let good: Vec<String> = (1..=50).map(|step| record(7, step, 1)).collect();
    let batch =
        format!("[{},{}]", good.join(","), r#"{"rank":7,"step":51,"allocated_bytes":-1}"#);
    let detail = "record 50: allocated_bytes: -1 is outside";
    check_refused(&exporter, (400, "out_of_range", detail), |exporter| exporter.post(batch));
    let lines = format!("{}\n{{\"rank\":7,\"stp\":51}}\n", good.join("\n"));
    let detail = "record 50: stp: unknown field `stp`";
    check_refused(&exporter, (400, "malformed", detail), |exporter| {
        send(lines.as_bytes(), &[NDJSON], exporter)
    });
}

#[test]
fn rank_twice_in_a_batch_is_a_duplicate_only_at_the_same_step() {
    let exporter = Exporter::start(&[]);
    let batch = format!("[{},{}]", record(0, 1, 10), record(0, 1, 20));
    assert_eq!(exporter.post(batch).json()["accepted"], 2);
    let batch = format!("[{},{}]", record(1, 1, 10), record(1, 2, 20));
    assert_eq!(exporter.post(batch).json()["accepted"], 2);
    let metrics = exporter.scrape();
    assert_eq!(metrics[r#"stepmem_push_records_total{result="accepted"}"#], 3.0);
    assert_eq!(metrics[r#"stepmem_push_records_total{result="duplicate"}"#], 1.0);
    let of = |name: &str, rank| {
        metrics[&format!("stepmem_rank_{name}{{run=\"default\",rank=\"{rank}\",uuid=\"\"}}")]
    };
    assert_eq!((of("steps_total", 0), of("memory_allocated_bytes", 0)), (1.0, 10.0));
    assert_eq!((of("steps_total", 1), of("memory_allocated_bytes", 1)), (2.0, 20.0));
}
