//! Parses, runs, exits: the only file that prints an error or exits.

use std::process::ExitCode;

fn main() -> ExitCode {
    match stepmem::commands::args::run(std::env::args_os()) {
        Ok(code) => code,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the one voice for errors")]
            {
                eprintln!("error: {error:#}");
            }
            stepmem::commands::args::exit_code(&error)
        }
    }
}
