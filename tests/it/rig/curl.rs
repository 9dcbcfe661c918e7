//! curl, as an operator runs it.

use std::process::Command;

/// The result of a run of curl.
#[derive(Debug)]
pub struct Curled {
    /// The exit code: 60 where curl does not trust the server's certificate.
    pub code: i32,
    /// The status of the answer; 0 without one.
    pub status: u16,
    pub body: String,
}

/// Runs curl to its end.
pub fn curl(arguments: &[&str]) -> Curled {
    let output = Command::new("curl")
        .args([
            "--silent",
            "--noproxy",
            "*",
            "--max-time",
            "30",
            "--write-out",
            "\n%{http_code}",
        ])
        .args(arguments)
        .output()
        .expect("no curl: run make tools");
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    Curled {
        code: output.status.code().unwrap(),
        status: status.parse().unwrap(),
        body: body.to_owned(),
    }
}
