//! Pure rooms never wait, log, read a clock, spawn or touch files: the time and the bytes are arguments.

use crate::architecture::house::{House, holds};
use crate::architecture::source::{Source, is_within};

/// The pure rooms and files.
const PURE: &[&str] = &[
    "analysis",
    "detect",
    "input::owner::cgroup",
    "input::push::wire",
    "metrics",
    "model",
    "report",
    "snapshot",
    "text",
];

/// Crates and modules that pure code does not name.
const IMPURE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::process",
    "std::sync",
    "std::thread",
    "tokio",
    "tracing",
];

fn violations(house: &House) -> Vec<String> {
    house.files.iter().filter(|file| file.is_in_any(PURE)).flat_map(of_file).collect()
}

fn of_file(file: &Source) -> Vec<String> {
    let paths = file.paths.iter().map(|(path, line)| (path.join("::"), *line));
    let impure = paths.filter(|(path, _)| IMPURE.iter().any(|impure| is_within(path, impure)));
    let mut found = file.at(impure);
    for called in [&[".", "await"][..], &["async"], &[":", ":", "now", "("], &["thread_local"]]
    {
        found.extend(file.at(file.places(called)));
    }
    found.extend(file.at(file.places(&["static", "mut"])));
    found
}

#[test]
fn pure_rooms_never_wait_log_read_a_clock_spawn_or_touch_files() {
    holds("purity", &violations(House::standing()));
}

#[test]
fn every_pure_room_exists() {
    for room in PURE {
        assert!(House::standing().has_module(room), "{room} is in PURE");
    }
}

#[test]
fn a_planted_impurity_is_found() {
    for (path, text) in [
        ("src/detect/tests.rs", "use tokio::sync::mpsc;"),
        ("src/analysis/rank/tally.rs", "fn f() { tracing::warn!(\"x\"); }"),
        ("src/model/units.rs", "use std::{fmt, fs::File};"),
        ("src/analysis/status.rs", "use std::sync::Arc;"),
        ("src/metrics/table.rs", "fn f() { std::env::var(\"A\"); }"),
        ("src/metrics/table.rs", "use std::net::IpAddr;"),
        ("src/input/push/wire.rs", "fn f() -> T { T::now() }"),
        ("src/input/push/wire/step.rs", "fn f() { m! { x.await } }"),
        ("src/input/owner/cgroup.rs", "fn f() { std::fs::read(\"/proc\"); }"),
        ("src/analysis/engine.rs", "pub async fn f() {}"),
        ("src/analysis/engine.rs", "static mut N: u32 = 0;"),
        ("src/analysis/diagnosis/imbalance.rs", "use std::thread;"),
        ("src/text/page.rs", "use std::io::Write;"),
        ("src/snapshot/pickle.rs", "use std::fs::File;"),
    ] {
        let found = violations(&House::planted(&[(path, text)]));
        assert_eq!(found.len(), 1, "{path}: {text}: {found:?}");
    }
    let free = [("src/input/push/http.rs", "use tokio::sync::mpsc; fn f() { T::now() }")];
    assert_eq!(violations(&House::planted(&free)), [""; 0]);
}
