//! `stepmem completions`: a script that completes commands, flags and values in a shell, made
//! from the table of commands.

use std::io::{Write, stdout};

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command};
use clap_complete::Shell;

use crate::commands::args::{CommandError, Exit, GeneratorRow};

/// `stepmem completions`.
pub(super) const COMPLETIONS: GeneratorRow =
    GeneratorRow { name: "completions", arguments, run };

/// The shells with a script, by name.
const SHELLS: [(&str, Shell); 3] =
    [("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)];

fn arguments() -> Command {
    Command::new("completions")
        .about(
            "Print a completion script for a shell, as in source <(stepmem completions bash)",
        )
        .arg(
            Arg::new("SHELL")
                .required(true)
                .value_parser(PossibleValuesParser::new(SHELLS.map(|(name, _)| name)))
                .help("The shell"),
        )
}

fn run(matches: &ArgMatches, mut program: Command) -> Result<Exit, CommandError> {
    let named = matches.get_one::<String>("SHELL");
    let shell = SHELLS.iter().find(|(name, _)| named.is_some_and(|named| named == name));
    let Some((_, shell)) = shell else { return Ok(Exit::Usage) };
    let name = program.get_name().to_owned();
    // A closed output would stop the generator without an error that can be returned.
    let mut script = Vec::new();
    clap_complete::generate(*shell, &mut program, name, &mut script);
    stdout().lock().write_all(&script).map_err(anyhow::Error::from)?;
    Ok(Exit::Success)
}
