//! `stepmem settings`: lists the settings, which are flags, variables of the environment and
//! keys of a file.

use std::io::{Write, stdout};

use clap::{ArgMatches, Command};

use crate::commands::args::{CommandError, CommandRow, Exit, setting_help};
use crate::commands::reader::Reader;
use crate::config::keys::FILE_VARIABLE;
use crate::config::table::SETTINGS;
use stepmem_types::format::page::{Indent, Page};

/// `stepmem settings`.
pub(super) const SETTINGS_LIST: CommandRow = CommandRow { name: "settings", arguments, run };

fn arguments() -> Command {
    Command::new("settings")
        .about("List the settings of serve, run and demo")
        .override_help(list())
}

fn run(_: &ArgMatches) -> Result<Exit, CommandError> {
    stdout().lock().write_all(list().as_bytes()).map_err(anyhow::Error::from)?;
    Ok(Exit::Success)
}

fn list() -> String {
    let mut page = Page::default().within(Reader::of_stdout().columns);
    let words = format!(
        "Settings of serve, run, demo and check. Each is a flag, an environment variable, or a key (its flag without the \
         dashes) of the TOML or YAML file that --config.file or {FILE_VARIABLE} names; a flag overrides a variable, \
         which overrides the file. Defaults are those of serve; stepmem run --help has those of run."
    );
    page.paragraph(Indent { first: 0, rest: 0 }, &words);
    for setting in SETTINGS {
        page.blank();
        page.line(&format!("--{} {}", setting.key, setting.value_name));
        page.paragraph(Indent { first: 6, rest: 6 }, &setting_help(setting, &[]));
    }
    page.into_text()
}
