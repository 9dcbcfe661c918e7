//! The program's command line: parses it and runs a command.

use std::ffi::OsString;

use clap::builder::styling::{AnsiColor, Styles};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command};

use crate::commands::args::{CommandError, Exit, GeneratorRow, UNKNOWN_ARGUMENT};
use crate::commands::failure::ERROR_CHARS_MAX;
use crate::commands::reader::Reader;
use crate::commands::{COMMANDS, completions, man, serve};
use crate::config::sources::is_sidecar;
use stepmem_types::format::clean::is_raw;
use stepmem_types::format::page::COLUMNS;
use stepmem_types::url::shown_in;

/// The commands that write about all commands, after those in help. They get the command line
/// that only this file builds.
const GENERATORS: [GeneratorRow; 2] = [completions::COMPLETIONS, man::MAN];

/// Parses the arguments, the program's name first, and runs the command.
///
/// # Errors
/// The command failed. Help and invalid arguments are printed, not returned.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<Exit, CommandError> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let parsed = fitted().try_get_matches_from(&arguments);
    // A mistake repeats arguments, which may be names of others' files.
    let is_plain = !arguments.iter().any(|of| of.to_string_lossy().chars().any(is_raw));
    let matches = match parsed.or_else(|error| parsed_by_a_sidecar(arguments, error)) {
        Ok(matches) => matches,
        Err(error) => {
            let error = with_tip(error);
            let text = error.to_string();
            let shown = shown_in(&text);
            let is_odd = !is_plain || text.len() > ERROR_CHARS_MAX;
            if shown != text || (is_odd && error.use_stderr()) {
                let shown = shown.strip_prefix("error: ").unwrap_or(&shown).trim_end();
                let error = anyhow::Error::msg(shown.to_owned());
                return Err(CommandError { exit: Exit::Usage, error });
            }
            let printed = error.print().map_err(anyhow::Error::from);
            // A mistake that cannot be printed leaves only the exit code.
            return if error.use_stderr() {
                Ok(Exit::Usage)
            } else {
                Ok(printed.map(|()| Exit::Success)?)
            };
        }
    };
    // A provider that was installed earlier stays.
    rustls::crypto::ring::default_provider().install_default().ok();
    let Some((name, matches)) = matches.subcommand() else { return Ok(Exit::Success) };
    if let Some(row) = GENERATORS.iter().find(|row| row.name == name) {
        return (row.run)(matches, command());
    }
    let row = COMMANDS.iter().find(|row| row.name == name);
    row.map_or(Ok(Exit::Success), |row| (row.run)(matches))
}

/// Adds how a value is written that begins as an option does.
fn with_tip(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg)
        && argument
            .strip_prefix('-')
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    {
        let tip = "a value that begins with - follows a =, as in --rank.ttl=-5m";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Parses the arguments of a sidecar without those that are unknown; if that is not enough,
/// without any.
fn parsed_by_a_sidecar(
    mut arguments: Vec<OsString>,
    error: clap::Error,
) -> Result<ArgMatches, clap::Error> {
    let is_serving = arguments.get(1).is_some_and(|argument| argument == serve::SERVE.name);
    if !is_serving || !error.use_stderr() || !is_sidecar(&arguments) {
        return Err(error);
    }
    let (mut unknown, mut is_bare, mut wrong) = (Vec::new(), false, error);
    loop {
        // The first line names the argument; the rest is help.
        let text = wrong.to_string();
        let line = text.lines().next().unwrap_or_default();
        let line = line.strip_prefix("error: ").unwrap_or(line);
        let line = shown_in(line);
        unknown.push(OsString::from(format!("--{UNKNOWN_ARGUMENT}={line}")));
        if !without_unknown(&mut arguments, &wrong) {
            if is_bare {
                return Err(wrong);
            }
            arguments.truncate(2);
            arguments.push("--sidecar".into());
            is_bare = true;
        }
        match fitted().try_get_matches_from(arguments.iter().chain(&unknown)) {
            Ok(matches) => return Ok(matches),
            Err(error) => wrong = error,
        }
    }
}

/// Removes the argument that an error calls unknown. Returns whether there is one.
fn without_unknown(arguments: &mut Vec<OsString>, error: &clap::Error) -> bool {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidArg) else {
        return false;
    };
    let n_arguments = arguments.len();
    if error.kind() == ErrorKind::UnknownArgument {
        arguments.retain(|argument| {
            let text = argument.to_string_lossy();
            text.split_once('=').map_or(&*text, |(flag, _)| flag) != name.as_str()
        });
    }
    arguments.len() < n_arguments
}

/// The command line, with help as wide as the reader's terminal.
fn fitted() -> Command {
    let columns = Reader::of_stdout().columns.unwrap_or(COLUMNS);
    command().term_width(columns.min(COLUMNS))
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
        .subcommands(GENERATORS.iter().map(|row| (row.arguments)()))
}
