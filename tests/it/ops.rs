//! The bundle for operators: alerts, dashboards and the chart, each checked by the programs that read them, and all of
//! them at work. The checks are the scripts of tests/ops; `tests/ops/install.sh` installs what they need, `make test`
//! calls it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, root, text};
use crate::rig::nvml::{FakeNvml, driver, gpu};

/// Runs a script of tests/ops; it says what does not hold.
fn holds(script: &str, arguments: &[&str]) {
    let python = root().join("target/tools/ops/bin/python");
    assert!(python.exists(), "{} is not there: run make test", python.display());
    let output = Command::new(python)
        .arg(root().join("tests/ops").join(script))
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
fn queries_that_join_other_exporters_do_what_their_page_says() {
    holds("coming_from.py", &[]);
}

#[test]
fn a_fleet_raises_the_alerts_of_its_faults_and_no_other() {
    let folder = Folder::new("fleet");
    let pods = fleet_pods();
    holds("../fleet/run.py", &[&pods, "--work-dir", &text(&folder.path("work"))]);
    let stepmem = env!("CARGO_BIN_EXE_stepmem");
    holds(
        "../fleet/recorded.py",
        &[&pods, stepmem, "--work-dir", &text(&folder.path("recorded"))],
    );
}

#[test]
#[ignore = "needs Prometheus 3 and the Collector: make test-otlp"]
fn a_fleet_is_the_same_over_otlp_and_with_prometheus_3() {
    let folder = Folder::new("fleet-otlp");
    let pods = fleet_pods();
    holds("../fleet/over_otlp.py", &[&pods, "--work-dir", &text(&folder.path("otlp"))]);
    let prometheus = text(&root().join("target/tools/bin/prometheus3"));
    let stepmem = env!("CARGO_BIN_EXE_stepmem");
    let by_prometheus_3 = ["--prometheus", &prometheus, "--work-dir"];
    let work = text(&folder.path("work"));
    holds("../fleet/run.py", &[&[pods.as_str()], &by_prometheus_3[..], &[&work]].concat());
    let work = text(&folder.path("recorded"));
    let words = [&[pods.as_str(), stepmem], &by_prometheus_3[..], &[&work]].concat();
    holds("../fleet/recorded.py", &words);
}

#[test]
fn no_alert_begins_once_a_job_has_completed_and_a_death_pages_before() {
    let folder = Folder::new("ends");
    let work = text(&folder.path("work"));
    holds("ends.py", &[env!("CARGO_BIN_EXE_stepmem"), &work]);
}

/// Builds the program that serves a fleet; returns its path.
fn fleet_pods() -> String {
    let executable = env::current_exe().unwrap();
    let profile_dir = executable.parent().and_then(Path::parent).unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--example", "fleet-pods", "--target-dir"]);
    build.arg(profile_dir.parent().unwrap()).current_dir(root());
    if profile_dir.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
    text(&profile_dir.join("examples/fleet-pods"))
}

#[test]
fn a_leak_pages_once_with_its_figures_and_resolves() {
    let lost = gpu("GPU-b").code(15);
    let fake = FakeNvml::new("ops", &driver([gpu("GPU-a"), lost]).events(&[(0, 79)]));
    // No process listens on port 1: its exports fail.
    let export = ["--otlp.endpoint", "http://127.0.0.1:1", "--otlp.interval", "1s"];
    let quick = ["--creep.process-warmup", "0s", "--creep.process-interval", "50ms"];
    let nvml = ["--nvml.interval", "50ms"];
    let faulty = fake.serve(&[&nvml[..], &quick, &export].concat());
    let demo = Exporter::start_command("demo", &[], &[]);
    let folder = Folder::new("ops");
    let work: PathBuf = folder.path("work");
    holds(
        "live.py",
        &[
            &demo.web.to_string(),
            &demo.push.to_string(),
            &faulty.web.to_string(),
            &format!("{}.json", text(&fake.library())),
            &text(&work),
        ],
    );
}
