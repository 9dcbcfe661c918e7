//! A server that answers every request alike, whatever was asked.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A server with one answer at a time.
pub struct Answering {
    pub address: SocketAddr,
    answer: Arc<Mutex<(u16, String)>>,
}

impl Answering {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answer = Arc::new(Mutex::new((404, String::new())));
        let answers = Arc::clone(&answer);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let answer = answers.lock().unwrap().clone();
                thread::spawn(move || answered(stream, &answer));
            }
        });
        Self { address, answer }
    }

    /// Answers with this status and body from now on.
    pub fn set(&self, status: u16, body: &str) {
        *self.answer.lock().unwrap() = (status, body.to_owned());
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Reads a request and answers it. A client that goes gets no answer.
fn answered(mut stream: TcpStream, (status, body): &(u16, String)) -> Option<()> {
    let (mut request, mut chunk) = (Vec::new(), [0; 16 * 1024]);
    let length = loop {
        let n_read = stream.read(&mut chunk).ok().filter(|n_read| *n_read > 0)?;
        request.extend_from_slice(&chunk[..n_read]);
        let text = String::from_utf8_lossy(&request).to_lowercase();
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let length = head.split_once("content-length:").map_or("0", |(_, rest)| rest);
            let length = length.lines().next().unwrap_or_default().trim().parse().unwrap_or(0);
            break head.len() + 4 + length;
        }
    };
    while request.len() < length {
        let n_read = stream.read(&mut chunk).ok().filter(|n_read| *n_read > 0)?;
        request.extend_from_slice(&chunk[..n_read]);
    }
    let head = format!(
        "HTTP/1.1 {status} Answer\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).ok()
}
