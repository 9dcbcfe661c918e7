//! What a person gets who names a wrong file, a missing one or a wrong value: the same exit code everywhere, and a
//! sentence that says what to do.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::rig::command::{ANY_PORTS, stepmem, words};
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::refusals::check_problem;
use crate::rig::units::MIB;

/// Every command that reads a file, with the place of the file as `{}`.
const READERS: [&[&str]; 13] = [
    &["summary", "{}"],
    &["summary", "--html", "/dev/null", "{}"],
    &["summary", "--policy", "traceml", "{}"],
    &["explain", "--rank", "0", "{}"],
    &["replay", "{}"],
    &["compare", "{}", "{}"],
    &["judge", "{}"],
    &["snapshot", "show", "{}"],
    &["snapshot", "diff", "{}", "{}"],
    &["snapshot", "ranks", "{}", "{}"],
    &["snapshot", "events", "{}"],
    &["end", "--run", "r", "--token-file", "{}"],
    &["status", "--url", "https://127.0.0.1:1", "--ca-file", "{}"],
];

#[test]
fn file_that_is_missing_or_something_else_ends_every_command_with_2() {
    let folder = Folder::new("wrong-files");
    fs::create_dir(folder.path("folder")).unwrap();
    let [missing, empty] = ["missing", "folder"].map(|name| text(&folder.path(name)));
    let users = folder.write("users", "root:x:0:0:root:/root:/bin/sh\n");
    for command in READERS {
        let read = |path: &str| {
            let arguments: Vec<&str> =
                command.iter().map(|word| if *word == "{}" { path } else { word }).collect();
            stepmem(&arguments, &[], b"")
        };
        for (path, reason) in
            [(&missing, "No such file or directory"), (&empty, "directory"), (&users, "")]
        {
            // Any text is a token.
            if command[0] == "end" && *path == users {
                continue;
            }
            let ended = read(path);
            let said = words(&format!("{}{}", ended.out, ended.err));
            let name = path.rsplit('/').next().unwrap();
            assert_eq!(ended.code, Some(2), "{command:?} {path}: {said}");
            assert!(said.contains(reason) && said.contains(name), "{command:?}: {said}");
        }
    }
    for reader in [&["summary"][..], &["explain"], &["replay"]] {
        let ended = stepmem(&[reader, &[&users]].concat(), &[], b"");
        let reason = "neither a recording nor a summary: its first line is no JSON object";
        assert_eq!(ended.err, format!("error: {users}: {reason}\n"));
    }
    let ended = stepmem(&["compare", &users, &users], &[], b"");
    ended.fails(2, &format!("cannot compare: {users}: not a summary (final_summary.json): "));
}

#[test]
fn directory_of_a_run_stands_for_its_latest_launch_in_every_command() {
    let folder = Folder::new("run-directory");
    for (launch, growth) in [("2026-11-21T16-43-11", 24 * MIB), ("2026-11-22T16-43-11", 0)] {
        fs::create_dir_all(folder.path(&format!("logs/llm/{launch}"))).unwrap();
        let recording = Job::leaking("llm", 0..900, growth).recording();
        folder.write(&format!("logs/llm/{launch}/steps.jsonl"), &recording);
        let summary = stepmem(&["summary", "--json", "-"], &[], recording.as_bytes()).done();
        folder.write(&format!("logs/llm/{launch}/final_summary.json"), &summary);
        folder.write(&format!("logs/llm/{launch}/launch.json"), "{}");
    }
    symlink("2026-11-22T16-43-11", folder.path("logs/llm/latest")).unwrap();
    symlink("llm/2026-11-22T16-43-11", folder.path("logs/latest")).unwrap();
    let path = |name: &str| text(&folder.path(name));
    let latest = path("logs/llm/latest");
    for of in ["logs", "logs/llm"].map(path) {
        for command in
            [&["summary"][..], &["explain", "--rank", "2"], &["replay"], &["compare", &latest]]
        {
            let answer = |path: &str| stepmem(&[command, &[path]].concat(), &[], b"").quiet();
            assert_eq!(answer(&of), answer(&latest), "{command:?} {of}");
        }
        let to = path("report.html");
        stepmem(&["summary", "--html", &to, &of], &[], b"").quiet();
        assert!(fs::read_to_string(&to).unwrap().contains("Run llm: 4 ranks"));
    }
    // A summary is itself read, and a directory of recordings compared.
    let card = stepmem(&["summary", &format!("{latest}/final_summary.json")], &[], b"").quiet();
    assert_eq!(card, stepmem(&["summary", &latest], &[], b"").quiet());
    for launch in ["2026-11-21T16-43-11", "2026-11-22T16-43-11"] {
        fs::remove_file(folder.path(&format!("logs/llm/{launch}/final_summary.json"))).unwrap();
    }
    let leaky = path("logs/llm/2026-11-21T16-43-11");
    let compared = stepmem(&["compare", "--json", &leaky, &path("logs/llm")], &[], b"").quiet();
    let compared: Value = serde_json::from_str(&compared).unwrap();
    assert_eq!(compared["verdict"], "IMPROVEMENT", "{compared}");
    // The launch before it is never shown for one without a recording.
    fs::remove_file(folder.path("logs/llm/2026-11-22T16-43-11/steps.jsonl")).unwrap();
    let ended = stepmem(&["replay", &path("logs/llm")], &[], b"");
    ended.fails(2, "logs/llm/latest: the directory has no recording");
}

#[test]
fn refusal_names_the_value_the_limit_and_the_setting() {
    let folder = Folder::new("named-limits");
    let socket = text(&folder.path("none/push.sock"));
    let occupied = folder.write("file", "");
    let serve = |key: &str, value: &str| {
        let ports = ["--web.listen-address", "127.0.0.1:0", "--push.listen-address", ""];
        stepmem(&[&["serve", "--no-nvml", key, value][..], &ports].concat(), &[], b"")
    };
    for (key, value) in [
        ("--push.unix-socket", &*socket),
        ("--push.unix-socket", &occupied),
        ("--record.directory", &occupied),
    ] {
        let ended = serve(key, value);
        let setting = key.trim_start_matches("--");
        ended.fails(1, &format!("error: {setting}: "));
        ended.fails(1, value);
    }
    let gate = stepmem(&["run", "--fail-on", "any,peak:20GG", "--", "true"], &[], b"");
    gate.fails(2, "\"20GG\" is no size, such as 20GiB or 20GB");
    let exporter = Exporter::start(&["--push.body-max", "2000"]);
    let answer = exporter.post(" ".repeat(2001));
    check_problem(&answer, 413, "the decoded body exceeds 2000 bytes (--push.body-max)");
}

#[test]
fn sentences_of_run_break_between_words_where_the_terminal_is_narrow() {
    let folder = Folder::new("run-columns");
    let path = folder
        .path("a-directory-with-a-long-name-that-nobody-breaks/with-a-file-in-it/of.toml");
    let arguments = ["run", "--config.file", &text(&path), "--summary.dir", "", "--", "true"];
    let ended = |columns: &str| {
        let variables = [&ANY_PORTS[..], &[("COLUMNS", columns)]].concat();
        stepmem(&arguments, &variables, b"").err
    };
    let (wide, narrow) = (ended("1000"), ended("80"));
    // The page has another port each time.
    let told = |text: &str| words(text.split_once("config.file").unwrap().1);
    assert_eq!(told(&wide), told(&narrow));
    assert!(wide.lines().any(|line| line.len() > 80), "{wide}");
    let is_one_word = |line: &str| !line.trim().contains(' ');
    assert!(narrow.lines().all(|line| line.len() <= 80 || is_one_word(line)), "{narrow}");
}
