//! What an operator installs: alerts, dashboards and the chart, each checked by the programs that read them, and all of
//! them at work. The checks are the scripts of tests/ops; `tests/ops/install.sh` installs what they need, `make test`
//! calls it.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use super::nvml::Fake;
use super::rig::{self, Exporter, Folder};

/// Runs a script of tests/ops; it says what does not hold.
fn holds(script: &str, arguments: &[&str]) {
    let python = rig::root().join("target/tools/ops/bin/python");
    assert!(python.exists(), "{} is not there: run make test", python.display());
    let output = Command::new(python)
        .arg(rig::root().join("tests/ops").join(script))
        .args(arguments)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}");
}

#[test]
fn every_alert_fires_and_resolves_as_its_tests_say() {
    holds("alerts.py", &[]);
}

#[test]
fn dashboards_are_as_their_table_and_as_grafana_wants_them() {
    holds("dashboards.py", &[]);
}

#[test]
fn the_chart_renders_what_kubernetes_takes() {
    let mut arguments = vec![env!("CARGO_BIN_EXE_stepmem")];
    if env::var_os("STEPMEM_BLESS").is_some() {
        arguments.push("--bless");
    }
    holds("chart.py", &arguments);
}

#[test]
fn a_leak_pages_once_with_its_figures_and_resolves() {
    let gib = 1_u64 << 30;
    let memory = json!({ "total": 80 * gib, "reserved": gib, "used": 30 * gib });
    let device = json!({ "uuid": "GPU-a", "name": "NVIDIA H100 80GB HBM3", "memory": memory, "compute": [] });
    let scenario = json!({
        "driver_version": "570.86.15",
        "devices": [device, { "uuid": "GPU-b", "code": 15 }],
        "events": [{ "device": 0, "xid": 79 }],
    });
    let fake = Fake::new("ops", &scenario);
    let library = rig::text(&fake.library());
    let nvml = ["--nvml.library", &library, "--nvml.interval", "50ms"];
    let quick = ["--creep.process-warmup", "0s", "--creep.process-interval", "50ms"];
    // Nothing listens on port 1: its exports fail.
    let otlp = ["--otlp.endpoint", "http://127.0.0.1:1", "--otlp.interval", "1s"];
    let faulty = Exporter::start_command("serve", &[&nvml[..], &quick, &otlp].concat(), &[]);
    let demo = Exporter::start_command("demo", &[], &[]);
    let folder = Folder::new("ops");
    let work: PathBuf = folder.path("work");
    holds(
        "live.py",
        &[
            &demo.web.to_string(),
            &demo.push.to_string(),
            &faulty.web.to_string(),
            &format!("{library}.json"),
            &rig::text(&work),
        ],
    );
}
