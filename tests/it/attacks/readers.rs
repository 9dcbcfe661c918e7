//! Readers that do not read, and connections that do not ask.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::TcpStream;

use stepmem::net::server::UNSENT_BYTES_MAX;

use crate::rig::exporter::Exporter;
use crate::rig::http::{connect, read_answer};
use crate::rig::job::Job;
use crate::rig::victim::Victim;
use crate::rig::wait::{DEADLINE, await_true};

/// The bytes that a connection may take before its first head is whole: the parser's buffers.
const SILENT_BYTES_MAX: u64 = 16 * 1024;

/// The bytes that the start alone takes of the program's code, of about 5 MB in a debug build
/// and 4 MB in a release build.
const START_CODE_BYTES_MIN: u64 = 2 * 1024 * 1024;

/// Bytes that the system holds of each connection of a server on loopback, which its client has not taken.
fn unsent(port: u16) -> Vec<u64> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let of_server = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, _, state) = (fields.next()?, fields.next()?, fields.next()?);
        let queued = fields.next()?.split(':').next()?;
        let is_open = local.ends_with(&format!(":{port:04X}")) && state == "01";
        is_open.then(|| u64::from_str_radix(queued, 16).unwrap())
    };
    table.lines().skip(1).filter_map(of_server).collect()
}

/// Asks for a page so often on one connection, and reads no answer.
fn ask(victim: &Victim, path: &str, coding: &str) -> TcpStream {
    let mut stream = connect(victim.exporter.web);
    stream.set_nonblocking(true).unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: test\r\naccept-encoding: {coding}\r\n\r\n");
    // As much as the system takes: the exporter reads no more than it can answer.
    stream.write_all(request.repeat(400).as_bytes()).ok();
    stream
}

#[test]
fn answers_that_are_not_read_take_no_memory() {
    let victim = Victim::start(&[]);
    let mut flood = Vec::new();
    for path in ["/metrics", "/api/v1/status", "/api/v1/runs/good/summary", "/"] {
        for coding in ["gzip", "identity"] {
            flood.extend((0..30).map(|_| ask(&victim, path, coding)));
        }
    }
    victim.scrape(50);
    drop(flood);
    victim.survives("answers that are not read");
}

#[test]
fn summaries_of_1024_ranks_are_made_two_at_a_time() {
    let victim = Victim::start(&["--rank.max", "2048"]);
    victim.exporter.push(&Job::new(1024, 40).run("wide").records());
    let before = victim.exporter.resident_bytes_max();
    let path = "/api/v1/runs/wide/summary";
    let one = victim.exporter.get(path, &[]);
    assert_eq!(one.status, 200);
    let after_one = victim.exporter.resident_bytes_max();
    let flood: Vec<TcpStream> = (0..64).map(|_| ask(&victim, path, "identity")).collect();
    assert_eq!(victim.exporter.get("/metrics", &[]).status, 200);
    drop(flood);
    let grown = victim.exporter.resident_bytes_max().saturating_sub(before);
    let bound = 3 * after_one.saturating_sub(before) + 8 * 1024 * 1024;
    assert!(
        grown <= bound,
        "64 readers took {grown} bytes, one {}",
        after_one.saturating_sub(before)
    );
}

#[test]
fn system_holds_a_bounded_part_of_answers_that_are_not_read() {
    let exporter = Exporter::start(&[]);
    exporter.push(&Job::new(8, 40).run("good").records());
    let port = exporter.web.port();
    let asked = {
        let mut stream = connect(exporter.web);
        let request = "GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n";
        stream.write_all(request.repeat(400).as_bytes()).unwrap();
        stream
    };
    // Linux doubles it, and takes what it was given last.
    let bound = 3 * u64::from(UNSENT_BYTES_MAX);
    let before = RefCell::default();
    await_true("an answer that waits", || {
        let now = unsent(port);
        assert!(now.iter().all(|n_bytes| *n_bytes <= bound), "{now:?} beyond {bound}");
        let is_same = now == before.replace(now.clone());
        is_same && now.iter().any(|n_bytes| *n_bytes > u64::from(UNSENT_BYTES_MAX))
    });
    drop(asked);
}

#[test]
fn connections_without_a_head_take_little_memory() {
    let exporter = Exporter::start(&[]);
    assert_eq!(exporter.get("/metrics", &[]).status, 200);
    let before = exporter.resident_bytes_max();
    let mut halves: Vec<TcpStream> = Vec::new();
    for address in [exporter.push, exporter.web] {
        halves.extend((0..240).map(|n| {
            let mut stream = connect(address);
            let part = ["", "GET /-/healthy HTTP/1.1\r\nhost: te"][n % 2];
            stream.write_all(part.as_bytes()).unwrap();
            stream
        }));
    }
    assert_eq!(exporter.get("/metrics", &[]).status, 200);
    let grown = exporter.resident_bytes_max().saturating_sub(before);
    let bound = 480 * SILENT_BYTES_MAX;
    assert!(grown <= bound, "{grown} bytes for 480 connections, not {bound}");
    // The rest of a head is as good as the whole at once.
    let last = halves.last_mut().unwrap();
    last.write_all(b"st\r\nconnection: close\r\n\r\n").unwrap();
    assert_eq!(read_answer(last).status, 200);
}

#[test]
fn code_of_the_start_goes_when_it_has_started() {
    let exporter = Exporter::start(&[]);
    exporter.await_log("the start", DEADLINE, |entry| entry["fields"]["message"] == "started");
    // Memory may grow between the two readings.
    let gone =
        || exporter.resident_bytes_max().saturating_sub(exporter.resident_bytes("VmRSS:"));
    await_true("the code of the start to go", || gone() >= START_CODE_BYTES_MIN);
    // It comes back where it is called.
    assert_eq!(exporter.get("/metrics", &[]).status, 200);
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let exporter = Exporter::start(&[]);
    let mut stream = connect(exporter.web);
    let paths = ["/-/healthy", "/nothing", "/metrics", "/-/healthy", "/nothing"];
    let mut requests = String::new();
    for (idx, path) in paths.iter().enumerate() {
        let close = if idx + 1 == paths.len() { "connection: close\r\n" } else { "" };
        requests += &format!("GET {path} HTTP/1.1\r\nhost: test\r\n{close}\r\n");
    }
    stream.write_all(requests.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let statuses: Vec<&str> =
        text.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
    assert_eq!(statuses, ["200", "404", "200", "200", "404"]);
}
