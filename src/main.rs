//! Parses, runs, exits: the only file that prints an error or exits.

use std::process::ExitCode;

use stepmem::commands::program;

fn main() -> ExitCode {
    match program::run(std::env::args_os()) {
        Ok(exit) => exit.into(),
        Err(stopped) => {
            #[expect(clippy::print_stderr, reason = "the one voice for errors")]
            {
                eprintln!("error: {:#}", stopped.error);
            }
            stopped.exit.into()
        }
    }
}
