//! A reader of our output that has seen enough, as in `stepmem replay … | head -1`, is not an error of the command.

use std::io;
use std::process::{Command, Stdio};

use crate::rig::exporter::Exporter;
use crate::rig::folder::Folder;
use crate::rig::job::Job;
use crate::rig::summary::summary;
use crate::rig::units::GIB;

/// Runs a command whose output nothing reads any more, and returns its exit code and its errors.
fn into_closed_pipe(arguments: &[&str]) -> (Option<i32>, String) {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_stepmem"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(writer)
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn commands_whose_output_pipe_is_closed_succeed() {
    let folder = Folder::new("closed-output");
    let records = Job::new(2, 300).live(|_, step| 30 * GIB + step).recording();
    let recording = folder.write("job.jsonl", &records);
    let old = folder.write("old.json", &summary(&records).to_string());
    let exporter = Exporter::start(&[]);
    let url = format!("http://{}", exporter.web);
    for arguments in [
        &["compare", &old, &old][..],
        &["compare", "--json", &old, &old],
        &["replay", &recording],
        &["replay", "--policy", "traceml", &recording],
        &["summary", &recording],
        &["summary", "--json", &recording],
        &["explain", "--rank", "0", &recording],
        &["check", "--no-nvml"],
        &["status", "--url", &url],
        &["--help"],
        &["serve", "--help"],
        &["--version"],
    ] {
        let ended = into_closed_pipe(arguments);
        assert_eq!(ended, (Some(0), String::new()), "{arguments:?}");
    }
}

#[test]
fn verdict_holds_when_the_output_pipe_is_closed() {
    let folder = Folder::new("closed-verdict");
    let of = |leak: u64| {
        let records = Job::new(1, 1500).live(move |_, step| 30 * GIB + step * leak).recording();
        summary(&records).to_string()
    };
    let (old, new) = (folder.write("old", &of(0)), folder.write("new", &of(12 << 20)));
    assert_eq!(into_closed_pipe(&["compare", &old, &new]), (Some(1), String::new()));
}

#[test]
fn error_of_a_command_is_an_error_also_when_its_output_pipe_is_closed() {
    let (code, error) = into_closed_pipe(&["compare", "/nowhere/old", "/nowhere/new"]);
    assert_eq!(code, Some(2));
    assert!(error.starts_with("error: cannot compare: /nowhere/old: "), "{error}");
    let (code, error) = into_closed_pipe(&["replay", "/nowhere/job.jsonl"]);
    assert_eq!(code, Some(2));
    assert!(error.starts_with("error: /nowhere/job.jsonl: "), "{error}");
}
