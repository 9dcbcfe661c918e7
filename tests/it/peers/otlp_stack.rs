//! Two pods of a run over OTLP into the real Prometheus 3, by its own receiver and by way of the real Collector: the names
//! are the scraped ones, and rules and alerts work unchanged. `make test-otlp` builds both and runs this.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::Value;

use crate::rig::exporter::Exporter;
use crate::rig::folder::root;
use crate::rig::http::{head, request};
use crate::rig::job::Job;
use crate::rig::json::items;
use crate::rig::peers::python;
use crate::rig::units::GIB;
use crate::rig::wait::await_agreement;

#[test]
#[ignore = "needs Prometheus 3 and the Collector: make test-otlp"]
fn rules_work_on_what_prometheus_receives() {
    check("prometheus");
}

#[test]
#[ignore = "needs Prometheus 3 and the Collector: make test-otlp"]
fn rules_work_on_what_the_collector_receives() {
    check("collector");
}

fn check(receiver: &str) {
    let stack = Stack::start(receiver);
    let pods = [pod(&stack, 0), pod(&stack, 1)];

    let scraped: BTreeSet<String> = pods.iter().flat_map(names).collect();
    await_agreement("the scraped names", || {
        let arrived = stack.names();
        let (missing, foreign): (Vec<_>, Vec<_>) =
            (scraped.difference(&arrived).collect(), arrived.difference(&scraped).collect());
        if missing.is_empty() && foreign.is_empty() {
            return Ok(());
        }
        Err(format!("missing {missing:?}, not in the scrape {foreign:?}"))
    });

    let place = r#"cluster="lab",namespace="ml",run="job""#;
    let creep = format!(
        r#"rank:stepmem_diagnosis_severity:last5m{{{place},pod="trainer-0",rank="1",kind="CREEP_CONFIRMED"}} > 1"#
    );
    stack.await_series(&creep, 1);
    stack.await_series("rank:stepmem_diagnosis_severity:last5m{kind=\"CREEP_CONFIRMED\"}", 1);
    stack.await_series(&format!("run:stepmem_ranks:count{{{place}}} == 4"), 1);
    stack.await_series(&format!("run:stepmem_ranks_expected:max{{{place}}} == 4"), 1);
    stack.await_series(&format!("rank:stepmem_peak_allocated_bytes:last5m{{{place}}}"), 4);
    stack.await_series(&format!("run:stepmem_imbalance:ratio{{{place}}}"), 1);
    stack.await_series(&format!("run:stepmem_oom_eta_seconds:min{{{place}}}"), 1);
    stack.await_series(&format!("run:stepmem_creeping_ranks:count{{{place}}} == 1"), 1);
    let alert = r#"ALERTS{cluster="lab",namespace="ml",pod="trainer-0",run="job",rank="1"}"#;
    stack.await_series(&format!("count({alert})"), 1);
    stack.await_series(r#"ALERTS{pod="trainer-1"}"#, 0);
    stack.await_series(
        r"histogram_quantile(0.5, sum by (le) (stepmem_push_duration_seconds_bucket))",
        1,
    );
    for exporter in pods {
        exporter.stop();
    }
}

/// One of the run's two pods, with two ranks of which the run's rank 1 leaks.
fn pod(stack: &Stack, idx: u64) -> Exporter {
    let attributes =
        format!("k8s.cluster.name=lab,k8s.namespace.name=ml,k8s.pod.name=trainer-{idx}");
    let exporter = Exporter::start_command(
        "serve",
        &["--no-nvml", "--otlp.interval", "500ms"],
        &[
            ("STEPMEM_OTLP_ENDPOINT", stack.text("otlp")),
            ("STEPMEM_OTLP_PROTOCOL", stack.text("protocol")),
            ("OTEL_RESOURCE_ATTRIBUTES", &attributes),
        ],
    );
    let leak =
        move |rank: u64, step: u64| if rank + 2 * idx == 1 { step * (8 << 20) } else { 0 };
    let live = move |rank, step| 30 * GIB + (step % 7) * 1024 + leak(rank, step);
    let job = Job::new(2, 0).run("job").steps(0..1500).world(4).untimed();
    let job = job.live(live).peak(move |rank, step| live(rank, step) + GIB);
    let mut records =
        job.more(move |_, _| serde_json::json!({ "step_seconds": 0.25 })).records();
    for record in &mut records {
        record["rank"] = (record["rank"].as_u64().unwrap() + 2 * idx).into();
        record["total_bytes"] = (80 * GIB).into();
    }
    exporter.push(&records);
    exporter
}

/// The names of an exporter's samples that go over OTLP.
fn names(exporter: &Exporter) -> BTreeSet<String> {
    let series = exporter.scrape().into_keys();
    let names = series.map(|series| series.split('{').next().unwrap().to_owned());
    names.filter(|name| !name.starts_with("process_")).collect()
}

/// The running programs; they end when this goes.
struct Stack {
    child: Child,
    // They end when their stdin does.
    stdin: Option<ChildStdin>,
    started: Value,
}

impl Stack {
    fn start(receiver: &str) -> Self {
        let mut child = Command::new(python())
            .arg(root().join("tests/peers/otlp_stack.py"))
            .arg(receiver)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let started = serde_json::from_str(&line).unwrap_or_else(|_| {
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            panic!("{said}")
        });
        let stdin = child.stdin.take();
        Self { child, stdin, started }
    }

    fn text(&self, key: &str) -> &str {
        self.started[key].as_str().unwrap()
    }

    /// The data of an answer of Prometheus' API.
    fn ask(&self, path: &str) -> Value {
        let port = u16::try_from(self.started["prometheus"].as_u64().unwrap()).unwrap();
        let answer = request(([127, 0, 0, 1], port).into(), &head("GET", path, &[], 0), b"");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()["data"].clone()
    }

    /// The names that Prometheus has received.
    fn names(&self) -> BTreeSet<String> {
        let all = self.ask("/api/v1/label/__name__/values");
        let names = items(&all).map(|name| name.as_str().unwrap().to_owned());
        names
            .filter(|name| ["stepmem_", "process_"].iter().any(|p| name.starts_with(p)))
            .collect()
    }

    fn await_series(&self, query: &str, n_series: usize) {
        let encoded: Vec<String> = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let encoded = encoded.concat();
        await_agreement(query, || {
            let found = self.ask(&format!("/api/v1/query?query={encoded}"))["result"].clone();
            if items(&found).count() == n_series { Ok(()) } else { Err(found.to_string()) }
        });
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        drop(self.stdin.take());
        self.child.wait().ok();
    }
}
