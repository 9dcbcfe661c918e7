//! One request and its answer, on any kind of connection.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::rig::wait::DEADLINE;

pub const JSON: (&str, &str) = ("content-type", "application/json");
pub const NDJSON: (&str, &str) = ("content-type", "application/x-ndjson");
pub const GZIP: (&str, &str) = ("content-encoding", "gzip");

/// An answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: String,
    /// The body as it came.
    pub bytes: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// The head of a request.
pub fn head(method: &str, path: &str, headers: &[(&str, &str)], n_bytes: usize) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {n_bytes}\r\n\r\n"));
    head
}

/// Sends head and body as they are, and reads the answer to its end.
pub fn request(address: SocketAddr, head: &str, body: &[u8]) -> Answer {
    converse(&mut connect(address), head, body)
}

/// A connection on which nothing has been said.
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Sends head and body as they are on any kind of connection, and reads the answer to its end.
pub fn converse(stream: &mut (impl Read + Write), head: &str, body: &[u8]) -> Answer {
    stream.write_all(head.as_bytes()).unwrap();
    // A server may answer and close before it has read everything.
    stream.write_all(body).ok();
    read_answer(stream)
}

/// Reads an answer to the end of the connection.
pub fn read_answer(stream: &mut impl Read) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok();
    let end = memchr::memmem::find(&bytes, b"\r\n\r\n")
        .unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(&bytes)));
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect::<BTreeMap<_, _>>();
    let mut body = bytes[end + 4..].to_vec();
    if headers.get("transfer-encoding").is_some_and(|encoding| encoding == "chunked") {
        body = unchunked(&body);
    }
    Answer { status, headers, body: String::from_utf8_lossy(&body).into_owned(), bytes: body }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = memchr::memmem::find(rest, b"\r\n") {
        let size = std::str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 2 + size + 2..];
        if size == 0 {
            break;
        }
    }
    body
}
