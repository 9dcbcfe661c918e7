//! Whose the processes and devices are: the running binary in real PID namespaces, beside control groups, and with a
//! kubelet that speaks gRPC.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::rig::device_metrics::{attributed, attribution};
use crate::rig::exporter::Exporter;
use crate::rig::folder::{root, text};
use crate::rig::kubelet::Kubelet;
use crate::rig::nvml::{Driver, FakeNvml, ProcessRow, driver, gpu, instance, process};
use crate::rig::series::Metrics;
use crate::rig::skipped::skipped;
use crate::rig::units::{GIB, gib};
use crate::rig::wait::await_true;

/// A new PID namespace with a procfs of its own, which ends with the command that made it.
const OWN_NAMESPACE: [&str; 4] = ["unshare", "--pid", "--kill-child", "--mount-proc"];

/// Returns whether this machine lets us make namespaces; prints why it does not.
fn has_namespaces() -> bool {
    let made = Command::new("unshare").args(&OWN_NAMESPACE[1..]).arg("true").output();
    let is_made = made.as_ref().is_ok_and(|output| output.status.success());
    if !is_made {
        skipped(format_args!("this machine does not let us make PID namespaces: {made:?}"));
    }
    is_made
}

/// A shell that ends with this.
struct Shell(Child);

impl Shell {
    /// Starts one that stays, and returns its id in its own namespace.
    fn start(wrapper: &[&str]) -> (Self, u32) {
        let mut child = Command::new(wrapper[0])
            .args(&wrapper[1..])
            .args(["sh", "-c", "echo $$; exec sleep infinity"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (Self(child), line.trim().parse().unwrap())
    }

    /// The id, in our namespace, of the process that this command made.
    fn inner(&self) -> u32 {
        let pid = self.0.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.split_whitespace().next().unwrap().parse().unwrap()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A driver that lists these processes on GPU-a.
fn listing(version: &str, compute: &[ProcessRow]) -> Driver {
    driver([gpu("GPU-a").compute(compute)]).version(version)
}

fn start_within(wrapper: &[&str], fake: &FakeNvml) -> Exporter {
    let library = text(&fake.library());
    let arguments = ["--nvml.library", &library, "--nvml.interval", "50ms"];
    Exporter::start_within(wrapper, &arguments)
}

fn push(exporter: &Exporter, device: &str, pid: u32) {
    let record = json!({
        "run": "llm", "rank": 3, "step": 1, "device": device, "pid": pid,
        "allocated_bytes": GIB, "reserved_bytes": 2 * GIB,
    });
    assert_eq!(exporter.post(record.to_string()).status, 200);
}

/// The state of GPU-a.
fn state(metrics: &Metrics) -> Option<&str> {
    attribution(metrics, "GPU-a")
}

/// The processes of GPU-a: (pid, rank).
fn listed(metrics: &Metrics) -> Vec<(String, String)> {
    metrics
        .keys()
        .filter(|series| series.starts_with("stepmem_process_memory_used_bytes{"))
        .map(|series| {
            let label = |name: &str| {
                let (_, rest) = series.split_once(&format!("{name}=\"")).unwrap();
                rest.split_once('"').unwrap().0.to_owned()
            };
            (label("pid"), label("rank"))
        })
        .collect()
}

#[test]
fn own_namespace_reports_that_it_sees_no_process() {
    if !has_namespaces() {
        return;
    }
    let fake = FakeNvml::new("who-own", &listing("570.86.15", &[]));
    let exporter = start_within(&OWN_NAMESPACE, &fake);
    push(&exporter, "GPU-a", 1);
    exporter.await_metrics("the device", |metrics| state(metrics).is_some());
    let metrics = exporter.scrape();
    assert_eq!(state(&metrics), Some("own_pid_namespace"));
    assert_eq!(listed(&metrics), []);
    let attributed = metrics.keys().any(|series| series.contains("attributed_bytes"));
    assert!(!attributed, "nothing is known, not even zero");
}

#[test]
fn own_namespace_does_not_take_a_foreign_id_for_a_rank() {
    if !has_namespaces() {
        return;
    }
    // An older driver reports the host's ids; here one of them equals process 1's by chance.
    let compute = [process(1, 5 * GIB), process(48_211, 7 * GIB)];
    let fake = FakeNvml::new("who-foreign", &listing("525.147.05", &compute));
    let exporter = start_within(&OWN_NAMESPACE, &fake);
    push(&exporter, "GPU-a", 1);
    exporter.await_metrics("the device", |metrics| state(metrics).is_some());
    let metrics = exporter.scrape();
    assert_eq!(state(&metrics), Some("foreign_pid_namespace"));
    assert_eq!(listed(&metrics), []);
    assert_eq!(metrics[r#"stepmem_process_memory_other_bytes{uuid="GPU-a"}"#], gib(12.0));
    assert_eq!(attributed(&metrics, "GPU-a"), Some(gib(12.0)));
    assert!(!metrics.keys().any(|series| series.contains("outside_allocator_bytes")));
}

#[test]
fn shared_namespace_finds_the_rank_by_its_id() {
    if !has_namespaces() {
        return;
    }
    // A pod: its pause process makes the namespace, the trainer and the exporter enter it.
    let (pause, _) = Shell::start(&OWN_NAMESPACE);
    let target = pause.inner().to_string();
    let enter = ["nsenter", "--target", &target, "--pid", "--mount"];
    let (_trainer, pid) = Shell::start(&enter);
    let fake = FakeNvml::new("who-shared", &listing("570.86.15", &[process(pid, 5 * GIB)]));
    let exporter = start_within(&enter, &fake);
    push(&exporter, "GPU-a", pid);
    let outside = r#"stepmem_memory_outside_allocator_bytes{run="llm",rank="3",uuid="GPU-a"}"#;
    exporter.await_metrics("the match", |metrics| metrics.contains_key(outside));
    let metrics = exporter.scrape();
    assert_eq!(state(&metrics), Some("shared_pid_namespace"));
    assert_eq!(listed(&metrics), [(pid.to_string(), "3".to_owned())]);
    assert_eq!(metrics[outside], gib(3.0));
}

#[test]
fn view_from_further_out_finds_the_rank_by_its_innermost_id() {
    if !has_namespaces() {
        return;
    }
    let (trainer, pid) = Shell::start(&OWN_NAMESPACE);
    assert_eq!(pid, 1);
    let seen = trainer.inner();
    let fake = FakeNvml::new("who-host", &listing("570.86.15", &[process(seen, 5 * GIB)]));
    let exporter = start_within(&[], &fake);
    push(&exporter, "GPU-a", pid);
    let outside = r#"stepmem_memory_outside_allocator_bytes{run="llm",rank="3",uuid="GPU-a"}"#;
    exporter.await_metrics("the match", |metrics| metrics.contains_key(outside));
    let metrics = exporter.scrape();
    // The outer namespace is the host only where these tests run on one.
    assert!(matches!(state(&metrics), Some("host" | "shared_pid_namespace")), "{metrics:?}");
    assert_eq!(listed(&metrics), [(seen.to_string(), "3".to_owned())]);
    // A second container whose trainer is process 1 as well: either of the two may be the one that pushes.
    let (other, _) = Shell::start(&OWN_NAMESPACE);
    let compute = [process(seen, 5 * GIB), process(other.inner(), GIB)];
    fake.set(&listing("570.86.15", &compute));
    exporter.await_metrics("both", |metrics| listed(metrics).len() == 2);
    let metrics = exporter.scrape();
    assert!(listed(&metrics).iter().all(|(_, rank)| rank.is_empty()), "{metrics:?}");
    assert!(!metrics.contains_key(outside));
}

#[test]
fn processes_beyond_the_bound_are_summed_and_counted() {
    let mut compute: Vec<ProcessRow> =
        (1..=6).map(|idx| process(4_000_000 + idx, u64::from(idx) * GIB)).collect();
    compute.push(process(std::process::id(), 10 * GIB));
    let fake = FakeNvml::new("who-other", &listing("570.86.15", &compute));
    let exporter = fake.serve(&["--nvml.processes.max", "3"]);
    let dropped = r#"stepmem_series_dropped_total{reason="processes"}"#;
    exporter.await_metrics("two rounds", |metrics| metrics[dropped] >= 8.0);
    let metrics = exporter.scrape();
    assert_eq!(listed(&metrics).len(), 3);
    assert_eq!(metrics[r#"stepmem_process_memory_other_bytes{uuid="GPU-a"}"#], gib(10.0));
    assert_eq!(attributed(&metrics, "GPU-a"), Some(gib(31.0)));
    assert_eq!(metrics[dropped] % 4.0, 0.0);
}

#[test]
fn memory_of_a_gpu_instance_counts_once_for_the_mig_devices_that_share_it() {
    let pid = std::process::id();
    let second = instance("MIG-y", 1, "1c.2g.20gb").compute(&[process(pid, 2 * GIB)]);
    let first = instance("MIG-x", 1, "1c.2g.20gb").compute(&[process(4_000_001, GIB)]);
    let fake = FakeNvml::new("who-mig", &driver([gpu("GPU-a").mig([first, second])]));
    let exporter = start_within(&[], &fake);
    push(&exporter, "MIG-y", pid);
    let of = |name: &str, uuid: &str| format!("stepmem_{name}{{uuid=\"{uuid}\"}}");
    let headroom = r#"stepmem_headroom_bytes{run="llm",rank="3",uuid="MIG-y"}"#;
    exporter.await_metrics("the rank's device", |metrics| metrics.contains_key(headroom));
    let metrics = exporter.scrape();
    assert_eq!(metrics[&of("device_memory_used_bytes", "MIG-x")], gib(4.0));
    assert_eq!(metrics.get(&of("device_memory_used_bytes", "MIG-y")), None);
    assert_eq!(attributed(&metrics, "MIG-x"), Some(gib(3.0)));
    assert_eq!(metrics[&of("device_memory_unattributed_bytes", "MIG-x")], gib(1.0));
    let info = |uuid: &str| {
        let start = format!("stepmem_device_info{{uuid=\"{uuid}\"");
        metrics.keys().any(|series| series.starts_with(&start))
    };
    assert!(info("MIG-x") && info("MIG-y"));
}

fn assigned(metrics: &Metrics) -> Vec<&str> {
    let is_it = |series: &&String| series.starts_with("stepmem_device_pod_info{");
    metrics.keys().filter(is_it).map(String::as_str).collect()
}

#[test]
fn kubelet_reports_which_container_has_which_device() {
    let kubelet = Kubelet::start("kubelet");
    let node = fs::read_to_string(root().join("tests/data/kubelet/node.json")).unwrap();
    kubelet.answer(&node);
    let fake = FakeNvml::new("who-kubelet", &driver([gpu("GPU-a")]));
    let socket = text(&kubelet.socket());
    // In a pod, but watching the node: it opens every device.
    let in_pod = [("KUBERNETES_SERVICE_HOST", "10.0.0.1")];
    let exporter = fake.serve_with(&["--kubelet.socket", &socket], &in_pod);
    exporter.await_metrics("the pods", |metrics| !assigned(metrics).is_empty());
    let series = |uuid: char, namespace: &str, pod: &str, container: &str| {
        let kind = if uuid == '3' { "MIG" } else { "GPU" };
        let group = |n: usize| uuid.to_string().repeat(n);
        let uuid = [8, 4, 4, 4, 12].map(group).join("-");
        format!(
            "stepmem_device_pod_info{{uuid=\"{kind}-{uuid}\",pod_namespace=\"{namespace}\",\
             pod_name=\"{pod}\",container_name=\"{container}\"}}"
        )
    };
    let expected = [
        series('1', "research", "llm-worker-0", "pytorch"),
        series('2', "research", "llm-worker-0", "pytorch"),
        series('4', "serving", "inference-a", "server"),
        series('4', "serving", "inference-b", "server"),
        series('3', "interactive", "notebook-7c9d", "jupyter"),
    ];
    let success = r#"stepmem_collector_success{collector="kubelet"}"#;
    exporter.await_metrics("the device", |metrics| {
        metrics.contains_key(r#"stepmem_device_memory_used_bytes{uuid="GPU-a"}"#)
    });
    let metrics = exporter.scrape();
    assert_eq!(assigned(&metrics), expected);
    assert_eq!(metrics[success], 1.0);

    // What it no longer says is no longer shown, and the log says so once.
    kubelet.fall_silent();
    exporter.await_metrics("the silence", |metrics| metrics[success] == 0.0);
    assert_eq!(assigned(&exporter.scrape()), [""; 0]);
    await_true("the log line", || exporter.logged("WARN", "kubelet is starting") == 1);
    kubelet.answer(r#"{"pod_resources": []}"#);
    exporter.await_metrics("the answer", |metrics| metrics[success] == 1.0);
    assert_eq!(assigned(&exporter.scrape()), [""; 0]);
    assert_eq!(exporter.logged("WARN", "kubelet"), 1);
}

#[test]
fn missing_kubelet_does_not_disturb_nvml() {
    let fake = FakeNvml::new("who-no-kubelet", &driver([gpu("GPU-a")]));
    let exporter = fake.serve(&["--kubelet.socket", "/nowhere/kubelet.sock"]);
    exporter.await_metrics("both", |metrics| {
        metrics.get(r#"stepmem_collector_success{collector="kubelet"}"#) == Some(&0.0)
            && metrics.get(r#"stepmem_collector_success{collector="nvml"}"#) == Some(&1.0)
    });
    assert_eq!(exporter.metric("stepmem_nvml_up"), Some(1.0));
}
