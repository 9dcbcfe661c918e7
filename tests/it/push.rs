//! Pushes through the real socket: what is taken, what is refused and how, and what it does not disturb.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::http::{Answer, GZIP, JSON, NDJSON, connect, converse, head, read_answer};
use crate::rig::job::record;
use crate::rig::wait::{DEADLINE, await_true};

/// Sends what must be refused (its records are rank 7's, if anybody's), and checks how it is refused, that it is
/// counted by its reason, that nothing of it was taken, and that a good push works after it.
fn check_refused(
    exporter: &Exporter,
    (status, result, detail): (u16, &str, &str),
    send: impl FnOnce(&Exporter) -> Answer,
) {
    let refused = format!("stepmem_pushes_total{{result=\"{result}\"}}");
    let accepted = "stepmem_pushes_total{result=\"accepted\"}";
    let steps = r#"stepmem_rank_steps_total{run="default",rank="0",uuid=""}"#;
    let of = |name: &str| exporter.metric(name).unwrap_or_default();
    let before = (of(&refused), of(accepted), of(steps));
    let answer = send(exporter);
    check_problem(&answer, status, detail);
    let next = of(steps) + 1.0;
    let answer = exporter.post(format!(r#"{{"rank":0,"step":{next},"allocated_bytes":1}}"#));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let after = (of(&refused), of(accepted), of(steps));
    assert_eq!(after, (before.0 + 1.0, before.1 + 1.0, before.2 + 1.0), "{detail}");
    let taken = exporter.metrics().into_keys().find(|series| series.contains("rank=\"7\""));
    assert_eq!(taken, None);
}

/// Checks that an answer is problem+json of this status whose detail has this in it.
fn check_problem(answer: &Answer, status: u16, detail: &str) {
    assert_eq!(answer.status, status, "{detail}: {}", answer.body);
    assert_eq!(answer.header("content-type"), "application/problem+json", "{detail}");
    let problem = answer.json();
    assert_eq!(problem["status"], status, "{problem}");
    assert!(problem["title"].as_str().is_some_and(|title| !title.is_empty()), "{problem}");
    let told = problem["detail"].as_str().unwrap_or_default();
    assert!(told.contains(detail), "{told:?} does not contain {detail:?}");
}

fn send(body: &[u8], headers: &[(&str, &str)], exporter: &Exporter) -> Answer {
    exporter.request("POST", "/v1/steps", headers, body)
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

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
        "step":40,"time":1700000000.5,"step_seconds":0.25,"phase":"train","device":"GPU-a","pid":77,
        "allocated_bytes":10,"peak_allocated_bytes":20,"reserved_bytes":30,"peak_reserved_bytes":40,
        "inactive_split_bytes":5,"alloc_retries":2,"ooms":1,"dropped_records":7,"total_bytes":100,"free_bytes":50}"#;
    assert_eq!(exporter.post(full).status, 200);
    let sparse = r#"{"run":null,"attempt":null,"rank":0,"local_rank":null,"world_size":null,
        "node_rank":null,"step":0,"time":null,"step_seconds":null,"phase":null,"device":null,
        "pid":null,"allocated_bytes":9007199254740992,"peak_allocated_bytes":null,
        "reserved_bytes":null,"peak_reserved_bytes":null,"inactive_split_bytes":null,
        "alloc_retries":null,"ooms":null,"dropped_records":null,"total_bytes":null,"free_bytes":null}"#;
    assert_eq!(exporter.post(sparse).status, 200);
    let metrics = exporter.metrics();
    for (name, value) in [
        ("rank_step", 40.0),
        ("rank_steps_total", 1.0),
        ("rank_step_seconds", 0.25),
        ("rank_memory_allocated_bytes", 10.0),
        ("rank_memory_peak_allocated_bytes", 20.0),
        ("rank_memory_reserved_bytes", 30.0),
        ("rank_memory_peak_reserved_bytes", 40.0),
        ("rank_memory_inactive_split_bytes", 5.0),
        ("rank_interval_peak_allocated_bytes", 20.0),
        ("rank_alloc_retries_total", 2.0),
        ("rank_ooms_total", 1.0),
        ("rank_dropped_records_total", 7.0),
    ] {
        let series = format!("stepmem_{name}{{run=\"llm\",rank=\"5\",uuid=\"GPU-a\"}}");
        assert_eq!(metrics.get(&series), Some(&value), "{series}");
    }
    let info = r#"stepmem_rank_info{run="llm",rank="5",uuid="GPU-a",local_rank="1",node_rank="0",world_size="8",attempt="2",pid="77"}"#;
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
            "stepmem_rank_interval_peak_allocated_bytes",
            "stepmem_rank_last_push_timestamp_seconds",
            "stepmem_rank_memory_allocated_bytes",
            "stepmem_rank_step",
            "stepmem_rank_steps_total",
        ]
    );
}

#[test]
fn malformed_bodies_are_refused_where_they_break() {
    let exporter = Exporter::start(&[]);
    let nested = "[".repeat(200_000);
    let deep = format!("{{\"rank\":{nested}");
    for (body, detail) in [
        (&b""[..], "EOF"),
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
        ("peak_allocated_bytes", "-2", "-2 is outside 0..=9007199254740992"),
        ("total_bytes", "18446744073709551615", "18446744073709551615 is outside"),
        ("free_bytes", "1e30", "1000000000000000000000000000000 is not an integer of 0..="),
        ("rank", "1048576", "1048576 is outside 0..=1048575"),
        ("local_rank", "1048576", "1048576 is outside 0..=1048575"),
        ("world_size", "0", "0 is outside 1..=1048576"),
        ("attempt", "-1", "-1 is outside 0..=9007199254740992"),
        ("time", "-0.5", "-0.5 is outside 0..=253402300799"),
        ("step_seconds", "1e12", "1000000000000 is outside 0..=253402300799"),
        ("pid", "4194305", "4194305 is outside 0..=4194304"),
        ("phase", r#""warmup""#, r#""warmup" is not one of train, eval, checkpoint"#),
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
    let metrics = exporter.metrics();
    assert_eq!(metrics[r#"stepmem_push_records_total{result="accepted"}"#], 3.0);
    assert_eq!(metrics[r#"stepmem_push_records_total{result="duplicate"}"#], 1.0);
    let of = |name: &str, rank| {
        metrics[&format!("stepmem_rank_{name}{{run=\"default\",rank=\"{rank}\",uuid=\"\"}}")]
    };
    assert_eq!((of("steps_total", 0), of("memory_allocated_bytes", 0)), (1.0, 10.0));
    assert_eq!((of("steps_total", 1), of("memory_allocated_bytes", 1)), (2.0, 20.0));
}

#[test]
fn body_over_the_limit_is_refused_by_its_decoded_size() {
    let exporter = Exporter::start(&["--push.body-max", "65536"]);
    let detail = "the decoded body exceeds 65536 bytes";
    let expected = (413, "too_large", detail);
    let mut exact = record(1, 1, 1).into_bytes();
    exact.resize(65_536, b' ');
    assert_eq!(exporter.post(exact.clone()).status, 200);
    exact.push(b' ');
    check_refused(&exporter, expected, |exporter| exporter.post(exact.clone()));
    let huge = vec![b' '; 64 * 1024 * 1024];
    check_refused(&exporter, expected, |exporter| exporter.post(huge.clone()));
    let bomb = gzipped(&huge);
    assert!(bomb.len() < 65_536 + 4096, "the bomb has {} bytes", bomb.len());
    check_refused(&exporter, expected, |exporter| send(&bomb, &[JSON, GZIP], exporter));
    check_refused(&exporter, expected, |exporter| {
        let head = "POST /v1/steps HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n\
                    connection: close\r\ntransfer-encoding: chunked\r\n\r\n";
        let chunk = [b"8000\r\n", &huge[..32_768], b"\r\n"].concat();
        converse(&mut connect(exporter.push), head, &chunk.repeat(4))
    });
}

#[test]
fn hundred_thousand_ranks_are_refused_within_bounded_memory() {
    let exporter = Exporter::start(&["--push.body-max", "8388608"]);
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
    let before = exporter.resident_bytes_max();
    let batch = |ranks: std::ops::Range<u32>| {
        let records: Vec<String> = ranks.map(|rank| record(rank, 1, 1)).collect();
        format!("[{}]", records.join(","))
    };
    let all = batch(0..100_000);
    let lines = all[1..all.len() - 1].replace("},{", "}\n{");
    let detail = "the batch of 100000 records exceeds 8192";
    for _ in 0..3 {
        check_problem(&exporter.post(all.clone()), 413, detail);
        check_problem(&send(lines.as_bytes(), &[NDJSON], &exporter), 413, detail);
    }
    for first in (0..100_000).step_by(8_000) {
        let answer = exporter.post(batch(first..first + 8_000));
        check_problem(&answer, 429, "the batch brings the ranks to 800");
        check_problem(&answer, 429, "which exceeds the limit of 1024");
        assert_eq!(answer.header("retry-after"), "1");
    }
    let metrics = exporter.metrics();
    assert_eq!(metrics[r#"stepmem_run_ranks{run="default"}"#], 1.0);
    assert_eq!(metrics[r#"stepmem_pushes_total{result="too_many"}"#], 13.0);
    assert_eq!(metrics[r#"stepmem_series_dropped_total{reason="ranks"}"#], 104_000.0);
    assert_eq!(exporter.post(batch(0..1024)).json()["accepted"], 1024);
    assert_eq!(exporter.metric(r#"stepmem_run_ranks{run="default"}"#), Some(1024.0));
    let grown = exporter.resident_bytes_max().saturating_sub(before);
    assert!(grown < 24 * 1024 * 1024, "it grew by {grown} bytes");
}

#[test]
fn one_run_too_many_is_refused_with_count_and_limit() {
    let exporter = Exporter::start(&["--run.max", "2"]);
    let push = |run: &str| {
        let record = format!(r#"{{"run":"{run}","rank":7,"step":1,"allocated_bytes":1}}"#);
        exporter.post(record)
    };
    assert_eq!((push("a").status, push("b").status), (200, 200));
    let detail = "the batch brings the runs to 3, which exceeds the limit of 2";
    check_problem(&push("c"), 429, detail);
    assert_eq!(push("b").status, 200);
}

#[test]
fn token_is_asked_for_and_nothing_else_opens() {
    let folder = Folder::new("token");
    let file = folder.write("token", "correct horse\n");
    let exporter = Exporter::start(&["--push.token-file", &file]);
    let with = |token: &str| {
        let headers = [JSON, ("authorization", token)];
        send(record(0, 1, 1).as_bytes(), &headers, &exporter)
    };
    let unauthorized = r#"stepmem_pushes_total{result="unauthorized"}"#;
    check_problem(
        &exporter.post(record(7, 1, 1)),
        401,
        "Authorization: Bearer TOKEN is missing",
    );
    assert_eq!(exporter.post(record(7, 1, 1)).header("www-authenticate"), "Bearer");
    let refused = [
        "Basic correct horse",
        "Bearer",
        "Bearer correct hors",
        "Bearer correct horse battery",
        "Bearer CORRECT HORSE",
    ];
    for token in refused {
        let answer = with(token);
        assert_eq!(answer.status, 401, "{token}");
        assert_eq!(answer.header("www-authenticate"), "Bearer", "{token}");
    }
    let end =
        exporter.request("POST", "/v1/runs/default/end", &[JSON], b"{\"outcome\":\"oom\"}");
    assert_eq!(end.status, 401);
    assert_eq!(exporter.metric(unauthorized), Some(8.0));
    assert_eq!(with("Bearer correct horse").status, 200);
    assert_eq!(with("bearer correct horse").status, 200);
    assert_eq!(exporter.metric(r#"stepmem_run_ranks{run="default"}"#), Some(1.0));
}

#[test]
fn other_content_types_are_refused_by_name() {
    let exporter = Exporter::start(&[]);
    let body = record(7, 1, 1).into_bytes();
    for (headers, named) in [
        (&[][..], r#""""#),
        (&[("content-type", "text/plain")], r#""text/plain""#),
        (
            &[("content-type", "application/x-www-form-urlencoded")],
            r#""application/x-www-form"#,
        ),
    ] {
        let expected = (415, "unsupported_media_type", named);
        check_refused(&exporter, expected, |exporter| send(&body, headers, exporter));
    }
}

#[test]
fn content_type_may_have_a_charset_and_any_case() {
    let exporter = Exporter::start(&[]);
    let body = record(0, 1, 1).into_bytes();
    for value in [
        "application/json; charset=utf-8",
        "Application/JSON ;charset=UTF-8",
        "application/x-ndjson;q=1",
    ] {
        assert_eq!(send(&body, &[("content-type", value)], &exporter).status, 200, "{value}");
    }
}

#[test]
fn lines_and_gzip_are_taken_as_arrays_are() {
    let exporter = Exporter::start(&[]);
    let lines = format!("{}\n\n{}\r\n{}", record(0, 1, 10), record(1, 1, 20), record(2, 1, 30));
    assert_eq!(send(lines.as_bytes(), &[NDJSON], &exporter).json()["accepted"], 3);
    let answer = send(&gzipped(lines.as_bytes()), &[NDJSON, GZIP], &exporter);
    assert_eq!(answer.json()["accepted"], 3);
    let array = format!("[{},{}]", record(3, 1, 40), record(4, 1, 50));
    let answer = send(&gzipped(array.as_bytes()), &[JSON, GZIP], &exporter);
    assert_eq!(answer.json()["accepted"], 2);
    let identity = ("content-encoding", "identity");
    assert_eq!(send(record(5, 1, 60).as_bytes(), &[JSON, identity], &exporter).status, 200);
    assert_eq!(exporter.post("[]").json()["accepted"], 0);
    let metrics = exporter.metrics();
    for (rank, allocated) in [(0, 10.0), (1, 20.0), (2, 30.0), (3, 40.0), (4, 50.0), (5, 60.0)]
    {
        let labels = format!("{{run=\"default\",rank=\"{rank}\",uuid=\"\"}}");
        let series = format!("stepmem_rank_memory_allocated_bytes{labels}");
        assert_eq!(metrics[&series], allocated, "{rank}");
    }
    assert_eq!(metrics[r#"stepmem_push_records_total{result="duplicate"}"#], 3.0);
}

#[test]
fn broken_gzip_is_malformed() {
    let exporter = Exporter::start(&[]);
    let whole = gzipped(record(7, 1, 1).as_bytes());
    let mut flipped = whole.clone();
    let crc_at = flipped.len() - 8;
    flipped[crc_at] ^= 0xff;
    let cut = whole[..whole.len() - 12].to_vec();
    for body in [record(7, 1, 1).into_bytes(), cut, flipped] {
        let expected = (400, "malformed", "the body is no gzip");
        check_refused(&exporter, expected, |exporter| send(&body, &[JSON, GZIP], exporter));
    }
}

#[test]
fn other_content_encodings_are_refused_by_name() {
    let exporter = Exporter::start(&[]);
    let body = record(7, 1, 1).into_bytes();
    for encoding in ["br", "deflate", "gzip, gzip"] {
        let expected = (415, "unsupported_media_type", encoding);
        check_refused(&exporter, expected, |exporter| {
            send(&body, &[JSON, ("content-encoding", encoding)], exporter)
        });
    }
}

#[test]
fn client_that_goes_away_in_the_middle_disturbs_nothing() {
    let exporter = Exporter::start(&[]);
    let body = record(7, 1, 1);
    let whole = head("POST", "/v1/steps", &[JSON], body.len());
    let interrupted = r#"stepmem_pushes_total{result="interrupted"}"#;
    for (times, shutdown) in [(1.0, Shutdown::Write), (2.0, Shutdown::Both)] {
        let mut stream = connect(exporter.push);
        stream.write_all(whole.as_bytes()).unwrap();
        stream.write_all(&body.as_bytes()[..10]).unwrap();
        stream.shutdown(shutdown).unwrap();
        drop(stream);
        exporter.await_metrics("count", |metrics| metrics[interrupted] == times);
    }
    let mut stream = connect(exporter.push);
    stream.write_all(&whole.as_bytes()[..20]).unwrap();
    drop(stream);
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
    assert_eq!(exporter.metric(r#"stepmem_run_ranks{run="default"}"#), Some(1.0));
}

#[test]
fn slow_body_is_given_up_and_silent_clients_are_hung_up_on_after_10_s() {
    let exporter = Exporter::start(&[]);
    let began = Instant::now();
    let mut silent = [connect(exporter.push), connect(exporter.web)];
    let mut slow = connect(exporter.push);
    slow.write_all(head("POST", "/v1/steps", &[JSON], 100).as_bytes()).unwrap();
    slow.write_all(b"{\"rank\":7,").unwrap();
    let answer = read_answer(&mut slow);
    check_problem(&answer, 408, "the body was not whole within 10s");
    for stream in &mut silent {
        let mut said = Vec::new();
        stream.read_to_end(&mut said).ok();
        assert_eq!(said, b"");
    }
    let took = began.elapsed();
    assert!((10..20).contains(&took.as_secs()), "it took {took:?}");
    assert_eq!(exporter.metric(r#"stepmem_pushes_total{result="timeout"}"#), Some(1.0));
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
}

#[test]
fn flood_of_silent_connections_makes_way_for_pushes_and_scrapes() {
    let exporter = Exporter::start(&[]);
    for (listener, address) in [("push", exporter.push), ("web", exporter.web)] {
        let flood: Vec<_> = (0..300).map(|_| connect(address)).collect();
        let began = Instant::now();
        assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
        let shed = format!("stepmem_connections_shed_total{{listener=\"{listener}\"}}");
        let n_shed = exporter.metric(&shed).unwrap();
        let took = began.elapsed();
        assert!(took < Duration::from_secs(3), "{listener}: it took {took:?}");
        assert!((45.0..=50.0).contains(&n_shed), "{listener}: {n_shed} were shed");
        drop(flood);
    }
}

#[test]
fn flood_of_unfinished_pushes_makes_way_for_whole_ones() {
    let exporter = Exporter::start(&[]);
    let head = head("POST", "/v1/steps", &[JSON], 100);
    let flood: Vec<_> = (0..300)
        .map(|_| {
            let mut stream = connect(exporter.push);
            stream.write_all(head.as_bytes()).ok();
            stream
        })
        .collect();
    let began = Instant::now();
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(3), "it took {took:?}");
    drop(flood);
}

#[test]
fn bodies_over_the_limit_of_all_together_are_put_off() {
    let exporter = Exporter::start(&["--push.body-max", "8388608"]);
    let (held, own) = (vec![b' '; 8_300_000], vec![b' '; 100_000]);
    let mut flood = connect(exporter.push);
    flood.write_all(head("POST", "/v1/steps", &[JSON], held.len() + 1).as_bytes()).unwrap();
    flood.write_all(&held).unwrap();
    // The last of them may not have been read yet.
    await_true("the limit", || exporter.post(own.clone()).status == 503);
    let answer = exporter.post(own.clone());
    check_problem(&answer, 503, "all bodies together exceed 8388608 bytes");
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(exporter.metric(r#"stepmem_pushes_total{result="busy"}"#), Some(2.0));
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
    flood.write_all(b" ").unwrap();
    assert_eq!(read_answer(&mut flood).status, 400);
    check_problem(&exporter.post(own), 400, "EOF");
}

#[test]
fn head_over_the_limit_is_refused() {
    let exporter = Exporter::start(&[]);
    let long = "x".repeat(64 * 1024);
    let answer = send(record(7, 1, 1).as_bytes(), &[JSON, ("x-long", &long)], &exporter);
    assert_eq!(answer.status, 431);
    assert_eq!(exporter.get("/metrics", &[("x-long", &long)]).status, 431);
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
}

#[test]
fn other_paths_and_methods_are_told_what_there_is() {
    let exporter = Exporter::start(&[]);
    let get = |path| exporter.request("GET", path, &[], b"");
    check_problem(&get("/v1/stepz"), 404, "POST /v1/steps, /v1/snapshots, /v1/runs/RUN/end");
    check_problem(&get("/metrics"), 404, "POST /v1/steps, /v1/snapshots, /v1/runs/RUN/end");
    for path in ["/v1/steps", "/v1/runs/default/end"] {
        let answer = get(path);
        check_problem(&answer, 405, "POST /v1/steps, /v1/snapshots, /v1/runs/RUN/end");
        assert_eq!(answer.header("allow"), "POST", "{path}");
    }
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
}

/// An exporter that listens on a Unix socket as well, which it does last of all.
fn start_with_socket(path: &Path, mode: &str) -> Exporter {
    let exporter =
        Exporter::start(&["--push.unix-socket", &format!("{}{mode}", path.display())]);
    await_true("the socket", || exporter.logged("INFO", &text(path)) == 1);
    exporter
}

fn unix_push(socket: &Path, body: &str) -> Answer {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    converse(&mut stream, &head("POST", "/v1/steps", &[JSON], body.len()), body.as_bytes())
}

#[test]
fn unix_socket_takes_pushes_has_its_mode_and_goes_at_the_stop() {
    let folder = Folder::new("socket");
    let (path, plain) = (folder.path("push.sock"), folder.path("plain.sock"));
    let exporter = start_with_socket(&path, ":640");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&path), 0o640);
    assert_eq!(unix_push(&path, &record(0, 1, 1)).status, 200);
    check_problem(&unix_push(&path, &record(0, 1, 1)[1..]), 400, "expected");
    assert_eq!(exporter.metric(r#"stepmem_run_ranks{run="default"}"#), Some(1.0));
    let other = start_with_socket(&plain, "");
    assert_eq!(mode(&plain), 0o666);
    drop(other);
    exporter.signal("TERM");
    assert!(exporter.wait().0.success());
    assert!(!path.exists());
}

#[test]
fn unix_socket_that_nobody_serves_is_replaced_and_any_other_file_is_not() {
    let folder = Folder::new("stale");
    let path = folder.path("push.sock");
    drop(UnixListener::bind(&path).unwrap());
    let exporter = start_with_socket(&path, "");
    assert_eq!(unix_push(&path, &record(0, 1, 1)).status, 200);
    let refused = |path: &Path| {
        let arguments = ["serve", "--no-nvml", "--web.listen-address", "127.0.0.1:0"];
        let socket = text(path);
        let push = ["--push.listen-address", "", "--push.unix-socket", &socket];
        stepmem(&[&arguments[..], &push[..]].concat(), &[], b"")
    };
    let second = refused(&path);
    assert_eq!(second.code, Some(1));
    assert!(second.err.contains("another process listens on"), "{}", second.err);
    assert_eq!(unix_push(&path, &record(0, 2, 1)).status, 200);
    let file = folder.write("file", "precious");
    let third = refused(Path::new(&file));
    assert_eq!(third.code, Some(1));
    assert!(third.err.contains("exists and is no socket"), "{}", third.err);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    drop(exporter);
}

#[test]
fn socket_that_somebody_removed_does_not_spoil_the_stop() {
    let folder = Folder::new("removed");
    let path = folder.path("push.sock");
    let exporter = start_with_socket(&path, "");
    std::fs::remove_file(&path).unwrap();
    exporter.signal("TERM");
    let (status, log) = exporter.wait();
    assert!(status.success(), "{status}: {log:?}");
}
