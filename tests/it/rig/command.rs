//! The commands that end.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;

/// The outcome of a command that ends.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ended {
    /// Checks that it succeeded, and returns its output.
    #[track_caller]
    pub fn done(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }

    /// Checks that it succeeded without a word on standard error, and returns its output.
    #[track_caller]
    pub fn quiet(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""));
        self.out
    }

    /// The output as JSON, if it succeeded.
    #[track_caller]
    pub fn json(self) -> Value {
        let out = self.done();
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }

    /// Checks that it failed with this code and an error that contains this.
    #[track_caller]
    pub fn fails(&self, code: i32, error: &str) {
        assert_eq!(self.code, Some(code), "{error:?}: {}{}", self.out, self.err);
        assert!(self.err.contains(error), "no {error:?} in {}", self.err);
    }
}

/// Has a command that serves listen on free ports.
pub const ANY_PORTS: [(&str, &str); 2] = [
    ("STEPMEM_WEB_LISTEN_ADDRESS", "127.0.0.1:0"),
    ("STEPMEM_PUSH_LISTEN_ADDRESS", "127.0.0.1:0"),
];

/// A text without its line breaks and columns.
pub fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Replays a recording: the transitions, and the final status.
pub fn replayed(recording: &str) -> (Vec<Value>, Value) {
    let out = stepmem(&["replay", "-"], &[], recording.as_bytes()).done();
    let mut lines: Vec<Value> =
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let status = lines.pop().unwrap()["status"].take();
    (lines, status)
}

/// Runs the binary in a folder to its end.
pub fn stepmem_in(folder: &Path, arguments: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stepmem"));
    run(outside(&mut command).current_dir(folder).args(arguments), b"")
}

/// Runs the binary to its end.
pub fn stepmem(arguments: &[&str], variables: &[(&str, &str)], input: &[u8]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stepmem"));
    outside(&mut command).envs(variables.iter().copied());
    run(command.args(arguments), input)
}

/// Hides that the tests may run in a pod, and how wide a terminal they may have.
fn outside(command: &mut Command) -> &mut Command {
    command.env_remove("KUBERNETES_SERVICE_HOST").env_remove("COLUMNS")
}

fn run(command: &mut Command, input: &[u8]) -> Ended {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut pipe = child.stdin.take().expect("piped");
    let output = thread::scope(|scope| {
        // It may answer before it has read everything, and may end so.
        scope.spawn(move || pipe.write_all(input).ok());
        child.wait_with_output().unwrap()
    });
    Ended {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}
