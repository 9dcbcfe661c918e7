//! Parses, runs, prints the error once, exits: the only file that prints an error or exits.

use std::io::{self, Write};
use std::process::ExitCode;

use stepmem::commands::args::Exit;
use stepmem::commands::{failure, program};

fn main() -> ExitCode {
    match program::run(std::env::args_os()) {
        Ok(exit) => exit.into(),
        // A reader that has seen enough (`| head`) is not an error; a verdict holds without
        // readers.
        Err(stopped) if is_closed_output(&stopped.error) => match stopped.exit {
            Exit::Failure => ExitCode::SUCCESS,
            exit => exit.into(),
        },
        Err(stopped) => {
            // If it cannot be written, the exit code is what remains.
            writeln!(io::stderr(), "error: {}", failure::shown(&stopped.error)).ok();
            stopped.exit.into()
        }
    }
}

fn is_closed_output(error: &anyhow::Error) -> bool {
    let io_kind = error.downcast_ref().map(io::Error::kind);
    let json_kind = error.downcast_ref().and_then(serde_json::Error::io_error_kind);
    io_kind.or(json_kind) == Some(io::ErrorKind::BrokenPipe)
}
