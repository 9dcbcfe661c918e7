//! A receiver of OTLP: the official classes, or Rotel.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Instant;

use serde_json::Value;

use crate::rig::exporter::Exporter;
use crate::rig::folder::root;
use crate::rig::json::items;
use crate::rig::peers::python;
use crate::rig::wait::DEADLINE;

/// Values by name and labels.
pub type Points = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// A receiver of OTLP: the official classes or Rotel. It ends when this goes.
pub struct Otlp {
    child: Child,
    // It ends when its stdin does.
    stdin: Option<ChildStdin>,
    exports: Receiver<Value>,
    ports: Value,
    /// The metrics of the last export.
    latest: Vec<Value>,
    pub resource: Value,
    pub transport: String,
}

impl Otlp {
    pub fn start(receiver: &str) -> Self {
        let mut child = Command::new(python())
            .arg(root().join("tests/peers/otlp.py"))
            .arg(receiver)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, exports) = channel();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    break;
                }
            }
        });
        let stdin = child.stdin.take();
        let (latest, resource) = (Vec::new(), Value::Null);
        let transport = String::new();
        let mut otlp =
            Self { child, stdin, exports, ports: Value::Null, latest, resource, transport };
        otlp.ports = otlp.receive();
        otlp
    }

    pub fn receive(&mut self) -> Value {
        match self.exports.recv_timeout(DEADLINE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("no export in {DEADLINE:?}"),
            Err(RecvTimeoutError::Disconnected) => {
                let mut said = String::new();
                self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                panic!("the receiver ended (run make tools?): {said}")
            }
        }
    }

    pub fn endpoint(&self, transport: &str) -> String {
        format!("http://127.0.0.1:{}", self.ports[transport])
    }

    /// An exporter that exports to it five times a second.
    pub fn exporter(
        &self,
        transport: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Exporter {
        let endpoint = self.endpoint(transport);
        let own = ["--otlp.endpoint", &endpoint, "--otlp.protocol", protocol(transport)];
        let mut arguments = [&own[..], &["--otlp.interval", "200ms"], arguments].concat();
        if !arguments.contains(&"--nvml.library") {
            arguments.push("--no-nvml");
        }
        Exporter::start_command("serve", &arguments, variables)
    }

    /// Takes the next export; it replaces the last one.
    pub fn next_export(&mut self) {
        let export = self.receive();
        self.resource = export["resource"].clone();
        export["transport"].as_str().unwrap().clone_into(&mut self.transport);
        self.latest.clone_from(export["metrics"].as_array().unwrap());
    }

    /// Forgets what came so far, also what has come and was not looked at.
    pub fn forget(&mut self) {
        while self.exports.try_recv().is_ok() {}
        self.latest.clear();
    }

    pub fn await_that(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        self.await_because(what, |otlp| {
            if is_so(otlp) { Ok(()) } else { Err(format!("{:?}", otlp.points())) }
        });
    }

    /// Takes exports until `is_so` has no objection.
    pub fn await_because(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&Self) -> Result<(), String>,
    ) {
        let began = Instant::now();
        loop {
            self.next_export();
            let objection =
                if self.latest.len() < 2 { Err(String::new()) } else { is_so(self) };
            let Err(objection) = objection else { return };
            assert!(began.elapsed() < DEADLINE, "{what} did not come: {objection}");
        }
    }

    pub fn metrics(&self) -> impl Iterator<Item = &Value> {
        self.latest.iter()
    }

    pub fn names(&self) -> Vec<String> {
        self.metrics().map(|metric| metric["name"].as_str().unwrap().to_owned()).collect()
    }

    pub fn metric(&self, name: &str) -> Option<Value> {
        self.metrics().find(|metric| metric["name"] == name).cloned()
    }

    pub fn points(&self) -> Points {
        let mut points = Points::new();
        for metric in self.metrics() {
            let name = metric["name"].as_str().unwrap();
            for of_metric in items(&metric["points"]) {
                let attributes = of_metric["attributes"].as_object().unwrap().iter();
                let labels = attributes.map(|(label, value)| (label, value.as_str().unwrap()));
                let key = point(name.to_owned(), labels);
                let values = match &of_metric["value"] {
                    Value::Object(_) => histogram(&key, &of_metric["value"]),
                    value => Points::from([(key, value.as_f64().unwrap())]),
                };
                for (key, value) in values {
                    let earlier = points.insert(key.clone(), value);
                    assert_eq!(earlier, None, "{key:?} is there twice");
                }
            }
        }
        points
    }

    pub fn labels(&self, label: &str) -> BTreeSet<String> {
        self.points().into_keys().filter_map(|(_, labels)| labels.get(label).cloned()).collect()
    }

    pub fn ranks(&self) -> BTreeSet<u32> {
        self.labels("rank").iter().map(|rank| rank.parse().unwrap()).collect()
    }

    /// The devices with readings.
    pub fn devices(&self) -> BTreeSet<String> {
        let points = self.points().into_keys();
        let readings = points.filter(|(name, _)| name.starts_with("stepmem.device.memory."));
        readings.filter_map(|(_, labels)| labels.get("uuid").cloned()).collect()
    }
}

impl Drop for Otlp {
    fn drop(&mut self) {
        drop(self.stdin.take());
        self.child.wait().ok();
    }
}

/// A histogram as Prometheus counts it: within each upper bound, altogether, and the sum.
fn histogram((name, labels): &(String, BTreeMap<String, String>), value: &Value) -> Points {
    let bounds = items(&value["bounds"]).map(|bound| bound.as_f64().unwrap());
    let counts = items(&value["bucket_counts"]).map(|count| count.as_f64().unwrap());
    let mut n_within = 0.0;
    let mut points = Points::new();
    for (bound, count) in bounds.chain([f64::INFINITY]).zip(counts) {
        n_within += count;
        let mut labels = labels.clone();
        labels.insert("le".to_owned(), bound.to_string());
        points.insert((format!("{name}.bucket"), labels), n_within);
    }
    for part in ["count", "sum"] {
        points
            .insert((format!("{name}.{part}"), labels.clone()), value[part].as_f64().unwrap());
    }
    points
}

/// OTLP's transports by the names of the setting.
pub fn protocol(transport: &str) -> &'static str {
    if transport == "grpc" { "grpc" } else { "http/protobuf" }
}

/// A point's key: labels without value are not there, and bounds are numbers.
pub fn point<'l>(
    name: String,
    labels: impl Iterator<Item = (&'l String, &'l str)>,
) -> (String, BTreeMap<String, String>) {
    let labels = labels.filter(|(_, value)| !value.is_empty());
    let labels = labels.map(|(label, value)| match label.as_str() {
        "le" => (label.clone(), value.parse::<f64>().unwrap().to_string()),
        _ => (label.clone(), value.to_owned()),
    });
    (name, labels.collect())
}
