//! The commands that end.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The outcome of a command that ends.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
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
    // It may end before it has read everything.
    child.stdin.take().expect("piped").write_all(input).ok();
    let output = child.wait_with_output().unwrap();
    Ended {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}
