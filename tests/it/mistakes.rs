//! What a person gets who names a wrong file, a missing one or a wrong value: the same exit code everywhere, and a
//! sentence that says what to do.

use std::fs;
use std::net::TcpListener;
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
    ended.fails(2, &format!("cannot compare: {users}: not a summary (final_summary.json): no JSON at line 1, column 1"));
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
            let answer = |path: &str| stepmem(&[command, &[path]].concat(), &[], b"");
            let answered = answer(&of);
            // Of several runs it is said which was read.
            let is_said = answered.err.contains(
                "logs: reading the launch that wrote last, llm/2026-11-22T16-43-11\n",
            );
            assert_eq!(is_said, of.ends_with("logs"), "{command:?} {of}: {}", answered.err);
            assert_eq!(answered.done(), answer(&latest).quiet(), "{command:?} {of}");
        }
        let to = path("report.html");
        let written = stepmem(&["summary", "--html", &to, &of], &[], b"");
        assert!(written.err.contains(&format!("Written to {to}\n")), "{}", written.err);
        assert_eq!(written.done(), "");
        assert!(fs::read_to_string(&to).unwrap().contains("Run llm: 4 ranks"));
    }
    // A summary is itself read, and a directory of recordings compared.
    let card = stepmem(&["summary", &format!("{latest}/final_summary.json")], &[], b"").quiet();
    assert_eq!(card, stepmem(&["summary", &latest], &[], b"").quiet());
    for launch in ["2026-11-21T16-43-11", "2026-11-22T16-43-11"] {
        fs::remove_file(folder.path(&format!("logs/llm/{launch}/final_summary.json"))).unwrap();
    }
    let leaky = path("logs/llm/2026-11-21T16-43-11");
    for leaky in [format!("{leaky}/steps.jsonl"), leaky] {
        let arguments = ["compare", "--json", &leaky, &path("logs/llm")];
        let compared: Value =
            serde_json::from_str(&stepmem(&arguments, &[], b"").quiet()).unwrap();
        assert_eq!(compared["verdict"], "IMPROVEMENT", "{compared}");
        let notes = compared["notes"].as_array().unwrap();
        let is_going_on =
            |of: &Value| of == "the new run was going on when its summary was written";
        assert!(notes.iter().any(is_going_on), "{compared}");
    }
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
    for size in ["20GG", "20"] {
        let condition = format!("any,peak:{size}");
        let gate = stepmem(&["run", "--fail-on", &condition, "--", "true"], &[], b"");
        gate.fails(
            2,
            &format!("\"{size}\" is not a size with its unit, such as 20GiB or 20GB"),
        );
    }
    let exporter = Exporter::start(&["--push.body-max", "2000"]);
    let answer = exporter.post(" ".repeat(2001));
    check_problem(&answer, 413, "the decoded body exceeds 2000 bytes (--push.body-max)");
}

/// Settings that name something that cannot be used: the setting, its value, and the reason.
fn unusable(folder: &Folder, taken: &str) -> Vec<(&'static str, String, String)> {
    let occupied = folder.write("file", "");
    let below = format!("{occupied}/below");
    let missing = text(&folder.path("missing/file"));
    let kernels = "/proc/stepmem".to_owned();
    let (no_folder, no_file) = ("Not a directory", "No such file or directory");
    // An address for documents, which no machine has.
    let foreign = "203.0.113.7:9477".to_owned();
    let listens = format!("cannot listen on {taken}");
    [
        ("summary.dir", &below, no_folder),
        ("summary.dir", &occupied, "not a directory"),
        ("record.directory", &below, no_folder),
        ("record.directory", &occupied, "not a directory"),
        ("state.file", &below, "not a directory"),
        ("state.file", &missing, no_file),
        ("state.file", &text(&folder.path("")), "is a directory"),
        ("push.unix-socket", &missing, no_file),
        ("push.unix-socket", &occupied, "exists and is not a socket"),
        ("web.listen-address", &taken.to_owned(), &listens),
        ("push.listen-address", &taken.to_owned(), &listens),
        ("web.listen-address", &foreign, "203.0.113.7 is not an address of this machine: give"),
        ("nvml.library", &missing, no_file),
        // Even root makes no file there, though it may write.
        ("summary.dir", &kernels, "nothing can be made in /proc"),
        ("record.directory", &kernels, "nothing can be made in /proc"),
        ("state.file", &kernels, "nothing can be made in /proc"),
    ]
    .map(|(setting, value, why)| (setting, value.clone(), why.to_owned()))
    .to_vec()
}

/// Ports that are free, unless the setting is that of one.
fn free_ports(but: &str) -> Vec<&'static str> {
    let ports =
        [["--web.listen-address", "127.0.0.1:0"], ["--push.listen-address", "127.0.0.1:0"]];
    ports.into_iter().filter(|[flag, _]| !flag.ends_with(but)).flatten().collect()
}

#[test]
fn what_an_exporter_cannot_use_is_said_alike_by_check_and_start_and_left_out_next_to_training()
{
    let folder = Folder::new("unusable");
    // Another program listens there, and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    for (setting, value, why) in unusable(&folder, &taken) {
        let flag = format!("--{setting}");
        let nvml: &[&str] = if setting == "nvml.library" { &[] } else { &["--no-nvml"] };
        let of_all =
            |command| [&[command, &*flag, &*value][..], &free_ports(setting), nvml].concat();
        let checked = stepmem(&of_all("check"), &[], b"");
        checked.fails(1, &format!("error: {setting}: "));
        assert!(checked.err.contains(&why) && checked.err.contains(&value), "{}", checked.err);
        let started = stepmem(&of_all("serve"), &[], b"");
        started.fails(1, &checked.err);
        let arguments = [&["--sidecar", &*flag, &*value][..], nvml].concat();
        let exporter = match setting {
            "nvml.library" => Exporter::start_command("serve", &arguments, &[]),
            _ => Exporter::start_sidecar(&[&flag, &value], &[]),
        };
        let series = format!("stepmem_startup_problem{{setting=\"{setting}\"}}");
        assert_eq!(exporter.metric(&series), Some(1.0), "{setting} {value}");
    }
    drop(listener);
}

#[test]
fn every_problem_of_a_start_is_in_one_message() {
    let folder = Folder::new("all-unusable");
    let missing = text(&folder.path("missing/file"));
    let keys = ["--state.file", "--push.unix-socket", "--nvml.library"];
    let given: Vec<&str> = keys.into_iter().flat_map(|key| [key, &missing]).collect();
    for command in ["check", "serve"] {
        let ended = stepmem(&[&[command], &given[..], &free_ports("")].concat(), &[], b"");
        assert_eq!(ended.code, Some(1));
        for key in keys {
            ended.fails(1, &format!("{}: ", key.trim_start_matches("--")));
        }
    }
    assert!(!folder.path("missing").exists());
}

#[test]
fn check_next_to_a_live_exporter_only_notes_what_that_listens_on() {
    let folder = Folder::new("check-live");
    let (socket, state) = (text(&folder.path("push.sock")), text(&folder.path("state")));
    let own = ["--no-nvml", "--push.unix-socket", &socket, "--state.file", &state];
    let exporter = Exporter::start(&own[1..]);
    let (web, push) = (exporter.web.to_string(), exporter.push.to_string());
    let ports = ["--web.listen-address", &web, "--push.listen-address", &push];
    let checked = stepmem(&[&["check"], &own[..], &ports].concat(), &[], b"").quiet();
    let in_use = "; in use by a stepmem that runs: stop that before you start another\n";
    for place in
        [&format!("{web}/metrics"), &format!("{push}/v1/steps"), "push.sock (mode 666)"]
    {
        assert!(checked.contains(&format!("{place}{in_use}")), "{place}: {checked}");
    }
    exporter.post("[]");
    let short = folder.write("token", "secret");
    let warned = stepmem(&["check", "--no-nvml", "--push.token-file", &short], &ANY_PORTS, b"");
    let warning = "push.token-file: {}: the token is short, with 6 bytes: use at least 16";
    assert!(warned.done().contains(&warning.replace("{}", &short)));
}

#[test]
fn address_of_two_listeners_is_refused_by_both_settings() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (one, any) = (free.to_string(), format!(":{}", free.port()));
    for command in ["check", "serve"] {
        for (web, push) in [(&one, &one), (&any, &one)] {
            let ports = ["--web.listen-address", web, "--push.listen-address", push];
            let ended = stepmem(&[&[command, "--no-nvml"], &ports[..]].concat(), &[], b"");
            let said =
                format!("error: push.listen-address: {one} is also of web.listen-address: ");
            ended.fails(1, &said);
        }
        let twice = ["--web.listen-address", &one, "--web.listen-address", &one];
        let ended = stepmem(&[&[command, "--no-nvml"], &twice[..]].concat(), &[], b"");
        ended.fails(1, &format!("web.listen-address: {one} is also of web.listen-address: "));
    }
}

#[test]
fn mistake_on_the_command_line_of_run_is_an_error_before_anything_starts() {
    let folder = Folder::new("run-mistakes");
    let (started, missing) =
        (text(&folder.path("started")), text(&folder.path("none/of.toml")));
    for (flag, why) in [
        ("--config.file", "No such file or directory"),
        ("--summary-json", "No such file or directory"),
        ("--fail-on", "expected creep, pressure, imbalance or any"),
    ] {
        let of = ["run", "--summary.dir", "", flag, &missing, "--", "touch", &started];
        let ended = stepmem(&of, &ANY_PORTS, b"");
        assert!(ended.code.is_some_and(|code| code > 0), "{flag}: {}", ended.err);
        let said = words(&ended.err);
        assert!(said.contains(&missing) && said.contains(why), "{flag}: {said}");
        assert!(!folder.path("started").exists(), "{flag}");
    }
    // What only the environment names wrongly keeps no training from running.
    let variables = [&ANY_PORTS[..], &[("STEPMEM_CONFIG_FILE", &*missing)]].concat();
    let ended =
        stepmem(&["run", "--summary.dir", "", "--", "touch", &started], &variables, b"");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(folder.path("started").exists());
}

#[test]
fn what_is_probably_a_mistake_is_warned_of() {
    let of = |arguments: &[&str]| {
        stepmem(&[&["check", "--no-nvml"], arguments].concat(), &ANY_PORTS, b"").quiet()
    };
    for (flag, value, warning) in [
        ("--deadline", "2020-01-01T00:00:00Z", "deadline: this time is over"),
        (
            "--snapshot.read-directory",
            "/nowhere",
            "snapshot.read-directory: /nowhere: No such file or directory (os error 2); no snapshot is read until it can be",
        ),
    ] {
        assert!(words(&of(&[flag, value])).contains(warning), "{}", of(&[flag, value]));
    }
    assert!(!of(&["--deadline", "90m"]).contains("warning"));
}

#[test]
fn refused_value_is_written_as_it_was_given() {
    let folder = Folder::new("as-given");
    let recording = folder.write("steps.jsonl", &Job::leaking("llm", 0..100, 0).recording());
    let ack =
        ["ack", "--run", "r", "--rank", "0", "--kind", "CREEP_CONFIRMED", "--reason", "r"];
    for (arguments, said) in [
        (
            &["check", "--rank.ttl", "-5m"][..],
            "a value that begins with - follows a =, as in --rank.ttl=-5m",
        ),
        (
            &[&ack[..], &["--for", "1y"]].concat(),
            "'1y' for '--for <DURATION>': it is outside 1 s to 30 d",
        ),
        (&["summary", "--html", "/", &recording], "/: is a directory: name a file"),
    ] {
        stepmem(arguments, &[], b"").fails(2, said);
    }
    let file = folder.write("powers.yaml", "rank.max: 1e3\n");
    let of_file = ["check", "--no-nvml", "--config.file", &file];
    stepmem(&of_file, &ANY_PORTS, b"").quiet();
}

#[test]
fn sentences_of_run_break_between_words_where_the_terminal_is_narrow() {
    let folder = Folder::new("run-columns");
    let path = folder
        .path("a-directory-with-a-long-name-that-nobody-breaks/with-a-file-in-it/of.toml");
    let path = text(&path);
    let arguments = ["run", "--summary.dir", "", "--", "true"];
    let ended = |columns: &str| {
        let of_run = [("COLUMNS", columns), ("STEPMEM_CONFIG_FILE", &*path)];
        let variables = [&ANY_PORTS[..], &of_run].concat();
        stepmem(&arguments, &variables, b"").err
    };
    let (wide, narrow) = (ended("1000"), ended("80"));
    // The page, which is told last, has another port each time.
    let told = |text: &str| {
        let problem = text.split_once("config.file").unwrap().1;
        words(problem.split_once("stepmem: watching").unwrap().0)
    };
    assert_eq!(told(&wide), told(&narrow));
    assert!(wide.lines().any(|line| line.len() > 80), "{wide}");
    let is_one_word = |line: &str| !line.trim().contains(' ');
    assert!(narrow.lines().all(|line| line.len() <= 80 || is_one_word(line)), "{narrow}");
}
