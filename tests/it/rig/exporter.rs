//! The real binary on free ports: starts it, pushes to it, reads its answers, stops it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, PipeWriter, Write, pipe};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::rig::command::{Ended, stepmem};
use crate::rig::http::{Answer, JSON, head, request};
use crate::rig::json::items;
use crate::rig::schema::{holds, schema};
use crate::rig::series::samples;
use crate::rig::wait::{DEADLINE, LOOK, await_true};

/// A running exporter; it is killed when this goes.
pub struct Exporter {
    child: Child,
    pub web: SocketAddr,
    pub push: SocketAddr,
    log: Arc<Log>,
    reader: Option<std::thread::JoinHandle<()>>,
    /// Writes into the same pipe as the exporter; `None` once that has ended. With it, how many marks were written.
    marker: Mutex<Option<(PipeWriter, usize)>>,
}

/// The log of an exporter, filled as it runs.
#[derive(Default)]
struct Log {
    entries: Mutex<Vec<Value>>,
    grown: Condvar,
    /// Marks that were read.
    n_marks: AtomicUsize,
}

/// A line of the log that the rig wrote: all that the exporter wrote before has been read when it is read.
const MARK: &str = "rig: so far";

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

    /// `stepmem serve` as a sidecar without NVML, which may have no push listener: `push` is port 0 then.
    pub fn start_sidecar(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let variables = [&[("STEPMEM_SIDECAR", "true")], variables].concat();
        let mut exporter =
            Self::spawn(&[], &[&["serve", "--no-nvml"], arguments].concat(), &variables);
        exporter.web = exporter.listening("web");
        // It listens wherever it will.
        exporter
            .await_log("the start", DEADLINE, |entry| entry["fields"]["message"] == "started");
        exporter.push = exporter.address("push").unwrap_or(exporter.push);
        exporter
    }

    /// `stepmem serve` as a sidecar that listens on no address: both are port 0.
    pub fn start_closed_sidecar(arguments: &[&str]) -> Self {
        let arguments = [&["serve", "--no-nvml", "--sidecar"], arguments].concat();
        let exporter = Self::spawn(&[], &arguments, &[]);
        exporter
            .await_log("the start", DEADLINE, |entry| entry["fields"]["message"] == "started");
        let address = |what| exporter.address(what);
        let (web, push) = (address("web"), address("push"));
        assert_eq!((web, push), (None, None), "it listens");
        exporter
    }

    /// `stepmem serve` as the last words of another command, which begins with `wrapper`.
    pub fn start_within(wrapper: &[&str], arguments: &[&str]) -> Self {
        Self::start_in(wrapper, &[&["serve"], arguments].concat(), &[])
    }

    fn start_in(wrapper: &[&str], arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut exporter = Self::spawn(wrapper, arguments, variables);
        exporter.web = exporter.listening("web");
        exporter.push = exporter.listening("push");
        exporter
    }

    fn spawn(wrapper: &[&str], arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let words = [wrapper, &[env!("CARGO_BIN_EXE_stepmem")], &arguments[..1]].concat();
        let (lines, marker) = pipe().unwrap();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            // The tests may run in a pod themselves.
            .env_remove("KUBERNETES_SERVICE_HOST")
            .env_remove("NVIDIA_VISIBLE_DEVICES")
            .args(["--web.listen-address", "127.0.0.1:0"])
            .args(["--push.listen-address", "127.0.0.1:0", "--log.format", "json"])
            .args(&arguments[1..])
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(marker.try_clone().unwrap());
        if words.last() == Some(&"demo") {
            command.args(["--log.level", "info"]);
        }
        let child = command.spawn().expect("the binary starts");
        // It holds the pipe open.
        drop(command);
        let log = Arc::<Log>::default();
        let lines = BufReader::new(lines);
        let sink = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                if line == MARK {
                    sink.n_marks.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                let entry = serde_json::from_str(&line).unwrap_or(Value::String(line));
                sink.entries.lock().unwrap().push(entry);
                sink.grown.notify_all();
            }
        });
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let marker = Mutex::new(Some((marker, 0)));
        Self { child, web: unknown, push: unknown, log, reader: Some(reader), marker }
    }

    /// The address at which it listens for `what`, by its log so far.
    fn address(&self, what: &str) -> Option<SocketAddr> {
        self.log.entries.lock().unwrap().iter().find_map(|entry| {
            let fields = entry.get("fields")?;
            (fields["message"] == "listening" && fields["what"] == what)
                .then(|| fields["address"].as_str()?.parse().ok())?
        })
    }

    fn listening(&mut self, what: &str) -> SocketAddr {
        let began = Instant::now();
        loop {
            if let Some(address) = self.address(what) {
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

    /// All that it has logged until now, one JSON object a line.
    pub fn log(&self) -> Vec<Value> {
        let mut marker = self.marker.lock().unwrap();
        if let Some((pipe, n_marks)) = &mut *marker {
            // At once, so that no line of the exporter comes between.
            pipe.write_all(format!("{MARK}\n").as_bytes()).unwrap();
            *n_marks += 1;
            await_true("the log", || self.log.n_marks.load(Ordering::SeqCst) == *n_marks);
        }
        drop(marker);
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

    /// Pushes records, 2000 at a time; each batch is taken.
    pub fn push(&self, records: &[Value]) {
        for batch in records.chunks(2000) {
            let text = Value::from(batch).to_string();
            let began = Instant::now();
            let mut answer = self.post(&*text);
            // A pusher repeats what a busy exporter did not take.
            while [408, 503].contains(&answer.status) && began.elapsed() < DEADLINE {
                std::thread::park_timeout(LOOK);
                answer = self.post(&*text);
            }
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
    }

    /// Pushes one record: these fields, a step and its live memory.
    pub fn push_step(&self, fields: &Value, step: u64, allocated: u64) {
        let mut record = fields.clone();
        record["step"] = step.into();
        record["allocated_bytes"] = allocated.into();
        self.push(&[record]);
    }

    /// Pushes JSON text and returns the answer.
    pub fn post(&self, body: impl Into<Vec<u8>>) -> Answer {
        self.post_to("/v1/steps", body)
    }

    /// Posts JSON text to any path of the push port.
    pub fn post_to(&self, path: &str, body: impl Into<Vec<u8>>) -> Answer {
        self.request("POST", path, &[JSON], &body.into())
    }

    /// Posts JSON to any path of the push port, which takes it.
    #[track_caller]
    pub fn take(&self, path: &str, body: &Value) -> Answer {
        let answer = self.post_to(path, body.to_string());
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer
    }

    /// Announces the end of a run or of a rank.
    #[track_caller]
    pub fn end(&self, run: &str, body: &Value) {
        self.take(&format!("/v1/runs/{run}/end"), body);
    }

    /// Pushes records 400 at a time, and returns what the answers ask for.
    pub fn actions(&self, records: &[Value]) -> Vec<Value> {
        let answers = records.chunks(400).map(|batch| self.take("/v1/steps", &batch.into()));
        answers
            .flat_map(|answer| items(&answer.json()["actions"]).cloned().collect::<Vec<_>>())
            .collect()
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
    pub fn scrape(&self) -> BTreeMap<String, f64> {
        let answer = self.get("/metrics", &[]);
        assert_eq!(answer.status, 200);
        samples(&answer.body)
    }

    /// A sample; `None` when it is absent.
    pub fn metric(&self, series: &str) -> Option<f64> {
        self.scrape().get(series).copied()
    }

    /// `/api/v1/status`, which is held to its schema.
    pub fn status(&self) -> Value {
        static SCHEMA: LazyLock<Value> = LazyLock::new(|| schema("status"));
        let status = self.get("/api/v1/status", &[]).json();
        holds(&SCHEMA, &status);
        status
    }

    pub fn findings(&self) -> Vec<Value> {
        items(&self.status()["findings"]).cloned().collect()
    }

    /// The first finding of a kind.
    pub fn finding(&self, kind: &str) -> Option<Value> {
        self.findings().into_iter().find(|finding| finding["kind"] == kind)
    }

    /// The summary of a run so far.
    pub fn summary(&self, run: &str) -> Value {
        self.get(&format!("/api/v1/runs/{run}/summary"), &[]).json()
    }

    /// Runs a command that asks the web port.
    pub fn asked(&self, arguments: &[&str]) -> Ended {
        let url = format!("http://{}", self.web);
        stepmem(&[arguments, &["--url", &url]].concat(), &[], b"")
    }

    /// Asks again and again until `is_so` of the metrics.
    pub fn await_metrics(&self, what: &str, is_so: impl Fn(&BTreeMap<String, f64>) -> bool) {
        let began = Instant::now();
        loop {
            let metrics = self.scrape();
            if is_so(&metrics) {
                return;
            }
            assert!(began.elapsed() < DEADLINE, "{what} did not come: {metrics:#?}");
            std::thread::park_timeout(LOOK);
        }
    }

    /// The number of lines of this level that it has logged until now whose fields contain
    /// `part`.
    pub fn logged(&self, level: &str, part: &str) -> usize {
        let is_it = |entry: &&Value| {
            entry["level"] == level && entry["fields"].to_string().contains(part)
        };
        self.log().iter().filter(is_it).count()
    }

    /// The most resident memory that it has ever had, in bytes.
    pub fn resident_bytes_max(&self) -> u64 {
        self.resident_bytes("VmHWM:")
    }

    /// A figure of its memory by its name in `/proc/PID/status`, in bytes.
    pub fn resident_bytes(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
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

    /// Stops it as an orchestrator does, checks that it ends well, and returns what it logged.
    pub fn stop(self) -> Vec<Value> {
        self.signal("TERM");
        let (status, log) = self.wait();
        assert!(status.success(), "{status}: {log:#?}");
        log
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
        // The pipe ends when its last writer goes.
        self.marker.lock().unwrap().take();
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
