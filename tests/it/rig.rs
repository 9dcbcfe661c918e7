//! The one helper: starts the real binary on free ports, pushes to it, reads what it says.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything may take that is awaited.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// How often it is looked whether what is awaited has come.
const LOOK: Duration = Duration::from_millis(2);

/// A running exporter; it is killed when this goes.
pub struct Exporter {
    child: Child,
    pub web: SocketAddr,
    pub push: SocketAddr,
    log: Arc<Log>,
    reader: Option<std::thread::JoinHandle<()>>,
}

/// What an exporter logs, as it comes.
#[derive(Default)]
struct Log {
    entries: Mutex<Vec<Value>>,
    grown: Condvar,
}

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

impl Exporter {
    /// `stepmem serve` without NVML.
    pub fn start(arguments: &[&str]) -> Self {
        let arguments: Vec<&str> = ["--no-nvml"].iter().chain(arguments).copied().collect();
        Self::start_command("serve", &arguments, &[])
    }

    /// Any serving command with further environment variables.
    pub fn start_command(
        command: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        Self::start_in(&[], &[&[command], arguments].concat(), variables)
    }

    /// `stepmem serve` as the last words of another command, which begins with `wrapper`.
    pub fn start_within(wrapper: &[&str], arguments: &[&str]) -> Self {
        Self::start_in(wrapper, &[&["serve"], arguments].concat(), &[])
    }

    fn start_in(wrapper: &[&str], arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let words = [wrapper, &[env!("CARGO_BIN_EXE_stepmem")], &arguments[..1]].concat();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            // What the tests run in is not what they are about.
            .env_remove("KUBERNETES_SERVICE_HOST")
            .args(["--web.listen-address", "127.0.0.1:0"])
            .args(["--push.listen-address", "127.0.0.1:0", "--log.format", "json"])
            .args(&arguments[1..])
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let log = Arc::<Log>::default();
        let lines = BufReader::new(child.stderr.take().expect("piped"));
        let sink = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                let entry = serde_json::from_str(&line).unwrap_or(Value::String(line));
                sink.entries.lock().unwrap().push(entry);
                sink.grown.notify_all();
            }
        });
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut exporter =
            Self { child, web: unknown, push: unknown, log, reader: Some(reader) };
        exporter.web = exporter.listening("web");
        exporter.push = exporter.listening("push");
        exporter
    }

    fn listening(&mut self, what: &str) -> SocketAddr {
        let began = Instant::now();
        loop {
            let found = self.log.entries.lock().unwrap().iter().find_map(|entry| {
                let fields = entry.get("fields")?;
                (fields["message"] == "listening" && fields["what"] == what)
                    .then(|| fields["address"].as_str()?.parse().ok())?
            });
            if let Some(address) = found {
                return address;
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("it ended with {status}: {:?}", self.log.entries.lock().unwrap());
            }
            assert!(began.elapsed() < DEADLINE, "no {what} address in time");
            std::thread::park_timeout(LOOK);
        }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far, one JSON object a line.
    pub fn log(&self) -> Vec<Value> {
        self.log.entries.lock().unwrap().clone()
    }

    /// Waits until `is_so` of something that it logs.
    pub fn await_log(
        &self,
        what: &str,
        deadline: Duration,
        is_so: impl Fn(&Value) -> bool,
    ) -> Value {
        let entries = self.log.entries.lock().unwrap();
        let (entries, waited) = self
            .log
            .grown
            .wait_timeout_while(entries, deadline, |entries| !entries.iter().any(&is_so))
            .unwrap();
        assert!(!waited.timed_out(), "{what} was not logged in time: {entries:#?}");
        entries.iter().find(|entry| is_so(entry)).cloned().unwrap()
    }

    /// Pushes JSON and returns the answer.
    pub fn post(&self, body: impl Into<Vec<u8>>) -> Answer {
        self.request("POST", "/v1/steps", &[("content-type", "application/json")], &body.into())
    }

    /// Any request to the push port.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        request(self.push, &head(method, path, headers, body.len()), body)
    }

    /// A GET on the web port.
    pub fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        request(self.web, &head("GET", path, headers, 0), b"")
    }

    /// The text format's samples, by `name{labels}`.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        let answer = self.get("/metrics", &[]);
        assert_eq!(answer.status, 200);
        samples(&answer.body)
    }

    /// One sample; `None` when it is absent.
    pub fn metric(&self, series: &str) -> Option<f64> {
        self.metrics().get(series).copied()
    }

    /// `/api/v1/status`.
    pub fn status(&self) -> Value {
        self.get("/api/v1/status", &[]).json()
    }

    /// Asks again and again until `is_so` of the metrics.
    pub fn await_metrics(&self, what: &str, is_so: impl Fn(&BTreeMap<String, f64>) -> bool) {
        let began = Instant::now();
        loop {
            let metrics = self.metrics();
            if is_so(&metrics) {
                return;
            }
            assert!(began.elapsed() < DEADLINE, "{what} did not come: {metrics:#?}");
            std::thread::park_timeout(LOOK);
        }
    }

    /// How many lines of this level it has logged whose fields contain `part`.
    pub fn logged(&self, level: &str, part: &str) -> usize {
        let is_it = |entry: &&Value| {
            entry["level"] == level && entry["fields"].to_string().contains(part)
        };
        self.log().iter().filter(is_it).count()
    }

    /// The most resident memory that it has ever had, in bytes.
    pub fn resident_bytes_max(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        1024 * line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([format!("-{name}"), self.pid().to_string()])
            .status()
            .expect("kill runs");
        assert!(status.success());
    }

    /// Waits for the end.
    pub fn wait(mut self) -> (ExitStatus, Vec<Value>) {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed() < DEADLINE, "it did not end");
            std::thread::park_timeout(LOOK);
        };
        self.reader.take().expect("once").join().unwrap();
        let log = self.log();
        (status, log)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
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

/// Samples of the text format, by `name{labels}`.
pub fn samples(text: &str) -> BTreeMap<String, f64> {
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        })
        .collect()
}

/// One push record as JSON text: a rank's step with live and peak memory.
pub fn record(rank: u32, step: u64, allocated: u64) -> String {
    format!(r#"{{"rank":{rank},"step":{step},"allocated_bytes":{allocated}}}"#)
}

/// The repository's root.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// What a command that ends said.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Runs the binary to its end.
pub fn stepmem(arguments: &[&str], variables: &[(&str, &str)], input: &[u8]) -> Ended {
    let mut child = Command::new(env!("CARGO_BIN_EXE_stepmem"))
        .args(arguments)
        .env_remove("KUBERNETES_SERVICE_HOST")
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // It may end before it has read everything.
    child.stdin.take().expect("piped").write_all(input).ok();
    let output = child.wait_with_output().unwrap();
    Ended {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A directory that goes with the test.
pub struct Folder(PathBuf);

impl Folder {
    /// A fresh one; the name tells tests apart.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("stepmem-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The path of a file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file in it, and says where.
    pub fn write(&self, name: &str, content: &str) -> String {
        std::fs::write(self.path(name), content).unwrap();
        text(&self.path(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A path as an argument.
pub fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// For how long these threads have been ready without a processor, by the scheduler's own count.
pub fn starved(exporter: &Exporter) -> Duration {
    let pid = exporter.pid();
    let main_thread = format!("/proc/{pid}/task/{pid}/schedstat");
    let waited = |path: &str| -> Duration {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let nanoseconds = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        Duration::from_nanos(nanoseconds.unwrap_or_default())
    };
    waited(&main_thread) + waited("/proc/thread-self/schedstat")
}

/// Looks again and again until `is_so`.
pub fn await_true(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < DEADLINE, "{what} did not come");
        std::thread::park_timeout(LOOK);
    }
}
