//! How a body comes: its type, its encoding, its size, and in how much time.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Instant;

use crate::rig::exporter::Exporter;
use crate::rig::http::{GZIP, JSON, NDJSON, connect, converse, head, read_answer};
use crate::rig::job::record;
use crate::rig::refusals::{check_problem, check_refused, gzipped, send};

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
    let metrics = exporter.scrape();
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
        let expected = (400, "malformed", "the body is not gzip");
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
fn client_that_disconnects_halfway_disturbs_nothing() {
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
fn slow_bodies_and_silent_clients_are_disconnected_after_10_s() {
    let exporter = Exporter::start(&[]);
    let began = Instant::now();
    let mut silent = [connect(exporter.push), connect(exporter.web)];
    let mut slow = connect(exporter.push);
    slow.write_all(head("POST", "/v1/steps", &[JSON], 100).as_bytes()).unwrap();
    slow.write_all(b"{\"rank\":7,").unwrap();
    let answer = read_answer(&mut slow);
    check_problem(&answer, 408, "the body was not complete within 10s");
    for stream in &mut silent {
        let mut said = Vec::new();
        stream.read_to_end(&mut said).ok();
        assert_eq!(said, b"");
    }
    let took = began.elapsed();
    assert!(took.as_secs() >= 10, "it took {took:?}");
    assert_eq!(exporter.metric(r#"stepmem_pushes_total{result="timeout"}"#), Some(1.0));
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
}
