//! Bodies: refusals that are not read, bodies that never end, and packed ones.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::path::PathBuf;

use crate::rig::exporter::Exporter;
use crate::rig::http::{Answer, GZIP, JSON, connect, converse, head, read_answer};
use crate::rig::job::record;
use crate::rig::refusals::{check_problem, gzipped, send};
use crate::rig::victim::Victim;
use crate::rig::wait::{DEADLINE, await_true};

const MIB: usize = 1024 * 1024;

fn keys(byte: &str) -> Vec<u8> {
    format!(r#"{{"{}":1}}"#, byte.repeat(MIB - 16)).into_bytes()
}

/// Sends a request and never reads its answer.
fn sent(victim: &Victim, headers: &[(&str, &str)], body: &[u8], n_bytes: usize) -> TcpStream {
    let mut stream = connect(victim.exporter.push);
    let head = head("POST", "/v1/steps", headers, n_bytes);
    stream.write_all(head.replace("connection: close\r\n", "").as_bytes()).ok();
    stream.write_all(body).ok();
    stream
}

/// Returns whether an answer has come, or the connection was closed.
fn is_answered(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let found = stream.peek(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    !matches!(found, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn refusal_repeats_no_more_than_64_characters_of_a_key_or_a_value() {
    let victim = Victim::start(&[]);
    let exporter = &victim.exporter;
    let long = "k".repeat(20_000);
    let quotes = "\\\"".repeat(20_000);
    for body in [
        format!(r#"{{"{long}":1}}"#),
        format!(r#"{{"rank":"{long}","step":1,"allocated_bytes":1}}"#),
        format!(r#"{{"rank":"{quotes}","step":1,"allocated_bytes":1}}"#),
        format!(r#"{{"rank":7,"step":1,"allocated_bytes":1,"phase":"{long}"}}"#),
        format!(r#"{{"rank":7,"step":1,"allocated_bytes":1,"device":"{long}"}}"#),
        format!(r#"[{{"rank":7,"{long}":{{"{long}":1}}}}]"#),
    ] {
        let answer = exporter.post(body);
        assert_eq!(answer.status, 400, "{}", answer.body);
        assert!(answer.bytes.len() <= 1024, "{} bytes", answer.bytes.len());
        assert!(!answer.body.contains(&"k".repeat(65)), "{}", answer.body);
    }
    let media = exporter.request("POST", "/v1/steps", &[("content-type", &long[..4000])], b"");
    check_problem(&media, 415, "content type");
    assert!(media.bytes.len() <= 1024);
    let path = format!("/v1/runs/{}/end", "r".repeat(6000));
    assert!(exporter.post_to(&path, "{\"outcome\":\"oom\"}").bytes.len() <= 1024);
    victim.survives("long keys");
}

#[test]
fn refusals_that_are_not_read_take_no_memory() {
    let victim = Victim::start(&[]);
    let packed = gzipped(&keys("k"));
    assert!(packed.len() < 2048);
    let escaped = gzipped(&keys("\\u001b"));
    let flood: Vec<TcpStream> = (0..250)
        .map(|idx| {
            let body = if idx % 2 == 0 { &packed } else { &escaped };
            sent(&victim, &[JSON, GZIP], body, body.len())
        })
        .collect();
    victim.scrape(50);
    drop(flood);
    victim.survives("refusals that are not read");
}

#[test]
fn packed_bodies_that_never_end_stop_no_push() {
    let victim = Victim::start(&[]);
    let packed = gzipped(&vec![b' '; MIB - 1]);
    let flood: Vec<TcpStream> = (0..250)
        .map(|_| sent(&victim, &[JSON, GZIP], &packed[..packed.len() - 9], packed.len()))
        .collect();
    victim.scrape(50);
    drop(flood);
    victim.survives("packed bodies that never end");
}

#[test]
fn plain_bodies_that_never_end_stop_no_push_and_no_large_one() {
    let victim = Victim::start(&[]);
    let (large, small) = (vec![b' '; MIB - 1], vec![b' '; 16_000]);
    let mut flood: Vec<TcpStream> =
        (0..12).map(|_| sent(&victim, &[JSON], &large, MIB)).collect();
    flood.extend((0..200).map(|_| sent(&victim, &[JSON], &small, small.len() + 1)));
    // The budget holds two of the large or 131 of the small ones.
    await_true("the others to be evicted", || {
        flood.iter().filter(|one| is_answered(one)).count() >= 12 + 200 - 131
    });
    let lines: Vec<String> = (1..1500).map(|step| record(3, step, 1)).collect();
    let batch = format!("[{}]", lines.join(","));
    assert!(batch.len() > 100_000);
    for _ in 0..10 {
        let answer = victim.exporter.post(batch.clone());
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    victim.scrape(50);
    drop(flood);
    victim.survives("plain bodies that never end");
}

#[test]
fn oldest_unfinished_body_is_evicted_for_a_new_one() {
    let victim = Victim::start(&[]);
    // Two of three fit into the budget.
    let held = vec![b' '; 720 * 1024];
    let mut oldest = sent(&victim, &[JSON], &held, MIB);
    oldest.set_read_timeout(Some(DEADLINE)).unwrap();
    // An answer to a later push shows that the exporter has begun to read this body.
    for step in 1..4 {
        assert_eq!(victim.exporter.post(record(3, step, 1)).status, 200);
    }
    let mut others: Vec<TcpStream> =
        (0..2).map(|_| sent(&victim, &[JSON], &held, MIB)).collect();
    check_problem(&read_answer(&mut oldest), 503, "all bodies together exceed");
    for stream in &mut others {
        stream.write_all(b" ").unwrap();
    }
    victim.survives("large bodies");
}

#[test]
fn codings_have_any_case_and_nothing_follows_a_packed_body() {
    let victim = Victim::start(&[]);
    let packed = gzipped(record(0, 1, 1).as_bytes());
    let push = |coding: &[(&str, &str)], body: &[u8]| -> Answer {
        send(body, &[&[JSON], coding].concat(), &victim.exporter)
    };
    for coding in ["GZIP", "Gzip", "x-gzip"] {
        assert_eq!(push(&[("content-encoding", coding)], &packed).status, 200, "{coding}");
    }
    assert_eq!(
        push(&[("Content-Encoding", "IDENTITY")], record(0, 2, 1).as_bytes()).status,
        200
    );
    let junk = [&packed[..], b"junk"].concat();
    check_problem(&push(&[GZIP], &junk), 400, "the body is not gzip");
    check_problem(&push(&[GZIP, GZIP], &packed), 415, "content encoding");
    victim.survives("codings");
}

#[test]
fn two_hosts_are_refused() {
    let victim = Victim::start(&[]);
    for address in [victim.exporter.push, victim.exporter.web] {
        let mut stream = connect(address);
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n").unwrap();
        assert_eq!(read_answer(&mut stream).status, 400);
    }
    victim.survives("two hosts");
}

#[test]
fn connections_beyond_the_file_descriptors_are_evicted() {
    let victim = Victim::start(&[]);
    let pid = victim.exporter.pid().to_string();
    let limited = std::process::Command::new("prlimit")
        .args(["--pid", &pid, "--nofile=40:40"])
        .status()
        .unwrap();
    assert!(limited.success());
    let flood: Vec<TcpStream> = (0..100).map(|_| connect(victim.exporter.push)).collect();
    await_true("the scrape", || victim.exporter.get("/metrics", &[]).status == 200);
    victim.scrape(20);
    drop(flood);
    assert_eq!(victim.exporter.logged("WARN", "connections are not accepted"), 1);
    victim.survives("file descriptors");
}

#[test]
fn connections_that_leave_make_room_without_the_eviction_of_a_young_one() {
    let exporter = Exporter::start(&[]);
    let pid = exporter.pid().to_string();
    let mut limit = std::process::Command::new("prlimit");
    assert!(limit.args(["--pid", &pid, "--nofile=40:40"]).status().unwrap().success());
    let opened = || -> Vec<PathBuf> {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect()
    };
    let n_sockets =
        || opened().iter().filter(|path| path.to_string_lossy().starts_with("socket:")).count();
    let n_idle = n_sockets();
    for n in (10..40).cycle().take(180) {
        await_true("no connection", || n_sockets() <= n_idle);
        let others: Vec<TcpStream> = (0..n).map(|_| connect(exporter.push)).collect();
        let mut young = connect(exporter.push);
        // With some of these numbers, it takes the last descriptor.
        await_true("the connections", || {
            n_sockets() > n_idle + others.len() || opened().len() >= 40
        });
        let mut beyond = connect(exporter.push);
        drop(others);
        for (rank, stream) in [(0, &mut beyond), (1, &mut young)] {
            let body = record(rank, n, 1);
            let head = head("POST", "/v1/steps", &[JSON], body.len());
            assert_eq!(converse(stream, &head, body.as_bytes()).status, 200);
        }
    }
}
