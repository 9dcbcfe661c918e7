//! The exit code of every command, as docs/commands.md has it: a table of what a person gives, the code and the words.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::Command;
use std::thread;

use crate::rig::command::{ANY_PORTS, stepmem, words};
use crate::rig::folder::{Folder, root, text};
use crate::rig::job::Job;

/// Rows of every command: its arguments, the exit code and a part of the error. `{…}` is a
/// file, a directory or an address of [`places`].
const TABLE: &[(&str, i32, &str)] = &[
    ("surf", 2, "unrecognized subcommand 'surf'"),
    // A file is wrong, or what is asked is not in it.
    ("summary --surprise {steps}", 2, "unexpected argument '--surprise'"),
    ("summary --policy ours {steps}", 2, "[possible values: stepmem, traceml]"),
    ("summary --window 5 {steps}", 2, "--window needs --policy traceml"),
    ("summary --window 0 {steps}", 2, "'0' for '--window <STEPS>'"),
    (
        "summary --run nope {steps}",
        2,
        "steps.jsonl: the recording has no run nope; it has: llm",
    ),
    ("summary {two}", 2, "two.jsonl: the recording has 2 runs; name one with --run: a, b"),
    ("summary --policy traceml {two}", 2, "name one with --run: a, b"),
    ("summary --html {folder} {steps}", 2, "folder: is a directory: name a file"),
    ("summary --html {none} {steps}", 2, "none/out: No such file or directory"),
    ("summary --html {below} {steps}", 2, "below: Not a directory"),
    ("summary --url nonsense", 2, "--url: nonsense is none of http://HOST:PORT"),
    ("summary --url http://127.0.0.1:1", 1, "no exporter answers at http://127.0.0.1:1"),
    ("summary --rank.ttl soon {steps}", 1, "--rank.ttl: \"soon\" is not a duration"),
    (
        "summary --config.file {missing} {steps}",
        1,
        "--config.file: {missing}: No such file or directory",
    ),
    (
        "explain --run nope --rank 0 {steps}",
        2,
        "steps.jsonl: no train step of rank 0 of run nope",
    ),
    ("explain --rank 7 {steps}", 2, "run llm has the ranks 0, 1, 2, 3"),
    ("explain --rank 1048576 {steps}", 2, "1048576 is not in 0..=1048575"),
    ("explain {steps}", 2, "run llm has 4 ranks; name one with --rank"),
    ("explain --pid 7 {steps}", 2, "no reading of an unmanaged process 7"),
    ("explain --url http://127.0.0.1:1 --rank 0", 1, "no exporter answers"),
    ("replay --policy ours {steps}", 2, "[possible values: stepmem, traceml]"),
    ("replay --rank.ttl soon {steps}", 1, "--rank.ttl"),
    ("compare {steps}", 2, "required arguments"),
    // Where 1 is a regression, all that cannot be compared is 2.
    ("compare --prometheus http://127.0.0.1:1 --run a", 2, "no Prometheus answers"),
    ("judge http://127.0.0.1:1", 2, "http://127.0.0.1:1 needs --query"),
    ("judge http://127.0.0.1:1 --query up", 1, "no Prometheus answers"),
    ("judge nonsense --query up", 2, "URL: nonsense is neither http://HOST nor https://HOST"),
    ("judge http://127.0.0.1:1 --query up --until 3d", 2, "--until is not after --since"),
    ("judge --column nope {table}", 2, "nope"),
    ("judge --unit parsec {table}", 2, "'parsec' for '--unit <UNIT>'"),
    ("judge --capacity 20GG {table}", 2, "'20GG' for '--capacity <SIZE>'"),
    ("judge --html {none} {table}", 2, "none/out: No such file or directory"),
    ("snapshot show --at 9999 {snapshot}", 2, "no step 9999, the snapshot has steps"),
    ("snapshot show --html {none} {snapshot}", 2, "none/out: No such file or directory"),
    ("snapshot events --step 9999 {snapshot}", 2, "--step: the snapshot has no step 9999"),
    // An exporter is asked.
    ("snapshot take --run a --rank 0 --steps 1001", 2, "'1001' for '--steps <N>'"),
    ("snapshot take --run a --rank 0 --url http://127.0.0.1:1", 1, "no exporter answers"),
    ("status --url nonsense", 2, "--url: nonsense is none of http://HOST:PORT"),
    ("status --url http://127.0.0.1:1", 1, "no exporter answers"),
    ("status --rank 1048576", 2, "1048576 is not in 0..=1048575"),
    (
        "status --prometheus nonsense --run a",
        2,
        "--prometheus: nonsense is neither http://HOST nor",
    ),
    ("status --prometheus http://127.0.0.1:1 --run a", 1, "no Prometheus answers"),
    ("status --prometheus http://127.0.0.1:1", 2, "--run <RUN>"),
    ("ack --device GPU-a --kind GPU_LOST --reason r --for 1y", 2, "it is outside 1 s to 30 d"),
    ("ack --device GPU-a --kind LOST --reason r", 2, "expected one of"),
    (
        "ack --device GPU-a --kind GPU_LOST --reason r --url http://127.0.0.1:1",
        1,
        "no exporter",
    ),
    ("end --run a --url nonsense", 2, "--url: nonsense is none of http://HOST:PORT"),
    ("end --run a --url http://127.0.0.1:1", 1, "no exporter answers"),
    ("end --run a --user b", 2, "--user needs --password-file"),
    ("end --run a --password-file {steps}", 2, "--password-file needs --user"),
    ("end --run a --key-file {steps}", 2, "--key-file needs --cert-file"),
    ("release --for 2d", 2, "it is outside 0 s to 1 d"),
    ("release --for 1h --url http://127.0.0.1:1", 1, "no exporter answers"),
    // Settings, wherever they stand, and the start.
    ("check --surprise", 2, "unexpected argument '--surprise'"),
    ("check --url nonsense", 2, "--url: nonsense is none of http://HOST:PORT"),
    ("check --url http://127.0.0.1:1", 1, "no exporter answers"),
    ("check --no-nvml --rank.ttl soon", 1, "--rank.ttl"),
    (
        "check --no-nvml --config.file {missing}",
        1,
        "--config.file: {missing}: No such file or directory",
    ),
    ("check --no-nvml --push.token-file {empty}", 1, "--push.token-file: "),
    (
        "check --no-nvml --push.token-file {empty}",
        1,
        "a token of 0 bytes is not one of 1 to 4096",
    ),
    ("end --run a --token-file {empty}", 2, "--token-file: {empty}: the file has no token"),
    ("end --run a --user b --password-file {empty}", 2, "{empty}: the file has no password"),
    ("end --run a --ca-file {empty}", 2, "--ca-file: {empty}: the file has no certificate"),
    (
        "end --run a --cert-file {missing}",
        2,
        "--cert-file: {missing}: No such file or directory",
    ),
    ("check --no-nvml --web.listen-address {taken}", 1, "web.listen-address: "),
    ("serve --no-nvml --web.listen-address {taken}", 1, "web.listen-address: "),
    ("serve --no-nvml --push.token-file {missing}", 1, "--push.token-file: "),
    ("serve --rank.tll 1s", 2, "unexpected argument '--rank.tll'"),
    ("demo --leak-mib 0", 2, "'0' for '--leak-mib <MIB>'"),
    ("demo --web.config.file {missing}", 1, "--web.config.file: "),
    ("settings --all", 2, "unexpected argument '--all'"),
    ("completions tcsh", 2, "'tcsh' for '<SHELL>'"),
    ("man nothing", 2, "\"nothing\" is not a command of stepmem"),
    ("man --directory {missing}", 2, "missing/stepmem.1: No such file or directory"),
    // A command is run.
    ("run --surprise -- true", 2, "unexpected argument '--surprise'"),
    ("run --fail-on all -- true", 2, "'all' for '--fail-on <CONDITION,…>'"),
    ("run --fail-on any,peak:20GG -- true", 2, "\"20GG\" is not a size with its unit"),
    ("run --summary-json {none} -- true", 2, "--summary-json: "),
    ("run --restart-on-deadline --attempts {none} -- true", 2, "--attempts: "),
    ("run --rank.ttl soon -- true", 1, "--rank.ttl"),
    (
        "run --config.file {missing} -- true",
        1,
        "--config.file: {missing}: No such file or directory",
    ),
    ("run --summary.dir= -- false", 1, ""),
    ("run --summary.dir= -- {missing}", 127, "missing"),
    ("run --summary.dir= -- {steps}", 126, "steps.jsonl"),
];

/// Every file argument of every command, with its place as `{}`.
const FILES: &[&str] = &[
    "summary {}",
    "summary --html {none} {}",
    "summary --policy traceml {}",
    "explain --rank 0 {}",
    "replay {}",
    "compare {} {}",
    "compare {steps} {}",
    "judge {}",
    "snapshot show {}",
    "snapshot diff {} {}",
    "snapshot ranks {} {}",
    "snapshot events {}",
    "end --run a --url http://127.0.0.1:1 --token-file {}",
    "end --run a --url http://127.0.0.1:1 --user b --password-file {}",
    "end --run a --url https://127.0.0.1:1 --cert-file {}",
    "status --url https://127.0.0.1:1 --ca-file {}",
    "status --prometheus http://127.0.0.1:1 --run a --token-file {}",
    "run --fail-on peak:+10%:{} -- true",
];

/// The files and directories of the table, and an address on which another program listens.
fn places(folder: &Folder, taken: &str) -> Vec<(&'static str, String)> {
    let two = ["a", "b"].map(|run| Job::new(1, 5).run(run).recording());
    fs::create_dir(folder.path("folder")).unwrap();
    let users = folder.write("users", "root:x:0:0:root:/root:/bin/sh\n");
    let snapshot = "tests/data/snapshots/vectors/before_after.step10.pickle.gz";
    vec![
        ("{below}", format!("{users}/below")),
        ("{users}", users),
        ("{empty}", folder.write("empty", "")),
        ("{missing}", text(&folder.path("missing"))),
        ("{folder}", text(&folder.path("folder"))),
        ("{none}", text(&folder.path("none/out"))),
        ("{steps}", folder.write("steps.jsonl", &Job::leaking("llm", 0..100, 0).recording())),
        ("{two}", folder.write("two.jsonl", &two.concat())),
        ("{table}", folder.write("memory.csv", "time,memory.used [MiB]\n1,100\n2,100\n")),
        ("{snapshot}", text(&root().join(snapshot))),
        ("{taken}", taken.to_owned()),
    ]
}

/// Runs a row of the table, and checks its code and its words.
#[track_caller]
fn check(row: &str, places: &[(&'static str, String)], code: i32, part: &str) {
    let with = |word: &str| {
        places.iter().fold(word.to_owned(), |word, (name, path)| word.replace(name, path))
    };
    let arguments: Vec<String> = row.split(' ').map(with).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = stepmem(&arguments, &ANY_PORTS, b"");
    let said = words(&format!("{}{}", ended.out, ended.err));
    assert_eq!(ended.code, Some(code), "{row}: {said}");
    let part = with(part);
    assert!(said.contains(&part), "{row}: no {part:?} in {said}");
}

#[test]
fn every_command_ends_with_the_code_of_the_table() {
    let folder = Folder::new("exit-codes");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let places = places(&folder, &listener.local_addr().unwrap().to_string());
    for (row, code, part) in TABLE {
        check(row, &places, *code, part);
    }
    drop(listener);
}

#[test]
fn file_that_cannot_be_read_or_is_something_else_is_2_in_every_command_and_is_named() {
    let folder = Folder::new("exit-codes-files");
    let places = places(&folder, "");
    for row in FILES {
        for (place, part) in [
            ("{missing}", "missing: No such file or directory"),
            ("{folder}", "folder: "),
            ("{below}", "below: Not a directory"),
            ("{users}", "users"),
            ("{empty}", "empty"),
        ] {
            // TraceML's policy judges nothing, too; any text is a password or token.
            let is_password = row.contains("--password-file") || row.contains("--token-file");
            if place == "{empty}" && row.contains("traceml")
                || place == "{users}" && is_password
            {
                continue;
            }
            check(&row.replace("{}", place), &places, 2, part);
        }
    }
}

#[test]
fn directory_without_what_is_sought_is_said_alike_by_every_command() {
    let folder = Folder::new("exit-codes-nothing");
    let places = places(&folder, "");
    let recording = "folder: the directory has no recording (*.jsonl, .gz, .zst)";
    let either = "folder: the directory has no summary (final_summary.json) and no recording (*.jsonl, .gz, .zst)";
    let summary = "folder: the directory has no summary (final_summary.json)";
    let file = "folder: is a directory: name a file";
    for (row, part) in [
        ("summary {folder}", either),
        ("compare {folder} {steps}", either),
        ("summary --html {none} {folder}", recording),
        ("summary --policy traceml {folder}", recording),
        ("explain {folder}", recording),
        ("replay {folder}", recording),
        ("run --fail-on peak:+10%:{folder} -- true", summary),
        ("judge {folder}", file),
        ("snapshot show {folder}", file),
        ("snapshot diff {folder} {snapshot}", file),
        ("snapshot events {folder}", file),
    ] {
        check(row, &places, 2, part);
    }
}

#[test]
fn document_goes_into_a_pipe_and_does_not_replace_it() {
    let folder = Folder::new("exit-codes-pipe");
    let steps = folder.write("steps.jsonl", &Job::leaking("llm", 0..100, 0).recording());
    let pipe = text(&folder.path("pipe"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Open for both, it waits for no writer.
    let file = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let reader = thread::spawn(move || {
        let lines = BufReader::new(file).lines().map(Result::unwrap);
        lines.take_while(|line| !line.ends_with("</html>")).count()
    });
    stepmem(&["summary", "--html", &pipe, &steps], &[], b"").done();
    assert!(!fs::metadata(&pipe).unwrap().is_file());
    assert!(reader.join().unwrap() > 0);
}

#[test]
fn error_names_the_variable_that_has_the_value() {
    let folder = Folder::new("exit-codes-variables");
    let (missing, empty) = (text(&folder.path("missing")), folder.write("empty", ""));
    let end = ["end", "--run", "a"];
    let url = ["end", "--run", "a", "--url", "https://127.0.0.1:1"];
    for (arguments, variable, value, part) in [
        (&end[..], "STEPMEM_PUSH_URL", "nonsense", "nonsense is none of http://HOST:PORT"),
        (&url, "STEPMEM_PUSH_TOKEN_FILE", &*missing, "missing: No such file or directory"),
        (&url, "STEPMEM_ADMIN_TOKEN_FILE", &*empty, "empty: the file has no token"),
        (&url, "STEPMEM_PUSH_CA_FILE", &*empty, "empty: the file has no certificate"),
        (&url, "STEPMEM_PUSH_CERT_FILE", &*missing, "missing: No such file or directory"),
    ] {
        let ended = stepmem(arguments, &[(variable, value)], b"");
        let error = format!("error: {variable}: ");
        assert!(ended.err.starts_with(&error), "{variable}: {}", ended.err);
        ended.fails(2, part);
    }
    let settings = [&ANY_PORTS[..], &[("STEPMEM_CONFIG_FILE", &*missing)]].concat();
    let part = format!("error: STEPMEM_CONFIG_FILE: {missing}: No such file or directory");
    stepmem(&["check", "--no-nvml"], &settings, b"").fails(1, &part);
}
