//! The program's command line: parses it and runs a command.

use std::ffi::OsString;

use clap::Command;
use clap::builder::styling::{AnsiColor, Styles};

use crate::commands::COMMANDS;
use crate::commands::args::{CommandError, Exit};

/// Parses the arguments, the program's name first, and runs the command.
///
/// # Errors
/// The command failed. Help and invalid arguments are printed, not returned.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<Exit, CommandError> {
    let matches = match command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => {
            error.print().map_err(anyhow::Error::from)?;
            return Ok(if error.use_stderr() { Exit::Usage } else { Exit::Success });
        }
    };
    // A provider that was installed before stays.
    rustls::crypto::ring::default_provider().install_default().ok();
    let Some((name, matches)) = matches.subcommand() else { return Ok(Exit::Success) };
    let row = COMMANDS.iter().find(|row| row.name == name);
    row.map_or(Ok(Exit::Success), |row| (row.run)(matches))
}

fn command() -> Command {
    let styles = Styles::styled()
        .header(AnsiColor::Green.on_default().bold())
        .literal(AnsiColor::Cyan.on_default().bold())
        .placeholder(AnsiColor::Cyan.on_default());
    Command::new("stepmem")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Finds GPU memory creep in training runs: on which rank, and how long until out-of-memory")
        .styles(styles)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(COMMANDS.iter().map(|row| (row.arguments)()))
}
