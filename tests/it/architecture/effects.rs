//! Acts that one place alone may do: spawn, read the clock, exit, read the environment, own the engine; and one that the inputs may
//! not do: read the published status, which would be steering by the output.

use crate::architecture::house::{House, holds};
use crate::architecture::source::Source;

/// An act, the tokens by which it is known, and the rooms and files that may.
struct Only {
    act: &'static str,
    tokens: &'static [&'static [&'static str]],
    may: &'static [&'static str],
}

const ONLY: [Only; 5] = [
    Only {
        act: "spawn",
        tokens: &[
            &["spawn", "("],
            &["spawn_blocking"],
            &["spawn_local"],
            &["JoinSet"],
            &["thread", ":", ":", "Builder"],
            &["thread", ":", ":", "scope"],
        ],
        may: &["app"],
    },
    Only {
        act: "read the clock",
        tokens: &[&[":", ":", "now", "("], &[".", "elapsed", "("], &["UNIX_EPOCH"]],
        may: &["app"],
    },
    Only {
        act: "exit or print an error",
        tokens: &[
            &["process", ":", ":", "exit"],
            &["exit", "("],
            &["abort", "("],
            &["eprintln", "!"],
            &["eprint", "!"],
        ],
        may: &["main"],
    },
    Only {
        act: "read the environment",
        tokens: &[
            &["env", ":", ":", "{"],
            &["env", ":", ":", "var"],
            &["env", ":", ":", "var_os"],
            &["env", ":", ":", "vars"],
            &["env", ":", ":", "vars_os"],
            &["env", ":", ":", "set_var"],
            &["env", ":", ":", "remove_var"],
            &["option_env", "!"],
        ],
        may: &["config"],
    },
    Only {
        act: "share state",
        tokens: &[&["RwLock"], &["thread_local"], &["static", "mut"]],
        may: &[],
    },
];

/// The files that hold an engine: the one task, what it saves and sums up for it, and what reads recordings.
const ENGINE_OWNERS: &[&str] = &["analysis", "app", "commands::explain", "commands::playback"];

/// Inputs, and what feeds the engine beside them.
const FEEDERS: &[&str] = &["app::collectors", "input"];

fn acts(house: &House, only: &Only) -> Vec<String> {
    let others = house.files.iter().filter(|file| !file.is_in_any(only.may));
    let of_file = |file: &Source| {
        let places = only.tokens.iter().flat_map(|tokens| file.places(tokens));
        file.at(places.collect::<Vec<_>>())
    };
    others.flat_map(of_file).collect()
}

fn engines(house: &House) -> Vec<String> {
    let others = house.files.iter().filter(|file| !file.is_in_any(ENGINE_OWNERS));
    others.flat_map(|file| file.at(naming(file, "crate::analysis::engine::Engine"))).collect()
}

fn steering(house: &House) -> Vec<String> {
    let feeders = house.files.iter().filter(|file| file.is_in_any(FEEDERS));
    feeders.flat_map(|file| file.at(naming(file, "crate::analysis::status"))).collect()
}

/// Where a file names something by its path.
fn naming(file: &Source, path: &str) -> Vec<(String, usize)> {
    let wanted: Vec<String> = path.split("::").map(str::to_owned).collect();
    let named = file.paths.iter().filter(|(path, _)| path.starts_with(&wanted));
    named.map(|(path, line)| (path.join("::"), *line)).collect()
}

#[test]
fn each_effect_has_its_one_place() {
    for only in &ONLY {
        holds(only.act, &acts(House::standing(), only));
    }
}

#[test]
fn one_task_owns_the_engine() {
    holds("engines", &engines(House::standing()));
}

#[test]
fn no_input_reads_the_published_status() {
    holds("steering", &steering(House::standing()));
}

#[test]
fn a_planted_effect_is_found() {
    for (act, text) in [
        ("spawn", "fn f() { tokio::spawn(g()); }"),
        ("spawn", "fn f(s: &S) { s.tasks.spawn(g()); }"),
        ("spawn", "use tokio::task::JoinSet;"),
        ("spawn", "use std::thread; fn f() { thread::Builder::new(); }"),
        ("spawn", "fn f() { tokio::task::spawn_blocking(g); }"),
        ("read the clock", "fn f() { std::time::Instant::now(); }"),
        ("read the clock", "use std::time::SystemTime as T; use std::time::UNIX_EPOCH;"),
        ("read the clock", "fn f() { SystemTime::now(); }"),
        ("read the clock", "fn f(since: Instant) { since.elapsed(); }"),
        ("exit or print an error", "fn f() { std::process::exit(1); }"),
        ("exit or print an error", "use std::process::exit; fn f() { exit(1); }"),
        ("exit or print an error", "fn f() { eprintln!(\"error\"); }"),
        ("exit or print an error", "fn f() { std::process::abort(); }"),
        ("read the environment", "fn f() { std::env::var(\"HOME\"); }"),
        ("read the environment", "use std::env::{self, var as seen};"),
        ("read the environment", "use std::env; fn f() { env::vars_os(); }"),
        ("read the environment", "const A: Option<&str> = option_env!(\"A\");"),
        ("share state", "static mut N: u32 = 0;"),
        ("share state", "struct S(std::sync::RwLock<u8>);"),
    ] {
        let broken = |path: &str| -> Vec<&str> {
            let house = House::planted(&[(path, text)]);
            ONLY.iter()
                .filter(|only| !acts(&house, only).is_empty())
                .map(|only| only.act)
                .collect()
        };
        assert_eq!(broken("src/net/server.rs"), [act], "{text}");
        let only = ONLY.iter().find(|only| only.act == act).unwrap();
        if let Some(may) = only.may.first() {
            assert_eq!(broken(&format!("src/{may}.rs")), [""; 0], "{text}");
        }
    }
}

#[test]
fn a_planted_second_engine_is_found() {
    for (path, text) in [
        ("src/output/web.rs", "use crate::analysis::engine::{Engine};"),
        ("src/commands/demo.rs", "fn f() { crate::analysis::engine::Engine::new(); }"),
    ] {
        assert_eq!(engines(&House::planted(&[(path, text)])).len(), 1, "{path}: {text}");
    }
    let free = [("src/commands/demo.rs", "use crate::analysis::engine::EngineConfig;")];
    assert_eq!(engines(&House::planted(&free)), [""; 0]);
}

#[test]
fn planted_steering_is_found() {
    for (path, text) in [
        ("src/input/push/inbox.rs", "use crate::analysis::status::Status;"),
        ("src/app/collectors/nvml.rs", "fn f(s: &crate::analysis::status::Status) {}"),
        ("src/app/collectors.rs", "use crate::analysis::{engine, status};"),
    ] {
        assert_eq!(steering(&House::planted(&[(path, text)])).len(), 1, "{path}: {text}");
    }
    let free = [("src/app/clock.rs", "use crate::analysis::status::Status;")];
    assert_eq!(steering(&House::planted(&free)), [""; 0]);
}
