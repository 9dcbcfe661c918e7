//! `stepmem man`: the manual pages, made from the tables of commands and settings.

use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Arg, ArgMatches, Command};
use clap_mangen::Man;

use crate::commands::args::{CommandError, Exit, GeneratorRow, WrongArgument};
use crate::store::open::Unread;

/// `stepmem man`.
pub(super) const MAN: GeneratorRow = GeneratorRow { name: "man", arguments, run };

fn arguments() -> Command {
    Command::new("man")
        .about("Print a manual page, as in stepmem man serve | man -l -, or write all of them")
        .arg(
            Arg::new("COMMAND")
                .conflicts_with("directory")
                .help("Command that the page is about; the program itself unless given"),
        )
        .arg(
            Arg::new("directory")
                .long("directory")
                .value_name("DIR")
                .value_parser(clap::value_parser!(PathBuf))
                .help("Write the pages of the program and of all commands to this existing directory"),
        )
}

fn run(matches: &ArgMatches, program: Command) -> Result<Exit, CommandError> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    if let Some(directory) = matches.get_one::<PathBuf>("directory") {
        write_pages(&program, directory)?;
        return Ok(Exit::Success);
    }
    let shown = match matches.get_one::<String>("COMMAND") {
        Some(name) => program.find_subcommand(name).with_context(|| {
            let words = format!("{name:?} is not a command of {}", program.get_name());
            WrongArgument(words)
        })?,
        None => &program,
    };
    stdout().lock().write_all(&page(shown)?).map_err(anyhow::Error::from)?;
    Ok(Exit::Success)
}

/// Writes the page of a command and those of the commands below it.
fn write_pages(command: &Command, directory: &Path) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = directory.join(format!("{name}.1"));
    fs::write(&path, page(command)?).with_context(|| Unread(path.display().to_string()))?;
    let shown = command.get_subcommands().filter(|below| !below.is_hide_set());
    shown.into_iter().try_for_each(|below| write_pages(below, directory))
}

/// Returns the page of a command as roff.
fn page(command: &Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    let version = format!("stepmem {}", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone()).manual("stepmem").source(version).render(&mut page)?;
    Ok(page)
}
