//! Readers that do not read.

use std::io::Write;
use std::net::TcpStream;

use crate::rig::http::connect;
use crate::rig::job::Job;
use crate::rig::victim::Victim;

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
    let grown = victim.exporter.resident_bytes_max() - before;
    let bound = 3 * (after_one - before) + 8 * 1024 * 1024;
    assert!(grown <= bound, "64 readers took {grown} bytes, one {}", after_one - before);
}
