//! Connections that hold what TLS lets them hold.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use rustls::{ClientConnection, StreamOwned};
use serde_json::Value;

use crate::rig::access::web_config;
use crate::rig::certificates::{Authority, TlsClient};
use crate::rig::exporter::Exporter;
use crate::rig::folder::Folder;
use crate::rig::http::{JSON, connect, converse, head};
use crate::rig::job::{Job, record};

/// The number of connections that a listener holds.
const CONNECTIONS: usize = 250;

/// The most memory that 250 connections may take, in bytes: each up to a record that is not whole, and what waits to be sent.
const GROWTH_MAX: u64 = if cfg!(debug_assertions) { 20 } else { 14 } * 1024 * 1024;

fn start(folder: &Folder, authority: &Authority) -> Exporter {
    let further = format!(
        "  client_ca_file: {}\n  client_auth_type: VerifyClientCertIfGiven\n",
        authority.file
    );
    let file = web_config(folder, &authority.server(folder), &further);
    Exporter::start(&["--web.config.file", &file])
}

#[test]
fn handshakes_that_never_end_take_little_memory_and_hold_up_no_scrape() {
    let folder = Folder::new("tls-halves");
    let authority = Authority::new(&folder, "ca");
    let (exporter, client) = (start(&folder, &authority), authority.client(None));
    assert_eq!(client.get(exporter.web, "/metrics", &[]).status, 200);
    let before = exporter.resident_bytes_max();
    // A greeting that claims 64 KiB, in records of 16 KiB; the last byte never comes.
    let mut hello = Vec::new();
    for n in 0..4 {
        hello.extend([22, 3, 1, 0x40, 0]);
        let body = if n == 0 { &[1, 0, 0xFF, 0xF0, 3, 3][..] } else { &[] };
        hello.extend(body);
        hello.resize(hello.len() + 0x4000 - body.len(), 0);
    }
    let halves: Vec<_> = (0..CONNECTIONS)
        .map(|n| {
            let mut stream = connect(exporter.web);
            // Some say nothing at all, some a part, some too much, which closes them.
            let part = [0, 3, 16_000, hello.len() - 1][n % 4];
            stream.write_all(&hello[..part]).ok();
            stream
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(client.get(exporter.web, "/metrics", &[]).status, 200);
    }
    let grown = exporter.resident_bytes_max().saturating_sub(before);
    assert!(grown <= GROWTH_MAX, "{grown} bytes for {CONNECTIONS} handshakes");
    // Those that said too much were closed and counted, the others are within the time for a first request.
    let too_much = u64::try_from(CONNECTIONS / 4).unwrap();
    let text = client.get(exporter.web, "/metrics", &[]).body;
    let series = "stepmem_access_refused_total{reason=\"handshake\"} ";
    let refused = text.lines().find_map(|line| line.strip_prefix(series)).unwrap();
    assert!(refused.parse::<u64>().unwrap() >= too_much, "{refused}");
    for mut half in halves.into_iter().take(4) {
        let ended = half.read_to_end(&mut Vec::new());
        let is_late = ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(!is_late, "a handshake that never ends is not closed");
    }
    exporter.stop();
}

#[test]
fn large_push_that_comes_with_the_end_of_the_handshake_is_answered() {
    let folder = Folder::new("tls-large");
    let authority = Authority::new(&folder, "ca");
    let (exporter, client) = (start(&folder, &authority), authority.client(None));
    let steps: Vec<_> = (1..=500).map(|step| record(0, step, 1)).collect();
    let body = format!("[{}]", steps.join(","));
    assert!(body.len() > 2 * 16 * 1024, "{}", body.len());
    let whole = head("POST", "/v1/steps", &[JSON], body.len()) + &body;
    // How much of it is read along with the handshake differs from one to the next.
    for _ in 0..100 {
        let answer = converse(&mut client.connect(exporter.push), &whole, b"");
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    exporter.stop();
}

#[test]
fn records_that_never_end_take_little_memory_and_hold_up_no_push() {
    let folder = Folder::new("tls-records");
    let authority = Authority::new(&folder, "ca");
    let (exporter, client) = (start(&folder, &authority), authority.client(None));
    assert_eq!(client.get(exporter.web, "/metrics", &[]).status, 200);
    let before = exporter.resident_bytes_max();
    let half = [&[23, 3, 3, 0x40, 0][..], &[0; 16_000]].concat();
    let halves: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let mut stream = client.connect(exporter.push);
            // The beginning of a request completes the handshake.
            stream.write_all(b"POST").unwrap();
            stream.flush().unwrap();
            stream.sock.write_all(&half).ok();
            stream
        })
        .collect();
    // A record of its own, which comes in parts, is whole soon.
    let large =
        format!("{}{}", r#"{"rank":0,"step":1,"allocated_bytes":1}"#, " ".repeat(100_000));
    let pushed = client.request(exporter.push, ("POST", "/v1/steps"), &[JSON], &large);
    assert_eq!(pushed.status, 200, "{}", pushed.body);
    let grown = exporter.resident_bytes_max().saturating_sub(before);
    assert!(grown <= GROWTH_MAX, "{grown} bytes for {CONNECTIONS} records");
    drop(halves);
    exporter.stop();
}

/// Pushes so many ranks of a run.
fn push_ranks(client: &TlsClient, exporter: &Exporter, n_ranks: u64) {
    for records in Job::new(n_ranks, 4).run("llm").records().chunks(2000) {
        let body = Value::from(records).to_string();
        let pushed = client.request(exporter.push, ("POST", "/v1/steps"), &[JSON], &body);
        assert_eq!(pushed.status, 200, "{}", pushed.body);
    }
}

/// Asks for the metrics so often on each of 250 connections, reads nothing, and checks that this takes little memory and
/// keeps no other scrape from its answer. Returns the connections.
fn flood_of_unread(
    client: &TlsClient,
    exporter: &Exporter,
    n_requests: usize,
) -> Vec<StreamOwned<ClientConnection, TcpStream>> {
    assert_eq!(client.get(exporter.web, "/metrics", &[]).status, 200);
    let before = exporter.resident_bytes_max();
    let ask = "GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n".repeat(n_requests);
    let unread: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let mut stream = client.connect(exporter.web);
            // As much as the exporter takes of it, until it closes the connection.
            stream.write_all(ask.as_bytes()).ok();
            stream.flush().ok();
            stream
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(client.get(exporter.web, "/metrics", &[]).status, 200);
    }
    let grown = exporter.resident_bytes_max().saturating_sub(before);
    assert!(grown <= GROWTH_MAX, "{grown} bytes for {CONNECTIONS} readers");
    unread
}

#[test]
fn encrypted_answers_that_are_not_read_take_little_memory() {
    let folder = Folder::new("tls-unread");
    let authority = Authority::new(&folder, "ca");
    let (exporter, client) = (start(&folder, &authority), authority.client(None));
    push_ranks(&client, &exporter, 8);
    drop(flood_of_unread(&client, &exporter, 20));
    exporter.stop();
}

#[test]
fn long_encrypted_answers_that_are_not_read_take_as_little_memory() {
    let folder = Folder::new("tls-unread-long");
    let authority = Authority::new(&folder, "ca");
    let (exporter, client) = (start(&folder, &authority), authority.client(None));
    push_ranks(&client, &exporter, 256);
    let length = client.get(exporter.web, "/metrics", &[]).bytes.len();
    assert!(CONNECTIONS * length > 2 * usize::try_from(GROWTH_MAX).unwrap(), "{length}");
    drop(flood_of_unread(&client, &exporter, 2));
    exporter.stop();
}

#[test]
fn requests_that_wait_for_unread_answers_take_as_little_memory() {
    let folder = Folder::new("tls-ahead");
    let authority = Authority::new(&folder, "ca");
    let (exporter, client) = (start(&folder, &authority), authority.client(None));
    push_ranks(&client, &exporter, 8);
    drop(flood_of_unread(&client, &exporter, 500));
    exporter.stop();
}
