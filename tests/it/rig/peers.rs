//! Programs that others wrote: the scripts of tests/peers, and Chromium. `make tools` installs them.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, root, text};

/// The Python with the peers' packages.
pub fn python() -> PathBuf {
    let python = root().join("target/tools/venv/bin/python");
    assert!(python.exists(), "{} is not there: run make tools", python.display());
    python
}

/// Runs a script of tests/peers to its end and returns what it prints.
pub fn run_peer(script: &str, arguments: &[&str]) -> Value {
    let mut command = Command::new(python());
    command.arg(root().join("tests/peers").join(script)).args(arguments);
    let output = command.output().unwrap();
    serde_json::from_str(&stdout(&output)).unwrap()
}

fn stdout(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{} (a program that is not there? run make tools): {said}",
        output.status
    );
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A page after its scripts ran, as text.
pub fn rendered(url: &str) -> String {
    let profile = Folder::new("chromium");
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"])
        .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
        .args(["--disable-component-update", "--virtual-time-budget=8000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", text(&profile.path(""))))
        .arg(url)
        .output()
        .expect("no chromium: run make tools");
    stdout(&output)
}

/// The inner HTML of the element that has an attribute.
pub fn element<'p>(page: &'p str, attribute: &str) -> &'p str {
    let (before, after) =
        page.split_once(attribute).unwrap_or_else(|| panic!("no {attribute}: {page}"));
    let name = before.rsplit('<').next().unwrap().split_whitespace().next().unwrap();
    let inner = after.split_once('>').unwrap().1;
    inner.split_once(&format!("</{name}>")).unwrap().0
}

/// The scrape in both formats by the reference parsers, which must agree; OpenMetrics' families.
pub fn reference_scrape(exporter: &Exporter) -> Value {
    run_peer("scrape.py", &[&format!("http://{}/metrics", exporter.web)])
}
